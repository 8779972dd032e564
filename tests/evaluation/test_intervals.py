"""Intervals: against plain-loop bootstraps, textbook values, and coverage by simulation."""

import math
import time

import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln

from jaxagent.evaluation.intervals import (
    clopper_pearson,
    crossed_bootstrap,
    mcnemar_exact,
    paired_crossed_bootstrap,
    paired_task_bootstrap,
    ratio_bootstrap,
    seed_t_interval,
    task_bootstrap,
    wilson,
)
from jaxagent.evaluation.pass_at import pass_at_k

GRID_SECONDS = 10.0


def test_wide_grid_is_fast_enough():
    values = np.random.default_rng(0).random((1000, 20, 20))
    start = time.perf_counter()
    interval = task_bootstrap(values, resamples=10_000)
    assert time.perf_counter() - start < GRID_SECONDS
    assert interval.low.shape == (20, 20)
    np.testing.assert_allclose(interval.estimate, values.mean(axis=0))


def test_bootstrap_agrees_with_a_plain_loop():
    values = np.random.default_rng(1).beta(2, 3, size=60)
    rng, means = np.random.default_rng(2), []
    for _ in range(20_000):
        means.append(np.mean([values[i] for i in rng.integers(0, 60, 60)]))
    tail = stats.norm.cdf(stats.t.ppf(0.025, 59) * math.sqrt(60 / 59))
    interval = task_bootstrap(values, resamples=20_000, seed=3)
    spread = np.std(means)
    assert abs(interval.low - np.quantile(means, tail)) < 0.1 * spread
    assert abs(interval.high - np.quantile(means, 1 - tail)) < 0.1 * spread
    assert interval.method == "bootstrap"


def test_small_samples_get_the_width_of_students_t():
    values = np.linspace(0.4, 0.6, 26)
    interval = task_bootstrap(values, resamples=200_000)
    half = stats.t.ppf(0.975, 25) * np.std(values, ddof=1) / math.sqrt(26)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.01)


def test_fractional_sums_are_rounded_outwards():
    interval = task_bootstrap([0.5, 1.0, 1.0, 1.0] + [0.0] * 16, resamples=100)
    assert interval.low == pytest.approx(clopper_pearson(3, 20)[0])
    assert interval.high == pytest.approx(clopper_pearson(4, 20)[1])


def test_cells_are_resampled_together_and_by_seed():
    column = np.random.default_rng(4).random(50)
    both = task_bootstrap(np.stack([column, column], axis=1), resamples=500)
    alone = task_bootstrap(column, resamples=500)
    np.testing.assert_allclose([both.low[0], both.high[0]], [both.low[1], both.high[1]])
    np.testing.assert_allclose([both.low[0], both.high[0]], [alone.low, alone.high])
    assert task_bootstrap(column, resamples=500, seed=1).low != alone.low


def test_chunks_of_resamples_are_independent():
    values = np.random.default_rng(5).random(40)
    one, three = task_bootstrap(values, resamples=1000), task_bootstrap(values, resamples=3000)
    assert one.low != three.low


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize(("solved", "tasks"), [(0, 30), (30, 30), (3, 30), (0, 1), (1, 1)])
def test_uninformative_data_get_the_exact_interval(solved, tasks, level):
    values = np.array([1.0] * solved + [0.0] * (tasks - solved))
    interval = task_bootstrap(values, level=level, resamples=200)
    expected = stats.binomtest(solved, tasks).proportion_ci(level, method="exact")
    np.testing.assert_allclose([interval.low, interval.high], [expected.low, expected.high])
    assert interval.method == "clopper_pearson"


def test_equal_values_have_no_bootstrap_width_but_an_interval():
    interval = task_bootstrap(np.full(200, 0.3), resamples=200)
    assert interval.low < 0.3 - 0.05 and interval.high > 0.3 + 0.05
    assert interval.method == "clopper_pearson"


def test_values_just_below_a_ceiling_do_not_count_as_information():
    # 40 of 100 tasks are away from 1, but one of them decides the mean.
    values = np.ones(100)
    values[:39], values[39] = 0.9999, 0.2
    assert task_bootstrap(values, resamples=200).method == "clopper_pearson"


