"""Policy and value losses as small pieces: a per-token term, then weights that turn terms into one scalar.

Every function takes a mask (or is fed by one that does) and *selects*: NaN or infinity under a mask changes neither
value nor gradient. Axes: B rows of packed episodes, S tokens.

The pieces compose as

    log_ratio = masked_difference(new_logprobs, old_logprobs, mask)
    per_token, clipped = surrogate(log_ratio, advantages, mask=mask)
    weights = token_weights(mask, ids, "token_mean")         # once, over the whole batch
    loss = weighted_sum(per_token, mask, weights)            # a micro-batch gives its share, the shares add up
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxagent.algorithms import segments

Array = jax.Array

MAX_LOG_RATIO = 20.0


def masked_difference(left: Array, right: Array, mask: Array) -> Array:
    """`left - right` where the mask is set, else 0, with zero gradient there. All [B, S]; float32 out."""
    chex.assert_equal_shape([left, right, mask])
    chex.assert_type([left, right], float)
    zero_outside = lambda x: jnp.where(mask, x.astype(jnp.float32), 0.0)  # noqa: E731
    return zero_outside(left) - zero_outside(right)


def surrogate(
    log_ratio: Array,
    advantages: Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array]:
    """The clipped policy-gradient loss of PPO (arXiv 1707.06347) with DAPO's separate upper bound (arXiv 2503.14476).

    With r = exp(clamp(log_ratio, +-20)): L = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); with `dual_clip` = c >
    1 (arXiv 1912.09729) additionally L = min(L, -c A) where A < 0.

    Args:
      log_ratio: float [B, S], log pi - log pi_old, or the output of `sequence_log_ratio` for GSPO.
      advantages: float [B, S]; constants (no gradient flows into them).
      clip_low, clip_high, dual_clip: static.
      mask: bool [B, S], optional: where False the loss is 0 with zero gradient, whatever the inputs hold.

    Returns:
      (loss float32 [B, S], clipped bool [B, S]): `clipped` is where a bound took the token's gradient away.
      Differentiable in `log_ratio`.

    Raises:
      ValueError: bounds that cannot work.
    """
    if not 0.0 <= clip_low <= 1.0 or clip_high < 0.0:
        raise ValueError(f"clip bounds need 0 <= clip_low <= 1 and clip_high >= 0, got {clip_low} and {clip_high}")
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must exceed 1 (3.0 is usual) or be None, got {dual_clip}")
    chex.assert_equal_shape([log_ratio, advantages])
    chex.assert_type([log_ratio, advantages], float)
    if mask is not None:
        chex.assert_equal_shape([log_ratio, mask])
        log_ratio, advantages = (jnp.where(mask, x, 0.0) for x in (log_ratio, advantages))
    advantages = jax.lax.stop_gradient(advantages.astype(jnp.float32))
    ratio = jnp.exp(jnp.clip(log_ratio.astype(jnp.float32), -MAX_LOG_RATIO, MAX_LOG_RATIO))
    plain = -advantages * ratio
    bounded = -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    clipped = bounded > plain
    loss = jnp.where(clipped, bounded, plain)
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        too_far = (advantages < 0.0) & (ceiling < loss)
        loss, clipped = jnp.where(too_far, ceiling, loss), clipped | too_far
    return loss, clipped


def sequence_log_ratio(log_ratio: Array, mask: Array, ids: Array, *, variant: str = "sequence") -> Array:
    """GSPO's log-ratio (arXiv 2507.18071): the mean of the sequence's token log-ratios, on each of its tokens.

    "sequence": log s_i = (1 / |y_i|) sum_t log_ratio, gradient through the mean. "token": the same value, while the
    gradient of a token's entry reaches that token alone (s_i with stop_gradient times r / stop_gradient(r)).

    Args:
      log_ratio: float [B, S].
      mask: bool [B, S], the policy tokens in the loss.
      ids: int [B, S], the episode of each token; all tokens of a sequence must be in this call.
      variant: static, "sequence" or "token".

    Returns:
      float32 [B, S] for `surrogate` (which clamps it to +-20), 0 outside the mask. Differentiable in `log_ratio`.

    Raises:
      ValueError: unknown variant.
    """
    if variant not in ("sequence", "token"):
        raise ValueError(f"variant {variant!r} is neither 'sequence' nor 'token'")
    _check_tokens(log_ratio, mask, ids)
    log_ratio = jnp.where(mask, log_ratio.astype(jnp.float32), 0.0)
    total, size = _sequence_sums(log_ratio, mask, ids)
    mean = jnp.where(mask, total / jnp.maximum(size, 1), 0.0)
    if variant == "sequence":
        return mean
    return jax.lax.stop_gradient(mean) + (log_ratio - jax.lax.stop_gradient(log_ratio))


def entropy_bonus(entropy: Array, coefficient: float, mask: Array | None = None) -> Array:
    """The per-token term -coefficient * entropy, float32 [B, S], to be added to the surrogate before the weighted sum.

    `entropy` is the policy's at each token, in nats. Differentiable in `entropy`; 0 with zero gradient outside the
    mask.
    """
    if mask is not None:
        chex.assert_equal_shape([entropy, mask])
        entropy = jnp.where(mask, entropy, 0.0)
    return -coefficient * entropy.astype(jnp.float32)


def truncated_importance_weights(log_ratio: Array, *, cap: float = 2.0, mask: Array | None = None) -> Array:
    """min(pi_old / pi_behaviour, cap) a token: multiply the surrogate with it where old and behaviour log-probs differ.

    Args:
      log_ratio: float [B, S], log pi_old - log pi_behaviour; clamped to +-20.
      cap: static, positive.
      mask: bool [B, S], optional; the weight is 1 outside.

    Returns:
      float32 [B, S]. Constants: no gradient flows through them.

    Raises:
      ValueError: a cap that is not positive.
    """
    if cap <= 0.0:
        raise ValueError(f"the cap of importance weights must be positive, got {cap}")
    chex.assert_type(log_ratio, float)
    if mask is not None:
        chex.assert_equal_shape([log_ratio, mask])
        log_ratio = jnp.where(mask, log_ratio, 0.0)
    clamped = jnp.clip(log_ratio.astype(jnp.float32), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(clamped), cap))


def sequence_mask(
    log_ratio: Array, mask: Array, ids: Array, *, low: float = 0.0, high: float = 3.0, geometric: bool = False
) -> Array:
    """The loss mask without sequences whose importance ratio left [low, high].

    The ratio of a sequence is exp(sum of its log-ratios), or exp(their mean) with `geometric`. Such sequences leave the
    loss; they stay in the group statistics.

    Args:
      log_ratio: float [B, S], log pi_old - log pi_behaviour.
      mask: bool [B, S], the policy tokens in the loss.
      ids: int [B, S], the episode of each token; all tokens of a sequence must be in this call.
      low, high, geometric: static.

    Returns:
      bool [B, S], a part of `mask`. Not differentiable.

    Raises:
      ValueError: bounds that leave out a ratio of 1.
    """
    if not 0.0 <= low <= 1.0 <= high:
        raise ValueError(f"the bounds of a sequence mask need 0 <= low <= 1 <= high, got {low} and {high}")
    _check_tokens(log_ratio, mask, ids)
    total, size = _sequence_sums(jnp.where(mask, log_ratio.astype(jnp.float32), 0.0), mask, ids)
    exponent = total / jnp.maximum(size, 1) if geometric else total
    ratio = jnp.exp(jnp.clip(exponent, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    return mask & (ratio >= low) & (ratio <= high)


def value_loss(
    values: Array, returns: Array, old_values: Array, *, clip: float | None = 0.2, mask: Array | None = None
) -> tuple[Array, Array]:
    """PPO's clipped value loss a token: 0.5 max((V - R)^2, (V_old + clip(V - V_old, +-clip) - R)^2).

    Args:
      values, returns, old_values: float [B, S]; no gradient flows into the last two.
      clip: static, positive; None leaves the plain squared error.
      mask: bool [B, S], optional: where False the loss is 0 with zero gradient.

    Returns:
      (loss float32 [B, S], clipped bool [B, S]: where the bound took the gradient away). Differentiable in `values`.

    Raises:
      ValueError: a clip that is not positive.
    """
    if clip is not None and clip <= 0.0:
        raise ValueError(f"the clip of the value loss must be positive or None, got {clip}")
    chex.assert_equal_shape([values, returns, old_values])
    chex.assert_type([values, returns, old_values], float)
    arrays = [x.astype(jnp.float32) for x in (values, returns, old_values)]
    if mask is not None:
        chex.assert_equal_shape([values, mask])
        arrays = [jnp.where(mask, x, 0.0) for x in arrays]
    values, returns, old_values = arrays[0], *map(jax.lax.stop_gradient, arrays[1:])
    plain = jnp.square(values - returns)
    if clip is None:
        return 0.5 * plain, jnp.zeros_like(plain, dtype=bool)
    bounded = jnp.square(old_values + jnp.clip(values - old_values, -clip, clip) - returns)
    clipped = bounded > plain
    return 0.5 * jnp.where(clipped, bounded, plain), clipped


def whiten(x: Array, mask: Array) -> Array:
    """(x - mean) * rsqrt(variance + 1e-8) over the mask: mean 0, variance 1 (ddof 1).

    Call it on the whole batch. With fewer than two tokens in the mask nothing can be estimated and `x` comes back as it
    is; equal values (range at most 1e-6 * max(1, |largest|)) give exactly 0.

    Args:
      x: float [B, S].
      mask: bool [B, S].

    Returns:
      float32 [B, S], 0 outside the mask. No gradient flows through it.
    """
    chex.assert_equal_shape([x, mask])
    chex.assert_type([x, mask], [float, bool])
    x = jax.lax.stop_gradient(jnp.where(mask, x.astype(jnp.float32), 0.0))
    count = jnp.sum(mask)
    high, low = jnp.max(x, where=mask, initial=-jnp.inf), jnp.min(x, where=mask, initial=jnp.inf)
    shift = jnp.where(count > 0, low, 0.0)  # a common offset must not cost digits
    shifted = jnp.where(mask, x - shift, 0.0)
    centred = jnp.where(mask, shifted - jnp.sum(shifted) / jnp.maximum(count, 1), 0.0)
    variance = jnp.sum(jnp.square(centred)) / jnp.maximum(count - 1, 1)
    differ = high - low > segments.TOLERANCE * jnp.maximum(1.0, jnp.abs(high))
    whitened = jnp.where(differ, centred * jax.lax.rsqrt(variance + 1e-8), 0.0)
    return jnp.where(count < 2, x, whitened)


def token_weights(mask: Array, ids: Array | None, mode: str, *, constant: float | None = None) -> Array:
    """Weights w such that the loss is the sum of w * per-token loss over the mask.

    They need the *whole* batch (all micro-batches, devices and hosts), so that denominators are global; a micro-batch
    then takes its rows of w and only sums.

    | mode | w of a token | ids |
    |---|---|---|
    | token_mean | 1 / (tokens) | not used |
    | sequence_mean | 1 / (sequences * tokens of its sequence) | the episode of each token |
    | prompt_mean | 1 / (groups * tokens of its group) | the group of each token |
    | dr_grpo | 1 / (sequences * constant) (arXiv 2503.20783) | the episode of each token |

    Sequences and groups without a token in the mask do not count.

    Args:
      mask: bool [B, S].
      ids: int [B, S], any values, ignored outside the mask; None for `token_mean`.
      mode: static, one of the above.
      constant: static, the largest number of policy tokens an episode may have; needed by `dr_grpo` and by no other
        mode.

    Returns:
      float32 [B, S], 0 outside the mask; all 0 when the mask is empty. Constants: not differentiable.

    Raises:
      ValueError: unknown mode, missing ids, missing or needless constant.
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"aggregation {mode!r} is none of {', '.join(AGGREGATIONS)}")
    if (mode == "dr_grpo") != (constant is not None):
        raise ValueError("aggregation dr_grpo needs a constant (the cap on policy tokens); the other modes take none")
    if constant is not None and constant <= 0:
        raise ValueError(f"the constant of dr_grpo must be positive, got {constant}")
    if mode != "token_mean" and ids is None:
        raise ValueError(f"aggregation {mode} needs ids")
    if ids is not None:
        chex.assert_equal_shape([mask, ids])
        chex.assert_type(ids, int)
    chex.assert_type(mask, bool)
    return jnp.where(mask, AGGREGATIONS[mode](mask, ids, constant), 0.0)


