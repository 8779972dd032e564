"""Summaries against figures counted by hand."""

import json

import numpy as np
import pytest
from evaluation_builders import blind_episodes, make_episode, make_task, told_episodes

from jaxagent.errors import UserError
from jaxagent.evaluation.intervals import clopper_pearson, paired_crossed_bootstrap, paired_task_bootstrap
from jaxagent.evaluation.pass_at import pass_at_k_percent
from jaxagent.evaluation.summaries import mean_turns_used, paired_contrast, policy_summary, table_rows

TASKS = [make_task("x", 4), make_task("y", 4)]
TOLD = {("x", 2): [1, None], ("y", 2): [None, None], ("x", 4): [3, 2], ("y", 4): [4, None]}
FEASIBLE = {50: 0.5, 100: 1.0}


def summary_of(episodes, **changes):
    options = {"k": 2, "percents": [50, 100], "feasible": FEASIBLE, "seed": 0, "resamples": 200} | changes
    return policy_summary(episodes, TASKS, **options)


def test_summary_has_the_shape_and_figures_of_the_report():
    summary = summary_of(told_episodes(TOLD, 4))
    low, high = clopper_pearson(1, 2)
    tight = {"pass_at_k": 0.5, "low": low, "high": high, "pass_at_1": 0.25, "feasible": 0.5}
    assert summary["50"] == pytest.approx(tight | {"unannounced_pass_at_k": 0.5})  # told 4, cut at 2: x once, y never
    low, high = clopper_pearson(2, 2)
    wide = {"pass_at_k": 1.0, "low": low, "high": high, "pass_at_1": 0.75, "feasible": 1.0}
    assert summary["100"] == pytest.approx(wide | {"unannounced_pass_at_k": 1.0})
    assert list(summary) == ["50", "100"]
    json.dumps(summary, allow_nan=False)


def test_unannounced_figure_comes_from_the_full_budget_alone():
    # Told 2 it always succeeds; told 4 it never does within 2.
    told = {(name, budget): [budget] * 2 for name in "xy" for budget in (2, 4)}
    summary = summary_of(told_episodes(told, 4))
    assert summary["50"]["pass_at_k"] == 1.0 and summary["50"]["unannounced_pass_at_k"] == 0.0
    assert summary["100"]["unannounced_pass_at_k"] == summary["100"]["pass_at_k"]


def test_k_of_one_and_blind_policies():
    one = summary_of(told_episodes(TOLD, 4), k=1)
    assert one["50"]["pass_at_k"] == one["50"]["pass_at_1"] == 0.25
    blind = summary_of(blind_episodes({"x": [1, 3], "y": [None, 2]}, 4), mode="blind")
    assert blind["50"]["pass_at_1"] == 0.5 and blind["50"]["unannounced_pass_at_k"] == blind["50"]["pass_at_k"] == 1.0


def test_summary_refuses_missing_parts():
    episodes = told_episodes(TOLD, 4)
    with pytest.raises(UserError, match="task y of the panel has no episodes"):
        summary_of([e for e in episodes if e.task_id == "x"])
    with pytest.raises(UserError, match="task z, which is not of the panel"):
        summary_of([*episodes, make_episode("z", 0, None, told=4, enforced=4)])
    with pytest.raises(UserError, match="full budget of 4 turns, its episodes 5"):
        summary_of(told_episodes(TOLD, 5))
    with pytest.raises(UserError, match="feasible share was given for 100"):
        summary_of(episodes, feasible={50: 1.0})
    with pytest.raises(UserError, match="100 per cent"):
        summary_of([e for e in episodes if e.told_budget == 2], percents=[50])
    with pytest.raises(UserError, match="K=3"):
        summary_of(episodes, k=3)


def test_turns_used_over_told():
    # Told 2: x uses 1 and 2 turns, y 2 and 2. Told 4: x 3 and 2, y 4 and 4.
    used = mean_turns_used(told_episodes(TOLD, 4), [50, 100])
    assert used == pytest.approx({"50": (1.5 / 2 + 2 / 2) / 2, "100": (2.5 / 4 + 4 / 4) / 2})


