import gzip
import json
import os
import pathlib
import random
import subprocess
import types

import pytest

from jaxagent.envs import datasets, sandbox
from jaxagent.envs.deepcoder import problems
from jaxagent.envs.deepcoder.demonstrator import make_demonstrator
from jaxagent.envs.deepcoder.judge import job_of, judge
from jaxagent.envs.deepcoder.mutations import mutants
from jaxagent.envs.replies import last_program
from jaxagent.envs.sandbox import Sandbox, SandboxOptions
from jaxagent.errors import UserError

LAYERS, COMPLAINT = sandbox.isolation()
isolated = pytest.mark.skipif(LAYERS is None, reason=f"no isolation here: {COMPLAINT}")
MBPP = pathlib.Path(os.environ.get("JAXAGENT_DATA", ""), "mbpp", "ic_mbpp.json")
needs_mbpp = pytest.mark.skipif(
    not os.environ.get("JAXAGENT_DATA") or not MBPP.is_file(), reason="JAXAGENT_DATA names no folder with MBPP"
)

STDIN_LIST = {
    "problem": "Add two numbers. Sample input:\n1 2\nSample output:\n3",
    "tests": json.dumps(
        [
            {"input": f"{a} {b}\n", "output": f"{a + b}\n", "testtype": "stdin_stdout", "metadata": {}}
            for a, b in [(5, 6), (1, 2), (7, 8), (10**9, 1)]
        ]
    ),
    "solutions": ["print(sum(map(int, input().split())))"],
}
FUNCTIONAL_LIST = {
    "problem": "Two arguments.",
    "starter_code": "class Solution:\n    def join(self, words: List[str], n: int) -> List[str]:\n        ",
    "metadata": json.dumps({"func_name": "join"}),
    "tests": [
        {"input": '["a", "b"]\n2', "output": '["a", "b", "a", "b"]', "testtype": "functional"},
        {"input": "[]\n1", "output": "[]", "testtype": "functional"},
        {"input": '["x"]\n3', "output": '["x", "x", "x"]', "testtype": "functional"},
    ],
    "solutions": [
        "class Solution:\n    def join(self, words: List[str], n: int) -> List[str]:\n        return words * n"
    ],
}
STDIN_DICTIONARY = {"problem": "Echo.", "tests": {"inputs": [["1", "2"], "3"], "outputs": ["1\n2", "3"]}}
FUNCTIONAL_DICTIONARY = {
    "problem": "Negate.",
    "tests": json.dumps({"fn_name": "minus", "inputs": [[1], [2.5], [[3]]], "outputs": [[-1], [-2.5], [[-3]]]}),
}


def run_tests(box, data, source=None):
    tests = data["public"] + data["hidden"]
    jobs = [job_of(test, source or data["reference"], data["prelude"], fingerprint=False) for test in tests]
    return [judge(test, outcome, 6.0).passed for test, outcome in zip(tests, box.run(jobs), strict=True)]


def test_both_schemas_of_both_kinds():
    data = problems.deepcoder_problem(STDIN_LIST, public_tests=2)
    assert data["public"] == [{"kind": "stdin", "input": "1 2\n", "output": "3\n"}]  # it stands in the statement
    assert [test["input"] for test in data["hidden"]] == ["5 6\n", "7 8\n", "1000000000 1\n"]
    data = problems.deepcoder_problem(FUNCTIONAL_LIST, public_tests=2)
    first = {"kind": "functional", "name": "join", "arguments": [["a", "b"], 2], "output": ["a", "b", "a", "b"]}
    assert data["public"][0] == first and len(data["public"]) == 2 and len(data["hidden"]) == 1
    data = problems.deepcoder_problem(STDIN_DICTIONARY, public_tests=1)
    assert data["public"] == [{"kind": "stdin", "input": "1\n2", "output": "1\n2"}] and data["reference"] is None
    data = problems.deepcoder_problem(FUNCTIONAL_DICTIONARY, public_tests=1)
    assert [test["arguments"] for test in data["public"] + data["hidden"]] == [[1], [2.5], [[3]]]
    assert [test["output"] for test in data["public"] + data["hidden"]] == [-1, -2.5, [-3]]


def test_long_lists_of_tests_keep_the_longest():
    tests = [{"input": "x" * n, "output": "y", "testtype": "stdin_stdout"} for n in range(1, 41)]
    data = problems.deepcoder_problem({"problem": "", "tests": tests}, public_tests=2)
    assert [len(test["input"]) for test in data["public"]] == [1, 2]
    assert [len(test["input"]) for test in data["hidden"]] == list(range(26, 41))


def test_a_visible_test_is_never_a_hidden_one(tmp_path):
    """Else a program that answers what it was shown would pass."""
    tests = [{"input": f"{n}", "output": f"{n}", "testtype": "stdin_stdout"} for n in (1, 2)]
    for statement in ("", "say 1 or 2"):
        for public_tests in (1, 2, 5):
            data = problems.deepcoder_problem({"problem": statement, "tests": tests * 3}, public_tests=public_tests)
            assert [test["input"] for test in data["public"] + data["hidden"]] == ["1", "2"]
            assert len(data["hidden"]) == 1
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"problem": "", "tests": tests[:1] * 2}, {"problem": "", "tests": tests}]))
    assert len(problems.load_deepcoder(str(path), public_tests=2)) == 1
    path.write_text(json.dumps([MBPP_ROWS[0] | {"test_list": ["assert sum(1, 2) == 3"]}]))
    with pytest.raises(UserError, match="cannot be both shown and hidden"):
        problems.load_mbpp(str(path))