def weighted_sum(per_token: Array, mask: Array, weights: Array) -> Array:
    """Sum of weights * per_token over the mask, a float32 scalar. Differentiable in `per_token`; all [B, S]."""
    chex.assert_equal_shape([per_token, mask, weights])
    return jnp.sum(jnp.where(mask, weights * jnp.where(mask, per_token, 0.0), 0.0), dtype=jnp.float32)


def aggregate(per_token: Array, mask: Array, ids: Array | None, mode: str, *, constant: float | None = None) -> Array:
    """The loss of a whole batch in one call: `weighted_sum` with `token_weights`. Arguments and errors as there."""
    return weighted_sum(per_token, mask, token_weights(mask, ids, mode, constant=constant))


def _token_mean(mask: Array, ids: Array | None, constant: float | None) -> Array:
    return jnp.broadcast_to(1.0 / jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32), mask.shape)


def _mean_of_means(mask: Array, ids: Array, constant: float | None) -> Array:
    size, number = _sizes(mask, ids)
    return 1.0 / (jnp.maximum(number, 1) * jnp.maximum(size, 1).astype(jnp.float32))


def _dr_grpo(mask: Array, ids: Array, constant: float) -> Array:
    _, number = _sizes(mask, ids)
    return jnp.broadcast_to(1.0 / (jnp.maximum(number, 1) * jnp.float32(constant)), mask.shape)


