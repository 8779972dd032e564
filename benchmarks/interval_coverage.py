"""Coverage of the task interval by simulation: how often the printed 95 per cent interval holds the true Pass@K.

    python benchmarks/interval_coverage.py [--repeats=2000] [--resamples=1000]

Success probabilities of M tasks come from a Beta distribution (or are equal), 16 episodes a task are drawn, Pass@K is
estimated per task and its mean gets the interval of `task_bootstrap`. One row a cell: the coverage of what the code
answers, how often it answers with the conservative bound, and the coverage within each kind of answer. The coverage
within a kind is conditional on a choice that the same data made: in a cell where one kind is rare, it speaks of unusual
samples. What is promised is the coverage of the answer as it is given.
"""

import argparse
import dataclasses
import itertools
import math

import numpy as np
from scipy.special import betaln

from jaxagent.evaluation.intervals import BOOTSTRAP, task_bootstrap
from jaxagent.evaluation.pass_at import pass_at_k

MEANS = (0.02, 0.1, 0.5, 0.9)
CONCENTRATIONS = (1, 10, None)  # None: all tasks are equal
NUM_TASKS = (50, 200)
KS = (1, 8)
SAMPLES = 16
CEILING = 0.95  # a true Pass@K above it is at its ceiling
ENOUGH_TASKS = 20  # expected away from 0 and 1, for the bootstrap to be held to its level
MIXED = 0.02  # a kind of answer rarer than this does not make a cell mixed


@dataclasses.dataclass(frozen=True)
class Coverage:
    """One cell: shares of the repeats; NaN where a kind of answer did not occur.

    `away` counts the tasks whose estimate is neither 0 nor 1, on average; `weak` is the share of conservative bounds.
    """

    mean: float
    concentration: int | None
    tasks: int
    k: int
    truth: float
    away: float
    weak: float
    answered: float
    kept: float
    bound: float

    @property
    def is_informative(self) -> bool:
        """Whether the bootstrap is held to 92..98 per cent here."""
        return self.away >= ENOUGH_TASKS and self.truth < CEILING

    @property
    def is_mixed(self) -> bool:
        """Whether both kinds of answer occur."""
        return MIXED < self.weak < 1 - MIXED

    def holds(self, slack: float = 0.0) -> bool:
        """92 to 98 per cent where data are informative; elsewhere at least 95, or 92 where the bound is never taken."""
        low = 0.92 if self.is_informative or self.weak <= MIXED else 0.95
        high = 0.98 if self.is_informative or self.weak <= MIXED else 1.0
        return low - slack <= self.answered <= high + slack


def true_pass_at_k(mean: float, concentration: int | None, k: int) -> float:
    """The mean of 1 - (1 - p)^k over p from Beta(mean * c, (1 - mean) * c), or at p = mean."""
    if concentration is None:
        return 1 - (1 - mean) ** k
    a, b = mean * concentration, (1 - mean) * concentration
    return 1 - math.exp(betaln(a, b + k) - betaln(a, b))


def draw_estimates(
    rng: np.random.Generator, mean: float, concentration: int | None, tasks: int, k: int, repeats: int
) -> np.ndarray:
    """Per-task estimates [tasks, repeats]: the repeats ride along as the cells of one call."""
    shape = (tasks, repeats)
    p = np.full(shape, mean)
    if concentration:
        p = rng.beta(mean * concentration, (1 - mean) * concentration, shape)
    return pass_at_k(np.full(shape, SAMPLES), rng.binomial(SAMPLES, p), k)


def measure(
    mean: float, concentration: int | None, tasks: int, k: int, *, repeats: int, resamples: int, seed: int = 0
) -> Coverage:
    """One cell of the table."""
    values = draw_estimates(np.random.default_rng(seed), mean, concentration, tasks, k, repeats)
    interval = task_bootstrap(values, resamples=resamples, seed=seed)
    truth = true_pass_at_k(mean, concentration, k)
    hits = (interval.low <= truth + 1e-12) & (truth <= interval.high + 1e-12)
    kept = interval.method == BOOTSTRAP
    return Coverage(
        mean=mean,
        concentration=concentration,
        tasks=tasks,
        k=k,
        truth=truth,
        away=float(((values > 0) & (values < 1)).sum(axis=0).mean()),
        weak=float(1 - kept.mean()),
        answered=float(hits.mean()),
        kept=float(hits[kept].mean()) if kept.any() else math.nan,
        bound=float(hits[~kept].mean()) if not kept.all() else math.nan,
    )


def cells() -> list[tuple[float, int | None, int, int]]:
    """All 48 cells: (mean, concentration, tasks, k)."""
    return list(itertools.product(MEANS, CONCENTRATIONS, NUM_TASKS, KS))


def main() -> None:
    """Prints the whole table and how many cells hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=1000)
    options = parser.parse_args()
    print(f"{options.repeats} repeats a cell, {SAMPLES} episodes a task, nominal level 95 %")
    print(f"{'mean':>5} {'conc':>5} {'M':>4} {'K':>2} {'Pass@K':>7} {'away':>6} {'bound used':>10}", end=" ")
    print(f"{'coverage':>8} {'kept':>6} {'bound':>6}  verdict")
    slack = 3 * math.sqrt(0.95 * 0.05 / options.repeats)
    results = []
    for number, cell in enumerate(cells()):
        found = measure(*cell, repeats=options.repeats, resamples=options.resamples, seed=number)
        results.append(found)
        label = "equal" if found.concentration is None else found.concentration
        verdict = ("ok" if found.holds() else "ok within noise" if found.holds(slack) else "MISSED") + (
            ", mixed" if found.is_mixed else ""
        )
        print(
            f"{found.mean:>5} {label:>5} {found.tasks:>4} {found.k:>2} {found.truth:>7.3f} {found.away:>6.1f} "
            f"{found.weak:>10.1%} {found.answered:>8.1%} {found.kept:>6.1%} {found.bound:>6.1%}  {verdict}",
            flush=True,
        )
    print(f"{sum(found.holds(slack) for found in results)} of {len(results)} cells hold")
    informative = [found for found in results if found.is_informative]
    inside = sum(found.holds() for found in informative)
    print(
        f"{inside} of the {len(informative)} with {ENOUGH_TASKS} tasks away from 0 and 1, no ceiling, lie in 92..98 %"
    )


if __name__ == "__main__":
    main()
