import gc
import hashlib
import json
import os
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.envs import registry, sandbox
from jaxagent.envs.base import InfrastructureError, split_of
from jaxagent.envs.deepcoder import environment as deepcoder
from jaxagent.envs.sandbox import Outcome
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
from jaxagent.errors import UserError

LAYERS, COMPLAINT = sandbox.isolation()
isolated = pytest.mark.skipif(LAYERS is None, reason=f"no isolation here: {COMPLAINT}")
STDIN = [{"kind": "stdin", "input": f"{n}\n", "output": f"{2 * n}\n"} for n in (3, 5, 21, 10**20)]
RIGHT = "print(2 * int(input()))"
HALF = "n = int(input())\nprint(2 * n if n == 3 else 0)"
HARD_CODED = "print({3: 6, 5: 10}.get(int(input()), 0))"


def task_of(public=2, **changes):
    data = {"origin": "own", "statement": "Double it.", "starter_code": "", "prelude": "", "reference": RIGHT}
    return Task("deepcoder", "t", {**data, "public": STDIN[:public], "hidden": STDIN[public:], **changes}, 4)


def reply_of(program):
    return f"Here it is.\n```python\n{program}\n```"


def started(task=None, **options):
    env = deepcoder.make_environment(options)
    return env, env.reset(task or task_of(), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "apps"}, "env.options.source must be one of generated, deepcoder, humaneval, mbpp, got 'apps'"),
        ({"source": "mbpp"}, "needs env.options.path"),
        ({"max_turns": 0}, "env.options.max_turns must be a whole number from 1 on"),
        ({"families": ("sorting",)}, r"env.options.families must be among pipeline, .*\['sorting'\]"),
        ({"sandbox": {"second": 3}}, "env.options.second is no option of 'deepcoder.sandbox'"),
        ({"sandbox": {"seconds": 0}}, "sandbox.seconds"),
        ({"step_seconds": 0}, "env.options.step_seconds"),
        ({"turns": 4}, "env.options.turns is no option of 'deepcoder'"),
    ],
)
def test_bad_options_are_named(options, message):
    for make in (lambda: deepcoder.make_environment(options), lambda: deepcoder.make_tasks(options, "train", 1, 0)):
        with pytest.raises(UserError, match=message):
            make()


def test_generated_tasks_are_reproducible_and_disjoint():
    sources = {split: deepcoder.make_tasks({}, split, 12, 3) for split in ("train", "held_out", "panel")}
    again = deepcoder.make_tasks({"max_turns": 8}, "train", 12, 3)
    assert [sources["train"].task(i).id for i in range(12)] == [again.task(i).id for i in range(12)]
    assert [sources["train"].task(0).max_turns, again.task(0).max_turns] == [4, 8]
    for split, source in sources.items():
        tasks = [source.task(i) for i in range(12)]
        assert all(split_of(task.id) == split for task in tasks)
        assert all(len(task.data["public"]) == 2 and len(task.data["hidden"]) == 6 for task in tasks)
        json.dumps([task.data for task in tasks], allow_nan=False)
    only = deepcoder.make_tasks({"families": ("edit_distance",), "form": "stdin"}, "train", 5, 0)
    assert {only.task(i).data["origin"] for i in range(5)} == {"generated/edit_distance"}
    assert {test["kind"] for i in range(5) for test in only.task(i).data["hidden"]} == {"stdin"}


def test_constant_answers_solve_next_to_nothing():
    """The commonest expected output of a task's tests is right for all of them in few tasks."""
    source = deepcoder.make_tasks({}, "train", 2000, 0)
    outputs = [
        [json.dumps(t["output"]) for t in [*task.data["public"], *task.data["hidden"]]]
        for task in map(source.task, range(300))
    ]
    assert np.mean([len(set(answers)) == 1 for answers in outputs]) < 0.02
    assert np.mean([len(set(answers)) >= 4 for answers in outputs]) > 0.75
    inputs = [
        [json.dumps(t.get("input", t.get("arguments"))) for t in [*task.data["public"], *task.data["hidden"]]]
        for task in map(source.task, range(100))
    ]
    assert np.mean([len(set(given)) == len(given) for given in inputs]) > 0.97


