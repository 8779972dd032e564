"""Estimators of KL(policy || reference) from the log-ratio of sampled tokens.

With d = log pi - log pi_ref on tokens drawn from pi (Schulman, "Approximating KL Divergence", 2020):
k1 = d (unbiased, high variance), k2 = d^2 / 2 (biased value; its gradient is the gradient of the reverse KL on policy),
k3 = exp(-d) + d - 1 (unbiased, never negative; its gradient is biased), k3_st = k3's value with k2's gradient.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

Array = jax.Array

MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0


def kl(kind: str, log_ratio: Array, mask: Array | None = None) -> Array:
    """One KL estimate a token.

    Args:
      kind: "k1", "k2", "k3" or "k3_st".
      log_ratio: float [...], d = log pi - log pi_ref; clamped to +-20. k3 is clamped to 10.
      mask: bool [...], optional. Where False the result is 0 with gradient 0, whatever `log_ratio` holds.

    Returns:
      float32 [...]. Differentiable in `log_ratio` (zero gradient where a clamp acts). As a term of the loss use k2, k3
      or k3_st: the gradient of k1 is zero in expectation. In a reward use k1 or k3 (and `stop_gradient`).

    Raises:
      ValueError: unknown kind.
    """
    if kind not in KL_ESTIMATORS:
        raise ValueError(f"kl kind {kind!r} is none of {', '.join(KL_ESTIMATORS)}")
    chex.assert_type(log_ratio, float)
    d = log_ratio.astype(jnp.float32)
    if mask is not None:
        chex.assert_equal_shape([log_ratio, mask])
        d = jnp.where(mask, d, 0.0)
    return KL_ESTIMATORS[kind](jnp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def _k1(d: Array) -> Array:
    return d


def _k2(d: Array) -> Array:
    return 0.5 * jnp.square(d)


def _k3(d: Array) -> Array:
    return jnp.minimum(jnp.expm1(-d) + d, MAX_K3)


def _k3_straight_through(d: Array) -> Array:
    k2 = _k2(d)
    return jax.lax.stop_gradient(_k3(d)) + (k2 - jax.lax.stop_gradient(k2))


KL_ESTIMATORS: dict[str, Callable[[Array], Array]] = {"k1": _k1, "k2": _k2, "k3": _k3, "k3_st": _k3_straight_through}
