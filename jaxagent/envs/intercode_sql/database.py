"""A world inside SQLite, safe to hand to an agent: a copy in memory that can only be read, within hard limits.

What agents are used to from MySQL (`SHOW TABLES`, `DESCRIBE t`, `SHOW COLUMNS FROM t`, `db.table`) is understood;
everything else is SQLite's dialect.
"""

import contextlib
import dataclasses
import functools
import re
import sqlite3
import time
import unicodedata
from typing import Protocol

from jaxagent.envs.intercode_sql.rewards import Row
from jaxagent.envs.intercode_sql.world import Table, World

TICK = 1000  # operations of SQLite's virtual machine between two looks at the limits
COLLATION = "general_ci"
HEAP_BYTES = 256 << 20  # SQLite's memory in this process: room for 800 episodes on the largest real database
_OPERATIONS_A_COMPARISON, _CHARS_A_COMPARISON = 5, 16  # what comparing two texts counts as: Python does it
_STOPPED = "timeout: the statement took too many steps and was stopped"
_CACHED_CHARS = 128  # of a text whose sort key is kept: longer ones would fill the memory
_VALUE_BYTES = 20_000  # longest text, blob or row; string functions take time quadratic in it, within one operation
_SIZE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: _VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 50,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "foreign_key_list"})
# Loads code, writes files, takes time or memory that no limit sees, or is not a function of the database.
_REFUSED_FUNCTIONS = frozenset(
    "load_extension readfile writefile edit fts3_tokenizer printf format zeroblob random randomblob".split()  # noqa: SIM905
)
_SHOW_TABLES = re.compile(r"show\s+(?:full\s+)?tables(?:\s+(?:from|in)\s+`?(\w+)`?)?", re.IGNORECASE)
_SHOW_DATABASES = re.compile(r"show\s+(?:databases|schemas)", re.IGNORECASE)
_NAME = r"(?:`?(\w+)`?\s*\.\s*)?([`\"]?)(\w+)\2"
_DESCRIBE = re.compile(
    rf"(?:desc|describe|show\s+(?:full\s+)?(?:columns|fields)\s+(?:from|in))\s+{_NAME}(?:\s+(?:from|in)\s+`?(\w+)`?)?",
    re.IGNORECASE,
)
_COMMENTS = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*.*?\*/)+", re.DOTALL)
_CATALOGUE = re.compile(
    r"\b(?:sqlite_(?:temp_)?(?:master|schema)|information_schema|pragma_table_list)\b", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one statement may take.

    Attributes:
      operations: steps of SQLite's virtual machine; about 20 million a second. Unlike a clock it cuts the same query at
        the same place on any machine.
      seconds: wall clock, the safety net behind it, and the limit of a MySQL server.
      rows: most rows of a result.
      result_bytes: most text in a result.
    """

    operations: int = 10_000_000
    seconds: float = 5.0
    rows: int = 10_000
    result_bytes: int = 1_000_000


class QueryError(Exception):
    """A statement that gave no result: `kind` is counted, the message is what the agent reads."""

    def __init__(self, kind: str, message: str) -> None:
        """`kind`: sql | forbidden | limit | too_large | bad_text."""
        super().__init__(message)
        self.kind = kind


class Database(Protocol):
    """What the environment needs of an engine; one object an episode."""

    dialect: str

    def run(self, statement: str) -> list[Row] | None:
        """The rows of one statement, None where it has no result; raises `QueryError` and nothing else."""
        ...

    def close(self) -> None:
        """Frees it; safe to call twice."""
        ...


@dataclasses.dataclass(frozen=True)
class SchemaRead:
    """What a statement asks about the schema: the list of tables, or the columns of one."""

    lists_tables: bool = False
    table: str | None = None


def schema_read(statement: str) -> SchemaRead | None:
    """What `statement` reads of the schema beside data, None where nothing."""
    text = bare(statement)
    if _SHOW_TABLES.fullmatch(text):
        return SchemaRead(lists_tables=True)
    if match := _DESCRIBE.fullmatch(text):
        return SchemaRead(table=match[3])
    if match := re.search(r"\bpragma(?:\s+|_)table_x?info\s*\(\s*['\"`]?(\w+)", text, re.IGNORECASE):
        return SchemaRead(table=match[1])
    return SchemaRead(lists_tables=True) if _CATALOGUE.search(text) else None


def bare(statement: str) -> str:
    """The statement without comments before it, and without white space and semicolons around it."""
    leading = _COMMENTS.match(statement)
    return statement[leading.end() if leading else 0 :].strip().rstrip("; \t\r\n")


class SqliteDatabase:
    """One episode's copy of a world."""

    dialect = "SQLite"

    def __init__(self, world: World, limits: Limits) -> None:
        """Copies the world; the original is made once a process and never handed out."""
        self._world, self._limits = world, limits
        self._connection = connection = _connect()
        connection.deserialize(_image(world))
        connection.create_collation(COLLATION, self._compare)
        # Table-valued functions declare themselves at first use, which the authorizer would take for a write.
        connection.execute("SELECT 1 FROM pragma_table_info(''), json_each('[]'), json_tree('[]')").close()
        for limit, value in _SIZE_LIMITS.items():
            connection.setlimit(limit, value)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(self._tick, TICK)
        self._ticks, self._deadline, self._comparing = 0, 0.0, 0

    def run(self, statement: str) -> list[Row] | None:
        """As `Database.run`."""
        text = bare(statement)
        if (answer := self._about_schema(text)) is not None:
            return answer
        self._ticks = self._limits.operations // TICK
        self._deadline = time.perf_counter() + self._limits.seconds
        self._comparing = self._limits.operations // _OPERATIONS_A_COMPARISON
        try:
            with contextlib.closing(self._connection.execute(_unqualified(text, self._world.name))) as cursor:
                rows = self._fetch(cursor) if cursor.description is not None else None
        except sqlite3.Error as error:
            raise self._explained(error) from None
        except (ValueError, UnicodeError) as error:  # NUL, lone surrogates
            raise QueryError("bad_text", f"the statement holds text that cannot be read: {error}") from None
        except (MemoryError, OverflowError):
            raise QueryError("limit", "out of memory") from None
        if self._comparing < 0:  # before another tick came: the rows may be in any order
            raise QueryError("limit", _STOPPED)
        return rows

    def close(self) -> None:
        """As `Database.close`."""
        self._connection.close()

    def _tick(self) -> bool:
        self._ticks -= 1
        return self._ticks < 0 or self._comparing < 0 or time.perf_counter() > self._deadline

    def _compare(self, first: str, second: str) -> int:
        """As `_compare_texts`, until too much was compared. A whole sort is one operation, and nothing stops it; where
        all texts are equal it is soon over."""
        if self._comparing < 0:
            return 0
        self._comparing -= 1 + (len(first) + len(second)) // _CHARS_A_COMPARISON
        return _compare_texts(first, second)

    def _fetch(self, cursor: sqlite3.Cursor) -> list[Row]:
        rows, size = [], 0
        for row in cursor:
            size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
            if len(rows) >= self._limits.rows or size > self._limits.result_bytes:
                raise too_large(self._limits)
            rows.append(row)
        return rows

    def _explained(self, error: sqlite3.Error) -> QueryError:
        message = str(error)
        if message == "interrupted":
            return QueryError("limit", _STOPPED)
        if "not authorized" in message or "authorization denied" in message:
            return QueryError("forbidden", f"{message}: the database can only be read")
        if "one statement at a time" in message:
            return QueryError("forbidden", "one statement at a time")
        if "null character" in message:
            return QueryError("bad_text", message)
        return QueryError("limit" if "too big" in message else "sql", message)

    def _about_schema(self, text: str) -> list[Row] | None:
        """The answer to a MySQL statement about the schema, None for any other statement."""
        if match := _SHOW_TABLES.fullmatch(text):
            self._check_database(match[1])
            return [(name,) for name in sorted((table.name for table in self._world.tables), key=str.lower)]
        if match := _DESCRIBE.fullmatch(text):
            self._check_database(match[1] or match[4])
            return list(self._table(match[3]).description())
        return [(self._world.name,)] if _SHOW_DATABASES.fullmatch(text) else None

    def _table(self, name: str) -> Table:
        table = self._world.table(name)
        if table is None:
            raise QueryError("sql", f"no such table: {name}")
        return table

    def _check_database(self, name: str | None) -> None:
        if name is not None and name.lower() != self._world.name.lower():
            raise QueryError("sql", f"unknown database {name}")


def too_large(limits: Limits) -> QueryError:
    """The error for a result beyond the limits."""
    return QueryError("too_large", f"the result has more than {limits.rows} rows or {limits.result_bytes} characters")


@functools.lru_cache(maxsize=128)
def _image(world: World) -> bytes:
    """The world as the bytes of a database file. Connections in a cache would outlive it: only the garbage collector
    frees one that nobody closed, and until then it counts against the heap limit."""
    with contextlib.closing(_connect()) as connection:
        for table in world.tables:
            connection.execute(create_table(table))
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({marks})", table.rows)
        return connection.serialize()


def create_table(table: Table) -> str:
    """The table in SQLite's DDL; texts compare by `COLLATION`."""
    parts = []
    for column in table.columns:
        nullable = "" if column.nullable else " NOT NULL"
        textual = f" COLLATE {COLLATION}" if "char" in column.type or "text" in column.type else ""
        parts.append(f"{_quoted(column.name)} {column.type}{nullable}{textual}")
    if table.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(_quoted, table.primary_key))})")
    for column, other, key in dict.fromkeys(table.foreign_keys):
        parts.append(f"FOREIGN KEY ({_quoted(column)}) REFERENCES {_quoted(other)} ({_quoted(key)})")
    return f"CREATE TABLE {_quoted(table.name)} (\n  " + ",\n  ".join(parts) + "\n)"


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=8)
    # Undecodable bytes (CAST(x'ff' AS TEXT)) must not raise.
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.create_collation(COLLATION, _compare_texts)
    # Sorting must not spill to disk, and must not take the machine's memory instead. The heap limit is the process's.
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")
    return connection


