"""Databases and questions from a seed, without end: five levels, from a filter on one table to nested queries.

Each task carries its database, other rows for the same tables, its question in a sentence and in words, the gold
query, the tables that it reads, and the names that a schema might have used instead. A right query is right on the
other rows too; a constant is not, and what agrees by chance seldom is (distilled test suites, arXiv 2010.02840).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxagent.envs.intercode_sql.database import Limits, QueryError, SqliteDatabase
from jaxagent.envs.intercode_sql.rewards import Row, results_agree
from jaxagent.envs.intercode_sql.themes import NUMBERS, THEMES, Attribute, Theme, Thing
from jaxagent.envs.intercode_sql.world import Cell, Column, Table, World

LEVELS = {1: "filters", 2: "aggregation and order", 3: "joins", 4: "set operations", 5: "nesting"}
_NULL_SHARE = 0.1  # of the last numeric column


@dataclasses.dataclass(frozen=True)
class Question:
    """`words` says the same as `sentence` for tiny models: one concept or value a word."""

    sentence: str
    words: str
    gold: str
    tables: tuple[str, ...]
    ordered: bool = False


@dataclasses.dataclass(frozen=True)
class Placed:
    """A thing in the schema: the names drawn for it, and its rows by attribute concept (`id` too)."""

    thing: Thing
    table: str
    names: dict[str, str]  # concept -> column; `link` where there is one
    rows: list[dict[str, Cell]]

    def values(self, attribute: Attribute) -> list[Any]:
        """The distinct values of an attribute, sorted, without NULL."""
        return sorted({row[attribute.concept] for row in self.rows} - {None})


class Things(NamedTuple):
    """What a schema holds."""

    parent: Placed
    child: Placed
    other: Placed


@dataclasses.dataclass
class Cast:
    """The placed things of a task and the randomness that its question draws from."""

    parent: Placed
    child: Placed
    generator: np.random.Generator

    def pick(self, items: list[Any] | tuple[Any, ...]) -> Any:
        """One of several, uniformly."""
        return items[int(self.generator.random() * len(items))]

    def either(self) -> Placed:
        """The parent or the child."""
        return self.pick((self.parent, self.child))

    def attribute(self, placed: Placed, kind: str) -> Attribute:
        """One attribute of a kind."""
        return self.pick(placed.thing.of_kind(kind))

    def threshold(self, placed: Placed, attribute: Attribute) -> int:
        """A value with something above it, and something not above it."""
        values = placed.values(attribute)
        return self.pick(values[:-1]) if len(values) > 1 else values[0]


def draw_task(generator: np.random.Generator, *, levels: tuple[int, int], num_names: int) -> dict[str, Any]:
    """The data of one task.

    Args:
      generator: all randomness.
      levels: the easiest and the hardest level, uniform between them.
      num_names: names that each table and column is drawn from, 1..3; 1: always the obvious one.
    """
    theme = THEMES[int(generator.random() * len(THEMES))]
    level = levels[0] + int(generator.random() * (levels[1] - levels[0] + 1))
    things, order = _place(theme, num_names, generator)
    cast, world = Cast(things.parent, things.child, generator), _world(things, order)
    question = cast.pick(QUESTIONS[level])(cast)
    return {
        "source": "generated",
        "level": level,
        "question": question.sentence,
        "words": question.words,
        "gold": question.gold,
        "ordered": question.ordered,
        "tables": list(question.tables),
        "names": {used: list(others) for used, others in _alternatives(cast, num_names)},
        "world": world.to_json(),
        "check_rows": _world(_filled(things, generator), order).rows(),
    }


def is_proper(data: dict[str, Any]) -> bool:
    """Whether the gold result says something: it has rows, is no lone 0 or NULL, and is another on the other rows."""
    world = World.from_json(data["world"])
    shown = _gold_rows(data["gold"], world)
    if not shown or shown in ([(0,)], [(None,)]):
        return False
    other = _gold_rows(data["gold"], world.with_rows(data["check_rows"]))
    return not results_agree(shown, other, ordered=data["ordered"])


def _gold_rows(gold: str, world: World) -> list[Row]:
    database = SqliteDatabase(world, Limits())
    try:
        return database.run(gold) or []
    except QueryError as error:
        raise RuntimeError(f"a generated query fails: {error}: {gold}") from error
    finally:
        database.close()


def _place(theme: Theme, num_names: int, generator: np.random.Generator) -> tuple[Things, list[int]]:
    """Draws names and rows, and the order of the tables."""

    def one_of(names: tuple[str, ...]) -> str:
        return names[int(generator.random() * min(num_names, len(names)))]

    def named(thing: Thing, **more: str) -> Placed:
        names = {attribute.concept: one_of(attribute.names) for attribute in thing.attributes}
        return Placed(thing, one_of(thing.names), {"id": "id", **names, **more}, [])

    things = Things(named(theme.parent), named(theme.child, link=one_of(theme.link)), named(theme.other))
    return _filled(things, generator), [int(i) for i in np.argsort(generator.random(3))]


def _filled(things: Things, generator: np.random.Generator) -> Things:
    """The same schema with new rows, and new numbers of them; one of the parents has no children."""

    def filled(placed: Placed, least: int, spread: int) -> Placed:
        count = least + int(generator.random() * spread)
        return dataclasses.replace(placed, rows=_rows(placed.thing, count, generator))

    parent, child, other = filled(things.parent, 5, 4), filled(things.child, 8, 6), filled(things.other, 3, 1)
    childless = 1 + int(generator.random() * len(parent.rows))
    having = [row["id"] for row in parent.rows if row["id"] != childless]
    for row in child.rows:
        row["link"] = having[int(generator.random() * len(having))]
    return Things(parent, child, other)


def _world(things: Things, order: list[int]) -> World:
    tables = (_table(things.parent), _table(things.child, things.parent), _table(things.other))
    return World("task", tuple(tables[i] for i in order))


def _rows(thing: Thing, count: int, generator: np.random.Generator) -> list[dict[str, Cell]]:
    numeric = thing.of_kind("number")
    rows = []
    pool = thing.attributes[0].values
    labels = [str(pool[int(i)]) for i in np.argsort(generator.random(len(pool)))]
    for number in range(min(count, len(labels))):
        row: dict[str, Cell] = {"id": number + 1}
        for attribute in thing.attributes:
            value = attribute.values[int(generator.random() * len(attribute.values))]
            row[attribute.concept] = labels[number] if attribute.kind == "label" else value
        if len(numeric) > 1 and generator.random() < _NULL_SHARE:
            row[numeric[-1].concept] = None
        rows.append(row)
    return rows


def _table(placed: Placed, parent: Placed | None = None) -> Table:
    columns = [Column("id", "int", False)]
    for attribute in placed.thing.attributes:
        columns.append(Column(placed.names[attribute.concept], "int" if attribute.kind == "number" else "varchar(40)"))
    keys: tuple[tuple[str, str, str], ...] = ()
    if parent is not None:
        columns.append(Column(placed.names["link"], "int"))
        keys = ((placed.names["link"], parent.table, "id"),)
    rows = tuple(tuple(row[concept] for concept in placed.names) for row in placed.rows)
    return Table(placed.table, tuple(columns), ("id",), keys, rows)


def _alternatives(cast: Cast, num_names: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each used name of a table or column, with all names that it was drawn from."""
    for placed in (cast.parent, cast.child):
        yield placed.table, placed.thing.names[:num_names]
        for attribute in placed.thing.attributes:
            yield placed.names[attribute.concept], attribute.names[:num_names]
    link = cast.child.names["link"]
    yield link, next(theme.link for theme in THEMES if theme.child is cast.child.thing)[:num_names]


