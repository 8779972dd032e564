"""Attention: the platform paths agree with plain loops, and masked places reach neither value nor gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models import attention


def draw(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def plain(query, key, value, allowed):
    """One query and one head at a time, float64. allowed [B, Q, K] of bools."""
    query, key, value = (np.asarray(a, np.float64) for a in (query, key, value))
    out = np.zeros_like(query)
    share = query.shape[2] // key.shape[2]
    for b, q, h in np.ndindex(*query.shape[:3]):
        places = np.flatnonzero(allowed[b, q])
        scores = [query[b, q, h] @ key[b, k, h // share] / np.sqrt(query.shape[3]) for k in places]
        weights = np.exp(np.array(scores) - max(scores))
        out[b, q, h] = sum(w * value[b, k, h // share] for w, k in zip(weights, places, strict=True)) / weights.sum()
    return out


@pytest.mark.parametrize("attend", [attention._attend_in_blocks, attention._attend_builtin])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_packed_paths_equal_plain_loops(attend, kv_heads):
    length = attention.QUERY_BLOCK + 9
    query, key, value = draw((1, length, 4, 6), 0), draw((1, length, kv_heads, 6), 1), draw((1, length, kv_heads, 6), 2)
    segments = np.array([[1] * 5 + [2] * (length - 5)])
    allowed = np.array([[[segments[0, q] == segments[0, k] and k <= q for k in range(length)] for q in range(length)]])
    got = jax.jit(attend)(query, key, value, segments)
    np.testing.assert_allclose(got, plain(query, key, value, allowed), atol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("width", [1, 3])
def test_cached_paths_equal_plain_loops(kv_heads, width):
    query, keys, values = draw((3, width, 4, 6), 0), draw((3, 11, kv_heads, 6), 1), draw((3, 11, kv_heads, 6), 2)
    positions = np.array([0, 4, 8])[:, None] + np.arange(width)
    allowed = np.array([[[c <= p for c in range(11)] for p in row] for row in positions])
    expected = plain(query, keys, values, allowed)
    got = jax.jit(attention.cached_attention)(query, keys, values, positions)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_large_masked_score_reaches_no_value_and_no_gradient():
    """Scores [1, 1, 100], the last masked: log-weight -0.6931 each, gradient finite, exactly 0 under the mask."""
    mask = jnp.array([True, True, False])

    def log_weights(scores):
        return jnp.log(jnp.where(mask, attention._masked_softmax(scores, mask), 1.0))

    for masked in (100.0, 3e38, jnp.inf):
        scores = jnp.array([1.0, 1.0, masked])
        np.testing.assert_allclose(log_weights(scores)[:2], -0.6931, atol=1e-4)
        gradient = jax.grad(lambda scores: log_weights(scores)[0])(scores)
        np.testing.assert_allclose(gradient, [0.5, -0.5, 0.0], atol=1e-6)
        assert gradient[2] == 0


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_padding_rows_are_finite_with_zero_gradient(monkeypatch, platform):
    """Padding queries with huge content: output 0, no gradient into or out of them."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    segments = np.array([[0, 0, 3, 3, 0]])
    is_padding = segments[0] == 0

    def fill(x):
        return np.where(is_padding[None, :, None, None], np.float32(1e18), x)

    query, key, value = (fill(draw((1, 5, 2, 4), seed)) for seed in range(3))
    attended = np.asarray(jax.jit(attention.packed_attention)(query, key, value, segments))
    assert np.all(np.isfinite(attended)) and not np.any(attended[0, is_padding])
    square = jax.jit(lambda *inputs: jnp.sum(attention.packed_attention(*inputs, segments) ** 2))
    gradients = jax.grad(square, argnums=(0, 1, 2))(query, key, value)
    gradients = [np.asarray(gradient) for gradient in gradients]
    for gradient in gradients:
        assert np.all(np.isfinite(gradient))
        assert not np.any(gradient[0, is_padding])
    assert np.any(gradients[2][0, ~is_padding])
