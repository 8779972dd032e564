"""What the log says of a batch, against episodes whose numbers can be counted by hand."""

import dataclasses

import numpy as np
import pytest
from episode_builder import make_episode
from tiny_runs import tiny_config

from jaxagent.training import rows
from jaxagent.training.episode_metrics import episode_metrics, kept_metrics

SHAPE = ("rollout.max_context=64", "optimizer.row_tokens=64", "rollout.max_turns=8")


def metrics_of(episodes, *overrides, replay=None):
    config = tiny_config(*SHAPE, *overrides)
    arrays, batch = rows.make_batch(config, episodes, num_episodes=16, replay=replay)
    counted = rows.in_statistics(config, arrays, episodes)
    return episode_metrics(episodes, arrays, counted) | kept_metrics(episodes, arrays, batch)


def mixed(group=0, told=None):
    """Full budget 8: successes after 2 and 6 turns, an overrun, a failure after 3."""
    lengths = ((2, True), (6, True), (8, False), (3, False))
    return [make_episode(n, success=s, group=group, member=m, told=told) for m, (n, s) in enumerate(lengths)]


def solved(group=1, budget=4):
    """Four successes at half of a full budget of 8."""
    return [make_episode(2, success=True, budget=budget, max_budget=8, group=group, member=m) for m in range(4)]


def histogram(metrics, name):
    return {t: metrics[f"budget/{name}_tenth_{t}"] for t in range(1, 11) if metrics[f"budget/{name}_tenth_{t}"]}


@pytest.mark.parametrize(("rule", "kept"), [("keep", {5: 1, 10: 1}), ("drop", {10: 1})])
def test_the_histogram_before_and_after(rule, kept):
    metrics = metrics_of(mixed() + solved(), f"algorithm.zero_variance={rule}")
    assert histogram(metrics, "groups") == {5: 1, 10: 1}
    assert histogram(metrics, "kept_groups") == kept and metrics["groups/kept"] == len(kept)
    assert (metrics["groups/zero_variance"], metrics["groups/all_success"], metrics["groups/all_fail"]) == (0.5, 0.5, 0)
    assert (metrics["budget/zero_variance_tenth_5"], metrics["budget/zero_variance_tenth_10"]) == (1.0, 0.0)
    assert (metrics["budget/reward_tenth_5"], metrics["budget/reward_tenth_10"]) == (1.0, 0.5)


def test_a_group_that_the_overrun_rule_empties_stays_in_the_histogram_before():
    overrun = [make_episode(1, budget=1, max_budget=8, group=1, member=m) for m in range(4)]
    metrics = metrics_of(mixed() + overrun, "algorithm.overruns=drop")
    assert histogram(metrics, "groups") == {2: 1, 10: 1} and histogram(metrics, "kept_groups") == {10: 1}
    assert metrics["groups/count"] == 1, "the statistics have one group left"


def test_replayed_budgets_are_the_ones_that_count():
    """Cut at 4 of 8 turns: one success is left, and everything says so as if it had been cut physically."""
    metrics = metrics_of(mixed(), replay=[4] * 4)
    assert histogram(metrics, "groups") == histogram(metrics, "kept_groups") == {5: 1}
    assert metrics["reward/success"] == metrics["reward/mean"] == 0.25
    assert metrics["reward/turns_mean"] == (2 + 4 + 4 + 3) / 4
    assert metrics["reward/turns_used_over_budget"] == (2 + 4 + 4 + 3) / 16
    assert "reward/turns_used_over_told" not in metrics


def test_turns_used_over_told_counts_the_told_alone():
    half_told = mixed(told=8) + mixed(group=1)
    metrics = metrics_of(half_told)
    assert metrics["reward/turns_used_over_told"] == (2 + 6 + 8 + 3) / 32


def test_penalised_groups_of_overruns_have_failed():
    """Their equal outcome is not 0, and no success either."""
    overrun = [make_episode(8, member=m) for m in range(4)]
    metrics = metrics_of(overrun, "algorithm.overruns=penalty", "algorithm.overrun_penalty=0.5")
    assert (metrics["groups/all_fail"], metrics["groups/all_success"], metrics["reward/mean"]) == (1.0, 0.0, -0.5)


def test_void_episodes_count_as_void_alone():
    void = dataclasses.replace(mixed()[0], end_reason="infrastructure", reward=0.0, success=False, success_turn=None)
    metrics = metrics_of([void, *mixed()[1:]])
    assert metrics["reward/void_share"] == metrics["end/infrastructure"] == 0.25
    assert metrics["reward/success"] == pytest.approx(1 / 3)
    lonely = metrics_of([void, mixed()[1]])
    assert lonely["groups/singletons"] == lonely["groups/count"] == 1
    dropped = metrics_of([mixed()[2], mixed()[1]], "algorithm.overruns=drop")
    assert dropped["groups/singletons"] == dropped["groups/count"] == 1, "a lone survivor is a group of one"
    assert np.isfinite(list(dropped.values())).all()
