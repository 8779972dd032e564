"""Task sources: generated tasks without end, and the real questions in three fixed parts."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxagent.envs.base import Split, content_id, split_by_sixteenths, split_of
from jaxagent.envs.generated import GeneratedTasks, keyed_generator, parse_options
from jaxagent.envs.intercode_sql.data import load_questions
from jaxagent.envs.intercode_sql.generated_tasks import draw_task, is_proper
from jaxagent.envs.intercode_sql.options import NAME, InterCodeSqlOptions
from jaxagent.envs.listed import ListedTasks, check_request
from jaxagent.episodes import Task
from jaxagent.errors import UserError

PANEL_SIXTEENTHS, HELD_OUT_SIXTEENTHS = 3, 1  # of the real questions, which are few


def minimal_turns(data: Mapping[str, Any]) -> int:
    """Turns of a player who knows the schema: the gold query, and `submit` where that is needed."""
    return 2 if data["mode"] == "submit" else 1


def discovery_turns(data: Mapping[str, Any]) -> int:
    """Turns of the careful player: list the tables, describe each that is needed, then as `minimal_turns`."""
    return 1 + len(data["tables"]) + minimal_turns(data)


def best_success(task: Task, budget: int) -> float:
    """1 where the budget allows the gold query (and `submit`), else 0: an ideal policy may guess the schema."""
    return float(budget >= minimal_turns(task.data))


def listed_questions(options: InterCodeSqlOptions, split: Split, size: int, seed: int) -> ListedTasks:
    """At most `size` real questions of one split, in an order drawn from `seed`; two wordings of one query are never in
    two splits.

    Raises:
      UserError: an unknown split, data that were not brought, or a panel or held-out set that is larger than what
        there is; training takes what there is.
    """
    check_request(split, size)
    mine = [question for question in load_questions() if _split_of_question(question) == split]
    if split != "train" and size > len(mine):
        raise UserError(f"{NAME}: {size} {split} tasks are asked for, the real questions have {len(mine)}")
    order = np.argsort(keyed_generator(NAME, "questions", split, seed).random(len(mine)), kind="stable")
    return ListedTasks([_task(mine[int(index)], options, split) for index in order[:size]])


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> GeneratedTasks | ListedTasks:
    """Tasks of one split."""
    parsed = parse_options(InterCodeSqlOptions, NAME, options)
    if parsed.source == "spider":
        return listed_questions(parsed, split, size, seed)
    described = {name: getattr(parsed, name) for name in ("mode", "levels", "names")}

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        data = draw_task(generator, levels=tuple(parsed.levels), num_names=parsed.names)
        return data | {"mode": parsed.mode}

    def admit(data: dict[str, Any]) -> int | None:
        return parsed.max_turns if is_proper(data) else None

    return GeneratedTasks(NAME, draw, admit, description=described, split=split, size=size, seed=seed)


def _split_of_question(question: Mapping[str, Any]) -> Split:
    """By the query, not by its wording."""
    key = f"{question['database']}\n{' '.join(question['gold'].lower().split())}"
    return split_by_sixteenths(key, person=b"sql", panel=PANEL_SIXTEENTHS, held_out=HELD_OUT_SIXTEENTHS)


def _task(question: dict[str, Any], options: InterCodeSqlOptions, split: Split) -> Task:
    """The id ends in the first number that puts it into its split, so that `split_of` agrees."""
    data = {"source": "spider", "mode": options.mode, **question}
    stem = content_id(NAME, data)
    task_id = next(name for name in (f"{stem}-{n}" for n in itertools.count()) if split_of(name) == split)
    return Task(NAME, task_id, data, options.max_turns)
