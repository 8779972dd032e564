"""The same worlds on a MySQL or MariaDB server, behind the same interface, for InterCode's own dialect.

Worlds become databases named by their content, once; statements run as an account that may read that database and
nothing else, in a session with a time limit.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
from typing import Any

from jaxagent.envs.base import InfrastructureError
from jaxagent.envs.intercode_sql.database import Limits, QueryError, bare, too_large
from jaxagent.envs.intercode_sql.rewards import Row
from jaxagent.envs.intercode_sql.world import Table, World
from jaxagent.errors import UserError

USER, PASSWORD = "JAXAGENT_MYSQL_USER", "JAXAGENT_MYSQL_PASSWORD"  # environment variables: never in a run folder
_PREFIX = "jaxagent_"
_BATCH = 500  # rows of one INSERT
_REMEMBERED = 64  # worlds: all real databases; generated ones come without end
_READING = re.compile(r"\(|(?:select|with|values|show|desc|describe|explain|table)\b", re.IGNORECASE)
_MUTE = re.compile(r"\binto\s+(?:outfile|dumpfile|@)|\bfor\s+update\b|\bsleep\s*\(|\bget_lock\s*\(", re.IGNORECASE)
_LOST = {2006, 2013, 2055}  # the server is gone: nobody's answer
_STOPPED = {1028, 1317, 1969, 3024}  # interrupted, or over the time limit
_DENIED = {1044, 1045, 1142, 1143, 1227, 1290, 1370, 1792}


class MysqlServer:
    """A server, and the worlds that it holds."""

    def __init__(self, address: str) -> None:
        """The server must compare table names without case (`lower_case_table_names=1`) for the real questions.

        `address`: `unix:PATH` or `HOST:PORT`; the account that makes databases is named by the environment variables
        `JAXAGENT_MYSQL_USER` (default root) and `JAXAGENT_MYSQL_PASSWORD` (default empty).

        Raises:
          UserError: no driver, a bad address, or no server there.
        """
        self._driver = _driver()
        self._target = _target(address)
        account = {"user": os.environ.get(USER, "root"), "password": os.environ.get(PASSWORD, "")}
        try:
            self._owner = self._driver.connect(**self._target, **account, autocommit=True)
        except self._driver.Error as error:
            raise UserError(f"env.options.mysql={address}: no connection: {error}") from None
        self._reader = {"user": f"{_PREFIX}{secrets.token_hex(6)}", "password": secrets.token_hex(16)}
        self._made: dict[int, tuple[World, str]] = {}
        with self._owner.cursor() as cursor:
            name, password = self._reader["user"], self._reader["password"]
            cursor.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{password}'")
            cursor.execute(f"CREATE USER '{name}'@'localhost' IDENTIFIED BY '{password}'")

    def open(self, world: World, limits: Limits) -> "MysqlDatabase":
        """An episode's own session on the world's database, which is made at first use."""
        try:
            name = self._provide(world)
            session = self._driver.connect(**self._target, **self._reader, database=name, autocommit=True)
            with session.cursor() as cursor:
                _set_limits(cursor, limits)
        except self._driver.Error as error:
            raise InfrastructureError("sandbox", f"the MySQL server failed: {error}") from None
        return MysqlDatabase(session, self._driver, limits)

    def close(self) -> None:
        """Takes the reading account away and leaves; the databases stay for the next run."""
        with contextlib.suppress(self._driver.Error), self._owner.cursor() as cursor:
            for host in ("%", "localhost"):
                cursor.execute(f"DROP USER '{self._reader['user']}'@'{host}'")
        self._owner.close()

    def _provide(self, world: World) -> str:
        """The name of the world's database. A content hash names it, so what is there already is right."""
        if id(world) in self._made:
            return self._made[id(world)][1]
        if len(self._made) >= _REMEMBERED:
            self._made.clear()
        name = _database_name(world)
        with self._owner.cursor() as cursor:
            cursor.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (name,))
            if cursor.fetchone() is None:
                _fill(cursor, world, name)
            for host in ("%", "localhost"):
                cursor.execute(f"GRANT SELECT ON `{name}`.* TO '{self._reader['user']}'@'{host}'")
        self._made[id(world)] = (world, name)  # keeps the world alive, hence its id its own
        return name