def _number_filter(cast: Cast, placed: Placed) -> tuple[str, str, str]:
    """(phrase, words, condition) of a threshold on a numeric attribute."""
    attribute = cast.attribute(placed, "number")
    limit = cast.threshold(placed, attribute)
    concept, column = attribute.concept, placed.names[attribute.concept]
    if cast.generator.random() < 0.5:
        return f"with {concept} above {limit}", f" {concept} above {limit}", f"{column} > {limit}"
    limit += 10
    return f"with {concept} below {limit}", f" {concept} below {limit}", f"{column} < {limit}"


def _category_filter(cast: Cast, placed: Placed, table: str = "") -> tuple[str, str, str]:
    attribute = cast.attribute(placed, "category")
    value = cast.pick(placed.values(attribute))
    concept, column = attribute.concept, placed.names[attribute.concept]
    return f"whose {concept} is {value}", f" {concept} is {value}", f"{table}{column} = '{value}'"


def _count(cast: Cast) -> Question:
    placed = cast.either()
    phrase, words, condition = _number_filter(cast, placed)
    return Question(
        f"How many {placed.thing.plural} are there {phrase}?",
        f" count {placed.thing.concept}{words}",
        f"SELECT COUNT(*) FROM {placed.table} WHERE {condition}",
        (placed.table,),
    )


def _list(cast: Cast) -> Question:
    placed = cast.either()
    phrase, words, condition = cast.pick((_number_filter, _category_filter))(cast, placed)
    label = placed.thing.attributes[0]
    return Question(
        f"What are the {label.concept}s of the {placed.thing.plural} {phrase}?",
        f" list {label.concept} {placed.thing.concept}{words}",
        f"SELECT {placed.names[label.concept]} FROM {placed.table} WHERE {condition}",
        (placed.table,),
    )