def random_grid(rng, shift):
    turns = {f"t{i:02}": [int(t) if t <= 4 else None for t in rng.geometric(0.2 + shift, 4)] for i in range(40)}
    return pass_at_k_percent(blind_episodes(turns, 4), [1, 2], [50, 100], mode="blind")


def test_contrast_of_one_training_seed_resamples_tasks():
    rng = np.random.default_rng(0)
    first, second = random_grid(rng, 0.3), random_grid(rng, 0.0)
    contrast = paired_contrast([first], [second], k=2, seed=5, resamples=300)
    expected = paired_task_bootstrap(first.values[:, 1], second.values[:, 1], seed=5, resamples=300)
    assert list(contrast) == ["50", "100"]
    for column, name in enumerate(contrast):
        row = contrast[name]
        assert row["points"] == pytest.approx(100 * (first.mean[1, column] - second.mean[1, column]))
        assert (row["low"], row["high"]) == pytest.approx((100 * expected.low[column], 100 * expected.high[column]))
        assert row["method"] == expected.method[column]


def test_contrast_of_outcomes_that_are_0_or_1_has_mcnemars_p():
    # K = n: task t0..t5 solved by the first alone, t6 by the second alone, the rest by both.
    def grid(unsolved):
        turns = {f"t{i}": [None, None] if i in unsolved else [1, None] for i in range(12)}
        return pass_at_k_percent(blind_episodes(turns, 2), [1, 2], [100], mode="blind")

    first, second = grid({6}), grid(set(range(6)))
    row = paired_contrast([first], [second], k=2, resamples=100)["100"]
    assert row["mcnemar_p"] == pytest.approx(2 * (1 + 7) / 2**7) and row["method"] == "clopper_pearson"
    assert "mcnemar_p" not in paired_contrast([first], [second], k=1, resamples=100)["100"]


def test_contrast_of_several_training_seeds_is_crossed():
    rng = np.random.default_rng(1)
    first, second = [random_grid(rng, 0.3) for _ in range(3)], [random_grid(rng, 0.0) for _ in range(3)]
    contrast = paired_contrast(first, second, k=1, resamples=300)
    sides = [np.stack([grid.values[:, 0] for grid in side]) for side in (first, second)]
    expected = paired_crossed_bootstrap(*sides, resamples=300)
    assert contrast["50"]["low"] == pytest.approx(100 * expected.low[0])
    assert contrast["50"]["points"] == pytest.approx(100 * (sides[0] - sides[1]).mean(axis=(0, 1))[0])


def test_contrasts_of_unlike_evaluations_are_refused():
    grid = random_grid(np.random.default_rng(2), 0.0)
    other_tasks = pass_at_k_percent(blind_episodes({"z": [1, 2]}, 4), [1, 2], [50, 100], mode="blind")
    turns = {name: [1, 2] for name in grid.task_ids}
    other_budgets = pass_at_k_percent(blind_episodes(turns, 8), [1, 2], [50, 100], mode="blind")
    with pytest.raises(UserError, match="same panel"):
        paired_contrast([grid], [other_tasks], k=1)
    with pytest.raises(UserError, match="same budgets"):
        paired_contrast([grid], [other_budgets], k=1)
    with pytest.raises(UserError, match="as many grids"):
        paired_contrast([grid], [grid, grid], k=1)
    with pytest.raises(UserError, match="Pass@8 was not estimated"):
        paired_contrast([grid], [grid], k=8)


def test_table_rows_are_ordered_and_in_per_cent():
    figures = {"pass_at_k": 0.5, "low": 0.25, "high": 0.75, "pass_at_1": 0.1, "feasible": 1.0}
    policies = {"base": {"100": figures, "50": figures}, "budgetmix": {"50": figures | {"pass_at_k": 0.625}}}
    rows = table_rows(policies)
    assert [(row["budget"], row["policy"], row["pass_at_k"]) for row in rows] == [
        (50, "base", 50.0),
        (50, "budgetmix", 62.5),
        (100, "base", 50.0),
    ]
    assert rows[0]["feasible"] == 100.0
