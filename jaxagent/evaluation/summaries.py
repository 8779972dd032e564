"""Short answers from episodes: a policy's figures by told budget, contrasts of two policies, rows for a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagent.episodes import Episode, Task
from jaxagent.errors import UserError
from jaxagent.evaluation.intervals import (
    RESAMPLES,
    Interval,
    mcnemar_exact,
    paired_crossed_bootstrap,
    paired_task_bootstrap,
    task_bootstrap,
)
from jaxagent.evaluation.pass_at import Mode, PassGrid, pass_at_k_percent

POINTS = 100.0  # percentage points in a share of 1


def policy_summary(
    episodes: Sequence[Episode],
    tasks: Sequence[Task],
    *,
    k: int,
    percents: Sequence[int],
    feasible: Mapping[int, float],
    seed: int,
    mode: Mode = "told",
    resamples: int = RESAMPLES,
) -> dict[str, dict[str, float]]:
    """A policy's figures at each budget, in per cent of each task's full budget.

    Args:
      episodes: of one policy: told every one of `percents` and 100 per cent (the latter answers for caps that nobody
        announced), or with `mode="blind"` of full length and told nothing.
      tasks: the panel; each must have episodes, and no other task may.
      k: K of Pass@K.
      percents: budgets to report.
      feasible: for each of them the share of tasks that can be solved within it.
      seed: of the bootstrap.
      mode: as in `pass_at_k_t`.
      resamples: of the bootstrap.

    Returns:
      For each per cent, as text: `pass_at_k` with the ends `low` and `high` of its 95 per cent interval over tasks,
      `pass_at_1`, `feasible`, `unannounced_pass_at_k`.
    """
    _check_tasks(episodes, tasks)
    missing = [percent for percent in percents if percent not in feasible]
    if missing:
        raise UserError(f"no feasible share was given for {missing[0]} per cent")
    ks = (k,) if k == 1 else (1, k)
    announced = pass_at_k_percent(episodes, ks, percents, mode=mode)
    unannounced = announced if mode == "blind" else _unannounced(episodes, k, percents)
    interval = task_bootstrap(announced.values[:, -1], seed=seed, resamples=resamples)
    return {
        str(percent): {
            "pass_at_k": float(interval.estimate[column]),
            "low": float(interval.low[column]),
            "high": float(interval.high[column]),
            "pass_at_1": float(announced.mean[0, column]),
            "feasible": float(feasible[percent]),
            "unannounced_pass_at_k": float(unannounced.mean[-1, column]),
        }
        for column, percent in enumerate(percents)
    }


def mean_turns_used(episodes: Sequence[Episode], percents: Sequence[int], *, mode: Mode = "told") -> dict[str, float]:
    """Turns taken as a share of the budget in turns, averaged over the episodes of a task and then over tasks."""
    counts = pass_at_k_percent(episodes, (1,), percents, mode=mode).counts
    shares = (counts.turns_used / counts.budgets).mean(axis=0)
    return {str(percent): float(share) for percent, share in zip(percents, shares, strict=True)}


def paired_contrast(
    first: Sequence[PassGrid],
    second: Sequence[PassGrid],
    *,
    k: int,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> dict[str, dict[str, Any]]:
    """Pass@K of `first` minus `second` at each budget, in percentage points, with a paired interval.

    Args:
      first: grids of one policy, one per training seed, all over the same panel and budgets.
      second: grids of the other; entry i is paired with entry i of `first`.
      k: which K of the grids.
      seed: of the bootstrap.
      level: nominal coverage.
      resamples: of the bootstrap.

    Returns:
      For each budget, as text: `points`, `low`, `high` and `method`; with one training seed and outcomes that are 0
      or 1 (K = n) also `mcnemar_p`, the p-value of McNemar's exact test. One training seed: tasks are resampled, the
      interval speaks of these two trained policies. Several: seeds and tasks are, and it speaks of the two ways of
      training.
    """
    if len(first) == 0 or len(first) != len(second):
        raise UserError(f"a paired contrast needs as many grids of each policy, got {len(first)} and {len(second)}")
    grids = [*first, *second]
    _check_comparable(grids, k)
    values = [np.stack([grid.values[:, grid.ks.index(k)] for grid in side]) for side in (first, second)]  # [S, M, T]
    options = {"level": level, "resamples": resamples, "seed": seed}
    if len(first) == 1:
        interval = paired_task_bootstrap(values[0][0], values[1][0], **options)
    else:
        interval = paired_crossed_bootstrap(values[0], values[1], **options)
    contrast = {str(t): _in_points(interval, column) for column, t in enumerate(grids[0].ts)}
    if len(first) == 1 and np.isin(values, (0.0, 1.0)).all():
        for column, t in enumerate(grids[0].ts):
            contrast[str(t)]["mcnemar_p"] = mcnemar_exact(values[0][0][:, column], values[1][0][:, column]).p_value
    return contrast


def table_rows(policies: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """One row a budget and policy of `policy_summary` results, budgets from tight to wide, shares in per cent."""
    budgets = sorted({int(percent) for summary in policies.values() for percent in summary})
    return [
        {"budget": budget, "policy": name} | {field: POINTS * share for field, share in summary[str(budget)].items()}
        for budget in budgets
        for name, summary in policies.items()
        if str(budget) in summary
    ]


def _unannounced(episodes: Sequence[Episode], k: int, percents: Sequence[int]) -> PassGrid:
    """Thresholds the episodes that were told the full budget."""
    full = [episode for episode in episodes if episode.told_budget == episode.max_budget]
    if not full:
        raise UserError("unannounced caps need episodes that were told 100 per cent; add 100 to the told budgets")
    return pass_at_k_percent(full, (k,), percents, mode="told", unannounced=True)


def _check_tasks(episodes: Sequence[Episode], tasks: Sequence[Task]) -> None:
    wanted = {task.id: task.max_turns for task in tasks}
    found = {episode.task_id: episode.max_budget for episode in episodes}
    for task_id in sorted(wanted.keys() | found.keys()):
        if task_id not in found:
            raise UserError(f"task {task_id} of the panel has no episodes; its absence would bias the average")
        if task_id not in wanted:
            raise UserError(f"the episodes hold task {task_id}, which is not of the panel")
        if wanted[task_id] != found[task_id]:
            raise UserError(
                f"task {task_id} has a full budget of {wanted[task_id]} turns, its episodes {found[task_id]}"
            )


def _check_comparable(grids: Sequence[PassGrid], k: int) -> None:
    for grid in grids:
        if grid.task_ids != grids[0].task_ids:
            raise UserError("the policies of a comparison must meet the same panel; their task ids differ")
        if grid.ts != grids[0].ts or not np.array_equal(grid.counts.budgets, grids[0].counts.budgets):
            raise UserError("the policies of a comparison must have the same budgets")
        if k not in grid.ks:
            raise UserError(f"Pass@{k} was not estimated for every policy; the K at hand are {list(grid.ks)}")


def _in_points(interval: Interval, column: int) -> dict[str, Any]:
    return {
        "points": POINTS * float(interval.estimate[column]),
        "low": POINTS * float(interval.low[column]),
        "high": POINTS * float(interval.high[column]),
        "method": str(interval.method[column]),
    }
