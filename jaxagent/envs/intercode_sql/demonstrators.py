"""Scripted players: the expert that always succeeds, and demonstrators of mixed quality to clone a base policy from."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from jaxagent.envs.intercode_sql.world import World

SUBMIT = "submit"
INVALID_REPLY = "noop"
SHOW_TABLES = "SHOW TABLES"


class Live(Protocol):
    """What a player reads of the live environment: its task, and how the last statement went."""

    data: Mapping[str, Any]
    world: World
    last_error: str | None
    has_result: bool


def describe(table: str) -> str:
    """The statement that shows a table's columns."""
    return f"DESCRIBE {table}"


def expert_replies(data: Mapping[str, Any]) -> list[str]:
    """The careful player's whole episode: list the tables, describe those that the gold query reads, gold, submit.

    The last reply is superfluous where the right result ends the episode.
    """
    return [SHOW_TABLES, *map(describe, data["tables"]), data["gold"], SUBMIT]


def make_demonstrator(environment: Live, generator: np.random.Generator) -> Callable[[], str]:
    """One scripted player of mixed quality, drawn for the episode that `environment` is at the start of.

    35 % look at the tables and at the columns before they ask, 25 % at the tables alone, 40 % at nothing; names that
    they have not seen they guess among those that a schema might have used, again after an error about them. 60 % ask
    for a wrong column somewhere. As soon as a query has a result they submit it. 7 % of the replies are invalid. No
    player ever knows a budget.
    """
    data = environment.data
    chance = generator.random()
    knows_tables, knows_columns = chance < 0.6, chance < 0.35
    opening = [SHOW_TABLES] if knows_tables else []
    if knows_columns:
        opening += map(describe, data["tables"])
    plan = _misread(environment, generator) if generator.random() < 0.6 else data["gold"]
    guesses: dict[str, str] = {}

    def reply() -> str:
        if generator.random() < 0.07:
            return INVALID_REPLY
        if opening:
            return opening.pop(0)
        if environment.has_result and guesses:
            return SUBMIT
        known = set(data["tables"]) if knows_tables else set()
        if knows_columns:
            known = set(data.get("names", ()))
        for name, others in data.get("names", {}).items():
            if name not in known and (name not in guesses or environment.last_error is not None):
                guesses[name] = others[int(generator.random() * len(others))]
        guesses.setdefault("", "")  # something was asked
        return _renamed(plan, {name: guess for name, guess in guesses.items() if name not in known})

    return reply


def _misread(environment: Live, generator: np.random.Generator) -> str:
    """The gold query with one column of its tables taken for another."""
    gold = environment.data["gold"]
    swaps = []
    for name in environment.data["tables"]:
        columns = [column.name for column in environment.world.table(name).columns]
        used = [column for column in columns if re.search(rf"\b{re.escape(column)}\b", gold, re.IGNORECASE)]
        swaps += [(column, other) for column in used for other in columns if other not in used]
    if not swaps:
        return gold
    column, other = swaps[int(generator.random() * len(swaps))]
    return _renamed(gold, {column: other})


def _renamed(query: str, names: Mapping[str, str]) -> str:
    """The query with whole words replaced, texts in quotes excepted."""
    pieces = re.split(r"('(?:[^']|'')*')", query)
    return "".join(
        piece if piece.startswith("'") else re.sub(r"\w+", lambda word: names.get(word[0], word[0]), piece)
        for piece in pieces
    )
