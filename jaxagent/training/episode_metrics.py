"""What a batch of episodes says, as numbers for the log: overall and per tenth of the full budget."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from jaxagent.envs.mixture import part_of
from jaxagent.episodes import END_REASONS, Episode


def episode_metrics(episodes: Sequence[Episode], rewards: np.ndarray, group_ids: np.ndarray) -> dict[str, float]:
    """Means over the episodes that are not void.

    Args:
      episodes: in the order of the arrays.
      rewards: [N] the rewards that the update used (after a replay of budgets).
      group_ids: [N].
    """
    kept = [row for row, episode in enumerate(episodes) if not episode.is_void]
    metrics = {"reward/void_share": 1 - len(kept) / len(episodes)}
    if not kept:
        return metrics
    chosen = [episodes[row] for row in kept]
    turns = [turn for episode in chosen for turn in episode.turns]
    used = [len(episode.turns) / episode.enforced_budget for episode in chosen]
    told = [len(episode.turns) / episode.told_budget for episode in chosen if episode.told_budget is not None]
    metrics |= {
        "reward/mean": float(np.mean(rewards[kept])),
        "reward/success": float(np.mean([episode.success for episode in chosen])),
        "reward/turns_mean": float(np.mean([len(episode.turns) for episode in chosen])),
        "reward/turns_used_over_budget": float(np.mean(used)),
        "reward/invalid_share": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        "reward/truncated_share": float(np.mean([turn.truncated for turn in turns])) if turns else 0.0,
        "reward/reply_tokens_mean": float(np.mean([len(turn.sampled_ids) for turn in turns])) if turns else 0.0,
    }
    if told:
        metrics["reward/turns_used_over_told"] = float(np.mean(told))
    metrics["reward/step_reward_mean"] = float(np.mean([sum(turn.reward for turn in e.turns) for e in chosen]))
    for reason in END_REASONS:
        metrics[f"end/{reason}"] = sum(episode.end_reason == reason for episode in episodes) / len(episodes)
    return metrics | _group_metrics(chosen, rewards[kept], group_ids[kept]) | _part_metrics(chosen, rewards[kept])


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


def _group_metrics(episodes: Sequence[Episode], rewards: np.ndarray, group_ids: np.ndarray) -> dict[str, float]:
    groups: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(group_ids):
        groups[int(group)].append(row)
    equal, failed, solved = [], [], []
    tenths: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for rows in groups.values():
        values = rewards[rows]
        flat = bool(np.ptp(values) <= 1e-6 * max(1.0, np.abs(values).max()))
        equal.append(flat)
        failed.append(flat and values[0] == 0)
        solved.append(flat and values[0] != 0)
        first = episodes[rows[0]]
        tenths[-(-10 * first.enforced_budget // first.max_budget)].append((float(values.mean()), flat))
    metrics = {
        "groups/count": float(len(groups)),
        "groups/singletons": float(sum(len(rows) == 1 for rows in groups.values())),
        "groups/zero_variance": float(np.mean(equal)),
        "groups/all_fail": float(np.mean(failed)),
        "groups/all_success": float(np.mean(solved)),
    }
    for tenth in range(1, 11):
        metrics[f"budget/groups_tenth_{tenth}"] = float(len(tenths[tenth]))
        if tenths[tenth]:
            metrics[f"budget/reward_tenth_{tenth}"] = float(np.mean([reward for reward, _ in tenths[tenth]]))
            metrics[f"budget/zero_variance_tenth_{tenth}"] = float(np.mean([flat for _, flat in tenths[tenth]]))
    return metrics
