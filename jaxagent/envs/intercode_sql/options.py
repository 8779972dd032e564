"""The options of the environment and of its tasks."""

import dataclasses
from typing import Any

from jaxagent.envs.intercode_sql.generated_tasks import LEVELS
from jaxagent.envs.intercode_sql.themes import MAX_NAMES
from jaxagent.errors import UserError

NAME = "intercode_sql"
_CHOICES = {
    "source": ("generated", "spider"),
    "mode": ("submit", "try_again"),
    "reward": ("graded", "exact"),
    "rendering": ("chatty", "compact"),
}
_COUNTS = ("max_turns", "shown_rows", "shown_chars", "max_operations")


@dataclasses.dataclass(frozen=True)
class InterCodeSqlOptions:
    """Options of the environment and of its tasks.

    Attributes:
      source: `generated` databases and questions without end, or `spider`: the real ones (`jaxagent data
        intercode-sql`).
      levels: easiest and hardest level of generated questions, 1 filters, 2 aggregation and order, 3 joins, 4 set
        operations, 5 nesting.
      names: names that each generated table and column is drawn from, 1..3; 1: always the obvious one.
      mode: `submit`: a reply `submit` ends the episode and scores the last result; `try_again`: every result is scored
        and shown its reward, the exact one ends the episode.
      strict_intercode: InterCode's own reward, with its peculiarities, instead of the canonical comparison.
      reward: `graded` in [0, 1], or `exact`: 1 for the right result and 0 for any other.
      show_schema: name tables and columns in the prompt (InterCode's handicap).
      max_turns: full budget of every task.
      shown_rows, shown_chars: what an observation shows of a result, as InterCode's experiments cut it.
      max_operations: steps of SQLite's virtual machine a statement may take, about 20 million a second.
      max_seconds: wall clock a statement may take.
      mysql: `unix:PATH` or `HOST:PORT` of a MySQL or MariaDB server that runs the statements; empty: SQLite.
      rendering: `chatty` sentences, or `compact` words for tiny models (generated tasks).
    """

    source: str = "generated"
    levels: tuple[int, int] = (1, 5)
    names: int = MAX_NAMES
    mode: str = "submit"
    strict_intercode: bool = False
    reward: str = "graded"
    show_schema: bool = False
    max_turns: int = 10
    shown_rows: int = 50
    shown_chars: int = 1000
    max_operations: int = 10_000_000
    max_seconds: float = 5.0
    mysql: str = ""
    rendering: str = "chatty"

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        for name, choices in _CHOICES.items():
            _require(getattr(self, name) in choices, name, " or ".join(choices), getattr(self, name))
        for name in _COUNTS:
            _require(_is_count(getattr(self, name)), name, "a whole number from 1", getattr(self, name))
        for name in ("strict_intercode", "show_schema"):
            _require(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        _require(_is_count(self.names) and self.names <= MAX_NAMES, "names", f"1..{MAX_NAMES}", self.names)
        two = isinstance(self.levels, list | tuple) and len(self.levels) == 2 and all(map(_is_count, self.levels))
        rising = two and self.levels[0] <= self.levels[1] <= max(LEVELS)
        _require(rising, "levels", f"two rising numbers in 1..{max(LEVELS)}", self.levels)
        seconds = self.max_seconds
        positive = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
        _require(positive, "max_seconds", "a positive number", seconds)
        _require(isinstance(self.mysql, str), "mysql", "unix:PATH or HOST:PORT", self.mysql)
        known = self.rendering == "chatty" or self.source == "generated"
        _require(known, "rendering", "chatty for source=spider", self.rendering)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(holds: bool, name: str, wanted: str, value: Any) -> None:
    if not holds:
        raise UserError(f"env.options.{name} must be {wanted}, got {value!r}")
