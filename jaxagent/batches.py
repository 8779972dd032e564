"""Episodes to arrays: per-episode arrays for advantages, packed token rows for the training step.

Both have static shapes; budgets, lengths and group layouts are array contents. Rows are filled in (group, member)
order, never in order of finishing, and masks are built from the recorded ids as they are appended, never from text or
a pad value.
"""

import dataclasses
import difflib
from collections.abc import Sequence

import jax
import numpy as np

from jaxagent.episodes import Episode
from jaxagent.errors import UserError

SIMILAR = 0.95  # likeness at which two anchors count as one state (the similarity variant of GiGPO, arXiv 2505.10978)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpisodeArrays:
    """N episodes by T turns; rows beyond the real episodes have `valid` False, as void episodes have.

    `step_rewards` carry the outcome on the last turn. `budgets` is the enforced (or replayed) budget.
    """

    rewards: jax.Array | np.ndarray  # [N] float32, the outcome
    step_rewards: jax.Array | np.ndarray  # [N, T] float32
    group_ids: jax.Array | np.ndarray  # [N] int32
    anchor_ids: jax.Array | np.ndarray  # [N, T] int32
    turn_mask: jax.Array | np.ndarray  # [N, T] bool
    budgets: jax.Array | np.ndarray  # [N] int32
    valid: jax.Array | np.ndarray  # [N] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenBatch:
    """B packed rows of S tokens; the value at s speaks of token s (unshifted)."""

    tokens: jax.Array | np.ndarray  # [B, S] int32
    positions: jax.Array | np.ndarray  # [B, S] int32, restarting in each segment
    segment_ids: jax.Array | np.ndarray  # [B, S] int32, 0 = padding
    episode_index: jax.Array | np.ndarray  # [B, S] int32 into EpisodeArrays, -1 = padding
    turn_index: jax.Array | np.ndarray  # [B, S] int32, 0-based, -1 outside turns
    policy_mask: jax.Array | np.ndarray  # [B, S] bool, tokens that the sampler drew
    budget_mask: jax.Array | np.ndarray  # [B, S] bool, turn_index < budget
    valid: jax.Array | np.ndarray  # [B, S] bool, the episode is not void
    behaviour_logprobs: jax.Array | np.ndarray  # [B, S] float32
    old_logprobs: jax.Array | np.ndarray  # [B, S] float32
    advantages: jax.Array | np.ndarray  # [B, S] float32
    # Where used, else None:
    group_ids: jax.Array | np.ndarray | None = None  # [B, S] int32, the episode's group
    budget_tenths: jax.Array | np.ndarray | None = None  # [B, S] int32, 0..9: ceil(10 budget / full budget) - 1
    ref_logprobs: jax.Array | np.ndarray | None = None  # [B, S] float32, under the reference policy
    old_values: jax.Array | np.ndarray | None = None  # [B, S] float32, the critic's before the update
    returns: jax.Array | np.ndarray | None = None  # [B, S] float32, the critic's targets


def sort_episodes(episodes: Sequence[Episode]) -> list[Episode]:
    """Episodes in (group, member) order: the order of rows everywhere."""
    return sorted(episodes, key=lambda episode: (episode.group, episode.member))


