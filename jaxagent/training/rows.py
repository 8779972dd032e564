"""Host side of one batch: episodes to arrays under the config's outcome rules and group filters, and to minibatches."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from jaxagent import batches
from jaxagent.episodes import Episode
from jaxagent.errors import UserError
from jaxagent.training.episode_metrics import budget_tenths

MINIBATCH_STREAM = 0x3B17  # keeps the split into minibatches apart from other draws of the same step


def num_rows(config: ConfigDict, num_episodes: int) -> int:
    """Rows of an update's batch: those of one minibatch, once a minibatch."""
    optimizer, minibatches = config.optimizer, config.algorithm.minibatches
    rows = batches.num_packed_rows(
        num_episodes // minibatches, config.rollout.max_context, optimizer.row_tokens, optimizer.micro_rows
    )
    return minibatches * rows


def make_batch(
    config: ConfigDict, finished: Sequence[Episode], *, num_episodes: int, replay: Sequence[int] | None = None
) -> tuple[batches.EpisodeArrays, batches.TokenBatch]:
    """Arrays and packed rows of one update's episodes, in their order; see `make_arrays`, `drop_flat_groups`."""
    arrays = make_arrays(config, finished, num_episodes=num_episodes, replay=replay)
    if config.algorithm.zero_variance != "keep":
        drop_flat_groups(config, arrays)
    batch = _pack(config, finished, arrays, num_episodes)
    if config.algorithm.overruns == "mask":
        masked = np.zeros(num_episodes, bool)
        masked[: len(finished)] = overruns(arrays, finished)
        batch.valid[:] &= ~(masked[np.maximum(batch.episode_index, 0)] & (batch.episode_index >= 0))
    return arrays, _with_groups(arrays, finished, batch)


def make_arrays(
    config: ConfigDict, finished: Sequence[Episode], *, num_episodes: int, replay: Sequence[int] | None = None
) -> batches.EpisodeArrays:
    """Arrays with the turn cost and the rule for overruns applied.

    A turn cost c makes a success worth (1 - c * turns / max_turns) of its reward. An overrun's outcome is 0, or minus
    the penalty; with `drop` it leaves the statistics. Step rewards stay.
    """
    gigpo = config.algorithm.gigpo
    arrays = batches.episode_arrays(
        finished,
        num_episodes=num_episodes,
        max_turns=config.rollout.max_turns,
        replay_budgets=replay,
        anchor_match=gigpo.anchor_match,
        anchor_with_remaining=gigpo.anchor_with_remaining,
    )
    if config.algorithm.name == "gigpo":
        _check_anchors(finished)
    over = overruns(arrays, finished)
    for row, episode in enumerate(finished):
        outcome = float(arrays.rewards[row])
        if over[row] and config.algorithm.overruns == "penalty":
            outcome = -config.algorithm.overrun_penalty
        elif episode.success and not over[row] and config.budget.turn_cost:
            outcome *= 1 - config.budget.turn_cost * len(episode.turns) / episode.max_budget
        last = int(arrays.turn_mask[row].sum()) - 1
        if last >= 0:
            arrays.step_rewards[row, last] += outcome - arrays.rewards[row]
        arrays.rewards[row] = outcome
        if over[row] and config.algorithm.overruns == "drop":
            arrays.valid[row] = False
    return arrays


def overruns(arrays: batches.EpisodeArrays, finished: Sequence[Episode]) -> np.ndarray:
    """[len(finished)] bool: the budget in the arrays cut the episode off."""
    return np.array(
        [
            not episode.is_void and (len(episode.turns) > budget or episode.end_reason == "budget")
            for episode, budget in zip(finished, arrays.budgets, strict=False)
        ],
        bool,
    )


