"""Task sources of DeepCoder-MT: generated problems, or a data set, split by content or as its README says."""

import hashlib
import itertools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxagent.envs.base import Split, TaskSource, content_id, split_of
from jaxagent.envs.deepcoder import families, problems
from jaxagent.envs.generated import GeneratedTasks
from jaxagent.envs.listed import ListedTasks
from jaxagent.episodes import Task
from jaxagent.errors import UserError

if TYPE_CHECKING:
    from jaxagent.envs.deepcoder.environment import DeepCoderOptions

NAME = "deepcoder"
_INPUT_DRAWS = 60  # tries for tests that differ and whose answers do
MBPP_PANEL = range(11, 511)  # the task ids that its README keeps for evaluation
MBPP_HELD_OUT = range(511, 601)  # its validation ids


def make_tasks(options: "DeepCoderOptions", split: Split, size: int, seed: int) -> TaskSource:
    """At most `size` tasks of one split, in an order of `seed`; generated ones never run out.

    MBPP: task ids 11-510 are the panel, 511-600 held out, the others train. HumanEval is for evaluation alone: all of
    it is the panel. DeepCoder records are split by content.
    """
    if options.source == "generated":
        described = {name: getattr(options, name) for name in ("families", "form", "public_tests", "hidden_tests")}

        def draw(generator: np.random.Generator) -> dict[str, Any]:
            return generated_problem(options, generator)

        return GeneratedTasks(
            NAME, draw, lambda data: options.max_turns, description=described, split=split, size=size, seed=seed
        )
    loaded = _LOADERS[options.source](options)
    tasks = {}
    for data in loaded:
        task = Task(NAME, content_id(NAME, data), data, options.max_turns)
        if _split(task) == split:
            tasks[task.id] = task
    if not tasks:
        raise UserError(f"env.options.source={options.source} has no tasks in the split {split!r}")
    ordered = sorted(tasks.values(), key=lambda task: hashlib.blake2b(f"{seed} {task.id}".encode()).digest())
    return ListedTasks(ordered[:size])


def generated_problem(options: "DeepCoderOptions", generator: np.random.Generator) -> dict[str, Any]:
    """One problem of a random family with fresh inputs, as task data."""
    names = options.families or families.names()
    problem = families.draw_problem(names[int(generator.integers(len(names)))], generator)
    form = options.form if options.form != "both" else ("stdin", "functional")[int(generator.random() < 0.5)]
    drawn = _draw_arguments(problem, options.public_tests + options.hidden_tests, generator)
    tests = [(_stdin_test if form == "stdin" else _functional_test)(problem, arguments) for arguments in drawn]
    call = f"solve({', '.join(name for name, _ in problem.arguments)})"
    if form == "stdin":
        told = f"Input, in this order:\n{families.input_format(problem)}\nOutput: {families.output_format(problem)}."
    else:
        told = f"Define the function {call}, which returns the result."
    return {
        "origin": f"generated/{problem.family}",
        "statement": f"{problem.statement}\n\n{told}",
        "starter_code": "",
        "prelude": "",
        "public": tests[: options.public_tests],
        "hidden": tests[options.public_tests :],
        "reference": families.stdin_program(problem) if form == "stdin" else problem.program,
    }


def _draw_arguments(problem: families.Problem, count: int, generator: np.random.Generator) -> list[tuple[Any, ...]]:
    """Different inputs, those with new answers first: no answer is right for more than half where that can be had."""
    groups: dict[str, dict[str, tuple[Any, ...]]] = {}
    for _ in range(_INPUT_DRAWS):
        arguments = problem.draw(generator)
        answer = json.dumps(problem.solve(*json.loads(json.dumps(arguments))))
        groups.setdefault(answer, {})[json.dumps(arguments)] = arguments
        if sum(min(len(group), max(count // 2, 1)) for group in groups.values()) >= count:
            break
    turns = itertools.zip_longest(*(group.values() for group in groups.values()))
    drawn = [arguments for turn in turns for arguments in turn if arguments is not None]
    return list(itertools.islice(itertools.cycle(drawn), count))


def _stdin_test(problem: families.Problem, arguments: tuple[Any, ...]) -> dict[str, Any]:
    given = families.stdin_text(problem, arguments)
    return {"kind": "stdin", "input": given, "output": families.stdout_text(problem, problem.solve(*arguments))}


def _functional_test(problem: families.Problem, arguments: tuple[Any, ...]) -> dict[str, Any]:
    return {"kind": "functional", "name": "solve", "arguments": list(arguments), "output": problem.solve(*arguments)}


def _split(task: Task) -> Split:
    if task.data["origin"] == "humaneval":
        return "panel"
    if task.data["origin"] == "mbpp":
        number = task.data["number"]
        return "panel" if number in MBPP_PANEL else "held_out" if number in MBPP_HELD_OUT else "train"
    return split_of(task.id)


_LOADERS: dict[str, Callable[["DeepCoderOptions"], list[dict[str, Any]]]] = {
    "deepcoder": lambda options: problems.load_deepcoder(options.path, public_tests=options.public_tests),
    "humaneval": lambda options: problems.load_humaneval(options.path),
    "mbpp": lambda options: problems.load_mbpp(options.path),
}
