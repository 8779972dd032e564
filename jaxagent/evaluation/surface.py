"""All that one policy's panel episodes say about Pass@(K,T), as plain lists for `surface.json`; costs no rollouts."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxagent.budgets import percent_of
from jaxagent.episodes import Episode
from jaxagent.evaluation.intervals import task_bootstrap
from jaxagent.evaluation.pass_at import (
    Mode,
    PassGrid,
    cover_at,
    pass_at_k_percent,
    pass_at_turn_budget,
    pass_hat_k_t,
    success_hazard,
    told_enforced_matrix,
)

TAUS = (0.25, 0.5, 0.75)
FULL = 100


def surface(
    episodes: Sequence[Episode],
    *,
    k: int,
    percents: Sequence[int],
    mode: Mode,
    seed: int,
    untold: Sequence[Episode] = (),
    feasible: Mapping[int, Collection[str]] | None = None,
) -> dict[str, Any]:
    """Pass@(K,T), pass^(K,T), Cover@tau, compute-matched Pass@T, the told x enforced matrix and the hazard.

    The last K of the surface is `k`: that row is Pass@T at a fixed number of trajectories (arXiv 2611.06483).

    Args:
      episodes: of one policy, told each of `percents` (or nothing, with `mode="blind"`).
      k: the K of the matrix; K of the surface are the powers of two up to it, and k itself.
      percents: of the full budget.
      mode: as in `pass_at_k_t`.
      seed: of the bootstrap.
      untold: episodes of the same policy and tasks without a budget line, for a row of their own in the matrix.
      feasible: for each per cent the tasks that can be solved within it, for averages over those alone.
    """
    ks = sorted({*(1 << power for power in range(k.bit_length()) if 1 << power <= k), k})
    grid = pass_at_k_percent(episodes, ks, percents, mode=mode)
    hat = pass_hat_k_t(episodes, ks, percents, mode=mode, unit="percent")
    ends = _ends(hat.values, seed)
    return {
        "percents": list(percents),
        "ks": ks,
        "pass_at_k": grid.mean.tolist(),
        **_ends(grid.values, seed),
        "pass_hat_k": hat.mean.tolist(),
        "pass_hat_k_low": ends["low"],
        "pass_hat_k_high": ends["high"],
        "cover": {"tau": list(TAUS), "share": cover_at(grid.counts, TAUS).tolist()},
        "turn_budget": _turn_budget(episodes, grid, k, seed, mode),
        "told_enforced": _matrix(episodes, untold, k, percents, seed, mode),
        "hazard": _hazards(episodes, percents, mode),
        "samples_per_task": {
            "least": grid.num_samples.min(axis=0).tolist(),
            "most": grid.num_samples.max(axis=0).tolist(),
        },
        "feasible": _feasible(grid, feasible, seed) if feasible is not None else None,
        "num_void": grid.num_void,
        "tasks_with_equal_samples": _equal_samples(episodes),
    }


def _ends(values: np.ndarray, seed: int) -> dict[str, list]:
    interval = task_bootstrap(values, seed=seed)
    return {"low": interval.low.tolist(), "high": interval.high.tolist(), "method": interval.method.tolist()}


def _feasible(grid: PassGrid, feasible: Mapping[int, Collection[str]], seed: int) -> dict[str, Any]:
    """Pass@(K,T) over the tasks that can be solved within T at all, [K] a per cent; None where there is none."""
    entries = {}
    for column, percent in enumerate(grid.ts):
        kept = [row for row, task_id in enumerate(grid.task_ids) if task_id in feasible[percent]]
        values = grid.values[kept, :, column]
        estimate = {"pass_at_k": values.mean(axis=0).tolist(), **_ends(values, seed)} if kept else {}
        entries[str(percent)] = {"num_tasks": len(kept)} | estimate
    return entries


def _equal_samples(episodes: Sequence[Episode]) -> int:
    """Tasks whose samples at their widest told budget are word for word the same, of two or more.

    Greedy decoding and a repeated seed make copies, not samples; a policy that is all but certain may as well.
    """
    groups: dict[str, dict[int, list[tuple[str, ...]]]] = {}
    for episode in episodes:
        if not episode.is_void:
            told = groups.setdefault(episode.task_id, {})
            told.setdefault(episode.told_budget or 0, []).append(tuple(turn.text for turn in episode.turns))
    widest = [told[max(told)] for told in groups.values()]
    return sum(len(samples) > 1 and len(set(samples)) == 1 for samples in widest)


def _turn_budget(episodes: Sequence[Episode], grid: PassGrid, k: int, seed: int, mode: Mode) -> dict[str, Any] | None:
    """Compute-matched Pass@T: the turns of `k` full episodes, or as many as the samples at hand allow for.

    None where the samples at the shortest budget do not even make up the turns of one full episode.
    """
    smallest = min(grid.ts)
    affordable = min(int(grid.num_samples.min()) * smallest, k * FULL)
    if affordable < max(grid.ts):
        return None
    curve = pass_at_turn_budget(episodes, affordable, grid.ts, mode=mode, unit="percent")
    return {
        "turns_percent": affordable,
        "percents": list(grid.ts),
        "mean_k": curve.ks.mean(axis=0).tolist(),
        "turns_spent_percent": (100 * curve.turns_spent / curve.counts.full_budgets[:, None]).mean(axis=0).tolist(),
        "pass_at_turn_budget": curve.mean.tolist(),
        **_ends(curve.values, seed),
    }


def _matrix(
    episodes: Sequence[Episode], untold: Sequence[Episode], k: int, percents: Sequence[int], seed: int, mode: Mode
) -> dict[str, Any]:
    """The told x enforced matrix with intervals; None where the cut-off lies beyond what was told."""
    rows: list[int | None] = sorted({*percents, FULL}) if mode == "told" else [None]
    if untold and mode == "told":
        rows.append(None)
    matrix = told_enforced_matrix([*episodes, *untold], k, rows, list(percents), unit="percent")
    known = ~np.isnan(matrix.mean)
    interval = task_bootstrap(matrix.values[:, known], seed=seed)

    def spread(values: np.ndarray) -> list[list[Any]]:
        table = np.full(known.shape, None, dtype=object)
        table[known] = values.tolist()
        return table.tolist()

    return {
        "k": k,
        "told_percent": rows,
        "enforced_percent": list(percents),
        "pass_at_k": spread(interval.estimate),
        "low": spread(interval.low),
        "high": spread(interval.high),
        "method": spread(interval.method),
    }


def _hazards(episodes: Sequence[Episode], percents: Sequence[int], mode: Mode) -> dict[str, Any]:
    """The hazard of success by turn, for each told budget on its own."""
    hazards = {}
    for percent in percents if mode == "told" else (FULL,):
        own = [e for e in episodes if mode == "blind" or e.told_budget == percent_of(e.max_budget, percent)]
        found = success_hazard(own)
        hazards[str(percent)] = {
            "survivors": found.survivors.tolist(),
            "successes": found.successes.tolist(),
            "hazard": found.hazard.tolist(),
        }
    return hazards