def episode_arrays(
    episodes: Sequence[Episode],
    *,
    num_episodes: int,
    max_turns: int,
    replay_budgets: Sequence[int] | None = None,
    anchor_match: str = "exact",
    anchor_with_remaining: bool = False,
) -> EpisodeArrays:
    """Arrays of `num_episodes` rows by `max_turns` columns from at most so many episodes.

    Args:
      episodes: in the order of the rows.
      num_episodes: N; missing rows are invalid.
      max_turns: T; an episode with a larger budget raises.
      replay_budgets: one budget an episode, to re-score full-length rollouts of an untold policy as if they had been
        cut there: later turns are masked and the outcome is 0 unless the episode had ended by then. Raises where a
        budget line was shown, since that policy would have acted otherwise, and where the budget exceeds the enforced
        one.
      anchor_match: `exact` or `similar`, see `step_group_ids`.
      anchor_with_remaining: whether the turns left are part of a state.
    """
    if len(episodes) > num_episodes:
        raise ValueError(f"{len(episodes)} episodes do not fit {num_episodes} rows")
    budgets = _replayed_budgets(episodes, replay_budgets)
    arrays = EpisodeArrays(
        rewards=np.zeros(num_episodes, np.float32),
        step_rewards=np.zeros((num_episodes, max_turns), np.float32),
        group_ids=np.full(num_episodes, -1, np.int32),
        anchor_ids=np.full((num_episodes, max_turns), -1, np.int32),
        turn_mask=np.zeros((num_episodes, max_turns), bool),
        budgets=np.zeros(num_episodes, np.int32),
        valid=np.zeros(num_episodes, bool),
    )
    arrays.group_ids[: len(episodes)] = _group_ids(episodes, budgets)
    arrays.anchor_ids[: len(episodes)] = step_group_ids(
        episodes, max_turns=max_turns, match=anchor_match, with_remaining=anchor_with_remaining, budgets=budgets
    )
    for row, (episode, budget) in enumerate(zip(episodes, budgets, strict=True)):
        if budget > max_turns:
            raise UserError(
                f"task {episode.task_id} has a budget of {budget} turns, the arrays hold {max_turns}: raise "
                "rollout.max_turns"
            )
        played = min(len(episode.turns), budget)
        finished = len(episode.turns) <= budget
        arrays.budgets[row] = budget
        arrays.valid[row] = not episode.is_void
        arrays.rewards[row] = episode.reward if finished else 0.0
        arrays.turn_mask[row, :played] = True
        arrays.step_rewards[row, :played] = [turn.reward for turn in episode.turns[:played]]
        if played:
            arrays.step_rewards[row, played - 1] += arrays.rewards[row]
    return arrays


def step_group_ids(
    episodes: Sequence[Episode],
    *,
    max_turns: int,
    match: str = "exact",
    with_remaining: bool = False,
    budgets: Sequence[int] | None = None,
) -> np.ndarray:
    """Dense int32 ids of the states in which turns were taken, [N, T], -1 where there is no turn.

    Equal ids within a group mean equal states; ids are unique across groups too. A turn without an anchor has an id
    of its own. `similar` joins a state to the first earlier one of its group whose text is at least 95 % alike
    (greedy, in row order). With `with_remaining` two visits with different turns left are different states. Turns
    beyond an episode's entry of `budgets`, and void episodes, have no ids and are nobody's first.
    """
    if match not in ("exact", "similar"):
        raise UserError(f"anchor match must be exact or similar, got {match!r}")
    ids = np.full((len(episodes), max_turns), -1, np.int32)
    known: dict[tuple, int] = {}
    representatives: dict[tuple, list[str]] = {}
    next_id = 0
    for row, episode in enumerate(episodes):
        scope = (episode.step, episode.group, episode.task_id)
        limit = 0 if episode.is_void else max_turns if budgets is None else min(budgets[row], max_turns)
        for column, turn in enumerate(episode.turns[:limit]):
            if turn.anchor is None:
                ids[row, column] = next_id
                next_id += 1
                continue
            state_scope = (*scope, turn.remaining) if with_remaining else scope
            anchor = turn.anchor
            if match == "similar":
                anchor = _representative(anchor, representatives.setdefault(state_scope, []))
            key = (*state_scope, anchor)
            if key not in known:
                known[key] = next_id
                next_id += 1
            ids[row, column] = known[key]
    return ids


