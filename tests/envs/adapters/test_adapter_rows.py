import pytest

from jaxagent.envs.adapters.rows import row_tasks
from jaxagent.envs.base import split_of
from jaxagent.errors import UserError

ROWS = [{"prompt": f"question {i % 60}", "answer": i % 60, "example_id": i} for i in range(90)]


def tasks_of(split, size=1000, rows=ROWS):
    return row_tasks(
        "x", rows, max_turns=lambda row: 2 + row["answer"] % 3, split=split, size=size, unnamed=("example_id",)
    )


def test_splits_are_disjoint_and_hold_every_distinct_row_once():
    sources = {split: tasks_of(split) for split in ("train", "held_out", "panel")}
    listed = {split: [source.task(i) for i in range(len(source))] for split, source in sources.items()}
    assert all(split_of(task.id) == split for split, tasks in listed.items() for task in tasks)
    everything = [task for tasks in listed.values() for task in tasks]
    assert sorted(task.data["row"]["answer"] for task in everything) == list(range(60))
    assert all(task.max_turns == 2 + task.data["row"]["answer"] % 3 for task in everything)
    assert [task.data["row"]["answer"] for task in listed["train"]][:5] == sorted(
        task.data["row"]["answer"] for task in listed["train"][:5]
    )
    assert len(tasks_of("train", size=7)) == 7
    assert tasks_of("train").content_hash() != tasks_of("train", rows=ROWS[5:50]).content_hash()


def test_rows_that_cannot_be_tasks_are_refused():
    with pytest.raises(UserError, match="row 0 of the data set is no JSON object"):
        tasks_of("train", rows=[{"prompt": object()}])
    with pytest.raises(UserError, match="row 0"):
        tasks_of("train", rows=[{"answer": float("nan")}])
    with pytest.raises(UserError, match="no row of the data set falls into the split 'panel'"):
        tasks_of("panel", rows=ROWS[:1])
