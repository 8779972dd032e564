"""Tables, figures and the report that puts them together."""

import copy
import pathlib

import numpy as np
import pytest
from PIL import Image

from jaxagent.errors import UserError
from jaxagent.reporting import load_run, report
from jaxagent.reporting.metrics import MetricsWriter
from jaxagent.reporting.plots import plot_learning_curves, plot_pass_at_kt, run_labels
from jaxagent.reporting.run_folder import write_json
from jaxagent.reporting.tables import summary_rows, summary_table


def cell(value: float) -> dict:
    return {
        "pass_at_k": value,
        "low": value - 0.05,
        "high": value + 0.04,
        "pass_at_1": value / 2,
        "feasible": 0.9,
        "unannounced_pass_at_k": value * 0.75,
    }


@pytest.fixture
def summary():
    policies = {
        "base": {"25": cell(0.2), "50": cell(0.4), "100": cell(0.6)},
        "budgetmix": {"25": cell(0.5), "50": cell(0.7), "100": cell(0.96)},
    }
    shared = {"world": "lookup_tiny", "k": 8, "n": 16, "num_tasks": 64, "panel_hash": "h", "seed": 3}
    return {**shared, "policies": policies}


def train(folder: pathlib.Path, steps: int, **values: float) -> pathlib.Path:
    with MetricsWriter(folder, tensorboard=False) as writer:
        for step in range(1, steps + 1):
            writer.write(step, {name.replace("__", "/"): value for name, value in values.items()})
    return folder


def colours(path: pathlib.Path) -> set[str]:
    image = np.asarray(Image.open(path).convert("RGB")).astype(np.uint32)
    assert image.shape[0] > 300
    assert image.shape[1] > 600
    packed = (image[..., 0] << 16) | (image[..., 1] << 8) | image[..., 2]
    return {f"#{colour:06X}" for colour in np.unique(packed)}


def test_table_has_every_figure_in_its_place(summary):
    rows = [line.split("  ") for line in summary_table(summary).splitlines()]
    cells = [[text.strip() for text in row if text.strip()] for row in rows]
    assert cells[2] == ["policy", "measure", "25 %", "50 %", "100 %"]
    assert cells[4] == ["base", "Pass@8 [95 %]", "20.0 [15.0, 24.0]", "40.0 [35.0, 44.0]", "60.0 [55.0, 64.0]"]
    assert cells[5] == ["Pass@1", "10.0", "20.0", "30.0"]
    assert cells[6] == ["feasible share", "90.0", "90.0", "90.0"]
    assert cells[11] == ["Pass@8 unannounced", "37.5", "52.5", "72.0"]