def test_outcomes_that_are_0_or_1_get_the_exact_interval():
    # K = n: enough tasks for the bootstrap, but a task is solved or it is not.
    solved = np.array([1.0] * 90 + [0.0] * 110)
    interval = task_bootstrap(solved, resamples=200)
    expected = stats.binomtest(90, 200).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose([interval.low, interval.high], [expected.low, expected.high])
    assert interval.method == "clopper_pearson"
    first, second = np.roll(solved, 40), solved
    paired = paired_task_bootstrap(first, second, resamples=200)
    assert paired.method == "clopper_pearson" and paired.low < 0 < paired.high
    assert task_bootstrap(np.where(solved == 1, 0.9, 0.1), resamples=200).method == "bootstrap"


def test_ratio_agrees_with_a_plain_loop():
    rng = np.random.default_rng(14)
    wholes = rng.integers(0, 6, 120)
    parts = rng.binomial(wholes, rng.beta(4, 4, 120))
    interval = ratio_bootstrap(parts, wholes, resamples=20_000)
    assert interval.estimate == pytest.approx(parts.sum() / wholes.sum()) and interval.method == "bootstrap"
    kept = np.flatnonzero(wholes)
    ratios = []
    for _ in range(10_000):
        drawn = rng.choice(kept, len(kept))
        ratios.append(parts[drawn].sum() / wholes[drawn].sum())
    low, high = np.quantile(ratios, [0.025, 0.975])
    spread = np.std(ratios)
    assert abs(interval.low - low) < 0.15 * spread and abs(interval.high - high) < 0.15 * spread


def test_ratio_of_equal_wholes_is_the_mean():
    shares = np.random.default_rng(15).random(60)
    ratio, mean = ratio_bootstrap(3 * shares, np.full(60, 3.0)), task_bootstrap(shares)
    np.testing.assert_allclose([ratio.low, ratio.high], [mean.low, mean.high])


def test_ratio_without_information_is_bounded():
    # One task holds nearly all of the errors: hardly more than one independent trial.
    interval = ratio_bootstrap([90, 1, 0], [100, 1, 1], resamples=200)
    assert interval.method == "clopper_pearson" and interval.high - interval.low > 0.8
    assert ratio_bootstrap([0, 0], [1, 1], resamples=200).high == pytest.approx(clopper_pearson(0, 2)[1])
    for parts, wholes in [([1], [0]), ([2], [1]), ([-1], [1]), ([0], [0]), ([1, 1], [1])]:
        with pytest.raises(ValueError, match=r"part|ratio"):
            ratio_bootstrap(parts, wholes)


@pytest.mark.parametrize(("errors", "mean"), [(0.5, 0.3), (4, 0.3), (8, 0.8)])
def test_coverage_of_the_ratio_interval(errors, mean):
    # Tasks with more errors are the ones that recover more often.
    rng, repeats, tasks, concentration = np.random.default_rng(16), 200, 100, 5
    truth = (0.5 * mean + mean**2 + mean * (1 - mean) / (concentration + 1)) / (0.5 + mean)
    covered = 0
    for _ in range(repeats):
        p = rng.beta(mean * concentration, (1 - mean) * concentration, tasks)
        wholes = rng.poisson(errors * (0.5 + p))
        interval = ratio_bootstrap(rng.binomial(wholes, p), wholes, resamples=500)
        covered += interval.low <= truth <= interval.high
    assert covered / repeats >= 0.92 - 2 * math.sqrt(0.95 * 0.05 / repeats)


def true_pass_at_k(mean, concentration, k):
    """Mean of 1 - (1 - p)^k over p from a Beta distribution, or at p = mean."""
    if concentration is None:
        return 1 - (1 - mean) ** k
    a, b = mean * concentration, (1 - mean) * concentration
    return 1 - math.exp(betaln(a, b + k) - betaln(a, b))


def draw_values(rng, mean, concentration, k, repeats, tasks, n=16):
    """Per-task estimates [tasks, repeats]; the repeats ride along as cells."""
    shape = (repeats, tasks)
    p = rng.beta(mean * concentration, (1 - mean) * concentration, shape) if concentration else np.full(shape, mean)
    return pass_at_k(np.full(shape, n), rng.binomial(n, p), k).T


COVERAGE_CASES = [
    (mean, concentration, tasks, k)
    for mean in (0.02, 0.1, 0.5, 0.9)
    for concentration in (1, 10, None)
    for tasks in (50, 200)
    for k in (1, 8)
]