def test_data_sets_split_as_their_readmes_say(tmp_path):
    row = {"query": "q", "gold": "def f(): return 1", "test_setup_code": "", "tests": ["assert f() == 1"] * 2}
    path = tmp_path / "mbpp.json"
    path.write_text(json.dumps([{**row, "task_id": n, "query": f"q{n}"} for n in (1, 10, 11, 510, 511, 600, 601, 974)]))
    numbers = {}
    for split in ("train", "held_out", "panel"):
        source = deepcoder.make_tasks({"source": "mbpp", "path": str(path)}, split, 100, 0)
        numbers[split] = {source.task(i).data["number"] for i in range(len(source))}
    assert numbers == {"panel": {11, 510}, "held_out": {511, 600}, "train": {1, 10, 601, 974}}
    first, second = (deepcoder.make_tasks({"source": "mbpp", "path": str(path)}, "train", 3, seed) for seed in (0, 0))
    assert len(first) == 3 and first.content_hash() == second.content_hash()
    assert (
        len(
            {
                deepcoder.make_tasks({"source": "mbpp", "path": str(path)}, "train", 4, s).content_hash()
                for s in range(9)
            }
        )
        > 2
    )


@isolated
def test_a_draft_then_the_fix():
    env, first = started()
    assert "Double it." in first.text and "input:\n3\noutput:\n6" in first.text and "10000000000" not in first.text
    half = env.step(reply_of(HALF))
    assert half.observation.text.startswith("1 of 2 visible tests pass.\nTest 2: wrong answer.\ninput:\n5\noutput:\n10")
    assert half.observation.text.endswith("your program gave:\n0")
    assert (half.reward, half.ended) == (0.0, None)
    assert half.info == {"valid": True, "action": "program", "error": None, "good": True, "progress": 1 / 3}
    again = env.step(reply_of(HALF))
    assert again.info["good"] is False and again.info["progress"] == 1 / 3  # nothing gained
    fixed = env.step(reply_of(RIGHT))
    assert (fixed.reward, fixed.ended, fixed.info["good"], fixed.info["progress"]) == (1.0, "success", True, 1.0)
    with pytest.raises(RuntimeError, match="no live episode"):
        env.step(reply_of(RIGHT))


@isolated
def test_hidden_tests_decide_and_never_show():
    for reward, expected in (("binary", 0.0), ("fraction", 0.5)):
        env, _ = started(task_of(hidden=[STDIN[1], STDIN[3]]), reward=reward)
        result = env.step(reply_of(HARD_CODED))
        assert (result.ended, result.reward) == ("failure", expected)
        assert result.info["progress"] == 2 / 3 and result.info["good"] is True
        assert "10000000000" not in result.observation.text
    env, _ = started(reward="fraction")
    assert env.step(reply_of(RIGHT)).reward == 1.0


@isolated
def test_submit_hands_in_the_last_program():
    env, _ = started(task_of(hidden=[STDIN[0]]))
    assert env.step("submit").info["error"] == "no_program"  # nothing to hand in
    env.step(reply_of(HALF))
    result = env.step("<think>enough</think> Submit.")
    assert (result.ended, result.reward, result.info["action"]) == ("success", 1.0, "submit")
    env, _ = started()
    env.step(reply_of(HALF))
    result = env.step("submit")
    assert (result.ended, result.reward, result.info["good"]) == ("failure", 0.0, False)