def num_packed_rows(num_episodes: int, max_context: int, row_tokens: int, micro_rows: int) -> int:
    """Rows that always suffice to pack `num_episodes` of at most `max_context` tokens, a multiple of `micro_rows`.

    First fit opens a row only when every open one has less than `max_context` free, so each closed row holds at least
    `row_tokens // max_context` episodes.
    """
    if row_tokens < max_context:
        raise UserError(
            f"optimizer.row_tokens={row_tokens} is below rollout.max_context={max_context}: "
            "an episode would not fit a row"
        )
    rows = -(-num_episodes // (row_tokens // max_context))
    return -(-rows // micro_rows) * micro_rows


def pack_episodes(episodes: Sequence[Episode], arrays: EpisodeArrays, *, row_tokens: int, num_rows: int) -> TokenBatch:
    """Packs whole episodes into rows of `row_tokens`, first fit in the given order; `arrays` supplies budgets and
    validity.

    Void episodes and those without a turn hold no tokens. Raises `UserError` where an episode is longer than a row.
    """
    batch = empty_token_batch(num_rows, row_tokens)
    used = np.zeros(num_rows, np.int64)
    segments = np.zeros(num_rows, np.int64)
    for index, episode in enumerate(episodes):
        length = 0 if episode.is_void else len(episode.token_ids())
        if length == 0:
            continue
        if length > row_tokens:
            raise UserError(
                f"an episode of {length} tokens does not fit a row of {row_tokens}: raise optimizer.row_tokens"
            )
        fitting = np.nonzero(used + length <= row_tokens)[0]
        if not len(fitting):
            raise ValueError(f"{num_rows} rows of {row_tokens} tokens do not hold the episodes")
        row = int(fitting[0])
        segments[row] += 1
        _write_episode(batch, episode, index, row, int(used[row]), int(segments[row]))
        used[row] += length
    safe_index = np.maximum(batch.episode_index, 0)
    placed = batch.episode_index >= 0
    batch.budget_mask[:] = placed & (batch.turn_index < arrays.budgets[safe_index])
    batch.valid[:] = placed & arrays.valid[safe_index]
    return batch


def empty_token_batch(num_rows: int, row_tokens: int) -> TokenBatch:
    """A batch of padding alone: what warm-up compiles with."""
    shape = (num_rows, row_tokens)
    return TokenBatch(
        tokens=np.zeros(shape, np.int32),
        positions=np.zeros(shape, np.int32),
        segment_ids=np.zeros(shape, np.int32),
        episode_index=np.full(shape, -1, np.int32),
        turn_index=np.full(shape, -1, np.int32),
        policy_mask=np.zeros(shape, bool),
        budget_mask=np.zeros(shape, bool),
        valid=np.zeros(shape, bool),
        behaviour_logprobs=np.zeros(shape, np.float32),
        old_logprobs=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
    )


def _replayed_budgets(episodes: Sequence[Episode], replay: Sequence[int] | None) -> list[int]:
    if replay is None:
        return [episode.enforced_budget for episode in episodes]
    for episode, budget in zip(episodes, replay, strict=True):
        if episode.told_budget is not None:
            raise UserError(
                f"task {episode.task_id} was told a budget of {episode.told_budget}: its rollouts cannot be "
                "re-scored at another one (set budget.announce=none for algorithm.replay_budgets)"
            )
        if not 1 <= budget <= episode.enforced_budget:
            raise UserError(f"replay budget {budget} lies outside 1..{episode.enforced_budget} of {episode.task_id}")
    return list(replay)


def _group_ids(episodes: Sequence[Episode], budgets: Sequence[int]) -> np.ndarray:
    """Dense ids of (step, group, task, told, budget): a group whose members differ in budget falls into several."""
    known: dict[tuple, int] = {}
    keys = [
        (episode.step, episode.group, episode.task_id, episode.told_budget, budget)
        for episode, budget in zip(episodes, budgets, strict=True)
    ]
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int32)


def _representative(anchor: str, earlier: list[str]) -> str:
    for candidate in earlier:
        if difflib.SequenceMatcher(None, candidate, anchor).ratio() >= SIMILAR:
            return candidate
    earlier.append(anchor)
    return anchor


def _write_episode(batch: TokenBatch, episode: Episode, index: int, row: int, start: int, segment: int) -> None:
    cursor = start
    for column, turn in enumerate(episode.turns):
        observed, sampled = turn.observation_ids, turn.sampled_ids
        reply = cursor + len(observed)
        end = reply + len(sampled)
        batch.tokens[row, cursor:reply] = observed
        batch.tokens[row, reply:end] = sampled
        batch.turn_index[row, cursor:end] = column
        batch.policy_mask[row, reply:end] = True
        batch.behaviour_logprobs[row, reply:end] = turn.logprobs
        cursor = end
    batch.old_logprobs[row, start:cursor] = batch.behaviour_logprobs[row, start:cursor]
    batch.positions[row, start:cursor] = np.arange(cursor - start)
    batch.segment_ids[row, start:cursor] = segment
    batch.episode_index[row, start:cursor] = index