def test_solutions_may_stand_in_a_block():
    for solution in ("print(1)", "```python\nprint(1)\n```"):
        data = problems.deepcoder_problem({**STDIN_LIST, "solutions": [solution]}, public_tests=1)
        assert data["reference"].strip() == "print(1)"
        reply = make_demonstrator(
            data["reference"], types.SimpleNamespace(choice=lambda *_, **__: 0, random=lambda: 1.0)
        )()
        assert last_program(reply) == "print(1)\n"


@isolated
def test_records_are_judged():
    with Sandbox(SandboxOptions()) as box:
        for record in (STDIN_LIST, FUNCTIONAL_LIST):
            assert all(run_tests(box, problems.deepcoder_problem(record, public_tests=1)))
        data = problems.deepcoder_problem(FUNCTIONAL_DICTIONARY, public_tests=1)
        assert run_tests(box, data, "minus = lambda x: [-x[0]] if type(x) is list else -x") == [True, True, True]
        assert run_tests(box, data, "minus = lambda x: -1") == [True, False, False]


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "json", "parquet"])
def test_files(tmp_path, form):
    path = tmp_path / f"data.{form}"
    records = [
        {**STDIN_LIST, "solutions": STDIN_LIST["solutions"][0]},
        {**STDIN_DICTIONARY, "tests": STDIN_LIST["tests"]},
    ]
    if form == "parquet":
        import pandas

        pandas.DataFrame(records).to_parquet(path)
    elif form == "json":
        path.write_text(json.dumps(records))
    else:
        text = "".join(json.dumps(record) + "\n" for record in records)
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    loaded = problems.load_deepcoder(str(path), public_tests=1)
    assert len(loaded) == 2 and loaded[0]["reference"] == STDIN_LIST["solutions"][0] and not loaded[1]["reference"]


def test_the_command_gathers_records(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match="jaxagent data deepcoder --source=FOLDER"):
        problems.load_deepcoder(None, public_tests=1)
    with pytest.raises(UserError, match="give --source=FOLDER"):
        datasets.fetch("deepcoder", source=None)
    with pytest.raises(UserError, match=r"holds no \.jsonl"):
        datasets.fetch("deepcoder", source=str(tmp_path))
    (tmp_path / "a.jsonl").write_text(json.dumps(STDIN_LIST))
    (tmp_path / "b.json").write_text(json.dumps([FUNCTIONAL_LIST, FUNCTIONAL_DICTIONARY]))
    assert datasets.fetch("deepcoder", source=str(tmp_path)).startswith("3 DeepCoder records")
    loaded = problems.load_deepcoder(None, public_tests=1)
    assert loaded == [
        problems.deepcoder_problem(record, public_tests=1)
        for record in (STDIN_LIST, FUNCTIONAL_LIST, FUNCTIONAL_DICTIONARY)
    ]
    (tmp_path / "c.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"c.jsonl, record 0: not a DeepCoder problem"):
        datasets.fetch("deepcoder", source=str(tmp_path))
    assert len(problems.load_deepcoder(None, public_tests=1)) == 3  # what was there stays


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"problem": "x"}', r"record 0: not a DeepCoder problem: KeyError\('tests'\)"),
        ('{"problem": "x", "tests": "[]"}', "no tests"),
        ('{"problem": "x", "tests": [{"input": "", "output": "", "testtype": "odd"}]}', "unknown testtype 'odd'"),
        ('{"problem": "x", "tests": [{"input": "", "output": "", "testtype": "functional"}]}', "without func_name"),
        ("{", "holds no JSON records"),
    ],
)
def test_faults_are_named(tmp_path, content, message):
    path = tmp_path / "data.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        problems.load_deepcoder(str(path), public_tests=1)
    with pytest.raises(UserError, match="no such file"):
        problems.load_mbpp(str(tmp_path / "none.json"))


PAIR = "class Pair:\n    def __init__(self, a): self.a = a\ndef first(p): return p.a"
MBPP_ROWS = [
    {"task_id": 600, "text": "Sum.", "code": "def sum(a, b):\r\n    return a + b", "test_setup_code": "",
     "test_list": ["assert sum(1, 2) == 3", "assert sum(2, 2) == 4"], "challenge_test_list": []},
    {"task_id": 700, "query": "Pairs.", "gold": PAIR, "test_setup_code": "",
     "tests": ["assert first(Pair(7)) == 7", "assert first(Pair((1,))) == (1,)"]},
    {"task_id": 12, "query": "Tree.", "gold": "def f(n): return n", "test_setup_code": "root = Node(1)",
     "tests": ["assert f(root)"]},
]  # fmt: skip