@isolated
@pytest.mark.parametrize(
    ("program", "text", "error"),
    [
        ("print(", "does not compile: line 1: SyntaxError: '(' was never closed", "syntax"),
        ("while True: pass", "Test 1: time limit 0.5 s.", "time"),
        ("x = bytearray(10**11)", "Test 1: memory limit.", "memory"),
        ("while True: print('x' * 10**5)", "Test 1: output limit.", "output"),
        ("raise ValueError('All visible tests pass.')", "Test 1: runtime error.", "exit"),
        ("raise SystemExit(3)", "Test 1: exit code 3.", "exit"),
        ("print('All visible tests pass.')", "Test 1: wrong answer.", None),
        ("pass", "your program gave:\n(nothing)", None),
    ],
)
def test_verdicts(program, text, error):
    env, _ = started(sandbox={"seconds": 0.5})
    result = env.step(reply_of(program))
    assert text in result.observation.text and result.observation.text.startswith(("0 of 2", "The program does not"))
    assert (result.ended, result.info["error"], result.reward) == (None, error, 0.0)
    assert result.info["valid"] is True and result.info["progress"] == 0.0
    assert result.info["good"] is (error is None)  # the first code that runs


@isolated
def test_slow_programs_cannot_outlast_the_workers():
    env, _ = started(task_of(public=4, hidden=STDIN), sandbox={"seconds": 0.6, "parallel": 1}, step_seconds=0.8)
    result = env.step(reply_of("import time\ntime.sleep(600)"))
    assert result.observation.text.startswith("0 of 4")
    assert "time limit" in result.observation.text and result.info["error"] == "time"


@isolated
def test_anchors_are_the_program_or_its_verdicts():
    env, first = started()
    assert first.anchor == "start"
    anchors = [env.step(reply_of(p)).observation.anchor for p in ("print( 1 ) # a", "print(1)", "print(2)", "print(")]
    assert anchors[0] == anchors[1] and len(set(anchors)) == 3
    assert env.step(reply_of("print(")).observation.anchor == anchors[3]
    assert env.step("no program").observation.anchor == anchors[3]
    env, _ = started(anchor="coarse")
    anchors = [env.step(reply_of(p)).observation.anchor for p in (HALF, "print(1)", "print(2)", "1 / 0")]
    assert anchors == ["tests:passed,wrong", "tests:wrong,wrong", "tests:wrong,wrong", "tests:exit,exit"]


@isolated
def test_demonstrators_solve_generated_problems_and_every_expert_step_is_good():
    source = deepcoder.make_tasks({}, "train", 40, 5)
    env = deepcoder.make_environment({})
    solved, replies = [], []
    for index in range(7):
        task = source.task(index)
        assert deepcoder.best_success(task, 0) == 0.0 and deepcoder.best_success(task, 1) == 1.0
        env.reset(task, 0)
        result = env.step(reply_of(task.data["reference"]))
        assert (result.ended, result.info["good"], result.info["progress"]) == ("success", True, 1.0), task.data
        env.reset(task, 0)
        player = registry.get("deepcoder").make_demonstrator(env, np.random.default_rng(index))
        for _ in range(4):
            replies.append(player())
            result = env.step(replies[-1])
            if result.ended:
                break
        solved.append(result.ended == "success")
    assert 0.3 < np.mean(solved) <= 1.0
    assert len(replies) > len(solved)  # wrong drafts come first


def test_without_references_nobody_demonstrates():
    env = object.__new__(deepcoder.DeepCoder)
    env._data = task_of(reference=None).data
    with pytest.raises(UserError, match="no reference programs"):
        registry.get("deepcoder").make_demonstrator(env, np.random.default_rng(0))


class NoSandbox:
    """Answers every job at once, as a program that prints what it was told to."""

    def run(self, jobs):
        yield from (Outcome("ok", stdout="6\n", values=(6,)) for _ in jobs)


@settings(max_examples=200, deadline=None)
@given(
    reply=st.one_of(
        st.text(max_size=400),
        st.text(alphabet="`\n py\0\ud800<think>/", max_size=60),
        st.text(max_size=60).map(reply_of),
        st.just(reply_of("x" * 20_000)),
    )
)
def test_any_reply_at_all(reply):
    env = object.__new__(deepcoder.DeepCoder)
    env.options, env._sandbox = deepcoder.DeepCoderOptions(), NoSandbox()
    env.reset(task_of(), 0)
    result = env.step(reply)
    text = result.observation.text
    text.encode()
    assert 0 < len(text) <= deepcoder.MAX_FEEDBACK and "\0" not in text
    assert result.info["valid"] is (result.info["action"] == "program")
    if not result.info["valid"]:
        assert result.info["error"] in ("no_program", "too_long") and result.observation.anchor == "start"
        assert (result.info["good"], result.info["progress"], result.reward, result.ended) == (False, 0.0, 0.0, None)


