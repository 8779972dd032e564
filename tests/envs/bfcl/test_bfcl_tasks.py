"""The tasks: counts, splits that keep scenarios together, budgets and what is feasible within them."""

import collections
import json
import math

import pytest
from bfcl_worlds import needs_package

from jaxagent.budgets import percent_of
from jaxagent.envs import registry
from jaxagent.envs.base import split_of
from jaxagent.envs.bfcl import environment as bfcl
from jaxagent.envs.bfcl import package, tasks
from jaxagent.errors import UserError

pytestmark = needs_package
ENTRY = registry.get("bfcl")


def every_task(split, size=None, **options):
    if size is None:
        sized = ENTRY.make_tasks(options, "train", 1, 0) if split == "train" else None
        size = len(sized._tasks) if sized else _available(split, options)
    source = ENTRY.make_tasks(options, split, size, 0)
    return [source.task(index) for index in range(len(source))]


def _available(split, options):
    with pytest.raises(UserError, match="there are") as caught:
        ENTRY.make_tasks(options, split, 10_000, 0)
    return int(str(caught.value).split("there are ")[1].split()[0])


def test_all_entries_are_there_once():
    seen = [task for split in ("train", "held_out", "panel") for task in every_task(split, categories=tasks.CATEGORIES)]
    assert len(seen) == len({task.id for task in seen}) == len({task.data["entry"] for task in seen}) == 1000
    assert collections.Counter(task.data["category"] for task in seen) == dict.fromkeys(tasks.CATEGORIES, 200)
    assert all(json.loads(json.dumps(task.data)) == task.data for task in seen)


@pytest.mark.parametrize("split_by", ["scenario", "entry"])
def test_ids_alone_tell_the_split(split_by):
    sizes = {}
    for split in ("train", "held_out", "panel"):
        chosen = every_task(split, split_by=split_by)
        assert {split_of(task.id) for task in chosen} == {split}
        sizes[split] = len(chosen)
    assert sum(sizes.values()) == 800 and sizes["panel"] >= 150 and sizes["held_out"] >= 60


def test_no_message_is_in_two_splits():
    owners = {}
    for split in ("train", "held_out", "panel"):
        for task in every_task(split, categories=tasks.CATEGORIES):
            for message in task.data["messages"]:
                if len(message) >= 40:
                    assert owners.setdefault(message, split) == split


def test_variations_of_a_scenario_stay_together():
    splits = collections.defaultdict(set)
    for split in ("train", "held_out", "panel"):
        for task in every_task(split):
            splits[task.data["entry"].rsplit("_", 1)[1]].add(split)
    assert {len(found) for found in splits.values()} == {1}


def test_the_panel_is_the_same_every_time_and_its_seed_orders_it():
    first, again = (ENTRY.make_tasks({}, "panel", 50, 1) for _ in range(2))
    assert first.content_hash() == again.content_hash()
    other = ENTRY.make_tasks({}, "panel", 50, 2)
    assert other.content_hash() != first.content_hash()
    with pytest.raises(IndexError):
        first.task(50)


def test_training_tasks_repeat():
    source = ENTRY.make_tasks({"categories": ["base"]}, "train", 1000, 0)
    ids = [source.task(index).id for index in range(1000)]
    period = len(set(ids))
    assert 100 <= period < 200 and ids[:period] == ids[period : 2 * period]


def test_classes_limit_the_tasks():
    chosen = every_task("train", classes=["TradingBot", "MathAPI"])
    assert chosen and all(set(task.data["classes"]) <= {"TradingBot", "MathAPI"} for task in chosen)
    with pytest.raises(UserError, match="widen"):
        ENTRY.make_tasks({"classes": ["MathAPI"]}, "train", 5, 0)
    with pytest.raises(UserError, match="at least one task"):
        ENTRY.make_tasks({}, "train", 0, 0)
    with pytest.raises(UserError, match="split"):
        ENTRY.make_tasks({}, "test", 5, 0)


# Feasible shares in per cent at 25, 50, 75 and 100 % of the full budget, counted from the raw answers: a closing reply
# a user turn and one reply for the calls of each user turn that has any.
@pytest.mark.parametrize(
    ("category", "options", "expected"),
    [
        ("base", {}, (20.5, 92.5, 100, 100)),
        ("miss_func", {}, (20.5, 70.5, 100, 100)),
        ("miss_param", {}, (20.5, 70.5, 100, 100)),
        ("long_context", {}, (20.5, 92.5, 100, 100)),
        ("composite", {}, (3.5, 69.5, 99.0, 100)),
        ("base", {"max_turns_per_user_turn": 8}, (100, 100, 100, 100)),
        ("base", {"max_turns": 40}, (92.5, 100, 100, 100)),
        ("base", {"max_turns_per_user_turn": 5}, (1.5, 100, 100, 100)),
    ],
)
def test_feasible_share(category, options, expected):
    chosen = [
        task for split in ("train", "held_out", "panel") for task in every_task(split, categories=[category], **options)
    ]
    assert len(chosen) == 200
    found = [
        100 * registry.feasible_share(ENTRY, chosen, [percent_of(task.max_turns, percent) for task in chosen])
        for percent in (25, 50, 75, 100)
    ]
    assert found == pytest.approx(expected)


def test_the_fewest_turns_by_hand():
    answers = {line["id"]: line["ground_truth"] for line in package.read_lines(
        "possible_answer/BFCL_v3_multi_turn_miss_param.json")}  # fmt: skip
    for entry, data in tasks.entries("miss_param").items():
        assert tasks.fewest_turns(data) == sum(2 if turn else 1 for turn in answers[entry])
        assert bfcl.make_tasks({"max_turns_per_user_turn": 8}, "train", 1, 0).task(0).max_turns % 8 == 0
        assert math.isclose(bfcl.best_success(ENTRY.make_tasks({}, "train", 1, 0).task(0), 20), 1.0)
        break


def test_an_answer_that_needs_a_withheld_function_has_it():
    raw = {line["id"]: line["missed_function"] for line in package.read_lines("BFCL_v3_multi_turn_miss_func.json")}
    changed = {entry for entry, data in tasks.entries("miss_func").items() if data["withheld"] != raw[entry]}
    assert changed == {"multi_turn_miss_func_49"}
    assert "tail" not in tasks.entries("miss_func")["multi_turn_miss_func_49"]["withheld"]["3"]
    assert any("tail" in names for names in raw["multi_turn_miss_func_49"].values())
