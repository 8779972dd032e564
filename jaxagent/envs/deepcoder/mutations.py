"""Wrong drafts of a right program: an operator or a number changed, or a line dropped."""

import ast
import copy
from collections.abc import Iterator

import numpy as np

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def mutants(program: str) -> Iterator[tuple[str, str]]:
    """(what was changed, program) for every single change: `operator`, `number` or `line`. Some may still be right."""
    tree = ast.parse(program)
    for index, node in enumerate(ast.walk(tree)):
        for kind, change in _changes(node):
            changed = copy.deepcopy(tree)
            change(next(other for place, other in enumerate(ast.walk(changed)) if place == index))
            yield kind, ast.unparse(ast.fix_missing_locations(changed)) + "\n"


def draft(program: str, generator: np.random.Generator) -> str:
    """One mutant, drawn uniformly; the program itself where nothing can be changed."""
    found = list(mutants(program))
    return found[int(generator.integers(len(found)))][1] if found else program


def _changes(node: ast.AST):
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _OPERATORS:
        yield "operator", lambda other: setattr(other, "op", _OPERATORS[type(other.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        yield "operator", lambda other: other.ops.__setitem__(0, _OPERATORS[type(other.ops[0])]())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "number", lambda other: setattr(other, "value", other.value + 1)
    if isinstance(node, ast.FunctionDef | ast.For | ast.While | ast.If):
        for place, line in enumerate(node.body):
            if not isinstance(line, ast.FunctionDef | ast.Import | ast.ImportFrom) and not _is_docstring(line):
                yield "line", lambda other, place=place: other.body.__setitem__(place, ast.Pass())


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