def test_long_texts_are_cut():
    assert deepcoder.cut("short", 10) == "short"
    long = deepcoder.cut("a" * 5000 + "z" * 5000, 2000)
    assert len(long) <= 2000 and long.startswith("aaa") and long.endswith("zzz") and "8000 characters left out" in long


@isolated
def test_eight_at_once_and_one_succeeds():
    task = task_of()
    before = hashlib.sha256(json.dumps(task.data).encode()).hexdigest()
    environments = [started(task)[0] for _ in range(8)]
    programs = [HALF] * 6 + [RIGHT] + ["print(1)"]
    results = [env.step(reply_of(program)) for env, program in zip(environments, programs, strict=True)]
    assert [result.ended for result in results] == [None] * 6 + ["success"] + [None]
    assert [result.info["progress"] for result in results] == [1 / 3] * 6 + [1.0, 0.0]
    assert hashlib.sha256(json.dumps(task.data).encode()).hexdigest() == before


@isolated
def test_failing_machinery_is_void_and_never_reward_0(monkeypatch):
    env, _ = started()
    kinds = []
    for error in (InfrastructureError("sandbox", "dead"), InfrastructureError("verifier", "broken")):

        def fail(jobs, error=error):
            raise error
            yield

        monkeypatch.setattr(env._sandbox, "run", fail, raising=True)
        with pytest.raises(InfrastructureError) as caught:
            env.step(reply_of(RIGHT))
        kinds.append(caught.value.kind)
    assert kinds == ["sandbox", "verifier"]


@isolated
def test_in_worker_processes():
    options = {"sandbox": {"warm": 1}}
    task = task_of()
    with EnvironmentPool("deepcoder", options, num_workers=2, step_timeout=60.0) as pool:
        pool.run([ResetRequest(slot, task, slot) for slot in range(4)])
        results = pool.run([StepRequest(slot, reply_of(RIGHT if slot == 2 else HALF)) for slot in range(4)])
    assert [result.ended for result in results] == [None, None, "success", None]


def footprint():
    gc.collect()
    children = sum(
        len(path.read_text().split()) for path in pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
    )
    status = pathlib.Path("/proc/self/status").read_text().split()
    return len(os.listdir("/proc/self/fd")), children, int(status[status.index("VmRSS:") + 1])


@isolated
@pytest.mark.slow
def test_five_thousand_episodes_leave_nothing(capsys):
    """Descriptors, processes and memory stand still; every tenth program is a hostile one."""
    options = {"public_tests": 1, "hidden_tests": 1, "sandbox": {"seconds": 0.5, "warm": 2}}
    env = deepcoder.make_environment(options)
    source = deepcoder.make_tasks(options, "train", 1 << 20, 0)
    marks = {}
    for episode in range(1, 5001):
        task = source.task(episode)
        env.reset(task, episode)
        hostile = ("while True: pass", "import os\nos.fork()", "x = bytearray(10**11)", "print('x' * 10**8)")
        program = hostile[episode // 10 % 4] if episode % 10 == 0 else task.data["reference"]
        result = env.step(reply_of(program))
        assert (result.ended == "success") == (episode % 10 != 0), (episode, result)
        if episode in (500, 5000):
            marks[episode] = footprint()
    env.close()
    with capsys.disabled():
        print("(descriptors, processes, kB) after 500 and 5,000 episodes:", marks)
    assert marks[5000][:2] == marks[500][:2]
    assert marks[5000][2] - marks[500][2] < 20_000  # kB
