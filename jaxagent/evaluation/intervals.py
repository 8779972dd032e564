"""Intervals for averages over tasks: bootstrap over whole tasks, and exact ones where the bootstrap cannot be trusted.

Tasks are the sample. A resample draws tasks with all their K x T estimates, so that the cells of one curve, and the two
policies of a comparison, move together. Sampling noise within a task is part of the spread between tasks and is not
added again (arXiv 2411.00640); episodes are never resampled, which would bias the estimate itself.

The bootstrap is too narrow where few tasks carry information (arXiv 2503.01747); on all-zero data its width is 0. Such
cells are found by Kish's effective number of tasks, `(sum d)^2 / sum d^2` with d the distance from 0 and from 1, and
get a Clopper-Pearson interval on the fractional number of successes instead: for values in [0, 1] the 0/1 outcomes it
assumes are the case of the largest spread, so it errs on the wide side. Cells that hold nothing but 0 and 1 (K = n: a
task is solved or it is not) get it always, because there it is exact. `Interval.method` says which.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 10_000
# With fewer effective tasks, counted from 0 or from 1, the simulated coverage of the bootstrap drops below 92 per cent;
# with a higher threshold the bound takes informative data above 98 (`benchmarks/interval_coverage.py`). An average near
# 0 or 1 is skewed further and needs more of them.
MIN_EFFECTIVE_TASKS = 23
MIN_EFFECTIVE_TASKS_INSIDE = 20
NEAR_END = 0.05
_CHUNK = 1_000  # resamples whose weights exist at once: 8 MB for 1,000 tasks
BOOTSTRAP = "bootstrap"
EXACT = "clopper_pearson"
HULL = "bootstrap_or_clopper_pearson"


@dataclasses.dataclass(frozen=True, eq=False)
class Interval:
    """Estimates with two-sided intervals; all arrays have the shape of the estimate (`()` for a single number).

    Attributes:
      estimate: the average over tasks (and seeds).
      low, high: the ends.
      level: nominal coverage.
      method: str array, how each cell was made: `bootstrap` (percentile), `clopper_pearson` (conservative, where
        too few effective tasks carry information, the bootstrap has no width, or all values are 0 or 1), or
        `bootstrap_or_clopper_pearson` (the wider end of both, in the crossed design).
    """

    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float
    method: NDArray[np.str_]


class McNemar(NamedTuple):
    """Exact McNemar test of two policies on the same tasks: discordant counts and the two-sided p-value."""

    only_first: int
    only_second: int
    p_value: float


def task_bootstrap(values: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Percentile interval of the mean over tasks, its tails set by Student's t for small M (arXiv 1411.5279).

    Args:
      values: [M, ...] per-task estimates in [0, 1], for instance `PassGrid.values`; the trailing axes are resampled
        together.
      level: nominal coverage.
      resamples: bootstrap draws.
      seed: of the draws; equal seeds and numbers of tasks give equal draws for every policy.

    Returns:
      An `Interval` of shape `values.shape[1:]`.
    """
    data = _checked(values, 1, level)
    low, high = _percentiles(_task_means(data, resamples, seed), level, len(data))
    weak = _is_weak(data) | _is_binary(data) | (low == high)
    return _choose(data.mean(axis=0), low, high, level, weak, _exact_ends(data.sum(axis=0), len(data), level))


