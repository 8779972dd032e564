"""The promised coverage on the cells that decide it, and agreement with estimators written independently."""

import importlib.util
import math
import pathlib
import sys

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats import contingency_tables, proportion

from jaxagent.evaluation.intervals import clopper_pearson, mcnemar_exact, seed_t_interval, task_bootstrap, wilson
from jaxagent.evaluation.pass_at import pass_at_k, pass_hat_k

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "interval_coverage.py"
SPEC = importlib.util.spec_from_file_location("interval_coverage", PATH)
coverage = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = coverage  # dataclasses look their module up
SPEC.loader.exec_module(coverage)

REPEATS = 600
SLACK = 3 * math.sqrt(0.95 * 0.05 / REPEATS)
# Cells in which the code answers now with the bootstrap and now with the bound, and two on either side.
DECISIVE = [
    (0.1, 10, 50, 1),
    (0.9, 10, 50, 1),
    (0.1, 10, 50, 8),
    (0.02, 10, 200, 1),
    (0.02, 10, 200, 8),
    (0.5, None, 200, 8),
    (0.5, 10, 50, 1),
    (0.02, 1, 50, 1),
]


@pytest.mark.parametrize("cell", DECISIVE)
def test_answers_hold_their_promise(cell):
    found = coverage.measure(*cell, repeats=REPEATS, resamples=500, seed=11)
    assert found.holds(SLACK), found
    if cell[0] == 0.5 and cell[2] == 50:
        assert found.weak == 0 and found.is_informative


def test_the_bootstrap_alone_would_break_it(monkeypatch):
    for name in ("MIN_EFFECTIVE_TASKS", "MIN_EFFECTIVE_TASKS_INSIDE"):
        monkeypatch.setattr(f"jaxagent.evaluation.intervals.{name}", 0)
    found = coverage.measure(0.02, 1, 50, 1, repeats=REPEATS, resamples=500)
    assert found.weak < 0.5 and not found.holds(SLACK)


@pytest.mark.slow
@pytest.mark.parametrize("cell", coverage.cells())
def test_answers_hold_their_promise_in_every_cell(cell):
    repeats = 2000
    found = coverage.measure(*cell, repeats=repeats, resamples=1000, seed=12)
    assert found.holds(3 * math.sqrt(0.95 * 0.05 / repeats)), found


def test_agrees_with_the_published_estimator_on_its_own_domain():
    # arXiv 2107.03374, figure 3: one minus a product of n - c + 1 .. n.
    for n in (1, 5, 20, 200):
        for c in range(0, n + 1, max(1, n // 7)):
            for k in {1, n, max(1, n // 2)}:
                product = 1.0 if n - c >= k else 0.0
                for i in range(n - c + 1, n + 1) if n - c >= k else ():
                    product *= 1.0 - k / i
                assert pass_at_k(n, c, k) == pytest.approx(1.0 - product, abs=1e-12)


def test_agrees_with_the_hypergeometric_distribution():
    for n, c, k in [(8, 2, 4), (32, 5, 8), (200, 190, 50), (16, 0, 3), (16, 16, 16)]:
        drawn = stats.hypergeom(n, c, k)  # successes among k of n
        assert pass_at_k(n, c, k) == pytest.approx(1 - drawn.pmf(0), abs=1e-12)
        assert pass_hat_k(n, c, k) == pytest.approx(drawn.pmf(k), abs=1e-12)


def test_wilson_by_its_formula():
    z = stats.norm.ppf(0.975)
    for c, n in [(0, 10), (3, 40), (164, 200), (5, 5)]:
        p = c / n
        centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        expected = [(centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)]
        np.testing.assert_allclose(wilson(c, n), np.clip(expected, 0, 1), atol=1e-9)


def test_intervals_agree_with_scipy_and_statsmodels():
    low, high = seed_t_interval([0.2, 0.35, 0.3, 0.1])
    expected = stats.ttest_1samp([0.2, 0.35, 0.3, 0.1], 0).confidence_interval()
    assert (low, high) == pytest.approx((expected.low, expected.high))
    first, second = [1] * 9 + [0] * 3 + [1] * 20, [0] * 9 + [1] * 3 + [1] * 20
    assert mcnemar_exact(first, second).p_value == pytest.approx(stats.binomtest(3, 12, 0.5).pvalue)
    for c, n in [(0, 20), (3, 50), (17, 200), (20, 20)]:
        np.testing.assert_allclose(wilson(c, n), proportion.proportion_confint(c, n, method="wilson"), atol=1e-9)
        exact = proportion.proportion_confint(c, n, method="beta")
        np.testing.assert_allclose(clopper_pearson(c, n), exact, atol=1e-9)
        # All tasks 0 or 1: the interval that evaluations print is this one.
        printed = task_bootstrap([1.0] * c + [0.0] * (n - c), resamples=50)
        np.testing.assert_allclose((printed.low, printed.high), exact, atol=1e-9)
    paper = contingency_tables.mcnemar([[20, 9], [3, 0]], exact=True)
    assert mcnemar_exact(first, second).p_value == pytest.approx(paper.pvalue)
