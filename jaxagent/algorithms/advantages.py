"""Advantage estimators over groups of episodes and over packed token rows.

Group methods work on N episodes in any order, keyed by arbitrary int32 ids. Void episodes (`valid` False) are outside
all statistics and get 0, whatever their rows hold. A group of one gets 0. A group of equal rewards gets exactly 0:
rewards whose range is at most 1e-6 * max(1, |largest|) count as equal. No gradient flows through any result.
"""

import chex
import jax
import jax.numpy as jnp

from jaxagent.algorithms import segments

Array = jax.Array


def grpo_advantages(
    rewards: Array, group_ids: Array, valid: Array, *, normalize_std: bool = False, std_floor: float = 0.0
) -> Array:
    """Group-relative advantages: A_i = R_i - mean_g(R), optionally over (std_g(R) + floor).

    Without the standard deviation as in Dr. GRPO (arXiv 2503.20783), with it as in GRPO (arXiv 2402.03300), ddof 1.

    Args:
      rewards: float [N], outcome of each episode.
      group_ids: int [N], any values in any order.
      valid: bool [N].
      normalize_std: static; divide by the group's standard deviation.
      std_floor: static, >= 0; the divisor is std + max(std_floor, 1e-6). A floor well above 0 keeps tiny differences
        between rewards (a turn cost among successes) from being blown up to full size.

    Returns:
      float32 [N].

    Raises:
      ValueError: a floor without `normalize_std`, or a negative one.
    """
    _check_floor(normalize_std, std_floor)
    owner = _group_owners(rewards, group_ids, valid)
    divisor = {"divide_by_std": normalize_std, "floor": std_floor}
    return jax.lax.stop_gradient(segments.centre(rewards.astype(jnp.float32), owner, valid, **divisor))


def rloo_advantages(rewards: Array, group_ids: Array, valid: Array) -> Array:
    """Leave-one-out baseline (arXiv 2402.14740): A_i = R_i - mean of the others = G / (G - 1) * (R_i - mean_g(R)).

    Arguments and result as in `grpo_advantages`.
    """
    owner = _group_owners(rewards, group_ids, valid)
    size = jax.ops.segment_sum(valid.astype(jnp.int32), owner, rewards.shape[0])[owner]
    centred = segments.centre(rewards.astype(jnp.float32), owner, valid)
    return jax.lax.stop_gradient(centred * size / jnp.maximum(size - 1, 1))


def reinforce_plus_plus_advantages(
    rewards: Array, group_ids: Array, valid: Array, *, group_baseline: bool = True
) -> Array:
    """REINFORCE++ (arXiv 2501.03262): centred rewards over the whole batch's standard deviation (ddof 1, plus 1e-6).

    With `group_baseline` rewards are centred on their group's mean first (the paper's variant for several samples a
    prompt, and the one to use under mixed budgets); without, on the mean of the batch, whatever the groups. Statistics
    are over episodes, each counted once, so long episodes do not weigh more. The scale depends on the whole batch by
    definition: call it on all episodes at once.

    Arguments and result as in `grpo_advantages`.
    """
    owner = _group_owners(rewards, group_ids, valid)
    if not group_baseline:
        owner = jnp.where(valid, jnp.argmax(valid).astype(owner.dtype), owner)
    centred = segments.centre(rewards.astype(jnp.float32), owner, valid)
    variance = jnp.sum(jnp.square(centred)) / jnp.maximum(jnp.sum(valid) - 1, 1)
    return jax.lax.stop_gradient(centred / (jnp.sqrt(variance) + segments.MIN_DIVISOR))


