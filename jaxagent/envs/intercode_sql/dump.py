"""From a MySQL dump to worlds: `CREATE TABLE` by sqlglot, the rows of `INSERT` read literal by literal."""

import re
from collections.abc import Iterator

from jaxagent.envs.intercode_sql.world import Cell, Column, Table, World
from jaxagent.errors import UserError

# Comments, quoted text with backslash escapes or doubled quotes, names in backticks, the end of a statement, the rest.
_PIECES = re.compile(
    r"--[^\n]*\n?|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`[^`]*`|;|[^;'\"`/-]+|.", re.DOTALL
)
_INSERT = re.compile(r"INSERT\s+INTO\s+`([^`]+)`\s+VALUES\s*", re.IGNORECASE)
_LITERALS = re.compile(r"'((?:[^'\\]|\\.|'')*)'|(NULL)|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|([(),])|\s+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def worlds_from_dump(text: str) -> list[World]:
    """The databases of a dump by `mysqldump`, in its order.

    Raises:
      UserError: sqlglot is not installed, or the text is no such dump.
    """
    worlds: dict[str, dict[str, Table]] = {}
    rows: dict[tuple[str, str], list[tuple[Cell, ...]]] = {}
    current = None
    for statement in _statements(text):
        word = statement.split(None, 1)[0].upper()
        if word == "USE":
            current = statement.split(None, 1)[1].strip(" `")
            worlds.setdefault(current, {})
        elif current is not None and re.match(r"CREATE\s+TABLE", statement, re.IGNORECASE):
            table = _table(statement)
            worlds[current][table.name] = table
        elif current is not None and (insert := _INSERT.match(statement)):
            rows.setdefault((current, insert[1]), []).extend(_rows(statement[insert.end() :]))
    if not worlds:
        raise UserError("the dump holds no database: no USE statement was found")
    return [
        World(name, tuple(_filled(table, rows.get((name, table.name), [])) for table in tables.values()))
        for name, tables in worlds.items()
    ]


def _statements(text: str) -> Iterator[str]:
    """Statements without comments and without their semicolons."""
    pieces: list[str] = []
    for match in _PIECES.finditer(text):
        piece = match[0]
        if piece == ";":
            statement, pieces = "".join(pieces).strip(), []
            if statement:
                yield statement
        elif not piece.startswith(("--", "/*")):
            pieces.append(piece)


def _table(statement: str) -> Table:
    """The table of a CREATE TABLE statement, still without rows."""
    try:
        import sqlglot
        from sqlglot import expressions as exp
    except ImportError:
        raise UserError("reading a MySQL dump needs sqlglot: pip install 'jaxagent[sql]'") from None
    try:
        tree = sqlglot.parse_one(statement, read="mysql")
    except sqlglot.errors.ParseError as error:
        raise UserError(f"the dump holds a CREATE TABLE that cannot be read: {str(error).splitlines()[0]}") from None
    columns, primary, foreign = [], [], []
    for part in tree.this.expressions:
        if isinstance(part, exp.ColumnDef):
            kinds = [constraint.kind for constraint in part.args.get("constraints") or []]
            required = any(isinstance(kind, exp.NotNullColumnConstraint) for kind in kinds)
            columns.append(Column(part.name, part.kind.sql("mysql").lower().replace(", ", ","), not required))
        elif isinstance(part, exp.PrimaryKey):
            primary = [next(key.find_all(exp.Identifier)).name for key in part.expressions]
        elif key := part.find(exp.ForeignKey):
            target = key.args["reference"].this
            pairs = zip(key.expressions, target.expressions, strict=True)
            foreign += [(column.name, target.this.name, other.name) for column, other in pairs]
    return Table(tree.this.this.name, tuple(columns), tuple(primary), tuple(foreign), ())


def _rows(values: str) -> Iterator[tuple[Cell, ...]]:
    """The tuples behind VALUES."""
    row: list[Cell] = []
    position = 0
    while position < len(values):
        match = _LITERALS.match(values, position)
        if match is None:
            raise UserError(f"the dump holds a value that cannot be read: {values[position : position + 30]!r}")
        position = match.end()
        quoted, null, number, mark = match.groups()
        if mark == "(":
            row = []
        elif mark == ")":
            yield tuple(row)
        elif quoted is not None:
            row.append(_unescaped(quoted))
        elif null:
            row.append(None)
        elif number:
            row.append(float(number) if re.search(r"[.eE]", number) else int(number))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)|''", lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else "'", text, flags=re.S)


def _filled(table: Table, rows: list[tuple[Cell, ...]]) -> Table:
    for row in rows:
        if len(row) != len(table.columns):
            raise UserError(f"the dump has a row of {len(row)} values for {len(table.columns)} columns of {table.name}")
    return Table(table.name, table.columns, table.primary_key, table.foreign_keys, tuple(rows))