def _average(cast: Cast) -> Question:
    placed = cast.either()
    attribute = cast.attribute(placed, "number")
    phrase, words, condition = _category_filter(cast, placed)
    return Question(
        f"What is the average {attribute.concept} of the {placed.thing.plural} {phrase}?",
        f" average {attribute.concept} {placed.thing.concept}{words}",
        f"SELECT AVG({placed.names[attribute.concept]}) FROM {placed.table} WHERE {condition}",
        (placed.table,),
    )


def _group(cast: Cast) -> Question:
    placed = cast.either()
    attribute = cast.attribute(placed, "category")
    column = placed.names[attribute.concept]
    return Question(
        f"For each {attribute.concept}, how many {placed.thing.plural} are there? "
        f"Give the {attribute.concept} and the number.",
        f" each {attribute.concept} count {placed.thing.concept}",
        f"SELECT {column}, COUNT(*) FROM {placed.table} GROUP BY {column}",
        (placed.table,),
    )


def _order(cast: Cast) -> Question:
    placed = cast.either()
    attribute, label = cast.attribute(placed, "number"), placed.thing.attributes[0]
    column, shown = placed.names[attribute.concept], placed.names[label.concept]
    return Question(
        f"List the {label.concept}s of all {placed.thing.plural} that have a known {attribute.concept}, the highest "
        f"{attribute.concept} first and equal ones by {label.concept}.",
        f" order {label.concept} {placed.thing.concept} {attribute.concept}",
        f"SELECT {shown} FROM {placed.table} WHERE {column} IS NOT NULL ORDER BY {column} DESC, {shown}",
        (placed.table,),
        ordered=True,
    )


def _having(cast: Cast) -> Question:
    placed = cast.either()
    attribute = cast.attribute(placed, "category")
    column = placed.names[attribute.concept]
    return Question(
        f"Which values of {attribute.concept} occur more than once among the {placed.thing.plural}?",
        f" repeated {attribute.concept} {placed.thing.concept}",
        f"SELECT {column} FROM {placed.table} GROUP BY {column} HAVING COUNT(*) > 1",
        (placed.table,),
    )


def _joined(cast: Cast) -> str:
    parent, child = cast.parent, cast.child
    return f"{parent.table} AS p JOIN {child.table} AS c ON c.{child.names['link']} = p.id"


def _labels(cast: Cast) -> tuple[str, str]:
    """The columns of the parent's and the child's label."""
    parent, child = cast.parent, cast.child
    return (
        parent.names[parent.thing.attributes[0].concept],
        child.names[child.thing.attributes[0].concept],
    )


def _both(cast: Cast) -> tuple[str, str]:
    return cast.parent.table, cast.child.table


def _pairs(cast: Cast) -> Question:
    of_parent, of_child = _labels(cast)
    phrase, words, condition = _category_filter(cast, cast.child, "c.")
    parent, child = cast.parent.thing, cast.child.thing
    return Question(
        f"For the {child.plural} {phrase}, give the name of the {child.concept} and the name of its {parent.concept}.",
        f" pairs {child.concept} {parent.concept}{words}",
        f"SELECT c.{of_child}, p.{of_parent} FROM {_joined(cast)} WHERE {condition}",
        _both(cast),
    )


def _count_joined(cast: Cast) -> Question:
    phrase, words, condition = _category_filter(cast, cast.parent, "p.")
    parent, child = cast.parent.thing, cast.child.thing
    return Question(
        f"How many {child.plural} belong to {parent.plural} {phrase}?",
        f" count {child.concept} {parent.concept}{words}",
        f"SELECT COUNT(*) FROM {_joined(cast)} WHERE {condition}",
        _both(cast),
    )


def _per_parent(cast: Cast) -> Question:
    of_parent, _ = _labels(cast)
    parent, child = cast.parent.thing, cast.child.thing
    return Question(
        f"For each {parent.concept} with {child.plural}, give its name and the number of its {child.plural}.",
        f" each {parent.concept} count {child.concept}",
        f"SELECT p.{of_parent}, COUNT(*) FROM {_joined(cast)} GROUP BY p.id, p.{of_parent}",
        _both(cast),
    )


def _without(cast: Cast) -> Question:
    of_parent, _ = _labels(cast)
    parent, child = cast.parent.thing, cast.child.thing
    return Question(
        f"What are the names of the {parent.plural} without any {child.plural}?",
        f" without {parent.concept} {child.concept}",
        f"SELECT {of_parent} FROM {cast.parent.table} EXCEPT SELECT p.{of_parent} FROM {_joined(cast)}",
        _both(cast),
    )


