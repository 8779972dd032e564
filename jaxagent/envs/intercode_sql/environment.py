"""The environment: one SQL statement or `submit` a reply, the reward by the result that stands.

A database without a schema in the prompt: tables and columns must be asked for, or guessed. Statements run on a copy of
the episode's own that can only be read; the gold query runs on another. Where the task has other rows for its tables,
what earns something runs on those too and keeps the smaller reward.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxagent.envs.base import InfrastructureError, Observation, StepResult
from jaxagent.envs.generated import parse_options
from jaxagent.envs.intercode_sql import demonstrators
from jaxagent.envs.intercode_sql.data import load_world
from jaxagent.envs.intercode_sql.database import (
    Database,
    Limits,
    QueryError,
    SqliteDatabase,
    bare,
    schema_read,
)
from jaxagent.envs.intercode_sql.options import NAME, InterCodeSqlOptions
from jaxagent.envs.intercode_sql.rewards import Row, canonical_reward, canonical_row, intercode_reward
from jaxagent.envs.intercode_sql.tasks import best_success, make_tasks
from jaxagent.envs.intercode_sql.world import World
from jaxagent.envs.registry import EnvironmentEntry
from jaxagent.envs.replies import block_text
from jaxagent.episodes import Task

MAX_STATEMENT_CHARS = 16_000
MAX_ERROR_CHARS = 300
_LANGUAGE = re.compile(r"(?:sql|mysql|sqlite|mariadb)\b\s*(?=\S)", re.IGNORECASE)
# Statements that may be tried, refused ones among them; anything else is prose.
_STATEMENT = re.compile(
    r"\(|(?:select|with|values|show|desc|describe|explain|pragma|insert|update|delete|replace|create|drop|alter|attach|"
    r"detach|vacuum|analyze|reindex|begin|commit|rollback|savepoint|release|set|use|call|load|grant|truncate|table|do|"
    r"handler|lock|unlock|rename|execute|prepare|kill)\b",
    re.IGNORECASE,
)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n\u00a0-\ud7ff\uf900-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass
class _Progress:
    """What the episode has achieved, for `good` and `progress`; the agent never sees it."""

    best: float = 0.0
    listed: bool = False
    described: set[str] = dataclasses.field(default_factory=set)


class InterCodeSql:
    """The environment. The task's data hold the question and, where it is generated, the database."""

    def __init__(self, options: InterCodeSqlOptions, open_database: Callable[[World, Limits], Database]) -> None:
        """`open_database` gives an episode's own database; `reset` before anything else."""
        self.options = options
        self._open = open_database
        self._limits = Limits(operations=options.max_operations, seconds=options.max_seconds)
        self._database: Database | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts `task`; nothing is random. Raises `InfrastructureError` where the gold query fails."""
        del seed
        self.close()
        self.data = task.data
        self.world = _world_of(task.data)
        self._gold = self._gold_rows(self.world)
        other_rows = task.data.get("check_rows")
        self._other = self.world.with_rows(other_rows) if other_rows else None
        self._other_gold: list[Row] | None = None  # run at its first use: most statements earn nothing
        self._database = self._open(self.world, self._limits)
        self._result: list[Row] | None = None
        self._score = 0.0  # of the result that stands
        self._progress = _Progress()
        self.last_error: str | None = None
        self._error_text = ""
        compact = self.options.rendering == "compact"
        return Observation(task.data["words"] if compact else self._rules(), "start")

    def step(self, reply: str) -> StepResult:
        """Takes one reply; an invalid one costs the turn and changes nothing.

        Raises:
          InfrastructureError: a database failed that is not the agent's doing.
        """
        if self._database is None:
            raise RuntimeError("intercode_sql: no live episode; reset first")
        statement, fault = _statement(reply)
        if statement is None:
            wanted = "Reply with one SQL statement in a ```sql block, or with submit. Nothing has changed."
            return self._answer(" noop", f"{fault[1]} {wanted}", error=fault[0])
        if statement == demonstrators.SUBMIT:
            return self._submit()
        return self._query(statement)

    def close(self) -> None:
        """Frees the episode's database; safe to call twice."""
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def has_result(self) -> bool:
        """Whether a result stands that `submit` would score."""
        return self._result is not None

    def _query(self, statement: str) -> StepResult:
        try:
            self._result, self.last_error = self._database.run(statement), None
        except QueryError as error:
            self._result, self._score, self.last_error = None, 0.0, error.kind
            self._error_text = message = _printable(str(error))[:MAX_ERROR_CHARS]
            words = _error_word(message)
            return self._answer(words, f"Error executing query: {message}", action=statement, error=error.kind)
        self._score = reward = self._grade(statement)
        good = self._learns(statement) | (reward > self._progress.best)
        self._progress.best = max(self._progress.best, reward)
        words, sentence = self._result_in_words(statement), shown_rows(self._result, self.options)
        if self.data["mode"] == "submit":
            return self._answer(words, sentence, action=statement, good=good)
        sentence += f"\nReward: {reward:.2f}"
        if reward == 1.0:
            return self._answer(" right", sentence, action=statement, good=True, reward=1.0, ended="success")
        return self._answer(words, sentence, action=statement, good=good)

    def _submit(self) -> StepResult:
        reward = self._score
        won = reward == 1.0
        if self.options.reward == "exact" and not won:
            reward = 0.0
        sentence = "The result is right." if won else "The result is not right."
        if not won and self._compared(self._result, self._gold) == 1.0:
            sentence = "The query is not right: on other rows of the same tables it gives another answer."
        ended = "success" if won else "failure"
        word = " right" if won else " wrong"
        return self._answer(word, sentence, action=demonstrators.SUBMIT, good=won, reward=reward, ended=ended)

    def _grade(self, statement: str) -> float:
        """The reward in [0, 1] of the result that stands, which `statement` gave."""
        score = self._compared(self._result, self._gold)
        if self._other is None or score == 0.0:
            return score
        return min(score, self._score_on_other_rows(statement))

    def _compared(self, result: list[Row] | None, gold: list[Row]) -> float:
        """The reward of a result; a statement without one gives 0."""
        if result is None:
            return 0.0
        if self.options.strict_intercode:
            return max(0.0, intercode_reward(result, gold))
        return canonical_reward(result, gold, ordered=self.data["ordered"])

    def _score_on_other_rows(self, statement: str) -> float:
        """As `_grade`, of what the statement gives there; an error gives 0."""
        if self._other_gold is None:
            self._other_gold = self._gold_rows(self._other)
        database = self._open(self._other, self._limits)
        try:
            return self._compared(database.run(statement), self._other_gold)
        except QueryError:
            return 0.0
        finally:
            database.close()

    def _gold_rows(self, world: World) -> list[Row]:
        """The gold result, from a database that no agent has touched."""
        database = self._open(world, Limits())
        try:
            return database.run(self.data["gold"]) or []
        except QueryError as error:
            raise InfrastructureError("verifier", f"the gold query fails: {error}") from None
        finally:
            database.close()

    def _learns(self, statement: str) -> bool:
        """Whether the statement shows schema that the question needs and that was not shown before."""
        read = schema_read(statement)
        if read is None:
            return False
        if read.lists_tables:
            first = not self._progress.listed and len(self._progress.described) < len(self.data["tables"])
            self._progress.listed = True
            return first
        needed = read.table.lower() in {table.lower() for table in self.data["tables"]}
        first = needed and read.table.lower() not in self._progress.described
        self._progress.described.add(read.table.lower())
        return first

    def _answer(
        self, words: str, sentence: str, *, action=None, error=None, good=False, reward=0.0, ended=None
    ) -> StepResult:
        info = {
            "valid": action is not None,
            "action": action,
            "error": error,
            "good": bool(good),
            # An exact result that was given up again is not arrival.
            "progress": 1.0 if self._score == 1.0 else min(self._progress.best, 0.99),
        }
        text = words if self.options.rendering == "compact" else sentence
        observation = Observation(text, self._anchor())
        if ended:
            self.close()
        return StepResult(observation, reward, ended, info)

    def _anchor(self) -> str:
        """The database never changes, so the state is what stands: the last result or error, else the start."""
        if self.last_error is not None:
            return f"error:{_digest(self._error_text)}"
        if self._result is None:
            return "start"
        return f"rows:{_digest(repr([canonical_row(row) for row in self._result]))}"

    def _rules(self) -> str:
        dialect = self._database.dialect
        lines = [
            f"Answer a question by querying the {dialect} database `{self.world.name}`, which can only be read.",
            "You do not see its schema: SHOW TABLES lists the tables, DESCRIBE t the columns of table t.",
            "Reply with one SQL statement in a ```sql block. Its result is shown to you as a list of rows.",
        ]
        if self.data["mode"] == "submit":
            lines.append(
                "When the last result answers the question, reply with submit: it is scored, and you are done."
            )
        else:
            lines.append("Every result is scored at once, and you are done as soon as one answers the question.")
        if self._other is not None:
            lines.append(
                "A query must answer the question by itself: it is scored on other rows of the same tables as well."
            )
        if self.options.show_schema:
            tables = (f"{t.name}({', '.join(column.name for column in t.columns)})" for t in self.world.tables)
            lines.append(f"Tables: {'; '.join(tables)}.")
        return "\n".join(
            [*lines, "You may think first inside <think></think>.", "", f"Question: {self.data['question']}"]
        )

    def _result_in_words(self, statement: str) -> str:
        read = schema_read(statement)
        if read is not None and self._result:
            kind = " tables" if read.lists_tables else " columns"
            return kind + "".join(f" {row[0]}" for row in self._result)
        return " empty" if not self._result else " row" if len(self._result) == 1 else " rows"


