"""What a batch of episodes says, as numbers for the log: overall and per tenth of the full budget."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from jaxagent.batches import EpisodeArrays, TokenBatch
from jaxagent.budgets import NUM_TENTHS
from jaxagent.envs.mixture import part_of
from jaxagent.episodes import END_REASONS, Episode


def episode_metrics(episodes: Sequence[Episode], arrays: EpisodeArrays, counted: np.ndarray) -> dict[str, float]:
    """Means over the episodes that are not void, as the update saw them: after a replay of budgets, cut there.

    Args:
      episodes: in the order of the arrays.
      arrays: rewards, turns and budgets of the update, before groups without variance are dropped.
      counted: [len(episodes)] bool, the episodes in the group statistics; groups are judged by these.
    """
    kept = [row for row, episode in enumerate(episodes) if not episode.is_void]
    metrics = {"reward/void_share": 1 - len(kept) / len(episodes)}
    if not kept:
        return metrics
    played, rewards, budgets = arrays.turn_mask.sum(axis=1), arrays.rewards, arrays.budgets
    chosen = [(episodes[row], episodes[row].turns[: played[row]]) for row in kept]
    turns = [turn for _, own in chosen for turn in own]
    told = [len(own) / episode.told_budget for episode, own in chosen if episode.told_budget is not None]
    metrics |= {
        "reward/mean": float(np.mean(rewards[kept])),
        "reward/success": float(np.mean(successes(episodes, budgets)[kept])),
        "reward/turns_mean": float(np.mean(played[kept])),
        "reward/turns_used_over_budget": float(np.mean(played[kept] / budgets[kept])),
        "reward/invalid_share": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        "reward/truncated_share": float(np.mean([turn.truncated for turn in turns])) if turns else 0.0,
        "reward/reply_tokens_mean": float(np.mean([len(turn.sampled_ids) for turn in turns])) if turns else 0.0,
        "reward/step_reward_mean": float(np.mean([sum(turn.reward for turn in own) for _, own in chosen])),
    }
    if told:
        metrics["reward/turns_used_over_told"] = float(np.mean(told))
    for reason in END_REASONS:
        metrics[f"end/{reason}"] = sum(episode.end_reason == reason for episode in episodes) / len(episodes)
    tenths = budget_tenths(episodes, arrays)
    metrics |= _histogram("budget/groups", arrays.group_ids[kept], tenths[kept])
    metrics |= _part_metrics([episodes[row] for row in kept], rewards[kept])
    return metrics | _group_metrics(episodes, arrays, np.flatnonzero(counted), tenths)


def part_success(episodes: Sequence[Episode], name: str) -> dict[str, float]:
    """`env_PART/NAME`: the share of successes in each part of a mixture of environments; empty without a mixture."""
    return {
        f"env_{part}/{name}": float(np.mean([episodes[row].success for row in rows]))
        for part, rows in _rows_by_part(episodes).items()
    }


def _part_metrics(episodes: Sequence[Episode], rewards: np.ndarray) -> dict[str, float]:
    """The same figures for each part of a mixture, those that the update happened to draw."""
    metrics = part_success(episodes, "success")
    for part, rows in _rows_by_part(episodes).items():
        metrics |= {
            f"env_{part}/episodes": float(len(rows)),
            f"env_{part}/groups": float(len({episodes[row].group for row in rows})),
            f"env_{part}/reward_mean": float(np.mean(rewards[rows])),
            f"env_{part}/turns_mean": float(np.mean([len(episodes[row].turns) for row in rows])),
        }
    return metrics


def _rows_by_part(episodes: Sequence[Episode]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, episode in enumerate(episodes):
        if part := part_of(episode.env):
            rows[part].append(row)
    return rows


def successes(episodes: Sequence[Episode], budgets: np.ndarray) -> np.ndarray:
    """[len(episodes)] bool: the episode succeeded within its budget."""
    return np.array([e.success and e.success_turn <= b for e, b in zip(episodes, budgets, strict=False)], bool)


def _group_metrics(
    episodes: Sequence[Episode], arrays: EpisodeArrays, rows: np.ndarray, tenths: np.ndarray
) -> dict[str, float]:
    """What the outcomes of the groups say, over the given rows."""
    won = successes(episodes, arrays.budgets)
    singletons, equal, failed, solved = [], [], [], []
    by_tenth: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for group in np.unique(arrays.group_ids[rows]):
        own = rows[arrays.group_ids[rows] == group]
        values = arrays.rewards[own]
        singletons.append(len(own) == 1)
        equal.append(bool(np.ptp(values) <= 1e-6 * max(1.0, np.abs(values).max())))
        failed.append(not won[own].any())
        solved.append(won[own].all())
        by_tenth[int(tenths[own[0]])].append((float(values.mean()), equal[-1]))
    metrics = {"groups/count": float(len(equal)), "groups/singletons": float(sum(singletons))}
    if equal:
        metrics |= {
            "groups/zero_variance": float(np.mean(equal)),
            "groups/all_fail": float(np.mean(failed)),
            "groups/all_success": float(np.mean(solved)),
        }
    for tenth, found in by_tenth.items():
        metrics[f"budget/reward_tenth_{tenth + 1}"] = float(np.mean([reward for reward, _ in found]))
        metrics[f"budget/zero_variance_tenth_{tenth + 1}"] = float(np.mean([flat for _, flat in found]))
    return metrics


def kept_metrics(episodes: Sequence[Episode], arrays: EpisodeArrays, batch: TokenBatch) -> dict[str, float]:
    """The budget histogram after all filters: groups with a token in the loss, per tenth."""
    rows = np.unique(batch.episode_index[batch.policy_mask & batch.budget_mask & batch.valid])
    tenths = budget_tenths(episodes, arrays)
    kept = _histogram("budget/kept_groups", arrays.group_ids[rows], tenths[rows])
    return kept | {"groups/kept": sum(kept.values())}


def _histogram(name: str, group_ids: np.ndarray, tenths: np.ndarray) -> dict[str, float]:
    """Groups per tenth; all rows of a group have one."""
    _, first = np.unique(group_ids, return_index=True)
    counts = np.bincount(tenths[first], minlength=NUM_TENTHS)
    return {f"{name}_tenth_{tenth + 1}": float(count) for tenth, count in enumerate(counts)}


def budget_tenths(episodes: Sequence[Episode], arrays: EpisodeArrays) -> np.ndarray:
    """[N] int, 0..9: ceil(10 * budget / full budget) - 1 of each row, 0 beyond the episodes."""
    tenths = np.zeros(len(arrays.budgets), np.int64)
    for row, episode in enumerate(episodes):
        tenths[row] = -(-NUM_TENTHS * int(arrays.budgets[row]) // episode.max_budget) - 1
    return tenths
