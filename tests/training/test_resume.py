"""Killed and resumed equals uninterrupted, bit for bit, on one CPU device (F21). Real processes, real signals."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest
from tiny_runs import SMALL, assert_every_update_moved

STEPS = 12
OVERRIDES = [
    *SMALL,
    f"algorithm.steps={STEPS}",
    "checkpoint.every=4",
    "eval.every=3",
    "eval.samples=1",
    "logging.trajectories=all",
]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compilation_cache")


def start(workdir, cache, *, command="train"):
    environment = os.environ | {
        "XLA_FLAGS": "",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jaxagent.cli",
            command,
            "--config=lookup_tiny:budgetmix,runlocal",
            f"--workdir={workdir}",
            "--resume",
            *(f"--config.{override}" for override in OVERRIDES),
        ],
        cwd=pathlib.Path(__file__).parents[2],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def lines_of(workdir):
    path = workdir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for(process, condition):
    deadline = time.time() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.time() < deadline
        time.sleep(0.002)


def saved_state(workdir, step=STEPS):
    folder = workdir / "checkpoints" / "latest" / str(step) / "state"
    return ocp.PyTreeCheckpointer().restore(folder.absolute())


def comparable(workdir):
    """Metrics without what a clock or a machine says."""
    volatile = ("time/", "cost/", "per_second")
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not any(word in k for word in volatile)} for line in lines]


def assert_same_run(left, right):
    import jax

    a, b = saved_state(left), saved_state(right)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    assert comparable(left) == comparable(right)
    assert [line["step"] for line in comparable(left)] == list(range(1, STEPS + 1))
    for number in range(STEPS):
        name = f"trajectories/step_{number}.jsonl.gz"
        assert (left / name).read_bytes() == (right / name).read_bytes()
    best = [sorted(p.name for p in (w / "checkpoints" / "best").iterdir()) for w in (left, right)]
    assert best[0] == best[1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, shared_cache):
    workdir = tmp_path_factory.mktemp("straight") / "run"
    finish(start(workdir, shared_cache))
    assert_every_update_moved(comparable(workdir))
    return workdir


def test_three_counters_are_one(uninterrupted):
    """F21: the checkpoint's label, the state's counter and the optimizer's counter."""
    for label in (8, STEPS):
        state = saved_state(uninterrupted, label)
        assert int(state["step"]) == label
        counts = [int(np.asarray(leaf)) for leaf in _leaves_called(state["opt_state"], "count")]
        assert counts and set(counts) == {label}
        record = json.loads((uninterrupted / f"checkpoints/latest/{label}/record/metadata").read_text())
        assert record["step"] == label


def _leaves_called(tree, name):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in items:
        if key == name:
            yield value
        else:
            yield from _leaves_called(value, name)


def test_killed_three_times_and_terminated_once(tmp_path, shared_cache, uninterrupted):
    workdir = tmp_path / "run"
    latest = workdir / "checkpoints" / "latest"
    moments = [
        lambda: lines_of(workdir) >= 2,  # before the first checkpoint
        lambda: any("tmp" in p.name for p in latest.iterdir()) or (latest / "4").exists(),  # while one is written
        lambda: lines_of(workdir) >= 7,  # between two checkpoints, after a look at held-out tasks
    ]
    for moment in moments:
        process = start(workdir, shared_cache)
        wait_for(process, moment)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(workdir, shared_cache)
    wait_for(process, lambda: lines_of(workdir) >= 9)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode in (143, 0), output
    if process.returncode == 143:
        assert "saved" in output
        assert int(max(p.name for p in latest.iterdir() if p.name.isdigit())) >= 9 or lines_of(workdir) >= 9
    finish(start(workdir, shared_cache))
    assert_same_run(uninterrupted, workdir)


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path, shared_cache, uninterrupted):
    moment = random.Random(0)
    workdir = tmp_path / "run"
    kills = 0
    while kills < 20:
        process = start(workdir, shared_cache)
        try:
            process.wait(timeout=moment.uniform(4, 14))
        except subprocess.TimeoutExpired:
            kills += 1
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:  # it reached the end before the kill: start over in a fresh folder
            assert_same_run(uninterrupted, workdir)
            workdir = tmp_path / f"run_{kills}"
    finish(start(workdir, shared_cache))
    assert_same_run(uninterrupted, workdir)