def in_statistics(config: ConfigDict, arrays: batches.EpisodeArrays, finished: Sequence[Episode]) -> np.ndarray:
    """[len(finished)] bool: neither void nor an overrun that `algorithm.overruns=drop` takes out."""
    void = np.array([episode.is_void for episode in finished], bool)
    dropped = overruns(arrays, finished) if config.algorithm.overruns == "drop" else np.zeros(len(finished), bool)
    return ~void & ~dropped


def flat_rows(config: ConfigDict, arrays: batches.EpisodeArrays) -> np.ndarray:
    """[N] bool: rows of groups without two different returns (outcomes, with GiGPO the sums of all rewards).

    A group with fewer than two episodes in the statistics is flat. The tolerance is that of the advantages.
    """
    returns = arrays.step_rewards.sum(axis=1) if config.algorithm.name == "gigpo" else arrays.rewards
    flat = np.zeros(len(returns), bool)
    for group in np.unique(arrays.group_ids[arrays.group_ids >= 0]):
        rows = arrays.group_ids == group
        values = returns[rows & arrays.valid]
        flat[rows] = not len(values) or np.ptp(values) <= 1e-6 * max(1.0, abs(values.max()))
    return flat


def drop_flat_groups(config: ConfigDict, arrays: batches.EpisodeArrays) -> None:
    """Takes the rows of flat groups out of the loss and the statistics, in place."""
    arrays.valid[flat_rows(config, arrays)] = False


def minibatch_order(episodes: Sequence[Episode], minibatches: int) -> list[np.ndarray]:
    """Rows of each minibatch: a split of all rows, keyed by run seed and step; in natural order where there is one."""
    if minibatches == 1 or not episodes:
        return [np.arange(len(episodes))] * minibatches
    draw = np.random.default_rng([episodes[0].run_seed, episodes[0].step, MINIBATCH_STREAM])
    return [np.sort(part) for part in np.array_split(draw.permutation(len(episodes)), minibatches)]


def _pack(
    config: ConfigDict, finished: Sequence[Episode], arrays: batches.EpisodeArrays, num_episodes: int
) -> batches.TokenBatch:
    """Each minibatch packed by itself, one behind the other."""
    minibatches = config.algorithm.minibatches
    size, rows = config.optimizer.row_tokens, num_rows(config, num_episodes) // minibatches
    parts = []
    for chosen in minibatch_order(finished, minibatches):
        members = [finished[row] for row in chosen]
        own = dataclasses.replace(arrays, **_rows_of(arrays, chosen if len(chosen) else np.zeros(1, int)))
        part = batches.pack_episodes(members, own, row_tokens=size, num_rows=rows)
        placed = part.episode_index >= 0
        part.episode_index[placed] = chosen[part.episode_index[placed]]
        parts.append(part)
    if minibatches == 1:
        return parts[0]
    names = [field.name for field in dataclasses.fields(parts[0]) if getattr(parts[0], field.name) is not None]
    return batches.TokenBatch(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _rows_of(arrays: batches.EpisodeArrays, chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {field.name: getattr(arrays, field.name)[chosen] for field in dataclasses.fields(arrays)}


def _with_groups(
    arrays: batches.EpisodeArrays, finished: Sequence[Episode], batch: batches.TokenBatch
) -> batches.TokenBatch:
    """Fills in each token's group and budget tenth; -1 and 0 at padding."""
    episode = np.maximum(batch.episode_index, 0)
    placed = batch.episode_index >= 0
    groups = np.where(placed, arrays.group_ids[episode], -1).astype(np.int32)
    tenths = np.where(placed, budget_tenths(finished, arrays)[episode], 0).astype(np.int32)
    return dataclasses.replace(batch, group_ids=groups, budget_tenths=tenths)


def _check_anchors(finished: Sequence[Episode]) -> None:
    turns = [turn for episode in finished if not episode.is_void for turn in episode.turns]
    if turns and all(turn.anchor is None for turn in turns):
        raise UserError(
            f"algorithm.name=gigpo needs anchors, and the environment {finished[0].env!r} gives none: "
            "set Observation.anchor, or use another algorithm"
        )
