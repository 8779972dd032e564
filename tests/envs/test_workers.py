import collections
import copy
import gc
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxagent.envs import lookup
from jaxagent.envs.base import InfrastructureError, Observation, StepResult
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
from jaxagent.errors import UserError

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
PROBE = "probe_environment:ENTRY"


@pytest.fixture(autouse=True)
def probe_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture(autouse=True)
def no_process_stays():
    yield
    assert multiprocessing.active_children() == []


def probe_pool(num_workers, step_timeout=30.0, memory=0.0, **options):
    settings = {"num_workers": num_workers, "step_timeout": step_timeout, "worker_memory_gb": memory}
    return EnvironmentPool(PROBE, options, **settings)


def resets(slots, **data):
    return [ResetRequest(slot, Task("probe", f"t{slot}", data, 5), seed=10 * slot) for slot in slots]


def steps(slots, reply):
    return [StepRequest(slot, reply) for slot in slots]


def answers(results):
    return [result.info["answer"] for result in results]


def kinds(results):
    return [result.kind if isinstance(result, InfrastructureError) else "ok" for result in results]


def is_alive(pid):
    """Whether a process exists and is no zombie that nobody reaps (in a container without an init process)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def losses(results):
    return [isinstance(result, InfrastructureError) and result.lost for result in results]


def rollouts(num_workers):
    """All results of 6 slots over 12 rounds of random replies, slots refilled as they end."""
    source = lookup.make_tasks({}, "train", 2**20, 0)
    generator, results, started = np.random.default_rng(0), [], 0
    replies = lookup.compact_replies()
    with EnvironmentPool("lookup", {"rendering": "compact"}, num_workers=num_workers, step_timeout=30.0) as pool:
        ended = set(range(6))
        for _ in range(12):
            requests = []
            for slot in (4, 0, 5, 1, 3, 2):
                if slot in ended:
                    requests.append(ResetRequest(slot, source.task(started), seed=started))
                    started += 1
                requests.append(StepRequest(slot, replies[generator.integers(len(replies))]))
            found = pool.run(requests)
            pairs = zip(requests, found, strict=True)
            ended = {request.slot for request, result in pairs if isinstance(result, StepResult) and result.ended}
            results.extend(found)
    return results


def test_workers_change_nothing():
    in_process, spawned = rollouts(0), rollouts(2)
    assert in_process == spawned
    assert sum(isinstance(result, Observation) for result in spawned) > 6
    assert any(isinstance(result, StepResult) and result.ended == "success" for result in spawned)


def test_slots_keep_their_worker_and_workers_are_bare():
    with probe_pool(2) as pool:
        first = pool.run(resets(range(5)))
        assert [result.text for result in first] == ["t0 0", "t1 10", "t2 20", "t3 30", "t4 40"]
        pids = answers(pool.run(steps(range(5), "pid")))
        assert pids[0] == pids[2] == pids[4] != pids[1] == pids[3]
        assert os.getpid() not in pids
        assert answers(pool.run(steps(range(5), "jax"))) == [False] * 5
        results = pool.run(steps([3, 0, 3], "hello"))
        assert [result.observation.text for result in results] == ["3 hello", "3 hello", "4 hello"]
        assert pool.run([]) == []
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_faults_of_the_environment_are_values(num_workers):
    with probe_pool(num_workers) as pool:
        pool.run(resets(range(4)))
        orders = ["raise", "void", "fine", "fine"]
        results = pool.run([StepRequest(slot, order) for slot, order in enumerate(orders)])
        assert kinds(results) == ["worker", "sandbox", "ok", "ok"]
        assert "ZeroDivisionError('a bug in the environment')" in str(results[0])
        assert str(results[1]) == "sandbox: no sandbox here"
        # The episodes of the first two are gone, the others go on.
        assert kinds(pool.run(steps(range(4), "fine"))) == ["worker", "worker", "ok", "ok"]
        assert kinds(pool.run([*resets([0]), *steps([0], "fine")])) == ["ok", "ok"]
        assert kinds(pool.run(resets([1], order="raise") + resets([2], order="void"))) == ["worker", "sandbox"]
        assert kinds(pool.run(steps([9], "never reset"))) == ["worker"]


def test_an_answer_that_cannot_be_sent_is_a_fault_of_the_environment():
    with probe_pool(1) as pool:
        results = pool.run([*resets([0]), StepRequest(0, "secret"), StepRequest(0, "fine")])
        assert kinds(results) == ["ok", "worker", "ok"]
        assert "unsendable" in str(results[1])


def test_a_worker_that_dies_costs_its_own_slots_only():
    with probe_pool(2) as pool:
        pool.run(resets(range(4)))
        pids = answers(pool.run(steps(range(4), "pid")))
        results = pool.run(
            [StepRequest(0, "fine"), StepRequest(2, "die"), StepRequest(1, "fine"), StepRequest(0, "lost")]
        )
        assert kinds(results) == ["ok", "worker", "ok", "worker"]
        assert "exit code 7" in str(results[1])
        assert kinds(pool.run(steps(range(4), "fine"))) == ["worker", "ok", "worker", "ok"]
        pool.run(resets([0, 2]))
        again = answers(pool.run(steps(range(4), "pid")))
        assert again[1::2] == pids[1::2]
        assert again[0] == again[2] != pids[0]


def test_a_worker_killed_between_calls():
    with probe_pool(1) as pool:
        pool.run(resets([0, 1]))
        (pid,) = answers(pool.run(steps([0], "pid")))
        os.kill(pid, signal.SIGKILL)
        while any(child.is_alive() for child in multiprocessing.active_children()):
            time.sleep(0.01)
        assert kinds(pool.run(steps([0, 1], "fine"))) == ["worker", "worker"]
        assert kinds(pool.run(resets([0, 1]) + steps([0, 1], "fine"))) == ["ok"] * 4


def test_a_step_over_its_time_is_killed():
    with probe_pool(2, step_timeout=2.0) as pool:
        pool.run(resets(range(4)))
        pids = answers(pool.run(steps(range(2), "pid")))
        started = time.monotonic()
        requests = [StepRequest(0, "hang 60"), StepRequest(1, "fine"), StepRequest(2, "behind"), StepRequest(3, "fine")]
        results = pool.run(requests)
        assert time.monotonic() - started < 30
        assert kinds(results) == ["timeout", "ok", "worker", "ok"]
        assert losses(results) == [False, False, True, False]
        assert "no answer within 2.0 s" in str(results[0]) and "no answer within 2.0 s" in str(results[2])
        assert not is_alive(pids[0])
        results = pool.run(steps(range(4), "fine"))
        assert kinds(results) == ["worker", "ok", "worker", "ok"]
        assert losses(results) == [True, False, True, False]
        # The limit is for one request, not for a call of several.
        assert kinds(pool.run([*resets([0]), *steps([0] * 3, "hang 0.9")])) == ["ok"] * 4


def test_loading_the_environment_is_not_the_first_requests_time():
    with probe_pool(1, step_timeout=1.0, slow_in="worker") as pool:
        assert kinds(pool.run(resets([0]))) == ["ok"]


def test_a_success_that_came_before_the_worker_broke_stands():
    with probe_pool(1, step_timeout=2.0) as pool:
        pool.run(resets([0, 1]))
        results = pool.run([StepRequest(0, "win"), StepRequest(1, "hang 60")])
        assert results[0].ended == "success" and kinds(results) == ["ok", "timeout"]


def test_a_stopped_worker_cannot_block_the_caller():
    """A message larger than the socket's buffer would wait for ever for a process that reads nothing."""
    with probe_pool(1, step_timeout=1.0) as pool:
        pool.run(resets([0]))
        (pid,) = answers(pool.run(steps([0], "pid")))
        assert kinds(pool.run(steps([0], "long " + "x" * 4_000_000))) == ["ok"]
        os.kill(pid, signal.SIGSTOP)
        assert kinds(pool.run(steps([0], "long " + "x" * 4_000_000))) == ["timeout"]
        assert not is_alive(pid)