def ratio_bootstrap(
    parts: ArrayLike, wholes: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Interval of sum(parts) / sum(wholes) over tasks, for rates whose denominator differs between tasks.

    Recovered errors over errors, say. A draw takes both numbers of a task. Where few tasks carry information, the
    Clopper-Pearson interval takes Kish's effective number of tasks, weighted by `wholes`, as its number of trials.

    Args:
      parts: [M], each in 0..whole.
      wholes: [M], at least 0 and not all 0; tasks with 0 do not count.
      level, resamples, seed: as in `task_bootstrap`.
    """
    part, whole = _checked_ratio(parts, wholes, level)
    sums = _task_means(np.stack([part, whole], axis=1), resamples, seed)
    ratios = sums[:, 0] / sums[:, 1]
    low, high = _percentiles(ratios, level, len(whole))
    estimate = np.asarray(part.sum() / whole.sum())
    # Far from 0 are the tasks that hold parts, far from 1 those that hold the rest.
    informative = np.minimum(_effective_tasks(part), _effective_tasks(whole - part))
    weak = (informative < MIN_EFFECTIVE_TASKS) | (low == high)
    trials = float(_effective_tasks(whole))
    return _choose(estimate, low, high, level, weak, _exact_ends(estimate * trials, trials, level))


def crossed_bootstrap(values: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Percentile interval over training seeds and tasks, which are crossed: every seed's policy met the same tasks.

    Each draw takes S - 1 of the S seeds and, independently, M of the M tasks, both with replacement, with all their
    cells. (S draws would understate the variance between seeds by (S - 1) / S.) With few seeds the ends stay too
    close even so, because their spread is itself hardly known; show `seed_t_interval` beside it.

    Args:
      values: [S, M, ...] estimates in [0, 1]; at least two seeds.
      level: nominal coverage.
      resamples: bootstrap draws.
      seed: of the draws.

    Returns:
      An `Interval` of shape `values.shape[2:]`.
    """
    data = _checked(values, 2, level)
    low, high = _percentiles(_crossed_means(data, resamples, seed), level, data.shape[1])
    over_seeds = data.mean(axis=0)
    exact_low, exact_high = _exact_ends(over_seeds.sum(axis=0), len(over_seeds), level)
    hull = np.minimum(low, exact_low), np.maximum(high, exact_high)
    weak = _is_weak(over_seeds) | _is_binary(over_seeds) | (low == high)
    return _choose(over_seeds.mean(axis=0), low, high, level, weak, hull, HULL)


def paired_task_bootstrap(
    first: ArrayLike, second: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Interval of mean(first) - mean(second) on the same tasks, [M, ...] each: a draw takes both values of a task.

    Where few tasks differ, gains and losses get a Clopper-Pearson interval each at half the error, and the difference
    of the two is covered by the union bound. For 0/1 outcomes (K = n) `mcnemar_exact` tests the same difference.
    """
    difference = _checked_pair(first, second, 1, level)
    low, high = _percentiles(_task_means(difference, resamples, seed), level, len(difference))
    weak = _is_weak_difference(difference) | _is_binary(np.abs(difference)) | (low == high)
    exact = _exact_difference_ends(difference, level)
    return _choose(difference.mean(axis=0), low, high, level, weak, exact)


def paired_crossed_bootstrap(
    first: ArrayLike, second: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Interval of mean(first) - mean(second) over training seeds and tasks, [S, M, ...] each, paired on both axes."""
    difference = _checked_pair(first, second, 2, level)
    low, high = _percentiles(_crossed_means(difference, resamples, seed), level, difference.shape[1])
    over_seeds = difference.mean(axis=0)
    exact_low, exact_high = _exact_difference_ends(over_seeds, level)
    hull = np.minimum(low, exact_low), np.maximum(high, exact_high)
    weak = _is_weak_difference(over_seeds) | (low == high)
    return _choose(over_seeds.mean(axis=0), low, high, level, weak, hull, HULL)


def seed_t_interval(seed_means: ArrayLike, *, level: float = 0.95) -> tuple[float, float]:
    """Student's t interval on S training-seed means (or differences), at least two; tasks are taken as given."""
    means = np.asarray(seed_means, dtype=float)
    if means.ndim != 1 or len(means) < 2:
        raise ValueError(f"a t interval needs at least two seed means, got shape {means.shape}")
    half = stats.t.ppf(0.5 + level / 2, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    return float(means.mean() - half), float(means.mean() + half)


def wilson(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    return _proportion(successes, trials, level, "wilson")


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact (conservative) Clopper-Pearson interval of a proportion."""
    return _proportion(successes, trials, level, "exact")


def mcnemar_exact(first: ArrayLike, second: ArrayLike) -> McNemar:
    """Exact two-sided McNemar test for 0/1 outcomes of two policies on the same tasks, bool [M] each.

    For K = n, where a task is solved or not. Without discordant tasks the p-value is 1.
    """
    outcomes = [np.asarray(values) for values in (first, second)]
    if outcomes[0].shape != outcomes[1].shape or outcomes[0].ndim != 1:
        raise ValueError("McNemar's test needs two lists of outcomes on the same tasks")
    if not all(np.isin(values, (0, 1)).all() for values in outcomes):
        raise ValueError("McNemar's test needs outcomes that are 0 or 1")
    solved_first, solved_second = (values.astype(bool) for values in outcomes)
    only_first = int((solved_first & ~solved_second).sum())
    only_second = int((solved_second & ~solved_first).sum())
    discordant = only_first + only_second
    p_value = float(stats.binomtest(only_first, discordant, 0.5).pvalue) if discordant else 1.0
    return McNemar(only_first, only_second, p_value)


def _proportion(successes: int, trials: int, level: float, method: Literal["wilson", "exact"]) -> tuple[float, float]:
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes must lie in 0..trials and trials be at least 1, got {successes} of {trials}")
    interval = stats.binomtest(successes, trials).proportion_ci(level, method=method)
    return float(interval.low), float(interval.high)


def _resample_weights(
    count: int, draws: int, resamples: int, seed: Sequence[int]
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Chunks of rows [R', count] whose entries say how often each unit was among the `draws`, over `draws`."""
    generator = np.random.default_rng(seed)
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        drawn = generator.integers(0, count, size=(rows, draws)) + count * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        yield slice(start, start + rows), counts / draws


def _task_means(data: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Resampled means over the tasks of [M, ...], as [R, ...]: one matrix product a chunk."""
    cells = data.reshape(len(data), -1)
    means = np.empty((resamples, cells.shape[1]))
    for rows, weights in _resample_weights(len(data), len(data), resamples, (seed, 0)):
        means[rows] = weights @ cells
    return means.reshape(resamples, *data.shape[1:])


def _crossed_means(data: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Resampled means over seeds and tasks of [S, M, ...], as [R, ...]; tasks are drawn as in `_task_means`."""
    num_seeds, num_tasks = data.shape[:2]
    cells = data.reshape(num_seeds, num_tasks, -1)
    means = np.zeros((resamples, cells.shape[2]))
    seed_weights = _resample_weights(num_seeds, num_seeds - 1, resamples, (seed, 1))
    task_weights = _resample_weights(num_tasks, num_tasks, resamples, (seed, 0))
    for (rows, by_seed), (_, by_task) in zip(seed_weights, task_weights, strict=True):
        for index in range(num_seeds):
            means[rows] += by_seed[:, index, None] * (by_task @ cells[index])
    return means.reshape(resamples, *data.shape[2:])


def _percentiles(
    means: NDArray[np.float64], level: float, num_tasks: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends over axis 0, the tail that of Student's t with the unbiased variance: resampling alone has neither."""
    tail = 0.5 - level / 2
    if num_tasks > 1:
        tail = stats.norm.cdf(stats.t.ppf(tail, num_tasks - 1) * np.sqrt(num_tasks / (num_tasks - 1)))
    low, high = np.quantile(means, [tail, 1.0 - tail], axis=0)
    # Sums of equal numbers in another order differ in the last bits; that is no width.
    return low, np.where(high - low < 1e-12, low, high)


def _effective_tasks(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kish's effective number `(sum d)^2 / sum d^2` over the M tasks of [M, ...]; 0 where every distance is 0."""
    squares = (distances**2).sum(axis=0)
    return np.where(squares > 0.0, distances.sum(axis=0) ** 2 / np.where(squares > 0.0, squares, 1.0), 0.0)


def _is_weak(data: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether too few of the tasks [M, ...] decide how far the mean is from 0, or from 1."""
    mean = data.mean(axis=0)
    inside = np.minimum(mean, 1.0 - mean) >= NEAR_END
    needed = np.where(inside, MIN_EFFECTIVE_TASKS_INSIDE, MIN_EFFECTIVE_TASKS)
    return np.minimum(_effective_tasks(data), _effective_tasks(1.0 - data)) < needed


def _is_weak_difference(difference: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether too few of the tasks [M, ...] differ at all, or too few decide how far the mean is from -1 or 1."""
    from_ends = np.minimum(_effective_tasks(1.0 - difference), _effective_tasks(1.0 + difference))
    return np.minimum(from_ends, _effective_tasks(np.abs(difference))) < MIN_EFFECTIVE_TASKS


def _is_binary(data: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a cell of [M, ...] holds nothing but 0 and 1."""
    return ((data == 0.0) | (data == 1.0)).all(axis=0)


def _exact_ends(
    total: NDArray[np.float64], trials: float, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Clopper-Pearson ends for the mean of `trials` values in [0, 1], their sum rounded outwards to whole successes."""
    tail = (1.0 - level) / 2
    fewer, more = np.floor(total + 1e-9), np.minimum(np.ceil(total - 1e-9), trials)
    low = np.where(fewer > 0, stats.beta.ppf(tail, np.maximum(fewer, 1), trials - fewer + 1), 0.0)
    # The second parameter only has to be positive where all trials are successes: the end is 1 there.
    rest = np.where(more < trials, trials - more, 1.0)
    high = np.where(more < trials, stats.beta.ppf(1 - tail, more + 1, rest), 1.0)
    return low, high


def _exact_difference_ends(
    difference: NDArray[np.float64], level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends for the mean of values in [-1, 1]: gains and losses bounded apart, at half the error each."""
    split = 0.5 + level / 2
    gain_low, gain_high = _exact_ends(np.maximum(difference, 0.0).sum(axis=0), len(difference), split)
    loss_low, loss_high = _exact_ends(np.maximum(-difference, 0.0).sum(axis=0), len(difference), split)
    return gain_low - loss_high, gain_high - loss_low


def _choose(
    estimate: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    level: float,
    weak: NDArray[np.bool_],
    fallback: tuple[NDArray[np.float64], NDArray[np.float64]],
    label: str = EXACT,
) -> Interval:
    """Takes the fallback's ends in weak cells and labels every cell."""
    return Interval(
        estimate=np.asarray(estimate),
        low=np.where(weak, fallback[0], low),
        high=np.where(weak, fallback[1], high),
        level=level,
        method=np.where(weak, label, BOOTSTRAP),
    )


def _checked(values: ArrayLike, leading: int, level: float) -> NDArray[np.float64]:
    """The values as floats; refuses no tasks, NaN, values outside [0, 1], with `leading` 2 fewer than two seeds."""
    data = np.asarray(values, dtype=float)
    if data.ndim < leading or min(data.shape[:leading], default=0) < 1:
        axes = "[tasks, ...]" if leading == 1 else "[seeds, tasks, ...]"
        raise ValueError(f"expected values {axes} that are not empty, got shape {data.shape}")
    if leading == 2 and data.shape[0] < 2:
        raise ValueError("one training seed says nothing about the spread between seeds; resample tasks alone")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if not ((data >= 0.0) & (data <= 1.0)).all():
        raise ValueError("per-task estimates must lie in [0, 1] without NaN")
    return data


def _checked_pair(first: ArrayLike, second: ArrayLike, leading: int, level: float) -> NDArray[np.float64]:
    pair = [_checked(values, leading, level) for values in (first, second)]
    if pair[0].shape != pair[1].shape:
        raise ValueError(f"a paired comparison needs equal shapes, got {pair[0].shape} and {pair[1].shape}")
    return pair[0] - pair[1]


def _checked_ratio(
    parts: ArrayLike, wholes: ArrayLike, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as floats [M], without the tasks whose whole is 0."""
    part, whole = (np.asarray(values, dtype=float) for values in (parts, wholes))
    if part.shape != whole.shape or part.ndim != 1:
        raise ValueError(f"a ratio needs two lists of equal length, got shapes {part.shape} and {whole.shape}")
    if not ((part >= 0.0) & (part <= whole + 1e-9) & np.isfinite(whole)).all():
        raise ValueError("every part must lie between 0 and its whole")
    if not whole.sum() > 0.0:
        raise ValueError("the ratio of nothing is undefined: every whole is 0")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    return np.minimum(part, whole)[whole > 0.0], whole[whole > 0.0]