@isolated
def test_mbpp_rows(tmp_path):
    path = tmp_path / "mbpp.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MBPP_ROWS))
    loaded = problems.load_mbpp(str(path))
    assert [data["number"] for data in loaded] == [600, 700]  # nothing defines Node
    assert [data["public"][0]["targets"] for data in loaded] == [["sum"], ["Pair", "first"]]
    with Sandbox(SandboxOptions()) as box:
        assert [run_tests(box, data) for data in loaded] == [[True, True], [True, True]]
        assert run_tests(box, loaded[0], "def sum(a, b): return 3") == [True, False]


def humaneval_row(number):
    return {
        "task_id": f"HumanEval/{number}",
        "prompt": f"def helper(x):\n    return x + {number}\n\n\ndef grow(x):\n    \"\"\" Grow. \"\"\"\n",
        "entry_point": "grow",
        "canonical_solution": "    return helper(x)\n",
        "test": "METADATA = {}\n\n\ndef check(candidate):\n    import random\n    assert True\n"
        f"    assert candidate(1) == {number + 1}\n    assert candidate(2) == {number + 2}\n"
        "    for _ in range(20):\n        x = random.randint(0, 9)\n        assert candidate(x) == helper(x)\n",
    }  # fmt: skip


@isolated
def test_humaneval_rows_and_their_command(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match="`jaxagent data humaneval` brings it"):
        problems.load_humaneval(None)
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(UserError, match=r"holds no HumanEval.jsonl.gz"):
        datasets.fetch("humaneval", source=str(source))
    text = "".join(json.dumps(humaneval_row(number)) + "\n" for number in (3, 4))
    (source / "HumanEval.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert datasets.fetch("humaneval", source=str(source)).startswith("2 HumanEval problems")
    loaded = problems.load_humaneval(None)
    assert [test["shown"] for test in loaded[0]["public"]] == ["assert grow(1) == 4"]
    with Sandbox(SandboxOptions()) as box:
        assert [run_tests(box, data) for data in loaded] == [[True, True], [True, True]]
        fooled = "def helper(x): return 0\ndef grow(x): return {1: 4}.get(x, 0)"
        assert run_tests(box, loaded[0], fooled) == [True, False]


def passes_directly(source, tests, setup=""):
    """As anyone would run it: the program and its tests in one plain Python, for programs that we trust."""
    script = "\n".join([source, setup, *tests])
    try:
        done = subprocess.run(
            [sandbox.sandbox_layers.SYSTEM_PYTHON, "-W", "ignore", "-c", script],
            capture_output=True, timeout=10, check=False, env={"PYTHONHASHSEED": "0"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def check_against_direct_runs(rows, chooser, *, mutants_each):
    """rows: (task data, tests as text, setup). The references pass; mutants get the verdict of a direct run."""
    refused, differ = [], []
    with Sandbox(SandboxOptions(seconds=30.0, warm=4)) as box:
        references = [not all(run_tests(box, data)) for data, _, _ in rows]
        refused = [data for (data, _, _), bad in zip(rows, references, strict=True) if bad]
    agreed = {True: 0, False: 0}
    with Sandbox(SandboxOptions(seconds=10.0, warm=4)) as box:
        for data, tests, setup in rows:
            found = [text for kind, text in mutants(data["reference"]) if kind in ("operator", "line")]
            for text in chooser.sample(found, min(mutants_each, len(found))):
                direct = passes_directly(text, tests, setup)
                ours = all(run_tests(box, data, text))
                agreed[direct] += ours == direct
                if ours != direct:
                    differ.append((data.get("number"), direct, text))
    return refused, differ, types.SimpleNamespace(passing=agreed[True], failing=agreed[False])


@isolated
@needs_mbpp
@pytest.mark.slow
def test_mbpp_references_pass_and_mutants_fail_as_in_a_direct_run():
    raw = {row["task_id"]: row for row in json.loads(MBPP.read_text())}
    loaded = problems.load_mbpp(str(MBPP))
    assert len(raw) == 974 and len(loaded) == 972
    rows = [(data, raw[data["number"]]["tests"], "import sys, math, re, cmath, collections") for data in loaded]
    refused, differ, agreed = check_against_direct_runs(rows, random.Random(0), mutants_each=1)
    assert not refused
    assert agreed.failing > 500
    assert not differ, differ


@isolated
@pytest.mark.slow
def test_humaneval_references_pass_and_mutants_fail_as_in_a_direct_run(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path))
    try:
        datasets.fetch("humaneval", source=None)
    except UserError as error:
        pytest.skip(str(error))
    text = gzip.decompress((datasets.folder("humaneval") / "HumanEval.jsonl.gz").read_bytes()).decode()
    raw = [json.loads(line) for line in text.splitlines()]
    loaded = problems.load_humaneval(None)
    assert len(loaded) == 164
    rows = [
        (data, ["import random", row["test"], "random.seed(0)", f"check({row['entry_point']})"], "")
        for data, row in zip(loaded, raw, strict=True)
    ]
    refused, differ, agreed = check_against_direct_runs(rows, random.Random(1), mutants_each=2)
    assert not refused
    assert agreed.failing > 150
    assert not differ, differ