class MysqlDatabase:
    """One episode's session."""

    dialect = "MySQL"

    def __init__(self, session: Any, driver: Any, limits: Limits) -> None:
        """Takes over the session."""
        self._session, self._driver, self._limits = session, driver, limits

    def run(self, statement: str) -> list[Row] | None:
        """As `Database.run`; a lost server raises `InfrastructureError`."""
        text = bare(statement)
        if not _READING.match(text) or _MUTE.search(text):
            raise QueryError("forbidden", "the database can only be read")
        try:
            with self._session.cursor(self._driver.cursors.SSCursor) as cursor:
                cursor.execute(text)
                return self._fetch(cursor) if cursor.description is not None else None
        except self._driver.Error as error:
            raise self._explained(error) from None
        except (UnicodeError, ValueError) as error:
            raise QueryError("bad_text", f"the statement holds text that cannot be read: {error}") from None

    def close(self) -> None:
        """As `Database.close`."""
        with contextlib.suppress(self._driver.Error):
            self._session.close()

    def _fetch(self, cursor: Any) -> list[Row]:
        rows, size = [], 0
        while row := cursor.fetchone():
            size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
            if len(rows) >= self._limits.rows or size > self._limits.result_bytes:
                raise too_large(self._limits)
            rows.append(row)
        return rows

    def _explained(self, error: Exception) -> Exception:
        code, message = error.args[:2] if len(error.args) >= 2 else (0, str(error))
        if code in _LOST or isinstance(error, self._driver.InterfaceError):
            return InfrastructureError("sandbox", f"the MySQL server is gone: {message}")
        if code in _STOPPED:
            return QueryError("limit", "timeout: the statement took too long and was stopped")
        return QueryError("forbidden" if code in _DENIED else "sql", str(message))


def _driver() -> Any:
    try:
        import pymysql
    except ImportError:
        raise UserError("env.options.mysql needs a driver: pip install 'jaxagent[mysql]'") from None
    import pymysql.cursors

    return pymysql


def _target(address: str) -> dict[str, Any]:
    kind, separator, rest = address.partition(":")
    if kind == "unix" and rest.startswith("/"):
        return {"unix_socket": rest}
    if separator and kind and rest.isascii() and rest.isdigit():
        return {"host": kind, "port": int(rest)}
    raise UserError(f"env.options.mysql must be unix:PATH or HOST:PORT, got {address!r}")


def _database_name(world: World) -> str:
    content = json.dumps(world.to_json(), sort_keys=True).encode()
    return f"{_PREFIX}{hashlib.blake2b(content, digest_size=10).hexdigest()}"


def _fill(cursor: Any, world: World, name: str) -> None:
    """Makes the database under a name of its own and fills it; a half-made one is taken away again."""
    cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    try:
        for table in world.tables:
            cursor.execute(_create_table(table, name))
            marks = f"({', '.join(['%s'] * len(table.columns))})"
            for start in range(0, len(table.rows), _BATCH):
                batch = table.rows[start : start + _BATCH]
                values = ", ".join([marks] * len(batch))
                cells = [cell for row in batch for cell in row]
                cursor.execute(f"INSERT INTO `{name}`.{_quoted(table.name)} VALUES {values}", cells)
    except BaseException:
        cursor.execute(f"DROP DATABASE `{name}`")
        raise


def _create_table(table: Table, database: str) -> str:
    parts = [
        f"{_quoted(column.name)} {column.type} {'NULL' if column.nullable else 'NOT NULL'}" for column in table.columns
    ]
    if table.primary_key:
        long = {column.name for column in table.columns if column.type == "text"}
        keys = (f"{_quoted(name)}(191)" if name in long else _quoted(name) for name in table.primary_key)
        parts.append(f"PRIMARY KEY ({', '.join(keys)})")
    return f"CREATE TABLE `{database}`.{_quoted(table.name)} ({', '.join(parts)})"


def _set_limits(cursor: Any, limits: Limits) -> None:
    """Time (MariaDB counts in seconds, MySQL in milliseconds and for SELECT alone), and one row more than allowed."""
    cursor.execute("SELECT VERSION()")
    if "MariaDB" in cursor.fetchone()[0]:
        cursor.execute(f"SET SESSION max_statement_time = {float(limits.seconds)}")
    else:
        cursor.execute(f"SET SESSION max_execution_time = {int(1000 * limits.seconds)}")
    cursor.execute(f"SET SESSION sql_select_limit = {limits.rows + 1}")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
