"""The real questions and databases: `jaxagent data intercode-sql`, and reading what it brought.

The questions are Spider's development set as InterCode has it (`ic_spider_dev.json`), the databases a MySQL dump that
the PyPI package `intercode-bench` also ships. Spider is CC BY-SA 4.0: converted copies carry the same terms.
"""

import functools
import json
import pathlib
from typing import Any

from jaxagent import packages
from jaxagent.envs import datasets
from jaxagent.envs.intercode_sql.database import Limits, QueryError, SqliteDatabase
from jaxagent.envs.intercode_sql.dump import worlds_from_dump
from jaxagent.envs.intercode_sql.world import World
from jaxagent.errors import UserError
from jaxagent.files import write_whole

NAME = "intercode-sql"
PACKAGE = "intercode-bench==0.1.22"
_DUMPS = ("ic_spider_dbs.sql", "spider_dev.sql")
_QUESTIONS = "ic_spider_dev.json"
_NOTICE = """Databases and questions converted from the Spider data set (Yu et al. 2018, arXiv 1809.08887),
CC BY-SA 4.0, as edited for InterCode (Yang et al. 2023, arXiv 2306.14898). Copies keep this notice and the licence.
"""


def fetch(source: str | None) -> str:
    """Converts the dump and, with a source, the questions; says in a line what was done.

    Args:
      source: a folder that holds `ic_spider_dev.json` and perhaps the dump, at any depth; without it the dump comes
        from PyPI and there are no questions.

    Raises:
      UserError: a missing or damaged file, or no package where the dump must come from PyPI.
    """
    folder = datasets.folder(NAME)
    folder.mkdir(parents=True, exist_ok=True)
    questions = _find(source, (_QUESTIONS,))
    dump = _find(source, _DUMPS)
    if source is not None and questions is None and dump is None:
        raise UserError(f"--source={source}: neither {_QUESTIONS} nor {_DUMPS[0]} is in that folder or below it")
    dump = dump or _find(_installed(folder / "package"), _DUMPS)
    if dump is None:
        raise UserError(f"{PACKAGE} holds no {_DUMPS[-1]}")
    worlds = worlds_from_dump(_read(dump))
    (folder / "databases").mkdir(exist_ok=True)
    for world in worlds:
        _write(folder / "databases" / f"{world.name}.json", world.to_json())
    (folder / "NOTICE").write_text(_NOTICE)
    done = f"{len(worlds)} databases in {folder}"
    if questions is None:
        return f"{done}; no questions: give the folder of {_QUESTIONS} with --source=FOLDER"
    kept, dropped = _questions(_records(questions), {world.name: world for world in worlds})
    _write(folder / "questions.json", kept)
    return f"{done}, {len(kept)} questions ({dropped} without result dropped)"


def load_world(name: str) -> World:
    """One converted database; raises `UserError` where it has not been brought."""
    return _load_world(datasets.folder(NAME), name)


def load_questions() -> list[dict[str, Any]]:
    """The converted questions: database, question, gold, hardness, ordered, tables each."""
    path = datasets.folder(NAME) / "questions.json"
    if not path.exists():
        raise UserError(
            f"{path} is missing; run `jaxagent data {NAME} --source=FOLDER` with the folder of {_QUESTIONS}"
        )
    return _converted(path)


@functools.lru_cache(maxsize=32)
def _load_world(folder: pathlib.Path, name: str) -> World:
    path = folder / "databases" / f"{name}.json"
    if not path.exists():
        raise UserError(f"{path} is missing; run `jaxagent data {NAME}`")
    try:
        return World.from_json(_converted(path))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged; run `jaxagent data {NAME}` again") from None


def _converted(path: pathlib.Path) -> Any:
    """What `_write` wrote."""
    try:
        return json.loads(_read(path))
    except ValueError:
        raise UserError(f"{path} is damaged; run `jaxagent data {NAME}` again") from None


def _installed(target: pathlib.Path) -> str:
    """The folder of the PyPI package, without its dependencies (docker, mysql-connector and more)."""
    if _find(str(target), _DUMPS) is None:
        reason = packages.run_pip(["install", "--target", str(target), PACKAGE])
        if reason:
            raise UserError(f"cannot install {PACKAGE}: {reason}; give the folder of {_DUMPS[0]} with --source=FOLDER")
    return str(target)


def _find(folder: str | None, names: tuple[str, ...]) -> pathlib.Path | None:
    if folder is None:
        return None
    return next((path for name in names for path in sorted(pathlib.Path(folder).rglob(name))), None)


def _questions(records: list[dict[str, Any]], worlds: dict[str, World]) -> tuple[list[dict[str, Any]], int]:
    """(the questions whose gold has rows, how many were dropped): any empty result would answer the others."""
    databases = {name: SqliteDatabase(world, Limits()) for name, world in worlds.items()}
    kept = []
    for record in records:
        gold = record["gold"].strip().rstrip(";").strip()
        if record["db"] not in databases:
            raise UserError(f"{_QUESTIONS}: database {record['db']!r} is not in the dump")
        try:
            rows = databases[record["db"]].run(gold)
        except QueryError as error:
            raise UserError(f"{_QUESTIONS}: a gold query fails ({error}): {gold}") from None
        if rows:
            tables, ordered = _shape(gold)
            known = [table.name for table in worlds[record["db"]].tables if table.name.lower() in tables]
            kept.append(
                {
                    "database": record["db"],
                    "question": record["query"],
                    "gold": gold,
                    "hardness": record["hardness"],
                    "ordered": ordered,
                    "tables": known,
                }
            )
    return kept, len(records) - len(kept)


def _shape(gold: str) -> tuple[set[str], bool]:
    """(the tables that a query reads, in lower case; whether its own result is ordered)."""
    import sqlglot  # the dump was read with it

    try:
        tree = sqlglot.parse_one(gold, read="mysql")
    except sqlglot.errors.SqlglotError as error:
        raise UserError(f"{_QUESTIONS}: a gold query cannot be read ({str(error).splitlines()[0]}): {gold}") from None
    return {table.name.lower() for table in tree.find_all(sqlglot.exp.Table)}, tree.args.get("order") is not None


def _records(path: pathlib.Path) -> list[dict[str, Any]]:
    try:
        records = json.loads(_read(path))
    except ValueError as error:
        raise UserError(f"{path}: is no JSON: {error}") from None
    needed = {"db", "gold", "query", "hardness"}
    if not isinstance(records, list) or not all(
        isinstance(record, dict) and all(isinstance(record.get(key), str) for key in needed) for record in records
    ):
        raise UserError(f"{path}: expected a list of objects with the texts {', '.join(sorted(needed))}")
    return records


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def _write(path: pathlib.Path, content: Any) -> None:
    write_whole(path, json.dumps(content, ensure_ascii=False))
