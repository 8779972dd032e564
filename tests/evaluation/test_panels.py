"""Panel files, their checks, and the rollouts they order."""

import dataclasses
import json

import pytest
from evaluation_builders import make_task

from jaxagent.envs.base import hash_of_ids, split_of
from jaxagent.errors import UserError
from jaxagent.evaluation.panels import (
    PANEL_STEP,
    check_no_overlap,
    check_panel,
    make_panel,
    no_line_specs,
    panel_specs,
    read_panel,
    write_panel,
)


def tasks_of(split, count, max_turns=12):
    ids = (f"toy-{number:04x}" for number in range(100_000))
    chosen = [task_id for task_id, _ in zip((i for i in ids if split_of(i) == split), range(count), strict=False)]
    return [make_task(task_id, max_turns) for task_id in chosen]


@pytest.fixture
def panel_file(tmp_path):
    panel = make_panel("toy", {"size": 4}, tasks_of("panel", 5))
    path = tmp_path / "deep" / "panel.json"
    write_panel(path, panel)
    return path, panel


def edit(path, **changes):
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(fields))


def test_a_panel_comes_back_as_written(panel_file):
    path, panel = panel_file
    assert read_panel(path) == panel
    assert panel.content_hash == hash_of_ids([task.id for task in tasks_of("panel", 5)])
    check_panel(panel, tasks_of("panel", 5))


def test_other_tasks_are_not_the_panel(panel_file):
    _, panel = panel_file
    for tasks in (tasks_of("panel", 4), tasks_of("panel", 5)[::-1]):
        with pytest.raises(UserError, match=f"the panel {panel.content_hash}") as error:
            check_panel(panel, tasks)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_tasks_of_another_split_are_refused(split, panel_file):
    stranger = tasks_of(split, 1)
    with pytest.raises(UserError, match=f"{stranger[0].id} \\({split}\\)"):
        make_panel("toy", {}, tasks_of("panel", 3) + stranger)
    path, _ = panel_file
    ids = [task.id for task in tasks_of("panel", 3) + stranger]
    edit(path, task_ids=ids, content_hash=hash_of_ids(ids))
    with pytest.raises(UserError, match="not of the panel split") as error:
        read_panel(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_an_edited_file_is_refused(panel_file):
    path, panel = panel_file
    edit(path, task_ids=list(panel.task_ids[:-1]))
    with pytest.raises(UserError, match=f"the file says {panel.content_hash}") as error:
        read_panel(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes", [{"schema": 2}, {"task_ids": "abc"}, {"task_ids": [1]}, {"extra": 1}, {"options": []}, {"env": None}]
)
def test_malformed_files_are_refused(changes, panel_file):
    path, _ = panel_file
    edit(path, **changes)
    with pytest.raises(UserError, match=r"panel\.json"):
        read_panel(path)


def test_missing_unreadable_and_unwritable_files(tmp_path):
    with pytest.raises(UserError, match="no such panel file"):
        read_panel(tmp_path / "none.json")
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(UserError, match="cannot be read as a panel"):
        read_panel(tmp_path / "bad.json")
    with pytest.raises(UserError, match="cannot write the panel"):
        write_panel(tmp_path / "bad.json" / "panel.json", make_panel("toy", {}, tasks_of("panel", 1)))


def test_overlap_with_listed_training_tasks(panel_file):
    _, panel = panel_file
    check_no_overlap(panel, ["other"])
    with pytest.raises(UserError, match=f"1 panel tasks .* {panel.task_ids[2]}"):
        check_no_overlap(panel, ["other", panel.task_ids[2]])


def test_panels_need_distinct_tasks_of_their_environment():
    tasks = tasks_of("panel", 2)
    with pytest.raises(UserError, match="twice"):
        make_panel("toy", {}, [*tasks, tasks[0]])
    with pytest.raises(UserError, match="no tasks"):
        make_panel("toy", {}, [])
    with pytest.raises(UserError, match="does not belong"):
        make_panel("other", {}, tasks)


def key(spec):
    return spec.run_seed, spec.step, spec.group, spec.member


def test_each_task_and_percent_is_a_group_with_its_own_keys():
    tasks = [make_task("a", 12), make_task("b", 5)]
    specs = panel_specs(tasks, told_percents=[25, 100], samples=3, run_seed=7, k=2) + no_line_specs(
        tasks, samples=3, run_seed=7
    )
    assert len({key(spec) for spec in specs}) == len(specs) == 18
    groups = {}
    for spec in specs:
        groups.setdefault(spec.group, []).append(spec)
    assert len(groups) == 6
    for members in groups.values():
        assert [spec.member for spec in members] == [0, 1, 2]
        assert len({(spec.task.id, spec.told_budget, spec.enforced_budget, spec.step) for spec in members}) == 1
    found = {(spec.task.id, spec.told_budget, spec.enforced_budget) for spec in specs}
    assert found == {("a", 3, 3), ("a", 12, 12), ("b", 2, 2), ("b", 5, 5), ("a", None, 12), ("b", None, 5)}
    assert {(spec.told_budget is None, spec.step - PANEL_STEP) for spec in specs} == {
        (False, 25),
        (False, 100),
        (True, 0),
    }
    assert all(spec.step >= PANEL_STEP and spec.step < 2**31 for spec in specs)


def test_keys_do_not_depend_on_what_else_is_ordered():
    tasks = tasks_of("panel", 4)
    few = panel_specs(tasks[:2], told_percents=[50], samples=2, run_seed=0)
    many = panel_specs(tasks, told_percents=[100, 25, 50], samples=5, run_seed=0)
    assert {dataclasses.astuple(spec)[1:] for spec in few} <= {dataclasses.astuple(spec)[1:] for spec in many}


def test_orders_that_cannot_answer_are_refused():
    tasks = tasks_of("panel", 2)
    with pytest.raises(UserError, match="7 samples a task give no unbiased Pass@8"):
        panel_specs(tasks, told_percents=[25], samples=7, run_seed=0, k=8)
    with pytest.raises(UserError, match="no unbiased Pass@8"):
        no_line_specs(tasks, samples=7, run_seed=0, k=8)
    for percents in ([], [25, 25], [0], [101]):
        with pytest.raises(UserError):
            panel_specs(tasks, told_percents=percents, samples=8, run_seed=0)
    with pytest.raises(UserError, match="each once"):
        panel_specs([tasks[0], tasks[0]], told_percents=[25], samples=8, run_seed=0)