def _with_both(cast: Cast) -> Question:
    of_parent, _ = _labels(cast)
    parent, child = cast.parent.thing, cast.child.thing
    attribute = cast.attribute(cast.child, "category")
    column = cast.child.names[attribute.concept]
    first = cast.pick(attribute.values)
    second = cast.pick([value for value in attribute.values if value != first])
    query = f"SELECT p.{of_parent} FROM {_joined(cast)} WHERE c.{column} = "
    return Question(
        f"What are the names of the {parent.plural} that have {child.plural} of {attribute.concept} {first} and also "
        f"{child.plural} of {attribute.concept} {second}?",
        f" both {parent.concept} {child.concept} {attribute.concept} {first} {second}",
        f"{query}'{first}' INTERSECT {query}'{second}'",
        _both(cast),
    )


def _union(cast: Cast) -> Question:
    of_parent, of_child = _labels(cast)
    parent, child = cast.parent.thing, cast.child.thing
    return Question(
        f"Give the names of all {parent.plural} and of all {child.plural} in one list, each name once.",
        f" all {parent.concept} {child.concept}",
        f"SELECT {of_parent} FROM {cast.parent.table} UNION SELECT {of_child} FROM {cast.child.table}",
        _both(cast),
    )


def _above_average(cast: Cast) -> Question:
    placed = cast.either()
    attribute, label = cast.attribute(placed, "number"), placed.thing.attributes[0]
    column, shown = placed.names[attribute.concept], placed.names[label.concept]
    return Question(
        f"What are the names of the {placed.thing.plural} whose {attribute.concept} is above the average of all "
        f"{placed.thing.plural}?",
        f" over_average {placed.thing.concept} {attribute.concept}",
        f"SELECT {shown} FROM {placed.table} WHERE {column} > (SELECT AVG({column}) FROM {placed.table})",
        (placed.table,),
    )


def _of_highest(cast: Cast) -> Question:
    of_parent, _ = _labels(cast)
    parent, child = cast.parent.thing, cast.child.thing
    attribute = cast.attribute(cast.child, "number")
    column, table = cast.child.names[attribute.concept], cast.child.table
    return Question(
        f"What are the names of the {parent.plural} of the {child.plural} with the highest {attribute.concept}?",
        f" highest {parent.concept} {child.concept} {attribute.concept}",
        f"SELECT {of_parent} FROM {cast.parent.table} WHERE id IN (SELECT {cast.child.names['link']} FROM {table} "
        f"WHERE {column} = (SELECT MAX({column}) FROM {table}))",
        _both(cast),
    )


def _none_below(cast: Cast) -> Question:
    of_parent, _ = _labels(cast)
    parent, child = cast.parent.thing, cast.child.thing
    attribute = cast.attribute(cast.child, "number")
    limit = cast.threshold(cast.child, attribute)
    link, column = cast.child.names["link"], cast.child.names[attribute.concept]
    return Question(
        f"What are the names of the {parent.plural} that have no {child.concept} with {attribute.concept} above "
        f"{limit} (those without any {child.plural} too)?",
        f" none {parent.concept} {child.concept} {attribute.concept} above {limit}",
        f"SELECT {of_parent} FROM {cast.parent.table} WHERE id NOT IN (SELECT {link} FROM {cast.child.table} "
        f"WHERE {column} > {limit})",
        _both(cast),
    )


QUESTIONS: dict[int, tuple[Callable[[Cast], Question], ...]] = {
    1: (_count, _list),
    2: (_average, _group, _order, _having),
    3: (_pairs, _count_joined, _per_parent),
    4: (_without, _with_both, _union),
    5: (_above_average, _of_highest, _none_below),
}
_QUESTION_WORDS = (
    "count list average each order repeated pairs without both all over_average highest none name above below is"
)


def question_words() -> tuple[str, ...]:
    """Every word of a question in words, with its leading space."""
    things = [thing for theme in THEMES for thing in (theme.parent, theme.child)]
    attributes = [attribute for thing in things for attribute in thing.attributes]
    values = [value for attribute in attributes if attribute.kind == "category" for value in attribute.values]
    words = [*_QUESTION_WORDS.split(), *(thing.concept for thing in things), *(a.concept for a in attributes), *values]
    return tuple(dict.fromkeys(f" {word}" for word in [*words, *map(str, NUMBERS), "100"]))


def schema_names() -> tuple[str, ...]:
    """Every name of a table or column, with its leading space."""
    names = ["id"]
    for theme in THEMES:
        names += theme.link
        for thing in (theme.parent, theme.child, theme.other):
            names += [*thing.names, *(name for attribute in thing.attributes for name in attribute.names)]
    return tuple(dict.fromkeys(f" {name}" for name in names))