@pytest.mark.parametrize("end", ["hang 60", "die", "close"])
def test_what_an_environment_started_ends_with_its_worker(end):
    with probe_pool(1, step_timeout=1.0) as pool:
        pool.run(resets([0]))
        (child,) = answers(pool.run(steps([0], "child")))
        assert is_alive(child)
        if end != "close":
            pool.run(steps([0], end))
            wait_for(lambda: not is_alive(child))
    wait_for(lambda: not is_alive(child))


def test_memory_is_bounded():
    with probe_pool(1, memory=0.6) as pool:
        pool.run(resets([0, 1]))
        (pid,) = answers(pool.run(steps([0], "pid")))
        results = pool.run([StepRequest(0, "keep 2e9"), StepRequest(1, "fine")])
        assert kinds(results) == ["worker", "ok"] and "MemoryError" in str(results[0])
        pool.rest()
        assert answers(pool.run([*resets([0, 1]), StepRequest(0, "pid")])[2:]) == [pid], "it holds little"
        assert kinds(pool.run(steps([1], "keep 4e8"))) == ["ok"]
        pool.rest()
        results = pool.run([*resets([0]), StepRequest(0, "pid")])
        assert answers(results[1:]) != [pid] and not is_alive(pid), "past half of its memory it is replaced"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_answers_that_are_none_are_faults(num_workers):
    with probe_pool(num_workers) as pool:
        pool.run(resets(range(4)))
        results = pool.run([StepRequest(slot, word) for slot, word in enumerate(("none", "nan", "odd end", "text"))])
        assert kinds(results) == ["worker", "verifier", "worker", "verifier"]
        assert "StepResult" in str(results[0]) and "nan" in str(results[1]) and "'maybe'" in str(results[2])