@pytest.mark.parametrize(("mean", "concentration", "tasks", "k"), COVERAGE_CASES)
def test_coverage_of_the_task_interval(mean, concentration, tasks, k):
    repeats = 300
    values = draw_values(np.random.default_rng(6), mean, concentration, k, repeats, tasks)
    interval = task_bootstrap(values, resamples=1000)
    truth = true_pass_at_k(mean, concentration, k)
    coverage = np.mean((interval.low <= truth) & (truth <= interval.high))
    slack = 3 * math.sqrt(0.95 * 0.05 / repeats)
    weak = np.mean(interval.method == "clopper_pearson")
    # Where the bootstrap is trusted at all, 92 to 98 per cent; elsewhere the label says that the bound is conservative.
    assert coverage >= (0.95 if weak > 0.5 else 0.92) - slack
    assert coverage <= 0.98 + slack or weak > 0.05


@pytest.mark.parametrize(
    ("first", "second", "tasks", "k"), [(0.1, 0.15, 200, 8), (0.5, 0.6, 50, 1), (0.02, 0.03, 50, 1)]
)
def test_coverage_of_the_paired_interval(first, second, tasks, k):
    rng, repeats = np.random.default_rng(7), 300
    pair = [draw_values(rng, mean, 10, k, repeats, tasks) for mean in (second, first)]
    truth = true_pass_at_k(second, 10, k) - true_pass_at_k(first, 10, k)
    interval = paired_task_bootstrap(*pair, resamples=1000)
    coverage = np.mean((interval.low <= truth) & (truth <= interval.high))
    assert coverage >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / repeats)


def test_coverage_of_the_crossed_interval_and_what_ignoring_seeds_costs():
    rng, repeats, seeds, tasks = np.random.default_rng(8), 100, 8, 60
    covered, ignored = 0, 0
    for _ in range(repeats):
        task_level, seed_level = rng.uniform(0.2, 0.6, tasks), rng.uniform(-0.2, 0.2, seeds)
        values = rng.binomial(16, task_level[None] + seed_level[:, None]) / 16
        crossed = crossed_bootstrap(values, resamples=500)
        tasks_only = task_bootstrap(values.mean(axis=0), resamples=500)
        covered += crossed.low <= 0.4 <= crossed.high
        ignored += tasks_only.low <= 0.4 <= tasks_only.high
    assert covered >= 83 and ignored < covered - 10


def test_crossed_bootstrap_agrees_with_a_plain_loop():
    rng = np.random.default_rng(9)
    # Nine seeds: with very few, the draws form lumps and a quantile between two of them is noisy.
    values = rng.random((9, 40)) * np.linspace(0.6, 1.0, 9)[:, None]
    means = []
    for _ in range(8000):
        block = values[rng.integers(0, 9, 8)][:, rng.integers(0, 40, 40)]
        means.append(block.mean())
    interval = crossed_bootstrap(values, resamples=8000)
    tail = stats.norm.cdf(stats.t.ppf(0.025, 39) * math.sqrt(40 / 39))
    spread = np.std(means)
    assert abs(interval.low - np.quantile(means, tail)) < 0.12 * spread
    assert abs(interval.high - np.quantile(means, 1 - tail)) < 0.12 * spread


def test_two_seeds_span_the_interval_between_them():
    # One of two seeds is drawn each time; drawing two would put half of the means in the middle.
    rng = np.random.default_rng(13)
    values = np.stack([np.full(100, 0.3), np.full(100, 0.6)]) + rng.uniform(-0.01, 0.01, (2, 100))
    interval = crossed_bootstrap(values, level=0.4, resamples=2000)
    np.testing.assert_allclose([interval.low, interval.high], [0.3, 0.6], atol=0.005)


def test_seeds_and_tasks_are_drawn_independently():
    # Opposite effects of equal size: draws that went together would cancel. 41 seeds and 40 tasks draw 40 each.
    of_seeds, of_tasks = np.linspace(0, 1, 41)[:, None], np.linspace(0, 1, 40)
    seeds_only = crossed_bootstrap(0.25 + np.tile(0.5 * of_seeds, (1, 40)), resamples=2000)
    opposite = crossed_bootstrap(0.5 + 0.5 * (of_seeds - of_tasks), resamples=2000)
    ratio = (opposite.high - opposite.low) / (seeds_only.high - seeds_only.low)
    assert ratio == pytest.approx(math.sqrt(2), rel=0.1)