def shown_rows(rows: list[Row] | None, options: InterCodeSqlOptions) -> str:
    """Rows as a Python list of tuples, as InterCode shows them, cut to the options' limits with a note."""
    if rows is None:
        return "None"
    text = _printable(str(rows[: options.shown_rows]))
    if len(rows) <= options.shown_rows and len(text) <= options.shown_chars:
        return text
    return f"{text[: options.shown_chars]} ... ({len(rows)} rows in all)"


def _statement(reply: str) -> tuple[str | None, tuple[str, str]]:
    """(the SQL statement or `submit` in a reply, (kind, sentence) of the fault where there is none)."""
    text = block_text(reply)
    text = text[: MAX_STATEMENT_CHARS + 100].strip("` \t\r\n") if len(text) > MAX_STATEMENT_CHARS else text
    if text.strip(" .;`'\"*").lower() == demonstrators.SUBMIT:
        return demonstrators.SUBMIT, ("", "")
    if len(text) > MAX_STATEMENT_CHARS:
        return None, ("too_long", f"A statement may have {MAX_STATEMENT_CHARS} characters.")
    if "```" in text:
        return None, ("no_action", "That reply opens a block and does not close it.")
    language = _LANGUAGE.match(text)
    statement = text[language.end() :] if language else text
    if not _STATEMENT.match(bare(statement)):
        return None, ("no_action", "That reply holds no SQL statement.")
    return statement, ("", "")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _printable(text: str) -> str:
    """Without control characters, lone surrogates and private characters."""
    return _UNPRINTABLE.sub("?", text)


