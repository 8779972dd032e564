"""Mixtures of environments: keyed shares, splits, delegation, one environment a group, and runs that resume bit for
bit."""

import collections
import json

import numpy as np
import pytest
from tiny_runs import SilentLog, assert_every_update_moved, tiny_config

from jaxagent.config_files import load_config
from jaxagent.envs import mixture, registry
from jaxagent.envs.base import split_of
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.errors import UserError
from jaxagent.evaluation.panels import make_panel
from jaxagent.rollout.setup import make_setup
from jaxagent.training import loop

COMPACT = {"rendering": "compact"}
PARTS = {
    "easy": {"env": "lookup", "weight": 3.0, "options": COMPACT | {"max_turns": 8, "max_needed": 2}},
    "hard": {"env": "lookup", "weight": 1.0, "options": COMPACT | {"min_needed": 5}},
    "frozen_lake": {"weight": 2.0, "options": COMPACT | {"size": 4, "max_turns": 8}},
}
OPTIONS = {"parts": PARTS}
ENTRY = mixture.ENTRY


def parts(tasks):
    return collections.Counter(mixture.part_of(task.env) for task in tasks)


def test_training_tasks_follow_the_weights_and_nothing_else():
    source = ENTRY.make_tasks(OPTIONS, "train", 1 << 20, 7)
    tasks = [source.task(index) for index in range(1200)]
    counts = parts(tasks)
    for name, share in {"easy": 0.5, "hard": 1 / 6, "frozen_lake": 1 / 3}.items():
        deviation = 4 * (share * (1 - share) * 1200) ** 0.5
        assert abs(counts[name] - 1200 * share) < deviation
    again = ENTRY.make_tasks({"parts": dict(reversed(PARTS.items()))}, "train", 1 << 20, 7)
    assert [again.task(i) for i in (1100, 3, 500)] == [tasks[i] for i in (1100, 3, 500)]
    assert source.content_hash() == again.content_hash()
    assert source.content_hash() != ENTRY.make_tasks(OPTIONS, "train", 1 << 20, 8).content_hash()
    assert len({task.id for task in tasks}) > 800
    with pytest.raises(IndexError):
        source.task(1 << 20)


def test_a_task_is_the_parts_own():
    source = ENTRY.make_tasks(OPTIONS, "train", 100, 0)
    for task in (source.task(index) for index in range(40)):
        name, inner = mixture.inner_task(task)
        entry = registry.get(PARTS[name].get("env", name))
        assert inner.env == entry.name and (inner.id, inner.data, inner.max_turns) == (
            task.id,
            task.data,
            task.max_turns,
        )
        assert (
            len(task.data["needed"]) <= 2 if name == "easy" else name == "frozen_lake" or len(task.data["needed"]) >= 5
        )
        assert split_of(task.id) == "train"
        assert ENTRY.best_success(task, 3) == entry.best_success(inner, 3)


@pytest.mark.parametrize("split", ["held_out", "panel"])
def test_lists_are_in_proportion_distinct_and_of_their_split(split):
    source = ENTRY.make_tasks(OPTIONS, split, 60, 1)
    tasks = [source.task(index) for index in range(len(source))]
    assert parts(tasks) == {"easy": 30, "hard": 10, "frozen_lake": 20}
    assert len({task.id for task in tasks}) == 60 and {split_of(task.id) for task in tasks} == {split}
    first = parts(tasks[:12])
    assert max(abs(first[name] - want) for name, want in {"easy": 6, "hard": 2, "frozen_lake": 4}.items()) <= 1
    if split == "panel":
        assert make_panel("mixture", OPTIONS, tasks).content_hash == source.content_hash()


def test_parts_that_hold_the_same_tasks_are_listed_once():
    same = {"parts": {"a": {"env": "lookup"}, "b": {"env": "lookup", "options": {"max_turns": 3}}}}
    source = ENTRY.make_tasks(same, "panel", 20, 1)
    ids = [source.task(index).id for index in range(len(source))]
    assert len(ids) == len(set(ids)) == 10


def test_shares():
    assert mixture.shares([1.0, 1.0, 1.0], 10) == [4, 3, 3]
    assert mixture.shares([0.1, 99.9], 3) == [0, 3]
    for weights in ([3, 1, 2], [0.3, 0.3, 0.4], [1e-9, 1]):
        for size in range(1, 30):
            counts = mixture.shares(weights, size)
            assert sum(counts) == size
            assert all(abs(c - size * w / sum(weights)) < 1 for c, w in zip(counts, weights, strict=True))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_episode_runs_as_in_its_own_environment(num_workers):
    source = ENTRY.make_tasks(OPTIONS, "train", 100, 0)
    tasks = [source.task(index) for index in range(12)]
    assert len(parts(tasks)) == 3
    replies = ["query_1", "left", "what?", "down", "answer_a"]
    with EnvironmentPool("mixture", OPTIONS, num_workers=num_workers, step_timeout=60.0) as pool:
        for start in (0, 4, 8):  # slots are used again by tasks of other parts
            seen = [pool.run([ResetRequest(slot, tasks[start + slot], slot) for slot in range(4)])]
            seen += [pool.run([StepRequest(slot, reply) for slot in range(4)]) for reply in replies[:2]]
            for slot in range(4):
                name, inner = mixture.inner_task(tasks[start + slot])
                alone = registry.get(inner.env).make_environment(PARTS[name]["options"])
                assert [turn[slot] for turn in seen] == [alone.reset(inner, slot), *map(alone.step, replies[:2])]


