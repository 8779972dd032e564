import dataclasses

import numpy as np
import pytest

from jaxagent.envs import frozen_lake, generated, lookup
from jaxagent.envs.base import content_id, hash_of_ids, split_of
from jaxagent.envs.generated import GeneratedTasks, keyed_generator, parse_options
from jaxagent.errors import UserError

LAKE = {"size": 5, "safe_probability": 0.75, "min_path": 3, "max_path": 6}


def small_world(split, size, *, seed=0, values=1000):
    return GeneratedTasks(
        "world",
        lambda generator: {"n": int(generator.random() * values)},
        lambda data: 7 if data["n"] % 2 == 0 else None,
        description={"values": values},
        split=split,
        size=size,
        seed=seed,
    )


@pytest.mark.parametrize(("module", "options"), [(frozen_lake, LAKE), (lookup, {})])
def test_splits_are_disjoint_and_ids_come_from_the_content(module, options):
    ids = {}
    for split, size in (("train", 300), ("held_out", 40), ("panel", 60)):
        source = module.make_tasks(options, split, size, 3)
        tasks = [source.task(index) for index in range(size)]
        ids[split] = [task.id for task in tasks]
        assert all(split_of(task.id) == split and task.id == content_id(module.NAME, task.data) for task in tasks)
    assert not set(ids["train"]) & set(ids["panel"])
    assert not set(ids["train"]) & set(ids["held_out"])
    assert not set(ids["held_out"]) & set(ids["panel"])
    assert len(set(ids["panel"])) == 60
    assert len(set(ids["held_out"])) == 40


def test_the_same_task_at_every_call_and_for_every_size():
    source, again, longer = small_world("train", 50), small_world("train", 50), small_world("train", 2**20)
    assert [source.task(i) for i in range(50)] == [again.task(i) for i in reversed(range(50))][::-1]
    assert source.task(49) == longer.task(49)
    assert len(longer) == 2**20
    assert longer.task(2**20 - 1).max_turns == 7
    panel, longer_panel = small_world("panel", 3), small_world("panel", 9)
    assert [panel.task(i) for i in range(3)] == [longer_panel.task(i) for i in range(3)]


def test_the_seed_changes_the_tasks():
    assert [small_world("train", 9, seed=1).task(i) for i in range(9)] != [
        small_world("train", 9, seed=2).task(i) for i in range(9)
    ]


def test_refused_candidates_never_appear():
    for split, size in (("train", 200), ("panel", 5)):
        source = small_world(split, size)
        assert all(source.task(i).data["n"] % 2 == 0 for i in range(size))


def test_content_hash():
    panel = small_world("panel", 5)
    assert panel.content_hash() == hash_of_ids([panel.task(i).id for i in range(5)])
    hashes = [small_world("train", size, seed=seed).content_hash() for size, seed in ((5, 0), (6, 0), (5, 1), (5, 0))]
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 3


def test_the_panel_does_not_drift():
    """Golden: a change here means that published results speak of other tasks."""
    assert frozen_lake.make_tasks(LAKE, "panel", 100, 0).content_hash() == "3bfcac42b5772797"
    assert lookup.make_tasks({}, "panel", 100, 0).content_hash() == "7300b6e449676af4"


def test_faults_are_named(monkeypatch):
    monkeypatch.setattr(generated, "ATTEMPTS", 1000)
    with pytest.raises(UserError, match=r"found only [0-9]+ of 500 panel tasks"):
        small_world("panel", 500, values=40).task(0)
    with pytest.raises(UserError, match="split is one of train, held_out, panel"):
        small_world("test", 5)
    with pytest.raises(UserError, match="at least one task"):
        small_world("train", 0)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            small_world("train", 5).task(index)


def test_keyed_generator():
    draws = [keyed_generator("a", seed).random() for seed in (1, np.int64(1), 2, -1, 2**80)]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 4
    assert keyed_generator("b", 1).random() != draws[0]


def test_parse_options():
    @dataclasses.dataclass(frozen=True)
    class Options:
        size: int = 3
        rendering: str = "chatty"

    assert parse_options(Options, "world", {"size": 4}) == Options(size=4)
    with pytest.raises(
        UserError, match=r"env\.options\.sizes is no option of 'world'; the options are size, rendering"
    ):
        parse_options(Options, "world", {"sizes": 4})