def gigpo_advantages(
    step_rewards: Array,
    group_ids: Array,
    anchor_ids: Array,
    turn_mask: Array,
    valid: Array,
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    normalize_std: bool = False,
    std_floor: float = 0.0,
    episode_stats: str = "trajectories",
    require_distinct_trajectories: bool = False,
) -> Array:
    """Group-in-group advantages (GiGPO, arXiv 2505.10978): A[i, t] = A_episode[i] + step_weight * A_step[i, t].

    A_episode centres the episode's summed reward on its group. A_step centres the discounted return
    R[i, t] = sum_{k >= t} gamma^(k - t) r[i, k] on the *step group*: all turns of the group's episodes with an equal
    anchor, revisits included. The key is (group, anchor): equal anchors of different groups stay apart.

    Args:
      step_rewards: float [N, T], rewards of the turns with the outcome added on the last one.
      group_ids: int [N]; anchor_ids: int [N, T]; any values in any order.
      turn_mask: bool [N, T], the turns that were taken (and lie within the budget).
      valid: bool [N].
      gamma: static, in [0, 1]. Below 1 the step part prefers the shorter way to a reward.
      step_weight: weight of the step part.
      normalize_std, std_floor: static, as in `grpo_advantages`, for both parts.
      episode_stats: static; "trajectories" counts each episode once, "rows" once a turn (long episodes weigh more; for
        parity with systems whose rows are turns).
      require_distinct_trajectories: static; a step group that one episode alone visits gives 0.

    Returns:
      float32 [N, T], 0 outside the turns of valid episodes.

    Raises:
      ValueError: an option out of range.
    """
    _check_gigpo(step_rewards, anchor_ids, turn_mask, gamma, episode_stats)
    _check_floor(normalize_std, std_floor)
    num, width = step_rewards.shape
    mask = turn_mask & valid[:, None]
    rewards = jnp.where(mask, step_rewards.astype(jnp.float32), 0.0)

    turns = jnp.sum(mask, axis=1, dtype=jnp.int32) if episode_stats == "rows" else None
    counted = valid if turns is None else valid & (turns > 0)
    owner = _group_owners(rewards[:, 0], group_ids, counted)
    divisor = {"divide_by_std": normalize_std, "floor": std_floor}
    episode_part = segments.centre(jnp.sum(rewards, axis=1), owner, counted, turns, **divisor)

    step_owner = segments.nested_representatives(owner, anchor_ids, mask)
    flat_mask = mask.reshape(-1)
    step_part = segments.centre(_discounted_returns(rewards, gamma).reshape(-1), step_owner, flat_mask, **divisor)
    if require_distinct_trajectories:
        # A representative is the first row of its segment: the segment is one episode's if the last row is too.
        episode = jnp.arange(num * width, dtype=jnp.int32) // width
        last = jax.ops.segment_max(jnp.where(flat_mask, episode, 0), step_owner, num * width)
        step_part = jnp.where(last[step_owner] > step_owner // width, step_part, 0.0)
    total = episode_part[:, None] + step_weight * step_part.reshape(num, width)
    return jax.lax.stop_gradient(jnp.where(mask, total, 0.0))


def turn_rewards_to_tokens(step_rewards: Array, mask: Array, episode_index: Array, turn_index: Array) -> Array:
    """Token rewards for the GAE functions: each turn's reward on the turn's last policy token, 0 elsewhere.

    Args:
      step_rewards: float [N, T].
      mask: bool [B, S], the policy tokens in the loss.
      episode_index, turn_index: int [B, S], the token's row and column in `step_rewards`; ignored outside the mask.

    Returns:
      float32 [B, S].
    """
    chex.assert_rank([step_rewards, mask, episode_index, turn_index], 2)
    chex.assert_equal_shape([mask, episode_index, turn_index])
    chex.assert_type([step_rewards, mask, episode_index, turn_index], [float, bool, int, int])
    _, last = _turn_ends(mask, episode_index, turn_index)
    rewards = jnp.asarray(step_rewards, jnp.float32)[jnp.where(last, episode_index, 0), jnp.where(last, turn_index, 0)]
    return jnp.where(last, rewards, 0.0)


def token_gae(
    rewards: Array, values: Array, mask: Array, segment_ids: Array, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Array, Array]:
    """Generalised advantage estimation (arXiv 1506.02438) over the policy tokens alone.

    delta_t = r_t + gamma V_{t+} - V_t,  A_t = delta_t + gamma lam A_{t+}, where t+ is the next policy token of the same
    episode: observation tokens between turns neither decay nor count. Behind the last policy token V and A are 0:
    running out of an announced budget is a true end.

    Args:
      rewards: float [B, S]; only those on policy tokens count (`turn_rewards_to_tokens` puts them there).
      values: float [B, S], the critic's old values.
      mask: bool [B, S], the policy tokens in the loss.
      segment_ids: int [B, S], the episode of each token; a row may hold several, each contiguous.
      gamma, lam: static, in [0, 1].

    Returns:
      (advantages, returns = advantages + values), float32 [B, S], 0 outside the mask. No gradient flows through them.
    """
    _check_tokens(rewards, values, mask, segment_ids)
    _check_unit_interval(gamma=gamma, lam=lam)
    rewards, values = _selected(mask, rewards, values)
    following = _next_of(mask, segment_ids)
    deltas = rewards + gamma * _at(values, following) - values
    return _finished(_recurrence(deltas, gamma * lam, mask, following), values, mask)


def turn_gae(
    rewards: Array,
    values: Array,
    mask: Array,
    segment_ids: Array,
    turn_index: Array,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Array, Array]:
    """GAE whose time step is the turn; a turn's value is the critic's at its first policy token, before the agent acts.

    delta_k = r_k + gamma V_{k+1} - V_k,  A_k = delta_k + gamma lam A_{k+1}, with r_k the sum of the rewards on the
    turn's policy tokens (it may be 0) and A_k on each of them. Turns are told apart by `turn_index`, never by non-zero
    rewards.

    Args:
      rewards, values, mask, segment_ids: as in `token_gae`.
      turn_index: int [B, S].
      gamma, lam: static, in [0, 1]; per turn.

    Returns:
      (advantages, returns), float32 [B, S], constant over a turn: the return A_k + V_k is the target of every policy
      token of the turn. No gradient flows through them.
    """
    _check_tokens(rewards, values, mask, segment_ids, turn_index)
    _check_unit_interval(gamma=gamma, lam=lam)
    rewards, values = _selected(mask, rewards, values)
    first, last = _turn_ends(mask, segment_ids, turn_index)
    turn_rewards = _recurrence(rewards, 1.0, mask, _next_inside_turn(mask, segment_ids, last))
    following = _next_of(first, segment_ids)
    deltas = turn_rewards + gamma * _at(values, following) - values
    advantages = _recurrence(deltas, gamma * lam, first, following)
    start = _latest_of(first)
    return _finished(_at(advantages, start), _at(values, start), mask)


def bi_level_gae(
    rewards: Array,
    values: Array,
    mask: Array,
    segment_ids: Array,
    turn_index: Array,
    *,
    gamma: float = 1.0,
    turn_gamma: float = 0.95,
    lam: float = 1.0,
    turn_lam: float = 1.0,
    bootstrap: str = "turn_start",
) -> tuple[Array, Array]:
    """GAE on two levels (arXiv 2504.20073): turns give each turn's target, tokens inside the turn share the credit.

    Turns: delta_k = r_k + turn_gamma V_{k+1} - V_k,  A_k = delta_k + turn_gamma turn_lam A_{k+1}, and the turn's target
    is rho_k = A_k + V_k, with r_k the sum of the rewards on the turn's policy tokens.
    Tokens of turn k: the last one is paid what rho_k leaves after the rewards of the tokens before it, and nothing
    follows it; before it delta = r + gamma V_next - V and A = delta + gamma lam A_next. With every gamma and lam 1 this
    is `token_gae`.

    Args:
      rewards, values, mask, segment_ids, turn_index: as in `turn_gae`.
      gamma, lam, turn_gamma, turn_lam: static, in [0, 1], per token and per turn.
      bootstrap: static; "turn_start" takes V_k at the turn's first policy token (the state before acting), "turn_end"
        at its last (RAGEN's form: after the action was written; a KL penalty must not be in `rewards` then, since that
        value already knows what the turn's tokens cost).

    Returns:
      (advantages, returns = advantages + values), float32 [B, S], 0 outside the mask. No gradient flows through them.

    Raises:
      ValueError: an option out of range.
    """
    _check_tokens(rewards, values, mask, segment_ids, turn_index)
    _check_unit_interval(gamma=gamma, lam=lam, turn_gamma=turn_gamma, turn_lam=turn_lam)
    if bootstrap not in ("turn_start", "turn_end"):
        raise ValueError(f"bootstrap {bootstrap!r} is neither 'turn_start' nor 'turn_end'")
    rewards, values = _selected(mask, rewards, values)
    first, last = _turn_ends(mask, segment_ids, turn_index)
    inside = _next_inside_turn(mask, segment_ids, last)

    # Turns, held at their first token: rewards, values and the recurrence over the turns behind.
    turn_values = values if bootstrap == "turn_start" else _at(values, _next_of(last, segment_ids, inclusive=True))
    following = _next_of(first, segment_ids)
    still_paid = _recurrence(rewards, 1.0, mask, inside)  # from the token to the end of its turn
    deltas = still_paid + turn_gamma * _at(turn_values, following) - turn_values
    turn_advantages = _recurrence(deltas, turn_gamma * turn_lam, first, following)
    targets = _at(turn_advantages + turn_values, _latest_of(first))

    # Tokens: the last one gets the target less what the turn's other tokens were paid; behind it nothing follows.
    paid_before = _at(still_paid, _latest_of(first)) - rewards
    deltas = jnp.where(last, targets - paid_before, rewards + gamma * _at(values, inside)) - values
    return _finished(_recurrence(deltas, gamma * lam, mask, inside), values, mask)


_NONE = -1  # "no such token" in an index array


def _next_of(marked: Array, segment_ids: Array, *, inclusive: bool = False) -> Array:
    """Index of the next marked token of the same segment, int32 [B, S], `_NONE` without; or itself with `inclusive`."""
    length = marked.shape[1]
    here = jnp.where(marked, jnp.arange(length, dtype=jnp.int32), length)
    following = jax.lax.cummin(here, axis=1, reverse=True)
    if not inclusive:
        following = jnp.pad(following[:, 1:], ((0, 0), (0, 1)), constant_values=length)
    found = jnp.take_along_axis(segment_ids, jnp.minimum(following, length - 1), axis=1)
    return jnp.where((following < length) & (found == segment_ids), following, _NONE)


def _latest_of(marked: Array) -> Array:
    """Index of the last marked token at or before each token, int32 [B, S], `_NONE` without."""
    return jax.lax.cummax(jnp.where(marked, jnp.arange(marked.shape[1], dtype=jnp.int32), _NONE), axis=1)


def _at(x: Array, index: Array) -> Array:
    """x[b, index[b, s]], 0 where the index is `_NONE`."""
    return jnp.where(index == _NONE, 0.0, jnp.take_along_axis(x, jnp.maximum(index, 0), axis=1))


def _recurrence(drive: Array, decay: float, marked: Array, following: Array) -> Array:
    """X_t = drive_t + decay X_{following(t)} at marked tokens, X = 0 where there is no following one. All [B, S].

    Unmarked tokens hand on what lies behind them. A parallel scan of depth log S; a step that starts a new chain has
    factor 0, so nothing finite crosses from one episode into another.
    """
    factor = jnp.where(marked, jnp.where(following == _NONE, 0.0, jnp.float32(decay)), 1.0)
    drive = jnp.where(marked, drive, 0.0)

    def join(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    return jax.lax.associative_scan(join, (factor, drive), axis=1, reverse=True)[1]


def _turn_ends(mask: Array, segment_ids: Array, turn_index: Array) -> tuple[Array, Array]:
    """(first, last) policy token of its turn, bool [B, S]. A turn is a run of equal (segment, turn) in the mask."""
    following = _next_of(mask, segment_ids)
    next_turn = jnp.take_along_axis(turn_index, jnp.maximum(following, 0), axis=1)
    last = mask & ((following == _NONE) | (next_turn != turn_index))
    ended_before = jnp.pad(_latest_of(last)[:, :-1], ((0, 0), (1, 0)), constant_values=_NONE)
    policy_before = jnp.pad(_latest_of(mask)[:, :-1], ((0, 0), (1, 0)), constant_values=_NONE)
    return mask & (ended_before == policy_before), last


def _next_inside_turn(mask: Array, segment_ids: Array, last: Array) -> Array:
    """Index of the next policy token of the same turn, int32 [B, S], `_NONE` at its last token."""
    return jnp.where(last, _NONE, _next_of(mask, segment_ids))


def _selected(mask: Array, *arrays: Array) -> tuple[Array, ...]:
    return tuple(jnp.where(mask, x.astype(jnp.float32), 0.0) for x in arrays)


def _finished(advantages: Array, values: Array, mask: Array) -> tuple[Array, Array]:
    advantages, returns = _selected(mask, advantages, advantages + values)
    return jax.lax.stop_gradient(advantages), jax.lax.stop_gradient(returns)


def _discounted_returns(rewards: Array, gamma: float) -> Array:
    """R[i, t] = sum_{k >= t} gamma^(k - t) r[i, k], as one product with a triangular matrix; [N, T]."""
    steps = jnp.arange(rewards.shape[1])
    ahead = steps[:, None] - steps[None, :]  # k - t
    discounts = jnp.where(ahead >= 0, jnp.float32(gamma) ** jnp.maximum(ahead, 0), 0.0)
    return jnp.matmul(rewards, discounts, precision=jax.lax.Precision.HIGHEST)


def _group_owners(rewards: Array, group_ids: Array, valid: Array) -> Array:
    chex.assert_rank([rewards, group_ids, valid], 1)
    chex.assert_equal_shape([rewards, group_ids, valid])
    chex.assert_type([rewards, group_ids, valid], [float, int, bool])
    return segments.representatives(group_ids, valid)


def _check_floor(normalize_std: bool, std_floor: float) -> None:
    if std_floor < 0.0:
        raise ValueError(f"std_floor must not be negative, got {std_floor}")
    if std_floor > 0.0 and not normalize_std:
        raise ValueError("std_floor has no effect without normalize_std; set normalize_std or leave the floor at 0")


def _check_gigpo(step_rewards: Array, anchor_ids: Array, turn_mask: Array, gamma: float, episode_stats: str) -> None:
    chex.assert_rank([step_rewards, anchor_ids, turn_mask], 2)
    chex.assert_equal_shape([step_rewards, anchor_ids, turn_mask])
    chex.assert_type([step_rewards, anchor_ids, turn_mask], [float, int, bool])
    _check_unit_interval(gamma=gamma)
    if episode_stats not in ("trajectories", "rows"):
        raise ValueError(f"episode_stats {episode_stats!r} is neither 'trajectories' nor 'rows'")


def _check_tokens(rewards: Array, values: Array, mask: Array, *ids: Array) -> None:
    chex.assert_rank([rewards, values, mask, *ids], 2)
    chex.assert_equal_shape([rewards, values, mask, *ids])
    chex.assert_type([rewards, values, mask, *ids], [float, float, bool] + [int] * len(ids))


def _check_unit_interval(**options: float) -> None:
    for name, value in options.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], got {value}")


GROUP_ADVANTAGES = {
    "grpo": grpo_advantages,
    "dr_grpo": grpo_advantages,  # its other half is the aggregation dr_grpo
    "rloo": rloo_advantages,
    "reinforce_plus_plus": reinforce_plus_plus_advantages,
    "gigpo": gigpo_advantages,
}
TOKEN_ADVANTAGES = {"token_gae": token_gae, "turn_gae": turn_gae, "bi_level_gae": bi_level_gae}
