"""BFCL-v3 multi-turn as an environment: user turns, tool calls, the benchmark's verdict.

    message 1 -> [calls -> results]* -> reply without a call -> message 2 -> ... -> last reply without a call: verdict

A turn of the library is one reply, so a user turn takes one closing reply and as many with calls as the agent likes.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from jaxagent.envs.base import Observation, Split, StepResult
from jaxagent.envs.bfcl import functions, package, tasks
from jaxagent.envs.bfcl.calls import Call, MalformedReplyError, RefusedCallError, check_call, parse_reply, readable
from jaxagent.envs.bfcl.expert import make_demonstrator
from jaxagent.envs.bfcl.world import World, check_magnitudes
from jaxagent.envs.generated import parse_options
from jaxagent.envs.listed import ListedTasks
from jaxagent.envs.registry import EnvironmentEntry
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = tasks.NAME
_MAX_ACTION = 400  # characters of the record of an action
_SHARED_RESULTS = 4  # the results of one reply share so many times `max_result_chars`
_LEAST_SHOWN = 40  # characters of any result


@dataclasses.dataclass(frozen=True)
class BfclOptions:
    """Options of the environment and of its tasks.

    Attributes:
      categories: of the entries; the default ones are those that the benchmark scores.
      classes: systems that a task may involve; all by default. Fewer make shorter prompts.
      docs: `full` function documents in the prompt (6 to 18 thousand characters a system), or signatures alone
        (`names`).
      tool_format: how calls are asked for and results shown: `tool_call` JSON blocks, or a `python` list. Both are
        understood in either case.
      max_turns: full budget of every task, in replies over all user turns.
      max_turns_per_user_turn: if given, the full budget is so many times the user turns instead.
      reward: `binary`, or the `share` of user turns passed before the first that failed.
      max_result_chars: longer results are shown with their middle left out, and those of one reply share four times as
        much; the verdict never depends on it.
      split_by: what is kept together: the `scenario`, or the `entry` alone, so that other variations of a panel task's
        scenario may have been trained on.
    """

    categories: tuple[str, ...] = tasks.SCORED
    classes: tuple[str, ...] = tuple(package.MODULES)
    docs: str = "full"
    tool_format: str = "tool_call"
    max_turns: int = 20
    max_turns_per_user_turn: int | None = None
    reward: str = "binary"
    max_result_chars: int = 2000
    split_by: str = "scenario"

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        for name, known in (("categories", tasks.CATEGORIES), ("classes", tuple(package.MODULES))):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not value or not all(item in known for item in value):
                raise UserError(f"env.options.{name} must be a list out of {', '.join(known)}, got {value!r}")
        for name, words in (
            ("docs", ("full", "names")),
            ("tool_format", ("tool_call", "python")),
            ("reward", ("binary", "share")),
            ("split_by", ("scenario", "entry")),
        ):
            if getattr(self, name) not in words:
                raise UserError(f"env.options.{name} must be {' or '.join(words)}, got {getattr(self, name)!r}")
        for name, least in (("max_turns", 1), ("max_turns_per_user_turn", 1), ("max_result_chars", 40)):
            value = getattr(self, name)
            if value is None and name == "max_turns_per_user_turn":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"env.options.{name} must be a whole number of at least {least}, got {value!r}")


class Bfcl:
    """The environment: two worlds, the agent's and the answer's, side by side."""

    def __init__(self, options: BfclOptions) -> None:
        """`reset` before anything else."""
        self.options = options
        self._ended = True

    @property
    def remaining(self) -> list[Call]:
        """The answer's calls of this user turn that the agent has not made in it, in order (for scripted experts)."""
        return [Call(name, arguments) for name, arguments in self._remaining]

    @property
    def offered(self) -> tuple[str, ...]:
        """The functions that may be called now."""
        return self._offered

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts `task`; nothing here is random."""
        del seed
        self._data, self._ended = task.data, False
        long_context = task.data["category"] in tasks.LONG
        worlds = [World(task.data["classes"], task.data["initial_config"], long_context=long_context) for _ in range(2)]
        self._world, self._gold = worlds
        self._keys = {name: self._world.key(name) for name in task.data["classes"]}
        self._results: collections.Counter[str] = collections.Counter()  # of all user turns so far
        self._user_turn, self._passed, self._failed = -1, 0, False
        self._progress = 0.0
        self._next_user_turn()
        listed = functions.described(self._offered, self.options.docs)
        return self._observation(f"{self._rules()}\n{listed}\n\nUser: {self._message()}")

    def step(self, reply: str) -> StepResult:
        """Takes one reply. One that tries to call and cannot be read costs the turn and changes nothing."""
        if self._ended:
            raise RuntimeError("bfcl: no live episode; reset first")
        try:
            calls = parse_reply(reply)
        except MalformedReplyError as error:
            text = f"{error} Nothing was executed. {self._format()}"
            return self._result(text, action=None, error=error.kind, good=False)
        return self._execute(calls) if calls else self._close_user_turn()

    def close(self) -> None:
        """Nothing to free."""

    def _execute(self, calls: list[Call]) -> StepResult:
        missing, differing = self._missing().total(), len(self._differing)
        shown, refusals, touched, planned = [], [], set(), False
        for call in calls:
            try:
                self._check(call)
            except RefusedCallError as refusal:
                refusals.append(refusal.kind)
                result = f"Error during execution: {refusal}"
            else:
                result = self._world.call(call.name, call.arguments)
                touched.add(functions.owners()[call.name])
                if [call.name, call.arguments] in self._remaining:
                    self._remaining.remove([call.name, call.arguments])
                    planned = True
            self._results[result] += 1
            shown.append((call.name, result))
        self._called = True
        self._observe_changes(touched)
        executed = bool(touched)
        nearer = self._missing().total() < missing or len(self._differing) < differing
        return self._result(
            self._shown(shown),
            action="; ".join(call.as_text() for call in calls)[:_MAX_ACTION],
            error=None if executed else refusals[0],
            good=executed and (planned or nearer),
        )

    def _check(self, call: Call) -> None:
        """Raises `RefusedCallError` where a call must not be executed."""
        if call.name not in self._offered:
            name = call.name[:64]
            raise RefusedCallError("unknown_function", f"there is no function {name!r} among those offered.")
        check_call(call)
        check_magnitudes(call)

    def _close_user_turn(self) -> StepResult:
        """The verdict on this user turn, then the next message or the end."""
        passed = self._passes()
        self._failed |= not passed
        self._passed += not self._failed
        user_turns = len(self._data["gold"])
        if self._user_turn + 1 < user_turns:
            self._next_user_turn()
            reveal = self._revealed()
            return self._result(f"{reveal}User: {self._message()}", action="done", good=passed)
        self._ended = True
        share = self._passed / user_turns if self.options.reward == "share" else 0.0
        ended, reward, text = ("failure", share, "All requests are closed.")
        if not self._failed:
            ended, reward = "success", 1.0
        return self._result(text, action="done", good=passed, reward=reward, ended=ended)

    def _next_user_turn(self) -> None:
        """Moves the answer's world to the end of the next user turn: that is what the agent's must become."""
        self._user_turn += 1
        gold = self._data["gold"][self._user_turn]
        self._gold_results = collections.Counter(self._gold.call(name, arguments) for name, arguments in gold)
        self._remaining = [list(call) for call in gold]
        self._called = False
        self._differing = self._world.differences(self._gold)
        self._needed_at_start = self._needed()
        withheld = {
            name for turn, names in self._data["withheld"].items() if int(turn) > self._user_turn for name in names
        }
        self._offered = functions.offered(self._data["classes"], withheld)

    def _passes(self) -> bool:
        """The benchmark's check of a user turn: nothing to check without gold calls; otherwise some call was made, the
        public state equals gold's, and the results so far contain gold's of this user turn."""
        if not self._gold_results:
            return True
        return self._called and not self._differing and not self._missing()

    def _missing(self) -> collections.Counter[str]:
        """Gold's results of this user turn that the agent has not obtained, in this user turn or before."""
        return self._gold_results - self._results

    def _needed(self) -> int:
        """How much is missing: results, and public attributes that differ."""
        return self._missing().total() + len(self._differing)

    def _observe_changes(self, touched: set[str]) -> None:
        if not touched:
            return
        classes = sorted(touched)
        kept = {pair for pair in self._differing if pair[0] not in touched}
        self._differing = kept | self._world.differences(self._gold, classes)
        self._keys |= {name: self._world.key(name) for name in classes}

    def _nearness(self) -> float:
        """Share of the answer's calls and closing replies that is done, up to the first user turn that failed."""
        gold = self._data["gold"]
        done = sum(len(turn) + 1 for turn in gold[: self._passed])
        if not self._ended and not self._failed and self._gold_results:
            start, now = self._needed_at_start, self._needed()
            share = max(0.0, 1.0 - now / start) if start else float(now == 0)
            done += share * len(gold[self._user_turn])
        return done / sum(len(turn) + 1 for turn in gold)

    def _result(self, text: str, *, action, error=None, good, reward=0.0, ended=None) -> StepResult:
        if error is None:
            self._progress = self._nearness()
        info = {"valid": error is None, "action": action, "error": error}
        info |= {"good": bool(good), "progress": self._progress}
        return StepResult(self._observation(text), reward, ended, info)

    def _observation(self, text: str) -> Observation:
        """The text, and the key of the state: user turn, systems with their private parts, offered functions, text."""
        text = readable(text)
        state = [self._user_turn, sorted(self._keys.items()), self._offered, text]
        return Observation(text, hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest())

    def _rules(self) -> str:
        if self.options.docs == "names":
            return f"{self._format()} Functions:"
        return (
            "You serve a user by calling functions. Use no other means, and ask the user where something is missing "
            f"that you cannot find out.\n{self._format()}\n"
            "A reply without a call says that you are done with the user's request; then the next one follows, if any. "
            "The functions are:"
        )

    def _format(self) -> str:
        if self.options.tool_format == "python":
            return "Call with a reply such as [f(a=1), g(b='x')]; a reply without a call ends the request."
        return (
            'Call with <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>, one or several in a reply; '
            "a reply without a call ends the request."
        )

    def _message(self) -> str:
        message = self._data["messages"][self._user_turn]
        return message or "Please go on with what I asked for; the functions above are now available too."

    def _revealed(self) -> str:
        names = self._data["withheld"].get(str(self._user_turn), [])
        return f"New functions:\n{functions.described(names, self.options.docs)}\n\n" if names else ""

    def _shown(self, results: list[tuple[str, str]]) -> str:
        """The results of a reply's calls, in order; the middle of long ones is left out."""
        most = self.options.max_result_chars
        half = min(most, max(_LEAST_SHOWN, _SHARED_RESULTS * most // len(results))) // 2
        lines = []
        for name, result in results:
            if len(result) > 2 * half:
                result = f"{result[:half]} ... {len(result) - 2 * half} characters left out ... {result[-half:]}"
            python = self.options.tool_format == "python"
            lines.append(f"{name[:64]}: {result}" if python else f"<tool_response>\n{result}\n</tool_response>")
        return "\n".join(lines)


def make_environment(options: Mapping[str, Any]) -> Bfcl:
    """A fresh environment; `UserError` on a bad option, or where the package with the systems is missing."""
    parsed = parse_options(BfclOptions, NAME, options)
    functions.owners()
    return Bfcl(parsed)


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> ListedTasks:
    """Tasks of one split: entries of the benchmark, in an order keyed by `seed`."""
    parsed = parse_options(BfclOptions, NAME, options)

    def max_turns(data: dict[str, Any]) -> int:
        each = parsed.max_turns_per_user_turn
        return parsed.max_turns if each is None else each * len(data["gold"])

    return tasks.make_source(
        categories=parsed.categories,
        classes=parsed.classes,
        split_by=parsed.split_by,
        max_turns=max_turns,
        split=split,
        size=size,
        seed=seed,
    )


def best_success(task: Task, budget: int) -> float:
    """1 where the answer fits into `budget` replies, else 0: of an agent that knows what the calls will return."""
    return float(budget >= tasks.fewest_turns(task.data))


ENTRY = EnvironmentEntry(NAME, make_environment, make_tasks, best_success, make_demonstrator, BfclOptions)
