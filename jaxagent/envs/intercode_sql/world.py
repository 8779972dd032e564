"""A database as plain data, whatever engine will hold it: tables, columns, keys, rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

Cell = int | float | str | None


@dataclasses.dataclass(frozen=True)
class Column:
    """One column. `type` is written as MySQL would (`int`, `varchar(20)`, `text`); SQLite derives its affinity."""

    name: str
    type: str
    nullable: bool = True


@dataclasses.dataclass(frozen=True)
class Table:
    """One table. `foreign_keys` holds (column, other table, other column); rows are in the order of insertion."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    foreign_keys: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]

    def description(self) -> list[tuple[Any, ...]]:
        """What MySQL's DESCRIBE answers: (field, type, null, key, default, extra) a column."""
        keys = {column: "MUL" for column, _, _ in self.foreign_keys} | {column: "PRI" for column in self.primary_key}
        return [
            (column.name, column.type, "YES" if column.nullable else "NO", keys.get(column.name, ""), None, "")
            for column in self.columns
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """One database. Compared by identity: rows are many, and what caches worlds holds on to them."""

    name: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table | None:
        """The table called `name` in any case, None without."""
        return next((table for table in self.tables if table.name.lower() == name.lower()), None)

    def rows(self) -> dict[str, list[list[Cell]]]:
        """Table name -> its rows, as plain lists."""
        return {table.name: [list(row) for row in table.rows] for table in self.tables}

    def with_rows(self, rows: Mapping[str, Sequence[Sequence[Cell]]]) -> "World":
        """The same schema with other rows for every table.

        Raises:
          KeyError: no rows for a table.
          ValueError: a row that is not as wide as its table.
        """
        for table in self.tables:
            if any(len(row) != len(table.columns) for row in rows[table.name]):
                raise ValueError(f"a row of {table.name} has not {len(table.columns)} cells")
        refilled = (dataclasses.replace(t, rows=tuple(tuple(row) for row in rows[t.name])) for t in self.tables)
        return World(self.name, tuple(refilled))

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dictionaries; `from_json` is the inverse."""
        return {
            "name": self.name,
            "tables": [
                {
                    "name": table.name,
                    "columns": [[column.name, column.type, column.nullable] for column in table.columns],
                    "primary_key": list(table.primary_key),
                    "foreign_keys": [list(key) for key in table.foreign_keys],
                    "rows": [list(row) for row in table.rows],
                }
                for table in self.tables
            ],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "World":
        """The inverse of `to_json`; raises `KeyError`, `TypeError` or `ValueError` on anything else."""
        tables = [
            Table(
                name=table["name"],
                columns=tuple(Column(name, kind, nullable) for name, kind, nullable in table["columns"]),
                primary_key=tuple(table["primary_key"]),
                foreign_keys=tuple((column, other, key) for column, other, key in table["foreign_keys"]),
                rows=tuple(tuple(row) for row in table["rows"]),
            )
            for table in data["tables"]
        ]
        return World(data["name"], tuple(tables))