def _compare_texts(first: str, second: str) -> int:
    left = (_short_sort_key if len(first) <= _CACHED_CHARS else _sort_key)(first)
    right = (_short_sort_key if len(second) <= _CACHED_CHARS else _sort_key)(second)
    return (left > right) - (left < right)


@functools.lru_cache(maxsize=1 << 16)
def _short_sort_key(text: str) -> str:
    return _sort_key(text)


def _sort_key(text: str) -> str:
    """Without case, accents and trailing spaces, as the dump's collation (utf8mb4_general_ci) compares."""
    plain = text.rstrip(" ").upper()
    if plain.isascii():
        return plain
    return "".join(sign for sign in unicodedata.normalize("NFD", plain) if not unicodedata.combining(sign))


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Reading and nothing else."""
    if action in _READING:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (second or "").lower() in _REFUSED_FUNCTIONS else sqlite3.SQLITE_OK
    named_pragma = action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS
    return sqlite3.SQLITE_OK if named_pragma else sqlite3.SQLITE_DENY


def _unqualified(text: str, database: str) -> str:
    """`database.table` as `table`: there is no other database. Quoted text and comments stay as they are."""
    if database.lower() not in text.lower():
        return text
    pieces = r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\"(?:[^\"]|\"\")*\"(?!\s*\.)"
    qualifier = rf"(?<![\w.])(?P<mark>[`\"]?){re.escape(database)}(?P=mark)\s*\.\s*(?=[\w`\"])"
    return re.sub(
        f"{pieces}|{qualifier}",
        lambda found: "" if found["mark"] is not None else found[0],
        text,
        flags=re.IGNORECASE | re.DOTALL,
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