def test_a_pool_that_nobody_closes_ends_with_its_last_reference():
    pool = probe_pool(1)
    pool.run(resets([0]))
    pids = answers(pool.run(steps([0], "pid")) + pool.run(steps([0], "child")))
    del pool
    gc.collect()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_a_worker_that_cannot_start_is_an_infrastructure_fault(monkeypatch):
    monkeypatch.setenv("PROBE_CALLER", str(os.getpid()))
    with probe_pool(1, only_in="caller") as pool:
        results = pool.run(resets([0, 1]))
        assert kinds(results) == ["worker"] * 2 and losses(results) == [False] * 2
        assert all("this environment cannot be made in a worker" in str(result) for result in results)


def test_an_interrupted_call_leaves_no_stale_answers(monkeypatch):
    with probe_pool(1) as pool:
        pool.run(resets([0]))
        wait, interrupts = multiprocessing.connection.wait, [KeyboardInterrupt]

        def interrupted_once(*arguments):
            if interrupts:
                raise interrupts.pop()
            return wait(*arguments)

        monkeypatch.setattr(multiprocessing.connection, "wait", interrupted_once)
        with pytest.raises(KeyboardInterrupt):
            pool.run(steps([0], "stale"))
        results = pool.run([*resets([0]), *steps([0], "fresh")])
        assert [results[0].text, results[1].observation.text] == ["t0 0", "1 fresh"]


def test_workers_ignore_the_terminals_interrupt():
    with probe_pool(1) as pool:
        pool.run(resets([0]))
        (pid,) = answers(pool.run(steps([0], "pid")))
        os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert kinds(pool.run(steps([0], "fine"))) == ["ok"]


def test_close():
    for num_workers in (0, 1):
        pool = probe_pool(num_workers)
        pool.run(resets([0]))
        pool.close()
        pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            pool.run(steps([0], "fine"))
    probe_pool(1).close()  # before the worker is up


def test_bad_arguments_are_refused_before_a_process_starts():
    good = {"num_workers": 1, "step_timeout": 1.0}
    for name, options, more, message in [
        ("no_such", {}, {}, "'no_such' is not registered"),
        ("lookup", {"fields": 1}, {}, r"env\.options\.fields"),
        ("lookup", {}, {"num_workers": -1}, r"env\.workers"),
        ("lookup", {}, {"step_timeout": 0.0}, r"env\.step_timeout"),
        ("lookup", {}, {"worker_memory_gb": 0.01}, r"env\.worker_memory_gb"),
    ]:
        with pytest.raises(UserError, match=message):
            EnvironmentPool(name, options, **{**good, **more})
        assert multiprocessing.active_children() == []


SCRIPT = """
import sys
sys.path[:0] = [{here!r}, {root!r}]
import jax.version
MARK = 1
print("main runs", flush=True)
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
pool = EnvironmentPool({probe!r}, {{}}, num_workers=2, step_timeout=30.0)
task = Task("probe", "t", {{}}, 5)
pool.run([ResetRequest(slot, task, 0) for slot in range(2)])
results = [pool.run([StepRequest(slot, order) for slot in range(2)]) for order in ("jax", "main", "pid")]
print([result.info["answer"] for found in results for result in found])
{end}
"""


