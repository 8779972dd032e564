"""The environment: a reply is a whole program; visible tests answer each reply, hidden ones decide once those pass.

A program runs in a sandbox, one process a test (`envs.sandbox`); what a test expects stays outside (`judge`). The
episode ends when all visible tests pass, or on the reply `submit`: reward 1 if the last program passes every hidden
test, else 0.
"""

import dataclasses
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxagent.envs.base import Observation, Split, StepResult, TaskSource
from jaxagent.envs.deepcoder import families, tasks
from jaxagent.envs.deepcoder.demonstrator import make_demonstrator
from jaxagent.envs.deepcoder.judge import Verdict, job_of, judge
from jaxagent.envs.generated import parse_options
from jaxagent.envs.registry import EnvironmentEntry
from jaxagent.envs.replies import action_text, last_program
from jaxagent.envs.sandbox import SandboxOptions, shared_sandbox
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = tasks.NAME
SOURCES = ("generated", "deepcoder", "humaneval", "mbpp")
SUBMIT = "submit"
MAX_PROGRAM = 16_384  # characters; a longer program is an invalid reply
MAX_FEEDBACK = 2000  # characters of an observation after the first
_SHOWN = 300  # characters of an input, of an output, of an error
_OVERDUE = Verdict(False, "time", "time limit of all tests together")
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass(frozen=True)
class DeepCoderOptions:
    """Options of the environment and of its tasks.

    Attributes:
      source: generated, deepcoder and humaneval (from `path`, else from where `jaxagent data NAME` has put them), or
        mbpp (`path`).
      path: the file of the data set.
      max_turns: full budget of every task.
      public_tests: visible tests of generated and DeepCoder problems, at most.
      hidden_tests: hidden tests of generated problems.
      form: generated problems read standard input (`stdin`), are functions (`functional`), or `both`.
      families: names of generated families; empty for all.
      feedback_tests: failing tests that an observation shows.
      reward: `binary`, or `fraction`: where hidden tests fail, the share that pass (success still means all).
      step_seconds: after so long in one step every test that has not started is over its time limit. Keep it well below
        `env.step_timeout`, or a slow program could void its episode.
      anchor: `exact` (the last program, layout aside) or `coarse` (how it did on the visible tests).
      sandbox: limits of one program, see `SandboxOptions`.
    """

    source: str = "generated"
    path: str | None = None
    max_turns: int = 4
    public_tests: int = 2
    hidden_tests: int = 6
    form: str = "both"
    families: tuple[str, ...] = ()
    feedback_tests: int = 2
    reward: str = "binary"
    step_seconds: float = 20.0
    anchor: str = "exact"
    sandbox: SandboxOptions = dataclasses.field(default_factory=SandboxOptions)

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        choices = {"source": SOURCES, "form": ("stdin", "functional", "both"), "reward": ("binary", "fraction")}
        for name, allowed in {**choices, "anchor": ("exact", "coarse")}.items():
            _require(getattr(self, name) in allowed, name, f"one of {', '.join(allowed)}", getattr(self, name))
        for name, least in (("max_turns", 1), ("public_tests", 1), ("hidden_tests", 1), ("feedback_tests", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            _require(whole and value >= least, name, f"a whole number from {least} on", value)
        seconds = self.step_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        _require(number and seconds > 0, "step_seconds", "a positive number", seconds)
        listed = isinstance(self.families, list | tuple)
        _require(listed, "families", "a list of names of families", self.families)
        object.__setattr__(self, "families", tuple(self.families))
        unknown = set(self.families) - set(families.names())
        _require(not unknown, "families", f"among {', '.join(families.names())}", sorted(unknown))
        if self.source == "mbpp" and not self.path:
            raise UserError(f"env.options.source={self.source} needs env.options.path, the file of the data set")
        if not isinstance(self.sandbox, SandboxOptions):
            _require(isinstance(self.sandbox, Mapping), "sandbox", "a dictionary of limits", self.sandbox)
            object.__setattr__(self, "sandbox", parse_options(SandboxOptions, f"{NAME}.sandbox", self.sandbox))


class DeepCoder:
    """The environment. The sandbox is shared by all environments of this process with the same limits."""

    def __init__(self, options: DeepCoderOptions) -> None:
        """Raises `UserError` where no isolation is to be had. `reset` before anything else."""
        self.options = options
        self._sandbox = shared_sandbox(options.sandbox)
        self._ended = True

    @property
    def reference(self) -> str | None:
        """A program that passes, where the data have one; the agent never sees it."""
        return self._data.get("reference")

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts `task`. Nothing here is random."""
        del seed
        self._data = task.data
        self._program: str | None = None
        self._best, self._ran, self._ended = 0, False, False
        self._anchor = "start"
        return Observation(_printable(_statement(self._data)), self._anchor)

    def step(self, reply: str) -> StepResult:
        """Takes one reply; one without a program (or `submit`) costs the turn and changes nothing."""
        if self._ended:
            raise RuntimeError("deepcoder: no live episode; reset first")
        self._deadline = time.monotonic() + self.options.step_seconds
        program = last_program(reply)
        if program is None and self._program is not None and action_text(reply) == SUBMIT:
            return self._decide(SUBMIT, "Submitted.", good=None)
        if program is None:
            return self._invalid("no_program", "That reply holds no program.")
        if len(program) > MAX_PROGRAM:
            return self._invalid("too_long", f"The program is longer than {MAX_PROGRAM} characters.")
        return self._try(_encodable(program))

    def close(self) -> None:
        """The sandbox stays for the other environments of the process; nothing else is held."""

    def _try(self, program: str) -> StepResult:
        public = self._data["public"]
        verdicts, fingerprint = self._judge(program, public, all_of_them=True, fingerprinted=True)
        self._program = program
        passed = sum(verdict.passed for verdict in verdicts)
        runs = any(verdict.kind in ("ok", "wrong", "failed") for verdict in verdicts)
        good = passed > self._best or (runs and not self._ran)
        self._best, self._ran = max(self._best, passed), self._ran or runs
        self._anchor = self._anchor_of(program, fingerprint, verdicts)
        if passed == len(public):
            return self._decide("program", "All visible tests pass.", good=good)
        error = next((v.kind for v in verdicts if not v.passed and v.kind not in ("wrong", "failed")), None)
        return self._result(_feedback(public, verdicts, self.options.feedback_tests), "program", error=error, good=good)

    def _judge(
        self, program: str, tests: Sequence[Mapping[str, Any]], *, all_of_them: bool, fingerprinted: bool
    ) -> tuple[list[Verdict], str | None]:
        """(a verdict for each test, up to the first failure unless `all_of_them`; a fingerprint if wished)."""
        prelude = self._data["prelude"]
        jobs = [job_of(test, program, prelude, fingerprint=fingerprinted and test is tests[0]) for test in tests]
        verdicts: list[Verdict] = []
        fingerprint = None
        outcomes = self._sandbox.run(jobs)
        try:
            for test in tests:
                if time.monotonic() > self._deadline:
                    verdicts += [_OVERDUE] * (len(tests) - len(verdicts))
                    break
                outcome = next(outcomes)
                verdict = judge(test, outcome, self.options.sandbox.seconds)
                verdicts.append(verdict)
                fingerprint = fingerprint or outcome.fingerprint
                if verdict.kind == "syntax":
                    return [verdict] * len(tests), None
                if not verdict.passed and not all_of_them:
                    break
        finally:
            outcomes.close()
        return verdicts, fingerprint

    def _decide(self, action: str, sentence: str, *, good: bool | None) -> StepResult:
        """Runs the hidden tests on the last program and ends the episode."""
        hidden = self._data["hidden"]
        every = self.options.reward == "fraction"
        verdicts, _ = self._judge(self._program, hidden, all_of_them=every, fingerprinted=False)
        passed = sum(verdict.passed for verdict in verdicts)
        self._ended = True
        if passed == len(hidden):
            text = f"{sentence} The hidden tests pass too."
            return self._result(text, action, reward=1.0, ended="success", good=True)
        reward = passed / len(hidden) if self.options.reward == "fraction" else 0.0
        text = f"{sentence} Not all hidden tests pass."
        return self._result(text, action, reward=reward, ended="failure", good=bool(good))

    def _invalid(self, error: str, sentence: str) -> StepResult:
        text = f"{sentence} Reply with a whole program in a block that starts with ```python and ends with ```. "
        text += "Nothing has changed." if self._program is None else f"Nothing has changed; {SUBMIT} hands in the last."
        return self._result(text, None, error=error, good=False)

    def _result(self, text: str, action: str | None, *, reward=0.0, ended=None, error=None, good: bool) -> StepResult:
        progress = 1.0 if ended == "success" else self._best / (len(self._data["public"]) + 1)
        info = {"valid": action is not None, "action": action, "error": error, "good": good, "progress": progress}
        return StepResult(Observation(cut(_printable(text), MAX_FEEDBACK), self._anchor), reward, ended, info)

    def _anchor_of(self, program: str, fingerprint: str | None, verdicts: Sequence[Verdict]) -> str:
        if self.options.anchor == "coarse":
            return "tests:" + ",".join("passed" if verdict.passed else verdict.kind for verdict in verdicts)
        return f"program:{fingerprint or hashlib.blake2b(program.encode(), digest_size=8).hexdigest()}"


def cut(text: str, length: int) -> str:
    """`text`, or its head and tail with a mark between where it is longer than `length`."""
    if len(text) <= length:
        return text
    mark = f"\n... {len(text) - length} characters left out ...\n"
    head = (length - len(mark)) * 2 // 3
    return text[:head] + mark + text[len(text) - (length - len(mark) - head) :]


def make_environment(options: Mapping[str, Any]) -> DeepCoder:
    """A fresh environment; `UserError` on a bad option, or where no isolation is to be had."""
    return DeepCoder(parse_options(DeepCoderOptions, NAME, options))


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> TaskSource:
    """Problems of one split; see `tasks.make_tasks`."""
    return tasks.make_tasks(parse_options(DeepCoderOptions, NAME, options), split, size, seed)


def best_success(task: Task, budget: int) -> float:
    """1 from the first turn on: an ideal policy writes the right program at once."""
    del task
    return float(budget >= 1)


def _statement(data: Mapping[str, Any]) -> str:
    """The problem, what is there already, the visible tests, and how to reply."""
    parts = [data["statement"].strip()]
    if data["starter_code"]:
        parts.append(f"```python\n{data['starter_code'].rstrip()}\n```")
    shown = [text for text in map(_example, data["public"]) if text]
    if shown:
        parts.append("Visible tests:\n" + "\n".join(shown))
    parts.append(
        "Reply with a whole program in a block that starts with ```python and ends with ```. Each program is run on "
        "the visible tests, and you see how it does. Once it passes them all, hidden tests decide, and that is the end."
    )
    return "\n\n".join(parts)


def _example(test: Mapping[str, Any]) -> str:
    if test["kind"] == "stdin":
        return f"input:\n{cut(test['input'].rstrip(), _SHOWN)}\noutput:\n{cut(test['output'].rstrip(), _SHOWN)}"
    if test["kind"] == "functional":
        return cut(f"{_call_text(test)} gives {test['output']!r}", _SHOWN)
    return cut(test["shown"].strip(), _SHOWN) if test["shown"] else ""


def _call_text(test: Mapping[str, Any]) -> str:
    return f"{test['name']}({', '.join(map(repr, test['arguments']))})"


def _feedback(tests: Sequence[Mapping[str, Any]], verdicts: Sequence[Verdict], shown: int) -> str:
    failing = [index for index, verdict in enumerate(verdicts) if not verdict.passed]
    if verdicts[0].kind == "syntax":
        return f"The program does not compile: {verdicts[0].words}"
    lines = [f"{len(tests) - len(failing)} of {len(tests)} visible tests pass."]
    for index in failing[:shown]:
        test, verdict = tests[index], verdicts[index]
        lines.append(f"Test {index + 1}: {verdict.words}.")
        lines += [text for text in (_example(test),) if text]
        if verdict.got.strip() or verdict.kind == "wrong":
            label = "your program gave" if verdict.kind == "wrong" else "its error output"
            lines.append(f"{label}:\n{cut(verdict.got.strip() or '(nothing)', _SHOWN)}")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """`text` without control characters, NUL and lone surrogates among them."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _encodable(program: str) -> str:
    return program.encode("utf-8", "replace").decode()


def _require(holds: bool, name: str, what: str, value: Any) -> None:
    if not holds:
        raise UserError(f"env.options.{name} must be {what}, got {value!r}")


def demonstrator(environment: DeepCoder, generator: np.random.Generator) -> Callable[[], str]:
    """See `demonstrator.make_demonstrator`."""
    return make_demonstrator(environment.reference, generator)


ENTRY = EnvironmentEntry(NAME, make_environment, make_tasks, best_success, demonstrator, DeepCoderOptions)
