"""Import arrows, what may be imported where, and the length of functions: read from the source, without running it."""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jaxagent"
# From the bottom up: a module imports from its own unit and from lower rows. Two exceptions lean on a neighbour.
ROWS = (
    ("jaxagent", "jaxagent.errors", "jaxagent.files"),
    ("jaxagent.packages",),
    ("jaxagent.budgets", "jaxagent.episodes", "jaxagent.config"),
    ("jaxagent.batches", "jaxagent.algorithms", "jaxagent.envs", "jaxagent.config_files", "jaxagent.paper"),
    ("jaxagent.models", "jaxagent.sharding"),
    ("jaxagent.rollout",),
    ("jaxagent.training", "jaxagent.evaluation"),
    ("jaxagent.reporting",),
    ("jaxagent.reproduce", "jaxagent.exchange"),
    ("jaxagent.cli",),
)
RANKS = {unit: rank for rank, row in enumerate(ROWS) for unit in row}
SAME_ROW = {("jaxagent.sharding", "jaxagent.models"), ("jaxagent.evaluation", "jaxagent.training")}
MAX_FUNCTION_LINES = 80


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if "configs" not in path.parts}


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports_of(tree: ast.AST, *, also_lazy: bool) -> set[str]:
    """Full names of what is imported; `from a import b` gives a.b where that is a module, else a."""
    found = set()
    nodes = list(ast.walk(tree)) if also_lazy else list(at_import_time(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


def at_import_time(node: ast.AST):
    """Nodes that run on import: not function bodies, not `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from at_import_time(child)


def unit_of(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2])


def test_every_module_has_a_rank():
    unknown = {unit_of(name) for name in MODULES} - RANKS.keys()
    assert not unknown, f"give {unknown} a place among the import arrows"


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name):
    here = unit_of(name)
    for target in imports_of(tree_of(name), also_lazy=True):
        there = unit_of(target)
        if not target.startswith("jaxagent") or there in (here, "jaxagent"):
            continue
        allowed = RANKS[there] < RANKS[here] or (here, there) in SAME_ROW
        assert allowed, f"{name} imports {target}, which stands above or beside it"


def test_exceptions_have_no_cycle():
    assert not {(b, a) for a, b in SAME_ROW} & SAME_ROW
    assert all(RANKS[a] == RANKS[b] for a, b in SAME_ROW)


def external_imports(name: str, seen: set[str] | None = None) -> dict[str, str]:
    """Top-level third-party packages on the import path of a module -> the module that imports them."""
    seen = set() if seen is None else seen
    found: dict[str, str] = {}
    parents = [".".join(name.split(".")[:length]) for length in range(1, name.count(".") + 1)]
    for module in [*parents, name]:
        if module in seen or module not in MODULES:
            continue
        seen.add(module)
        for target in imports_of(tree_of(module), also_lazy=False):
            if target.split(".")[0] == "jaxagent":
                found |= external_imports(target, seen)
            else:
                found.setdefault(target.split(".")[0], module)
    return found


JAX_FAMILY = {"jax", "jaxlib", "flax", "optax", "chex", "orbax"}
LIGHT = [
    name
    for name in MODULES
    if unit_of(name) in ("jaxagent", "jaxagent.envs", "jaxagent.reporting", "jaxagent.cli", "jaxagent.config_files")
    or name
    in (
        "jaxagent.packages",
        "jaxagent.files",
        "jaxagent.paper",
        "jaxagent.budgets",
        "jaxagent.episodes",
        "jaxagent.errors",
        "jaxagent.config",
    )
]


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_do_not_reach_jax(name):
    reached = {package: module for package, module in external_imports(name).items() if package in JAX_FAMILY}
    assert not reached, f"importing {name} reaches {reached}"


def test_light_modules_do_not_load_jax_when_run():
    code = "import importlib, sys\n"
    code += f"for name in {LIGHT!r}: importlib.import_module(name)\n"
    code += f"print(sorted({JAX_FAMILY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in MODULES if unit_of(name) == "jaxagent.algorithms"])
def test_algorithms_import_jax_and_chex_only(name):
    allowed = {"jax", "chex"} | set(sys.stdlib_module_names)
    for target in imports_of(tree_of(name), also_lazy=True):
        assert target.split(".")[0] in allowed or unit_of(target) == "jaxagent.algorithms", f"{name} imports {target}"


@pytest.mark.parametrize("name", MODULES)
def test_functions_are_short(name):
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{name}.{node.name} has {lines} lines"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_documented(name):
    assert ast.get_docstring(tree_of(name)), f"{name} has no docstring"


def test_every_folder_is_a_package():
    folders = {path.parent for path in MODULES.values()}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_the_checks_see_what_they_forbid():
    tree = ast.parse("import jax.numpy as jnp\nfrom jaxagent.training import loop\ndef f():\n    import flax\n")
    assert imports_of(tree, also_lazy=False) >= {"jax.numpy"}
    assert "flax" not in imports_of(tree, also_lazy=False)
    assert "flax" in imports_of(tree, also_lazy=True)
    assert RANKS["jaxagent.training"] > RANKS["jaxagent.envs"]