def _sizes(mask: Array, ids: Array) -> tuple[Array, Array]:
    """(tokens of each token's id [B, S], number of ids with a token [])."""
    flat_mask = mask.reshape(-1)
    owner = segments.representatives(ids.reshape(-1), flat_mask)
    size = jax.ops.segment_sum(flat_mask.astype(jnp.int32), owner, flat_mask.shape[0])
    return size[owner].reshape(mask.shape), jnp.sum(size > 0)


def _sequence_sums(x: Array, mask: Array, ids: Array) -> tuple[Array, Array]:
    """(sum of x over each token's id, tokens of that id), both [B, S]; x must be 0 outside the mask."""
    flat_mask = mask.reshape(-1)
    owner = segments.representatives(ids.reshape(-1), flat_mask)
    sum_of = lambda v: jax.ops.segment_sum(v, owner, flat_mask.shape[0])[owner].reshape(mask.shape)  # noqa: E731
    return sum_of(x.reshape(-1)), sum_of(flat_mask.astype(jnp.int32))


def _check_tokens(log_ratio: Array, mask: Array, ids: Array) -> None:
    chex.assert_equal_shape([log_ratio, mask, ids])
    chex.assert_type([log_ratio, mask, ids], [float, bool, int])


def _token_log_ratio(log_ratio: Array, mask: Array, ids: Array) -> Array:
    """PPO's ratio: each token by itself."""
    return log_ratio


RATIOS: dict[str, Callable[..., Array]] = {  # (log_ratio, mask, ids) -> what `surrogate` reads
    "token": _token_log_ratio,
    "gspo_sequence": functools.partial(sequence_log_ratio, variant="sequence"),
    "gspo_token": functools.partial(sequence_log_ratio, variant="token"),
}
AGGREGATIONS: dict[str, Callable[..., Array]] = {
    "token_mean": _token_mean,
    "sequence_mean": _mean_of_means,
    "prompt_mean": _mean_of_means,
    "dr_grpo": _dr_grpo,
}