def test_crossed_fallback_is_never_narrower_than_the_exact_interval():
    values = np.zeros((3, 40))
    interval = crossed_bootstrap(values, resamples=100)
    assert interval.low == 0 and interval.high == pytest.approx(clopper_pearson(0, 40)[1])
    assert interval.method == "bootstrap_or_clopper_pearson"
    pair = paired_crossed_bootstrap(values, values, resamples=100)
    assert pair.low < 0 < pair.high


def test_pairing_removes_what_tasks_have_in_common():
    rng = np.random.default_rng(10)
    base = rng.uniform(0.2, 0.7, 200)
    better = base + rng.uniform(0.0, 0.1, 200)
    paired = paired_task_bootstrap(better, base, resamples=1000)
    shuffled = paired_task_bootstrap(better, rng.permutation(base), resamples=1000)
    assert 0.04 < paired.low < paired.estimate < paired.high < 0.06
    assert shuffled.high - shuffled.low > 5 * (paired.high - paired.low)


def test_no_difference_at_all_still_has_an_interval():
    same = np.random.default_rng(11).random(100)
    interval = paired_task_bootstrap(same, same, resamples=200)
    end = clopper_pearson(0, 100, level=0.975)[1]
    np.testing.assert_allclose([interval.low, interval.high], [-end, end])


def test_paired_fallback_covers_rare_gains_and_losses():
    rng, repeats, tasks = np.random.default_rng(12), 400, 60
    gains, losses = rng.random((2, tasks, repeats)) < np.array([0.08, 0.03])[:, None, None]
    losses &= ~gains
    interval = paired_task_bootstrap(gains.astype(float), losses.astype(float), resamples=200)
    truth = 0.08 - 0.03 * 0.92
    assert np.mean((interval.low <= truth) & (truth <= interval.high)) >= 0.95
    assert (interval.method == "clopper_pearson").mean() > 0.95


@pytest.mark.parametrize(("solved", "low", "high"), [(6, 1.4, 6.4), (5, 1.1, 5.7), (17, 5.4, 13.2)])
def test_wilson_of_the_published_counts(solved, low, high):
    np.testing.assert_allclose(100 * np.array(wilson(solved, 200)), [low, high], atol=0.05)


def test_clopper_pearson_inverts_the_binomial_tails():
    low, high = clopper_pearson(3, 20)

    def tail(p, counts):
        return sum(math.comb(20, c) * p**c * (1 - p) ** (20 - c) for c in counts)

    assert tail(low, range(3, 21)) == pytest.approx(0.025) and tail(high, range(4)) == pytest.approx(0.025)
    with pytest.raises(ValueError, match="successes"):
        clopper_pearson(5, 4)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"), [(0, 1, 1.0), (12, 0, 0.0005), (17, 5, 0.017), (0, 0, 1.0)]
)
def test_mcnemar_of_the_published_counts(only_first, only_second, p):
    first = [1] * only_first + [0] * only_second + [1] * 4
    second = [0] * only_first + [1] * only_second + [1] * 4
    test = mcnemar_exact(first, second)
    assert (test.only_first, test.only_second) == (only_first, only_second)
    assert test.p_value == pytest.approx(p, abs=5e-4)


def test_t_interval_of_seed_means():
    low, high = seed_t_interval([0.1, 0.2, 0.3])
    # t(0.975, 2) = 4.3027, standard error 0.1 / sqrt(3).
    assert (low, high) == pytest.approx((0.2 - 4.3027 * 0.057735, 0.2 + 4.3027 * 0.057735), abs=1e-4)
    with pytest.raises(ValueError, match="two seed means"):
        seed_t_interval([0.1])


@pytest.mark.parametrize("values", [[], [0.1, np.nan], [0.1, 1.2], [-0.1]])
def test_values_that_are_no_estimates_are_refused(values):
    with pytest.raises(ValueError):
        task_bootstrap(values)


def test_shapes_and_levels_are_checked():
    with pytest.raises(ValueError, match="one training seed"):
        crossed_bootstrap(np.zeros((1, 5)))
    with pytest.raises(ValueError, match="equal shapes"):
        paired_task_bootstrap(np.zeros(4), np.zeros(5))
    with pytest.raises(ValueError, match="level"):
        task_bootstrap([0.5], level=1.0)
    with pytest.raises(ValueError, match="same tasks"):
        mcnemar_exact([1], [1, 0])
    with pytest.raises(ValueError, match="0 or 1"):
        mcnemar_exact([0.5], [1])
