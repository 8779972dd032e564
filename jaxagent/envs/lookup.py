"""Lookup: query a field or answer now, the smallest world in which a turn buys certainty.

Some fields are needed, all values are hidden. A query may fail and then only costs its turn. An answer fills every
needed field that was not seen with one letter, so guessing early succeeds with probability `num_values ** -unseen`.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxagent.envs.base import Observation, Split, StepOracle, StepResult
from jaxagent.envs.generated import GeneratedTasks, keyed_generator, parse_options
from jaxagent.envs.registry import EnvironmentEntry
from jaxagent.envs.replies import action_text, shown
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = "lookup"
MAX_FIELDS = 8
LETTERS = "abcd"
INVALID_REPLY = "noop"
_GENERATION = ("num_fields", "min_needed", "max_needed", "reveal_probability", "num_values", "retry")
_ACTION = re.compile(r"(?:query[ _-]?([1-9])|answer[ _-]?([a-z]))")
_TIE = 1e-12  # values that differ by less are equal


@dataclasses.dataclass(frozen=True)
class LookupOptions:
    """Options of the environment and of its tasks.

    Attributes:
      num_fields: fields of a task, at most 8.
      min_needed, max_needed: the number of needed fields is uniform between them.
      reveal_probability: chance of a query to reveal its field.
      num_values: letters that a field may hold, 2..4, uniform.
      retry: whether a wrong answer costs only its turn, instead of ending the episode.
      max_turns: full budget of every task.
      rendering: `chatty` sentences, or `compact` words for tiny models.
    """

    num_fields: int = 6
    min_needed: int = 2
    max_needed: int = 6
    reveal_probability: float = 0.75
    num_values: int = 3
    retry: bool = False
    max_turns: int = 12
    rendering: str = "chatty"

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        _require_count("num_fields", self.num_fields, 1, MAX_FIELDS)
        _require_count("max_needed", self.max_needed, 1, self.num_fields)
        _require_count("min_needed", self.min_needed, 1, self.max_needed)
        _require_count("num_values", self.num_values, 2, len(LETTERS))
        _require_count("max_turns", self.max_turns, 1, None)
        chance = self.reveal_probability
        if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0.0 < chance <= 1.0:
            raise UserError(f"env.options.reveal_probability must lie in (0, 1], got {chance!r}")
        if not isinstance(self.retry, bool):
            raise UserError(f"env.options.retry must be True or False, got {self.retry!r}")
        if self.rendering not in ("chatty", "compact"):
            raise UserError(f"env.options.rendering must be chatty or compact, got {self.rendering!r}")


def compact_words() -> tuple[str, ...]:
    """Every word that the compact rendering can produce, each with its leading space."""
    fields = [f" {kind}_{field}" for kind in ("need", "free", "found") for field in range(1, MAX_FIELDS + 1)]
    return (*fields, *(f" is_{letter}" for letter in LETTERS), " start", " miss", " noop", " right", " wrong")


def compact_replies() -> tuple[str, ...]:
    """The replies of the demonstrators; `noop` stands for all that is invalid."""
    queries = [f"query_{field}" for field in range(1, MAX_FIELDS + 1)]
    return (*queries, *(f"answer_{letter}" for letter in LETTERS), INVALID_REPLY)


class Lookup:
    """The environment. The task's data hold the world; the options say how it is shown."""

    def __init__(self, options: LookupOptions) -> None:
        """`reset` before anything else."""
        self.options = options
        self._ended = True

    @property
    def num_fields(self) -> int:
        """Fields of the present task, numbered from 1."""
        return len(self._values)

    @property
    def letters(self) -> str:
        """The letters that a field of the present task may hold."""
        return LETTERS[: self._data["num_values"]]

    @property
    def needed(self) -> frozenset[int]:
        """The fields that the answer needs."""
        return self._needed

    @property
    def unseen(self) -> list[int]:
        """The needed fields that were not revealed yet, in order."""
        return sorted(self._needed - self._known)

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts `task`; which queries fail comes from `seed`."""
        self._data, self._max_turns = task.data, task.max_turns
        self._values = str(task.data["values"])
        self._needed = frozenset(task.data["needed"])
        self._known: set[int] = set()
        self._tried: set[str] = set()
        self._generator = keyed_generator(NAME, "queries", seed)
        self._ended = False
        if self.options.rendering == "chatty":
            return self._observation(f"{self._rules()}\n{self._summary()}")
        kinds = [(field, "need" if field in self._needed else "free") for field in range(1, self.num_fields + 1)]
        return self._observation("".join(f" {kind}_{field}" for field, kind in kinds) + " start")

    def step(self, reply: str) -> StepResult:
        """Takes one reply; an invalid one costs the turn and changes nothing."""
        if self._ended:
            raise RuntimeError("lookup: no live episode; reset first")
        text = action_text(reply)
        parsed = _ACTION.fullmatch(text) if text else None
        if parsed and parsed[1] and int(parsed[1]) <= self.num_fields:
            return self._query(int(parsed[1]))
        if parsed and parsed[2] and parsed[2] in self.letters:
            return self._answer(parsed[2])
        wanted = f"Reply with {self._formats()}. Nothing has changed."
        if text is None:
            return self._result(" noop", f"That reply holds no action. {wanted}", error="no_action")
        return self._result(" noop", f'"{shown(text)}" is not an action. {wanted}', error="unknown_action")

    def close(self) -> None:
        """Nothing to free."""

    def oracle(self, turns_left: int | None = None) -> StepOracle:
        """The optimal actions of an agent that cannot see the values, and the turns to a sure answer if no query fails.

        Without `turns_left`: query an unseen needed field, else answer. With it: the actions of highest success
        probability, an early guess where that is best.
        """
        unseen = self.unseen
        if self._ended:
            return StepOracle((), None)
        distance = len(unseen) + 1
        queries = tuple(f"query_{field}" for field in unseen)
        ruled_out = self._ruled_out() if unseen else ""
        answers = tuple(f"answer_{letter}" for letter in self.letters if letter not in ruled_out)
        if not unseen or turns_left is None:
            return StepOracle(queries or answers, distance)
        guess, query = _action_values(len(unseen), len(ruled_out), turns_left, *_world(self._data))
        best = max(guess, query) - _TIE
        return StepOracle((answers if guess >= best else ()) + (queries if query >= best else ()), distance)

    def _query(self, field: int) -> StepResult:
        action, letter = f"query_{field}", self._values[field - 1]
        revealed = self._generator.random() < self._data["reveal_probability"]
        if field in self._known or revealed:
            self._known.add(field)
            return self._result(f" found_{field} is_{letter}", f"Field {field} is {letter}.", action)
        return self._result(" miss", f"The query of field {field} failed.", action)

    def _answer(self, letter: str) -> StepResult:
        action = f"answer_{letter}"
        if all(self._values[field - 1] == letter for field in self.unseen):
            self._ended = True
            return self._result(" right", "The answer is right.", action, reward=1.0, ended="success")
        if self._data["retry"]:
            self._tried.add(self._pattern(letter))
            return self._result(" wrong", f"The answer with {letter} is wrong.", action)
        self._ended = True
        return self._result(" wrong", f"The answer with {letter} is wrong.", action, ended="failure")

    def _pattern(self, letter: str) -> str:
        """The needed values that an answer with `letter` stands for now, one character a needed field."""
        return "".join(self._values[field - 1] if field in self._known else letter for field in sorted(self._needed))

    def _ruled_out(self) -> str:
        """The letters whose answer is known to be wrong: it stands for values that were tried already."""
        return "".join(letter for letter in self.letters if self._pattern(letter) in self._tried)

    def _result(
        self, words: str, sentence: str, action: str | None = None, *, reward=0.0, ended=None, error=None
    ) -> StepResult:
        text = words if self.options.rendering == "compact" else f"{sentence}\n{self._summary()}"
        info = {"valid": error is None, "action": action, "error": error}
        return StepResult(self._observation(text), reward, ended, info)

    def _observation(self, text: str) -> Observation:
        anchor = f"need:{_numbers(self._needed)};known:{_numbers(self._known)}"
        if self._tried:
            anchor += f";tried:{','.join(sorted(self._tried))}"
        return Observation(text, anchor)

    def _rules(self) -> str:
        letters = ", ".join(self.letters[:-1]) + f" or {self.letters[-1]}"
        chance = self._data["reveal_probability"]
        query = (
            f"A query shows its field with probability {chance:.3g}, else it fails."
            if chance < 1
            else "A query shows its field."
        )
        after = "you may go on" if self._data["retry"] else "the attempt has failed"
        return "\n".join(
            [
                f"There are {self.num_fields} fields. Each hides {letters}. You need {_listed(self._needed)}.",
                query,
                "To answer, name one letter: it fills every needed field that you have not seen.",
                f"If the answer is wrong, {after}.",
                f"Reply with {self._formats()}. You may think first inside <think></think>.",
            ]
        )

    def _formats(self) -> str:
        return f"query_1 to query_{self.num_fields}, or answer_ and one of the letters {', '.join(self.letters)}"

    def _summary(self) -> str:
        known = ", ".join(f"field {field} is {self._values[field - 1]}" for field in sorted(self._known)) or "nothing"
        return f"Known: {known}. Needed and not seen: {_listed(self.unseen) if self.unseen else 'none'}."


def make_environment(options: Mapping[str, Any]) -> Lookup:
    """A fresh environment; `UserError` on a bad option."""
    return Lookup(parse_options(LookupOptions, NAME, options))


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> GeneratedTasks:
    """Tasks of one split: which fields are needed, and what all fields hold."""
    parsed = parse_options(LookupOptions, NAME, options)
    described = {name: getattr(parsed, name) for name in _GENERATION}

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        return _draw_task(parsed, generator)

    return GeneratedTasks(
        NAME, draw, lambda data: parsed.max_turns, description=described, split=split, size=size, seed=seed
    )


def best_success(task: Task, budget: int) -> float:
    """The highest success probability within `budget` turns of an agent that cannot see the values, exactly.

    It depends on the number of needed fields alone; the values are averaged over.
    """
    return _value(len(task.data["needed"]), 0, budget, *_world(task.data))


def make_demonstrator(environment: Lookup, generator: np.random.Generator) -> Callable[[], str]:
    """One scripted player of mixed quality, drawn for the episode that `environment` is at the start of.

    80 % answer at turn max(1, floor(U * (m + 3))), U uniform and m the number of needed fields; 20 % query until all
    needed fields are seen, then answer. A query goes to a random field with probability 0.6, else to an unseen needed
    one; with nothing left to see both answer. The letter is uniform; 7 % of the replies are invalid. It never knows a
    budget.
    """
    early = generator.random() < 0.8
    answer_turn = max(1, int(generator.random() * (len(environment.needed) + 3))) if early else None
    turn = 0

    def reply() -> str:
        nonlocal turn
        turn += 1
        if generator.random() < 0.07:
            return INVALID_REPLY
        unseen = environment.unseen
        if not unseen or (answer_turn is not None and turn >= answer_turn):
            return f"answer_{environment.letters[int(generator.integers(len(environment.letters)))]}"
        if generator.random() < 0.6:
            return f"query_{int(generator.integers(1, environment.num_fields + 1))}"
        return f"query_{unseen[int(generator.integers(len(unseen)))]}"

    return reply


def _draw_task(options: LookupOptions, generator: np.random.Generator) -> dict[str, Any]:
    span = options.max_needed - options.min_needed + 1
    count = options.min_needed + int(generator.random() * span)
    order = np.argsort(generator.random(options.num_fields))
    values = [LETTERS[int(chance * options.num_values)] for chance in generator.random(options.num_fields)]
    return {
        "needed": sorted(int(field) + 1 for field in order[:count]),
        "values": "".join(values),
        "num_values": options.num_values,
        "reveal_probability": float(options.reveal_probability),
        "retry": options.retry,
    }


def _world(data: dict[str, Any]) -> tuple[int, float, bool]:
    return data["num_values"], data["reveal_probability"], data["retry"]


@functools.lru_cache(maxsize=4096)
def _value(unseen: int, ruled_out: int, turns: int, num_values: int, reveal: float, retry: bool) -> float:
    """Best success probability with `unseen` needed fields, `ruled_out` letters known to be wrong, and `turns` left."""
    return max(_action_values(unseen, ruled_out, turns, num_values, reveal, retry)) if turns else 0.0


def _action_values(
    unseen: int, ruled_out: int, turns: int, num_values: int, reveal: float, retry: bool
) -> tuple[float, float]:
    """(value of answering, value of querying an unseen needed field) with `turns` >= 1 left.

    The unseen values are uniform over the `num_values ** unseen - ruled_out` cases that no wrong answer has excluded (a
    wrong answer with letter v excludes "all unseen are v"). If a query shows a letter that was ruled out, "all the rest
    are that letter too" stays excluded; any other letter makes what was excluded irrelevant.
    """
    if unseen == 0:
        return 1.0, 0.0
    cases = num_values**unseen - ruled_out
    world = (num_values, reveal, retry)
    right = 1.0 / cases if ruled_out < num_values else 0.0
    answer = right
    if retry and 0.0 < right < 1.0:
        answer += (1.0 - right) * _value(unseen, ruled_out + 1, turns - 1, *world)
    rest = num_values ** (unseen - 1)
    excluded = ruled_out * (rest - 1) / cases
    fresh = (num_values - ruled_out) * rest / cases
    found = fresh * _value(unseen - 1, 0, turns - 1, *world)
    if excluded:
        found += excluded * _value(unseen - 1, 1, turns - 1, *world)
    return answer, reveal * found + (1.0 - reveal) * _value(unseen, ruled_out, turns - 1, *world)


def _numbers(fields: frozenset[int] | set[int]) -> str:
    return ",".join(str(field) for field in sorted(fields))


def _listed(fields: frozenset[int] | list[int]) -> str:
    names = [str(field) for field in sorted(fields)]
    return f"field {names[0]}" if len(names) == 1 else f"fields {', '.join(names[:-1])} and {names[-1]}"


def _require_count(name: str, value: Any, low: int, high: int | None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        limits = f"{low}..{high}" if high is not None else f"at least {low}"
        raise UserError(f"env.options.{name} must be a whole number, {limits}, got {value!r}")


ENTRY = EnvironmentEntry(NAME, make_environment, make_tasks, best_success, make_demonstrator, LookupOptions)
