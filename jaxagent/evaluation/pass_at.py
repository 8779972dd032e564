"""Unbiased estimators of Pass@(K,T) and its relatives, from `Episode` records.

Pass@(K,T) is the chance that at least one of K independent episodes, each limited to T turns, succeeds, averaged over
tasks (arXiv 2604.14877, 2611.06483). A policy that is not told its budget needs one set of full-length episodes: the
first T turns of a long episode have the law of a T-turn episode, so thresholding the turn of success is unbiased for
every T (`mode="blind"`). A policy that is told its budget behaves differently under each, so each T needs its own
episodes (`mode="told"`); thresholding those estimates another quantity, the success under a cap that nobody announced
(`unannounced=True`). Nothing here mixes the two, and nothing answers where no unbiased estimate exists.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxagent.budgets import percent_of
from jaxagent.episodes import Episode
from jaxagent.errors import UserError

Mode = Literal["told", "blind"]
Unit = Literal["turns", "percent"]
_NOT_TOLD = 0  # stands for `told_budget=None` in integer arrays; budgets start at 1
_NEVER = np.iinfo(np.int64).max  # the success turn of an episode without success


@dataclasses.dataclass(frozen=True, eq=False)
class SuccessCounts:
    """Samples and successes of each task within each budget: all that the estimators need.

    Attributes:
      task_ids: M ids, sorted, so that the order of the episodes does not matter.
      ts: T budgets, in turns or in per cent of each task's full budget, as `unit` says.
      budgets: int [M, T], the same in turns.
      full_budgets: int [M], the full budget of each task in turns.
      num_samples: int [M, T], episodes that count, void ones left out.
      num_correct: int [M, T], those that succeeded within the budget.
      turns_used: float [M, T], mean turns taken before the end or the cut-off; NaN without samples.
      num_void: episodes dropped because the infrastructure ended them.
      void_per_task: int [M], the same by task.
    """

    task_ids: tuple[str, ...]
    ts: tuple[int, ...]
    unit: Unit
    budgets: NDArray[np.int64]
    full_budgets: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    num_correct: NDArray[np.int64]
    turns_used: NDArray[np.float64]
    num_void: int
    void_per_task: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class PassGrid:
    """Per-task estimates over K and T. Resample whole tasks, never single cells: the cells share episodes.

    Attributes:
      values: float [M, K, T], the estimate of each task.
      ks: the K of axis 1.
      counts: what the estimates were made of; its `task_ids` and `ts` label axes 0 and 2.
    """

    values: NDArray[np.float64]
    ks: tuple[int, ...]
    counts: SuccessCounts

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The ids of axis 0."""
        return self.counts.task_ids

    @property
    def ts(self) -> tuple[int, ...]:
        """The budgets of axis 2, in `counts.unit`."""
        return self.counts.ts

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """Episodes per task and budget, int [M, T]."""
        return self.counts.num_samples

    @property
    def num_void(self) -> int:
        """Void episodes that were dropped."""
        return self.counts.num_void

    @property
    def mean(self) -> NDArray[np.float64]:
        """The average over tasks, float [K, T]: each task weighs the same, whatever its number of samples."""
        return self.values.mean(axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class TurnBudgetCurve:
    """Pass@K where a fixed number of turns buys K = turn_budget // T episodes of T turns.

    Attributes:
      turn_budget: what every point of the curve may spend at most, in `counts.unit`.
      ks: int [M, T], the episodes that it buys.
      values: float [M, T], the estimate of each task.
      counts: what the estimates were made of.
    """

    turn_budget: int
    ks: NDArray[np.int64]
    values: NDArray[np.float64]
    counts: SuccessCounts

    @property
    def turns_spent(self) -> NDArray[np.float64]:
        """Turns that the K episodes of a point really take on average, float [M, T]: K E[min(end, T)]."""
        return self.ks * self.counts.turns_used

    @property
    def mean(self) -> NDArray[np.float64]:
        """The average over tasks, float [T]."""
        return self.values.mean(axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class ToldEnforcedMatrix:
    """Pass@K by what the policy was told (rows; None: no budget line) and where it was cut off (columns).

    `values` is float [M, R, C]; NaN where the cut-off lies beyond what was told. The diagonal holds announced
    budgets, the cells left of it caps that nobody announced.
    """

    k: int
    told: tuple[int | None, ...]
    enforced: tuple[int, ...]
    unit: Unit
    task_ids: tuple[str, ...]
    values: NDArray[np.float64]
    num_void: int

    @property
    def mean(self) -> NDArray[np.float64]:
        """The average over tasks, float [R, C]."""
        return self.values.mean(axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class SuccessHazard:
    """P(success on turn t | the episode reached turn t), for turns 1..T, pooled over episodes.

    `survivors` [T] counts the episodes that took turn t, `successes` [T] those that succeeded on it, `hazard` [T] is
    the quotient, NaN without survivors.
    """

    survivors: NDArray[np.int64]
    successes: NDArray[np.int64]
    hazard: NDArray[np.float64]
    num_void: int


def pass_at_k(num_samples: ArrayLike, num_correct: ArrayLike, k: ArrayLike) -> float | NDArray[np.float64]:
    """Share of the K-subsets of n samples that hold a success, `1 - C(n-c, k) / C(n, k)` (arXiv 2107.03374, eq. 1).

    It is the unbiased estimate of `1 - (1 - p)^k` with the least variance, computed as `1 - prod_{i=n-c+1..n} (1 - k
    / i)`.

    Args:
      num_samples: n, samples of one task (never the number of tasks); integers that broadcast with the others.
      num_correct: c, successes among them.
      k: K, at least 1.

    Returns:
      A float for scalars, else an array. No unbiased estimate exists where k > n: such cells of an array are NaN.

    Raises:
      ValueError: for scalars with k > n, for counts outside 0 <= c <= n, for k < 1, for values that are not integers.
    """
    samples, correct, subset = _checked_counts(num_samples, num_correct, k)
    return _unwrap(1.0 - _subset_ratio(samples, samples - correct, subset))


def pass_hat_k(num_samples: ArrayLike, num_correct: ArrayLike, k: ArrayLike) -> float | NDArray[np.float64]:
    """Share of the K-subsets of n samples that are all successes, `C(c, k) / C(n, k)`: pass^k of arXiv 2406.12045.

    The unbiased estimate of `p^k`. Arguments, NaN and errors as in `pass_at_k`.
    """
    samples, correct, subset = _checked_counts(num_samples, num_correct, k)
    return _unwrap(_subset_ratio(samples, correct, subset))


def pass_at_k_t(
    episodes: Sequence[Episode],
    ks: Sequence[int],
    ts: Sequence[int],
    *,
    mode: Mode = "told",
    unannounced: bool = False,
) -> PassGrid:
    """Pass@(K,T) of every task for budgets `ts` in turns.

    Args:
      episodes: records of one policy; void ones are dropped and counted.
      ks: values of K, each at most the number of samples of every task at every T.
      ts: budgets in turns, none beyond the enforced budget of the episodes that answer for it.
      mode: `told` takes for each T the episodes that were told T; `blind` thresholds episodes that were told nothing.
      unannounced: with `told` only: thresholds episodes of one told budget per task, which estimates the success
        under a cap that nobody announced.

    Raises:
      UserError: where the episodes cannot answer the question without bias; it names the task.
    """
    return _pass_grid(success_counts(episodes, ts, mode=mode, unannounced=unannounced), ks, pass_at_k)


def pass_at_k_percent(
    episodes: Sequence[Episode],
    ks: Sequence[int],
    percents: Sequence[int],
    *,
    mode: Mode = "told",
    unannounced: bool = False,
) -> PassGrid:
    """`pass_at_k_t` for budgets in per cent of each task's own full budget, rounded up to whole turns.

    Where two percentages of a short task round to the same number of turns, the episodes told that number serve both.
    """
    counts = success_counts(episodes, percents, mode=mode, unannounced=unannounced, unit="percent")
    return _pass_grid(counts, ks, pass_at_k)


def pass_hat_k_t(
    episodes: Sequence[Episode],
    ks: Sequence[int],
    ts: Sequence[int],
    *,
    mode: Mode = "told",
    unannounced: bool = False,
    unit: Unit = "turns",
) -> PassGrid:
    """pass^(K,T): the chance that all K episodes, each limited to T turns, succeed. Guards as in `pass_at_k_t`."""
    counts = success_counts(episodes, ts, mode=mode, unannounced=unannounced, unit=unit)
    return _pass_grid(counts, ks, pass_hat_k)


def pass_at_t(
    episodes: Sequence[Episode],
    num_trajectories: int,
    ts: Sequence[int],
    *,
    mode: Mode = "told",
    unannounced: bool = False,
    unit: Unit = "turns",
) -> PassGrid:
    """Pass@T = Pass@(K=C, T) at a fixed number C of trajectories (arXiv 2611.06483): one K, so `values` is [M, 1, T].

    Compute grows with T, up to C * T turns; `pass_at_turn_budget` holds it fixed. With C samples per task the
    estimate is the noisy indicator "any of them succeeded"; four times as many samples halve its standard deviation
    or better.
    """
    counts = success_counts(episodes, ts, mode=mode, unannounced=unannounced, unit=unit)
    return _pass_grid(counts, (num_trajectories,), pass_at_k)


def pass_at_turn_budget(
    episodes: Sequence[Episode],
    turn_budget: int,
    ts: Sequence[int],
    *,
    mode: Mode = "told",
    unannounced: bool = False,
    unit: Unit = "turns",
) -> TurnBudgetCurve:
    """Compute-matched Pass@T: `turn_budget` turns buy `turn_budget // T` episodes of T turns each.

    Turns are counted as ordered, not as taken: episodes that end early spend less (`TurnBudgetCurve.turns_spent`), but
    a K derived from the turns that these very episodes took would depend on their outcomes and bias the estimate.

    Args:
      episodes: as in `pass_at_k_t`, with the other arguments.
      turn_budget: in turns; with `unit="percent"` in per cent of each task's full budget, so that 800 buys eight full
        episodes of any task.
      ts: the budgets T, in the same unit.
      mode, unannounced, unit: as in `pass_at_t`.

    Raises:
      UserError: where the turns do not buy one episode, or a task has fewer samples than they buy; else as
      `pass_at_k_t`.
    """
    counts = success_counts(episodes, ts, mode=mode, unannounced=unannounced, unit=unit)
    turns = np.full_like(counts.full_budgets, turn_budget)
    if unit == "percent":
        turns = turn_budget * counts.full_budgets // 100
    ks = turns[:, None] // counts.budgets
    if (ks < 1).any():
        row, column = np.argwhere(ks < 1)[0]
        raise UserError(
            f"turn_budget {_label(turn_budget, unit)} does not buy one episode of {counts.budgets[row, column]} turns; "
            "raise it or drop that T"
        )
    _require_samples(counts, ks)
    values = np.asarray(pass_at_k(counts.num_samples, counts.num_correct, ks))
    return TurnBudgetCurve(turn_budget, ks, values, counts)


def pass_at_k_t_rescored(
    episodes: Sequence[Episode],
    prefix_correct: ArrayLike,
    ks: Sequence[int],
    ts: Sequence[int],
    *,
    mode: Mode = "blind",
    unannounced: bool = False,
    unit: Unit = "turns",
) -> PassGrid:
    """Pass@(K,T) under a verifier that scores whatever state exists at the cut-off, so that success can be undone.

    The first turn on which such a verifier would pass says too much (it stops when an oracle says so). Here each
    episode is judged at each T: `prefix_correct[i, j]` is the verdict on episode i cut at `ts[j]`, bool [N, T],
    aligned with `episodes` (rows of void episodes are ignored). The curve need not rise with T. Guards as in
    `pass_at_k_t`.
    """
    table = _tabulate(episodes)
    correct = np.asarray(prefix_correct)
    if correct.shape != (len(episodes), len(ts)):
        raise ValueError(f"prefix_correct has shape {correct.shape}, expected {(len(episodes), len(ts))}")
    if not np.isin(correct, (0, 1)).all():
        raise ValueError("prefix_correct must hold only true and false")
    return _pass_grid(_count(table, ts, mode, unannounced, unit, correct.astype(bool)), ks, pass_at_k)


def success_counts(
    episodes: Sequence[Episode],
    ts: Sequence[int],
    *,
    mode: Mode = "told",
    unannounced: bool = False,
    unit: Unit = "turns",
) -> SuccessCounts:
    """Counts samples and successes within each budget, with the guards that `pass_at_k_t` describes.

    Success on turn T itself counts, and it is taken to be final: the episode ended there.
    """
    return _count(_tabulate(episodes), ts, mode, unannounced, unit, None)


def cover_at(counts: SuccessCounts, taus: Sequence[float]) -> NDArray[np.float64]:
    """Cover@tau, float [tau, T]: the share of tasks whose share of successes is at least tau (arXiv 2510.08325).

    It does not reward lucky guesses as Pass@K at large K does. The per-task share is observed over n samples, not the
    true probability: no unbiased estimate of a threshold of p exists, so compare only at equal n.
    """
    levels = np.asarray(taus, dtype=float)
    if levels.ndim != 1 or not ((levels > 0.0) & (levels <= 1.0)).all():
        raise ValueError(f"tau must lie in (0, 1], got {list(taus)}")
    _require_samples(counts, np.ones_like(counts.num_samples))
    share = counts.num_correct / counts.num_samples
    return (share[None] >= levels[:, None, None]).mean(axis=1)


def told_enforced_matrix(
    episodes: Sequence[Episode],
    k: int,
    told: Sequence[int | None],
    enforced: Sequence[int],
    *,
    unit: Unit = "turns",
) -> ToldEnforcedMatrix:
    """How a policy meets caps that it was told of, told more than, or told nothing about.

    Args:
      episodes: records of one policy, of all rows together.
      k: K of Pass@K.
      told: rows, budgets that have their own episodes for every task; None is the row of episodes without a budget
        line.
      enforced: columns. A row is thresholded at every column up to what it was told.
      unit: `turns`, or `percent` of each task's full budget, for both axes.

    Raises:
      UserError: a row without episodes of some task, and whatever `pass_at_k_t` refuses.
    """
    _check_axis("enforced", enforced, unit)
    _check_axis("told", [row for row in told if row is not None], unit, may_be_empty=True)
    _tabulate(episodes)  # refuses faults that single rows do not show
    task_ids = tuple(sorted({episode.task_id for episode in episodes}))
    values = np.full((len(task_ids), len(told), len(enforced)), np.nan)
    for index, row in enumerate(told):
        columns = [column for column, cap in enumerate(enforced) if row is None or cap <= row]
        members = [episode for episode in episodes if _is_told(episode, row, unit)]
        missing = sorted(set(task_ids) - {episode.task_id for episode in members})
        if missing:
            label = "without a budget line" if row is None else f"told {_label(row, unit)}"
            raise UserError(f"task {missing[0]} has no episodes {label}; run them or drop that row of the matrix")
        if columns:
            caps = [enforced[column] for column in columns]
            mode: Mode = "blind" if row is None else "told"
            counts = success_counts(members, caps, mode=mode, unannounced=row is not None, unit=unit)
            values[:, index, columns] = _pass_grid(counts, (k,), pass_at_k).values[:, 0]
    num_void = sum(e.is_void and any(_is_told(e, row, unit) for row in told) for e in episodes)
    return ToldEnforcedMatrix(k, tuple(told), tuple(enforced), unit, task_ids, values, num_void)


def success_hazard(episodes: Sequence[Episode]) -> SuccessHazard:
    """The chance of success on each turn among the episodes that got so far.

    Void episodes are dropped. All episodes of a task must share one told budget (or none), because the hazard depends
    on it.
    """
    table = _tabulate(episodes)
    if (table.told == _NOT_TOLD).any() and (table.told != _NOT_TOLD).any():
        raise UserError("some episodes were told a budget and some were not; compute the hazard of each kind alone")
    _require_one_told_budget(table)
    alive = ~table.void
    if (table.num_turns[alive] < np.where(table.success_turn == _NEVER, 0, table.success_turn)[alive]).any():
        raise UserError("an episode succeeded on a turn that its record does not hold; the hazard needs whole records")
    turns = np.arange(1, table.num_turns[alive].max(initial=0) + 1)
    survivors = (table.num_turns[alive, None] >= turns).sum(axis=0)
    successes = (table.success_turn[alive, None] == turns).sum(axis=0)
    # Every listed turn was taken by some episode, so no quotient is 0 / 0.
    return SuccessHazard(survivors, successes, successes / survivors, int(table.void.sum()))


@dataclasses.dataclass(frozen=True, eq=False)
class _EpisodeTable:
    """Columns of the records, [N] each; `task` indexes `task_ids`, `max_budget` is [M]."""

    task_ids: tuple[str, ...]
    max_budget: NDArray[np.int64]
    task: NDArray[np.int64]
    told: NDArray[np.int64]
    enforced: NDArray[np.int64]
    success_turn: NDArray[np.int64]
    num_turns: NDArray[np.int64]
    void: NDArray[np.bool_]


def _tabulate(episodes: Sequence[Episode]) -> _EpisodeTable:
    """Turns records into columns; refuses none at all, duplicates, and two full budgets for one task."""
    if not episodes:
        raise UserError("no episodes to estimate from")
    seen: set[tuple[str, int | None, int, int]] = set()
    max_budgets: dict[str, int] = {}
    for episode in episodes:
        key = (episode.task_id, episode.told_budget, episode.group, episode.member)
        if key in seen and not episode.is_void:
            raise UserError(
                f"task {episode.task_id} has two episodes with told budget {episode.told_budget}, "
                f"group {episode.group}, member {episode.member}; samples must be independent, so pass each episode "
                "of one policy once"
            )
        if not episode.is_void:  # its retry bears the same names
            seen.add(key)
        if max_budgets.setdefault(episode.task_id, episode.max_budget) != episode.max_budget:
            known = max_budgets[episode.task_id]
            raise UserError(f"task {episode.task_id} has episodes with full budgets {known} and {episode.max_budget}")
        if episode.success != (episode.success_turn is not None):
            raise UserError(f"an episode of task {episode.task_id} has success {episode.success} but no matching turn")
    task_ids = tuple(sorted(max_budgets))
    index = {task_id: row for row, task_id in enumerate(task_ids)}

    def column(values: list[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    return _EpisodeTable(
        task_ids=task_ids,
        max_budget=column([max_budgets[task_id] for task_id in task_ids]),
        task=column([index[episode.task_id] for episode in episodes]),
        told=column([_NOT_TOLD if episode.told_budget is None else episode.told_budget for episode in episodes]),
        enforced=column([episode.enforced_budget for episode in episodes]),
        success_turn=column([_NEVER if e.success_turn is None else e.success_turn for e in episodes]),
        num_turns=column([len(episode.turns) for episode in episodes]),
        void=np.array([episode.is_void for episode in episodes], dtype=bool),
    )


def _count(
    table: _EpisodeTable,
    ts: Sequence[int],
    mode: Mode,
    unannounced: bool,
    unit: Unit,
    correct: NDArray[np.bool_] | None,
) -> SuccessCounts:
    """Sums samples and successes over the episodes that may answer; `correct` [N, T] replaces the success turn."""
    _check_axis("ts" if unit == "turns" else "percents", ts, unit)
    _check_mode(table, mode, unannounced)
    budgets = _budgets_in_turns(table.max_budget, ts, unit)  # [M, T]
    caps = budgets[table.task]  # [N, T]
    answers = np.ones_like(caps, dtype=bool)
    if mode == "told" and not unannounced:
        answers = table.told[:, None] == caps
        _require_own_episodes(table, answers, budgets)
    answers &= ~table.void[:, None]
    _refuse_censored(table, answers, caps)
    if correct is None:
        correct = table.success_turn[:, None] <= caps
    num_samples = _sum_by_task(table, answers)
    turns = _sum_by_task(table, np.where(answers, np.minimum(table.num_turns[:, None], caps), 0))
    void_per_task = _sum_by_task(table, table.void[:, None])[:, 0]
    return SuccessCounts(
        task_ids=table.task_ids,
        ts=tuple(int(t) for t in ts),
        unit=unit,
        budgets=budgets,
        full_budgets=table.max_budget,
        num_samples=num_samples,
        num_correct=_sum_by_task(table, answers & correct),
        turns_used=np.where(num_samples > 0, turns / np.maximum(num_samples, 1), np.nan),
        num_void=int(void_per_task.sum()),
        void_per_task=void_per_task,
    )


def _pass_grid(counts: SuccessCounts, ks: Sequence[int], estimator: Callable) -> PassGrid:
    """Applies `pass_at_k` or `pass_hat_k` to every task, K and T."""
    if len(ks) == 0 or len(set(ks)) != len(ks) or any(not _is_whole(k) or k < 1 for k in ks):
        raise UserError(f"K must be distinct whole numbers from 1 on, got {list(ks)}")
    _require_samples(counts, np.full_like(counts.num_samples, max(ks)))
    samples, correct = counts.num_samples[:, None, :], counts.num_correct[:, None, :]
    values = estimator(samples, correct, np.asarray(ks)[None, :, None])
    return PassGrid(np.asarray(values), tuple(int(k) for k in ks), counts)


def _check_mode(table: _EpisodeTable, mode: Mode, unannounced: bool) -> None:
    """Refuses episodes that were told what `mode` says they were not, and the reverse."""
    if mode not in ("told", "blind"):
        raise UserError(f"mode must be told or blind, got {mode!r}")
    untold = table.told == _NOT_TOLD
    if mode == "blind":
        if unannounced:
            raise UserError("unannounced=True belongs to mode='told'; a blind policy hears of no cap anyway")
        if not untold.all():
            name = table.task_ids[table.task[np.argmin(untold)]]
            raise UserError(
                f"mode='blind' was given episodes of task {name} that were told a budget; use mode='told' with "
                "episodes for each T, or unannounced=True for caps that nobody announced"
            )
        return
    if untold.any():
        name = table.task_ids[table.task[np.argmax(untold)]]
        raise UserError(
            f"mode='told' was given episodes of task {name} without a told budget; pass them alone with mode='blind'"
        )
    if unannounced:
        _require_one_told_budget(table)


def _require_one_told_budget(table: _EpisodeTable) -> None:
    for index, name in enumerate(table.task_ids):
        told = np.unique(table.told[table.task == index])
        if len(told) > 1:
            raise UserError(
                f"task {name} has episodes told {', '.join(map(str, told))} turns; thresholding needs one told budget "
                "a task, so pass the episodes of one of them"
            )


def _require_own_episodes(table: _EpisodeTable, own: NDArray[np.bool_], budgets: NDArray[np.int64]) -> None:
    lacking = np.argwhere(_sum_by_task(table, own) == 0)
    if len(lacking):
        row, column = lacking[0]
        told = ", ".join(map(str, np.unique(table.told[table.task == row])))
        raise UserError(
            f"task {table.task_ids[row]} has no episodes told T={budgets[row, column]} (told: {told}); an announced "
            "budget needs its own episodes. unannounced=True answers for caps that nobody announced"
        )


def _refuse_censored(table: _EpisodeTable, answers: NDArray[np.bool_], caps: NDArray[np.int64]) -> None:
    censored = np.argwhere(answers & (caps > table.enforced[:, None]))
    if len(censored):
        row, column = censored[0]
        raise UserError(
            f"T={caps[row, column]} lies beyond the enforced budget {table.enforced[row]} of an episode of task "
            f"{table.task_ids[table.task[row]]}; what it would have done later is unknown"
        )


def _require_samples(counts: SuccessCounts, ks: NDArray[np.int64]) -> None:
    """Raises where a task has fewer samples than K [M, T]: no unbiased estimate exists."""
    short = np.argwhere(counts.num_samples < ks)
    if len(short):
        row, column = short[0]
        dropped = int(counts.void_per_task[row])
        raise UserError(
            f"K={ks[row, column]} needs as many episodes of task {counts.task_ids[row]} at "
            f"T={_label(counts.ts[column], counts.unit)}, it has {counts.num_samples[row, column]} "
            f"({dropped} void ones dropped); run more episodes or lower K"
        )


def _sum_by_task(table: _EpisodeTable, values: NDArray) -> NDArray[np.int64]:
    """Sums [N, C] over the episodes of each task to [M, C]."""
    sums = np.zeros((len(table.task_ids), values.shape[1]), dtype=np.int64)
    np.add.at(sums, table.task, values.astype(np.int64))
    return sums


def _budgets_in_turns(max_budget: NDArray[np.int64], ts: Sequence[int], unit: Unit) -> NDArray[np.int64]:
    if unit == "turns":
        return np.tile(np.asarray(ts, dtype=np.int64), (len(max_budget), 1))
    return np.array([[percent_of(int(full), int(t)) for t in ts] for full in max_budget], dtype=np.int64)


def _is_told(episode: Episode, row: int | None, unit: Unit) -> bool:
    if row is None or episode.told_budget is None:
        return row is None and episode.told_budget is None
    return episode.told_budget == (row if unit == "turns" else percent_of(episode.max_budget, row))


def _check_axis(name: str, ts: Sequence[int], unit: Unit, *, may_be_empty: bool = False) -> None:
    if unit not in ("turns", "percent"):
        raise UserError(f"unit must be turns or percent, got {unit!r}")
    if len(ts) == 0 and not may_be_empty:
        raise UserError(f"{name} is empty; name at least one budget")
    if len(set(ts)) != len(ts) or any(not _is_whole(t) or t < 1 for t in ts):
        raise UserError(f"{name} must be distinct whole numbers from 1 on, got {list(ts)}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _label(budget: int, unit: Unit) -> str:
    return f"{budget}%" if unit == "percent" else str(budget)


def _checked_counts(num_samples: ArrayLike, num_correct: ArrayLike, k: ArrayLike) -> tuple[NDArray[np.int64], ...]:
    """The three as int64 arrays of one shape; raises on values outside the estimators' domain."""
    arrays = [np.asarray(values) for values in (num_samples, num_correct, k)]
    if any(array.dtype.kind not in "iu" for array in arrays):
        raise ValueError("num_samples, num_correct and k must be integers")
    samples, correct, subset = np.broadcast_arrays(*(array.astype(np.int64) for array in arrays))
    if (correct < 0).any() or (correct > samples).any():
        raise ValueError("num_correct must lie in 0..num_samples")
    if (subset < 1).any():
        raise ValueError("k must be at least 1")
    if samples.ndim == 0 and subset > samples:
        raise ValueError(f"no unbiased estimate exists for k={subset} from {samples} samples; draw more or lower k")
    return samples, correct, subset


def _subset_ratio(total: NDArray[np.int64], part: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.float64]:
    """C(part, k) / C(total, k) by `prod_{i=part+1..total} (1 - k / i)`, elementwise; NaN where k > total.

    One running product per distinct (total, k) serves every `part`, and no factorial is formed.
    """
    flat_total, flat_k = total.ravel(), k.ravel()
    dropped = flat_total - part.ravel()
    pairs, which = np.unique(np.stack([flat_total, flat_k]), axis=1, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    cells = np.split(order, np.cumsum(np.bincount(which.ravel(), minlength=pairs.shape[1]))[:-1])
    ratio = np.full(flat_total.shape, np.nan)
    for (n, subset), members in zip(pairs.T, cells, strict=True):
        if subset <= n:
            falling = np.cumprod(1.0 - subset / np.arange(n, subset, -1))
            products = np.concatenate([[1.0], falling, [0.0]])  # the last: fewer than k are left
            ratio[members] = products[np.minimum(dropped[members], n - subset + 1)]
    return ratio.reshape(total.shape)


def _unwrap(values: NDArray[np.float64]) -> float | NDArray[np.float64]:
    return float(values) if values.ndim == 0 else values