def test_markdown_has_as_many_cells_in_each_row(summary):
    summary["policies"]["a|b"] = summary["policies"].pop("base")
    lines = [line for line in summary_table(summary, markdown=True).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {6}
    assert any("50.0 [45.0, 54.0]" in line for line in lines)


def test_missing_values_are_dashes_and_empty_measures_are_left_out(summary):
    for cells in summary["policies"].values():
        for one in cells.values():
            one["unannounced_pass_at_k"] = None
    del summary["policies"]["base"]["50"]
    text = summary_table(summary)
    assert "unannounced" not in text
    assert text.splitlines()[4].split("  ")[-2:] != []
    assert " - " in text


def test_rows_are_plain(summary):
    rows = summary_rows(summary)
    assert len(rows) == 6
    assert {"world": "lookup_tiny", "policy": "base", "percent": 25, **cell(0.2)} in rows


def test_what_is_no_summary_is_named():
    with pytest.raises(UserError, match="policies"):
        summary_table({"world": "x"} | {"policies": {"a": {"many": {}}}})


def test_pass_figure_shows_each_policy(summary, tmp_path):
    first = plot_pass_at_kt(summary, tmp_path / "new" / "a.png")
    assert {"#0072B2", "#D55E00", "#777777"} <= colours(first)
    assert not {"#009E73"} & colours(first)
    one = Image.open(first).size
    two = Image.open(plot_pass_at_kt([summary, summary], tmp_path / "b.png")).size
    assert one[0] == two[0]
    assert two[1] > 1.5 * one[1]
    with pytest.raises(UserError, match="no summary"):
        plot_pass_at_kt([], tmp_path / "c.png")


def test_pass_figure_takes_cells_without_values(summary, tmp_path):
    for cells in summary["policies"].values():
        for one in cells.values():
            one.update(dict.fromkeys(("low", "high", "feasible", "unannounced_pass_at_k")))
    assert {"#0072B2", "#D55E00"} <= colours(plot_pass_at_kt(summary, tmp_path / "a.png"))


def test_learning_curves(tmp_path):
    train(tmp_path / "a" / "run", 40, reward__mean=0.5)
    train(tmp_path / "b" / "run", 40, reward__mean=0.7, eval__pass_at_1=0.4)
    train(tmp_path / "c" / "base", 5, sft__loss=1.0)
    runs = [load_run(tmp_path / name) for name in ("a/run", "b/run", "c/base")]
    assert run_labels(runs[:2]) == ["a/run", "b/run"]
    assert run_labels(runs[1:]) == ["run", "base"]
    assert {"#0072B2", "#D55E00"} <= colours(plot_learning_curves(runs, tmp_path / "x.png"))
    plot_learning_curves(runs[2:], tmp_path / "cloning.png")
    with pytest.raises(UserError, match="learning curve"):
        plot_learning_curves([], tmp_path / "y.png")


def test_report_of_a_whole_comparison(tmp_path, capsys, summary):
    whole = tmp_path / "all"
    write_json(whole / "summary.json", summary)
    write_json(whole / "lookup_tiny" / "seed_3" / "summary.json", summary)
    for policy, cells in summary["policies"].items():
        folder = train(whole / "lookup_tiny" / "seed_3" / policy, 3, reward__mean=0.5)
        own = {name: value for name, value in summary.items() if name != "policies"} | {"budgets": cells}
        write_json(folder / "eval" / "panel" / "summary.json", own)
    paths = report.run([whole], tmp_path / "out")
    assert [path.name for path in paths] == ["table.md", "pass_at_kt.png", "learning_curves.png"]
    assert paths[0].read_text().count("| policy |") == 1  # the same comparison was found three times
    out = capsys.readouterr().out
    assert "20.0 [15.0, 24.0]" in out
    assert all(str(path) in out for path in paths)


def test_report_puts_runs_of_one_panel_side_by_side(tmp_path, summary):
    for policy, cells in summary["policies"].items():
        own = {name: value for name, value in summary.items() if name != "policies"} | {"budgets": cells}
        write_json(tmp_path / policy / "eval" / "panel" / "summary.json", own)
        write_json(tmp_path / policy / "config.json", {})
    other = copy.deepcopy(summary) | {"panel_hash": "another", "budgets": {"25": cell(0.3)}}
    del other["policies"]
    write_json(tmp_path / "stranger" / "eval" / "panel" / "summary.json", other)
    write_json(tmp_path / "stranger" / "config.json", {})
    (table, _) = report.run([tmp_path / name for name in ("base", "budgetmix", "stranger")], tmp_path / "out")
    together, apart = table.read_text().split("\n\n**")
    assert "| base |" in together
    assert "| budgetmix |" in together
    assert "| stranger |" in apart


def test_report_of_nothing_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="no such run folder"):
        report.run([tmp_path / "missing"], tmp_path / "out")
    with pytest.raises(UserError, match="not a run folder"):
        report.run([tmp_path], tmp_path / "out")
    write_json(tmp_path / "run" / "config.json", {})
    with pytest.raises(UserError, match="nothing to report"):
        report.run([tmp_path / "run"], tmp_path / "out")