def test_the_oracle_and_the_demonstrator_are_the_parts_own():
    environment = ENTRY.make_environment(OPTIONS)
    source = ENTRY.make_tasks(OPTIONS, "train", 100, 0)
    with pytest.raises(RuntimeError, match="reset"):
        environment.step("left")
    for index in range(8):
        task = source.task(index)
        name, inner = mixture.inner_task(task)
        entry = registry.get(inner.env)
        alone = entry.make_environment(PARTS[name]["options"])
        environment.reset(task, 0)
        alone.reset(inner, 0)
        assert environment.oracle() == alone.oracle()
        reply = ENTRY.make_demonstrator(environment, np.random.default_rng(3))
        own = entry.make_demonstrator(alone, np.random.default_rng(3))
        assert [reply() for _ in range(2)] == [own() for _ in range(2)]
    environment.close()
    environment.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"env\.options\.parts"),
        ({"parts": {"lookup": {"weight": 0}}}, r"parts\.lookup\.weight must be a positive number"),
        ({"parts": {"lookup": {"weights": 1}}}, r"parts\.lookup must hold"),
        ({"parts": {"a/b": {}}}, "plain word"),
        ({"parts": {"mine": {}}}, "'mine' is not registered"),
        ({"parts": {"lookup": {"options": {"fields": 2}}}}, r"env\.options\.fields"),
    ],
)
def test_bad_mixtures_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        ENTRY.make_environment(options)


MIXED = ("env.name=mixture", "rollout.max_turns=12", "algorithm.groups=8", "algorithm.group_size=2")


def mixed_config(*overrides):
    config = tiny_config(*MIXED, *overrides)
    config.env.options = OPTIONS
    return config


def run(workdir, *overrides, resume=False):
    config, log = mixed_config(*overrides), SilentLog()
    loop.run(config, workdir, resume=resume, log=log)
    return config, log


def test_a_mixed_run_reports_each_part_and_resumes_bit_for_bit(tmp_path):
    whole, first = tmp_path / "whole", tmp_path / "first"
    steps = ("checkpoint.every=2", "eval.every=2", "eval.tasks=6", "logging.trajectories=all")
    _, log = run(whole, "algorithm.steps=4", *steps)
    assert_every_update_moved(log.lines.values())
    assert sum(len(log.lines[step].keys() & {f"env_{name}/success" for name in PARTS}) for step in log.lines) >= 8
    for line in log.lines.values():
        counts = [line.get(f"env_{name}/episodes", 0) for name in PARTS]
        groups = [line.get(f"env_{name}/groups", 0) for name in PARTS]
        assert sum(counts) == 16 and sum(groups) == 8, "a group is of one part"
        assert line["cost/compilations"] == 0
        mean = sum(n * line.get(f"env_{name}/reward_mean", 0) for n, name in zip(counts, PARTS, strict=True)) / 16
        assert mean == pytest.approx(line["reward/mean"])
    assert "env_easy/eval_pass_at_1_100" in log.lines[2]
    run(first, "algorithm.steps=2", *steps)
    _, resumed = run(first, "algorithm.steps=4", *steps, resume=True)
    for step in (3, 4):
        same = {k for k in log.lines[step] if not k.startswith(("time/", "cost/")) and "per_second" not in k}
        assert {k: log.lines[step][k] for k in same} == {k: resumed.lines[step][k] for k in same}
    names = [f"trajectories/step_{i}.jsonl.gz" for i in (2, 3)]
    assert [(whole / name).read_bytes() for name in names] == [(first / name).read_bytes() for name in names]


def test_a_mixtures_config_survives_json_and_the_command_line(tmp_path):
    config = mixed_config()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    read = load_config(str(path))
    assert read.env.options.to_dict() == config.env.options.to_dict()
    config = tiny_config("env.name=mixture", "env.options.parts.lookup.weight=2.5", "env.options.parts.b.env=lookup")
    assert config.env.options.to_dict()["parts"] == {"lookup": {"weight": 2.5}, "b": {"env": "lookup"}}
    with pytest.raises(UserError, match=r"no field 'env\.option\.size'"):
        tiny_config("env.option.size=3")
    assert make_setup(mixed_config()).entry is ENTRY