@pytest.mark.parametrize("as_file", [True, False])
def test_from_a_script_without_a_guard_and_without_closing(tmp_path, as_file):
    """The caller imports jax and has no `if __name__ == "__main__"`; it never closes the pool; nothing stays."""
    script = SCRIPT.format(here=str(HERE), root=str(ROOT), probe=PROBE, end="" if as_file else "pool.close()")
    path = tmp_path / "caller.py"
    path.write_text(script)
    command = [sys.executable, str(path)] if as_file else [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    first, second = done.stdout.splitlines()
    assert first == "main runs"
    jax_0, jax_1, main_0, main_1, *pids = second.strip("[]").split(", ")
    assert [jax_0, jax_1, main_0, main_1] == ["False"] * 4
    assert done.stderr == ""
    assert not any(is_alive(int(pid)) for pid in pids)


KILLED = """
import sys
sys.path[:0] = [{here!r}, {root!r}]
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
pool = EnvironmentPool({probe!r}, {{}}, num_workers=1, step_timeout=600.0)
pool.run([ResetRequest(0, Task("probe", "t", {{}}, 5), 0)])
pids = [pool.run([StepRequest(0, order)])[0].info["answer"] for order in ("pid", "child")]
print(*pids, flush=True)
pool.run([StepRequest(0, "hang 600")])
"""


def test_workers_end_with_a_caller_that_was_killed_in_the_middle_of_a_step():
    script = KILLED.format(here=str(HERE), root=str(ROOT), probe=PROBE)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as caller:
        pids = [int(word) for word in caller.stdout.readline().split()]
        assert len(pids) == 2 and all(is_alive(pid) for pid in pids)
        caller.kill()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_episodes_side_by_side_share_nothing(num_workers):
    """Eight episodes of one task, one of them played by an oracle: one success, and each as if it were alone."""
    task = lookup.make_tasks({}, "train", 4, 0).task(1)
    before = copy.deepcopy(task)
    wins = [f"query_{field}" for field in task.data["needed"] for _ in range(6)] + ["answer_a"]
    replies = [["query_1", "what?"] * 20 if slot != 5 else wins for slot in range(8)]

    def play(pool, slots):
        texts = {slot: [result.text] for slot, result in zip(slots, pool.run(resets_of(task, slots)), strict=True)}
        ended = {}
        for turn in range(40):
            live = [slot for slot in slots if slot not in ended and turn < len(replies[slot])]
            results = pool.run([StepRequest(slot, replies[slot][turn]) for slot in live])
            for slot, result in zip(live, results, strict=True):
                texts[slot].append(result.observation.text)
                ended |= {slot: result.ended} if result.ended else {}
        return texts, ended

    with EnvironmentPool("lookup", {}, num_workers=num_workers, step_timeout=30.0) as pool:
        texts, ended = play(pool, range(8))
        assert ended == {5: "success"}
        assert [play(pool, [slot])[0][slot] for slot in range(8)] == [texts[slot] for slot in range(8)]
    assert task == before


def resets_of(task, slots):
    return [ResetRequest(slot, task, seed=10 * slot) for slot in slots]


def resources():
    """(descriptors, child processes, resident memory in MB) of this process."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), len(children), pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
def test_thousands_of_episodes_leave_nothing_behind(tmp_path, monkeypatch, capsys):
    """4,000 episodes over 2 workers, of which one in a hundred hangs, dies, stops or leaves a process."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    generator = np.random.default_rng(0)
    orders = ["hang 60", "die", "raise", "child", "nan", "keep 1e7"]
    counts, children, seen = collections.Counter(), [], []
    started = time.monotonic()
    with probe_pool(2, step_timeout=0.5, memory=1.0) as pool:
        for batch in range(500):
            if batch in (20, 499):
                seen.append(resources())
            pool.run(resets(range(8)))
            for _ in range(3):
                words = ["fine" if generator.random() > 0.01 else orders[generator.integers(6)] for _ in range(8)]
                results = pool.run([StepRequest(slot, word) for slot, word in enumerate(words)])
                counts.update(kinds(results))
                found = zip(words, results, strict=True)
                children += [r.info["answer"] for word, r in found if word == "child" and isinstance(r, StepResult)]
            pool.rest()
    wait_for(lambda: not any(is_alive(pid) for pid in children))
    (files, processes, memory), (files_after, processes_after, memory_after) = seen
    with capsys.disabled():
        print(
            f"\n4,000 episodes in {time.monotonic() - started:.0f} s: {dict(counts)}, {len(children)} left processes; "
            f"descriptors {files} -> {files_after}, children {processes} -> {processes_after}, "
            f"memory {memory:.0f} -> {memory_after:.0f} MB"
        )
    assert files_after == files and processes_after == processes and memory_after < memory + 20
    assert counts["timeout"] > 5 and counts["worker"] > 20 and counts["ok"] > 10_000 and children
    assert list(tmp_path.iterdir()) == []
