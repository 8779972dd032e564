"""Attention, two functions: over packed training rows and over a KV cache; the implementation is chosen by platform.

On CPU the packed one works in causal query blocks, which skips almost half of the square that XLA's own attention
computes. On GPU and TPU both call `jax.nn.dot_product_attention`. Grouped-query attention throughout: query head `h`
reads key-value head `h // (num_heads // num_kv_heads)`.

Scores and the softmax are float32, whatever the inputs are.
"""

import jax
import jax.numpy as jnp

QUERY_BLOCK = 64
# Far below every real score, yet finite: minus infinity would give NaN where a whole row is masked.
_MASKED_SCORE = -0.5 * float(jnp.finfo(jnp.float32).max)


def packed_attention(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Causal attention within the segments of packed rows.

    Args:
      query: [B, S, H, Dh].
      key, value: [B, S, Hkv, Dh], H a multiple of Hkv.
      segment_ids: [B, S] int32; a place attends to itself and to earlier places of the same id. 0 is padding.

    Returns:
      [B, S, H, Dh] in the dtype of `query`; exactly 0, with zero gradient, at padding.
    """
    attend = _attend_in_blocks if jax.default_backend() == "cpu" else _attend_builtin
    attended = attend(query, key, value, segment_ids)
    return jnp.where((segment_ids != 0)[:, :, None, None], attended, 0)


def cached_attention(query: jax.Array, keys: jax.Array, values: jax.Array, query_positions: jax.Array) -> jax.Array:
    """Attention over a cache in which slot `c` holds the key and value of position `c`.

    Args:
      query: [N, W, H, Dh].
      keys, values: [N, C, Hkv, Dh], H a multiple of Hkv.
      query_positions: [N, W] int32; a query attends to positions 0 .. its own.

    Returns:
      [N, W, H, Dh] in the dtype of `query`.
    """
    mask = jnp.arange(keys.shape[1]) <= query_positions[:, :, None]  # [N, W, C]
    if jax.default_backend() != "cpu":
        return jax.nn.dot_product_attention(query, keys, values, mask=mask[:, None])
    if query.shape[1] == 1:
        return _multiply_reduce(query, keys, values, mask)
    return _grouped_softmax(query, keys, values, mask)


def _attend_in_blocks(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Query block i against keys 0 .. (i + 1) * QUERY_BLOCK only; the loop is unrolled at trace time."""
    length = query.shape[1]
    blocks = []
    for start in range(0, length, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, length)
        mask = _packed_mask(segment_ids, start, stop)
        blocks.append(_grouped_softmax(query[:, start:stop], key[:, :stop], value[:, :stop], mask))
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=1)


def _attend_builtin(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
    mask = _packed_mask(segment_ids, 0, query.shape[1])
    return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])


def _packed_mask(segment_ids: jax.Array, start: int, stop: int) -> jax.Array:
    """[B, stop - start, stop]: what the queries start .. stop - 1 may see. Never empty: each sees itself."""
    same_segment = segment_ids[:, start:stop, None] == segment_ids[:, None, :stop]
    causal = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)
    return same_segment & causal


def _masked_softmax(scores: jax.Array, mask: jax.Array, axis: int = -1) -> jax.Array:
    """Softmax of float32 `scores` over `axis` where `mask`, exactly 0 elsewhere; at least one place must be allowed.

    The score under the mask is replaced before the exponential, so it reaches neither the value nor the gradient.
    """
    return jax.nn.softmax(jnp.where(mask, scores, _MASKED_SCORE), axis=axis)


def _grouped_softmax(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Dense attention by two matrix products; mask [B, Q, K] -> [B, Q, H, Dh]."""
    batch, num_queries, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[2]
    grouped, group, mask = query, "", mask[:, None]
    if num_heads != num_kv_heads:  # an axis of size 1 would cost XLA's CPU compiler its fast matrix product
        grouped = query.reshape(batch, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
        group, mask = "g", mask[:, None]
    scores = jnp.einsum(f"bqh{group}d,bkhd->bh{group}qk", grouped, key, preferred_element_type=jnp.float32)
    scores = scores * head_dim**-0.5  # here, in float32: scaling a bfloat16 query would round it once more
    weights = _masked_softmax(scores, mask).astype(value.dtype)
    attended = jnp.einsum(f"bh{group}qk,bkhd->bqh{group}d", weights, value)
    return attended.reshape(query.shape).astype(query.dtype)


def _multiply_reduce(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """One query a row: products and sums instead of matrix products, which XLA fuses and threads better on CPU."""
    rows, _, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[2]
    grouped = query.astype(jnp.float32)
    if num_heads != num_kv_heads:  # an axis of size 1 would make the sums several times slower
        grouped = grouped.reshape(rows, 1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        keys, values = keys[:, :, :, None], values[:, :, :, None]
    scores = jnp.sum(grouped * keys.astype(jnp.float32), axis=-1) * head_dim**-0.5  # [N, C, Hkv(, G)]
    mask = mask[:, 0].reshape(rows, -1, *(1,) * (scores.ndim - 2))
    weights = _masked_softmax(scores, mask, axis=1)
    attended = jnp.sum(weights[..., None] * values.astype(jnp.float32), axis=1)
    return attended.reshape(query.shape).astype(query.dtype)
