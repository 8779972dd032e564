"""A whole comparison on the smallest scale: the files it promises, their shape, and that repeating it repeats
nothing."""

import json

import pytest
from tiny_runs import SMALL

from jaxagent import reproduce
from jaxagent.episodes import read_episodes
from jaxagent.errors import UserError
from jaxagent.evaluation.pass_at import pass_at_k_percent
from jaxagent.reporting import load_run

OVERRIDES = [
    *SMALL,
    "sft.steps=3",
    "algorithm.steps=2",
    "eval.every=0",
    "eval.panel_tasks=6",
    "eval.panel_samples=4",
    "eval.k=2",
]
ARMS = ["grpo_full", "budgetmix", "budgetmix_noline"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("comparison")
    reproduce.run(["lookup_tiny"], ARMS, [0], workdir, overrides=OVERRIDES)
    return workdir


def test_summary_has_the_promised_shape(comparison):
    summary = json.loads((comparison / "summary.json").read_text())
    assert {name: summary[name] for name in ("world", "k", "n", "num_tasks", "seed")} == {
        "world": "lookup_tiny",
        "k": 2,
        "n": 4,
        "num_tasks": 6,
        "seed": 0,
    }
    assert list(summary["policies"]) == ["base", *ARMS], "the base is always there, and first"
    fields = {"pass_at_k", "low", "high", "pass_at_1", "feasible", "unannounced_pass_at_k"}
    for cells in summary["policies"].values():
        assert list(cells) == ["25", "50", "75", "100"]
        for cell in cells.values():
            assert cell.keys() == fields
            assert 0 <= cell["low"] <= cell["pass_at_k"] <= cell["high"] <= 1
    assert (comparison / "pass_at_kt.png").read_bytes().startswith(b"\x89PNG")


def test_figures_follow_from_the_episodes_on_disk(comparison):
    summary = json.loads((comparison / "summary.json").read_text())
    for arm in ("base", "budgetmix"):
        path = comparison / "lookup_tiny" / "seed_0" / arm / "eval" / "panel" / "episodes.jsonl.gz"
        episodes = list(read_episodes(path))
        assert len(episodes) == 6 * 4 * 4
        assert all(e.told_budget == e.enforced_budget for e in episodes)
        mean = pass_at_k_percent(episodes, (1, 2), (25, 50, 75, 100)).mean
        for column, percent in enumerate(("25", "50", "75", "100")):
            cell = summary["policies"][arm][percent]
            assert cell["pass_at_1"] == pytest.approx(mean[0, column])
            assert cell["pass_at_k"] == pytest.approx(mean[1, column])


def test_the_arm_without_a_line_is_evaluated_without_one(comparison):
    run = load_run(comparison / "lookup_tiny" / "seed_0" / "budgetmix_noline")
    assert run.episodes("panel")["told_budget"].isna().all()
    assert run.summaries["panel"]["line_sensitivity"] is None


def test_contrasts_are_paired_and_complete(comparison):
    contrasts = json.loads((comparison / "lookup_tiny" / "contrasts.json").read_text())
    assert len(contrasts) == 6 and "budgetmix - grpo_full" in contrasts
    summary = json.loads((comparison / "summary.json").read_text())["policies"]
    for percent in ("25", "100"):
        cell = contrasts["budgetmix - grpo_full"]["pass_at_2"][percent]
        gap = summary["budgetmix"][percent]["pass_at_k"] - summary["grpo_full"][percent]["pass_at_k"]
        assert cell["points"] == pytest.approx(100 * gap) and cell["low"] <= cell["points"] <= cell["high"]


def test_repeating_keeps_what_is_complete(comparison, capsys):
    before = {path: path.stat().st_mtime_ns for path in comparison.rglob("*.jsonl*")}
    reproduce.run(["lookup_tiny"], ARMS, [0], comparison, overrides=OVERRIDES)
    assert {path: path.stat().st_mtime_ns for path in comparison.rglob("*.jsonl*")} == before
    assert capsys.readouterr().out.count("complete in") == 4


def test_another_setting_in_the_same_folder_is_refused(comparison):
    changed = [*OVERRIDES, "optimizer.learning_rate=0.1", "sft.steps=4"]
    with pytest.raises(UserError, match="learning_rate"):
        reproduce.run(["lookup_tiny"], ["base"], [0], comparison, overrides=changed)