def _error_word(message: str) -> str:
    missing = re.match(r"no such (table|column)", message)
    return f" no_{missing[1]}" if missing else " error"


def _world_of(data: Mapping[str, Any]) -> World:
    return World.from_json(data["world"]) if data["source"] == "generated" else load_world(data["database"])


def compact_words() -> tuple[str, ...]:
    """Every word of the compact rendering and of the simplest queries, each with its leading space."""
    from jaxagent.envs.intercode_sql.generated_tasks import question_words, schema_names

    answers = "tables columns no_table no_column error noop empty row rows right wrong"
    sql = "SELECT COUNT(*) FROM WHERE > < ="
    words = (f" {word}" for word in f"{answers} {sql}".split())
    quoted = (f" '{word[1:]}'" for word in question_words() if word[1:].isalpha())
    return tuple(dict.fromkeys([*words, *question_words(), *quoted, *schema_names()]))


def compact_replies() -> tuple[str, ...]:
    """The replies that are one token of a tiny policy."""
    return (demonstrators.SHOW_TABLES, demonstrators.SUBMIT, demonstrators.INVALID_REPLY)


def make_environment(options: Mapping[str, Any]) -> InterCodeSql:
    """A fresh environment; `UserError` on a bad option, or where the MySQL server that is named cannot be reached."""
    parsed = parse_options(InterCodeSqlOptions, NAME, options)
    if not parsed.mysql:
        return InterCodeSql(parsed, SqliteDatabase)
    from jaxagent.envs.intercode_sql.mysql import MysqlServer  # needs a driver that most users do not have

    return InterCodeSql(parsed, MysqlServer(parsed.mysql).open)


ENTRY = EnvironmentEntry(
    NAME, make_environment, make_tasks, best_success, demonstrators.make_demonstrator, InterCodeSqlOptions
)
