"""Attention, two functions: over packed training rows and over a KV cache.

The packed one has three implementations, chosen by platform and inputs unless the config names one: causal query blocks
(CPU: they skip almost half of the square that XLA's own attention computes), `jax.nn.dot_product_attention` by XLA, and
the same by cuDNN (GPU, in half precision). Grouped-query attention throughout: query head `h` reads key-value head
`h // (num_heads // num_kv_heads)`.

Scores and the softmax are float32, whatever the inputs are.
"""

import jax
import jax.numpy as jnp

IMPLEMENTATIONS = ("auto", "blocks", "xla", "cudnn")
QUERY_BLOCK = 64
_CUDNN_DTYPES = (jnp.bfloat16, jnp.float16)
_CUDNN_MAX_HEAD_DIM = 128
# Far below every real score, yet finite: minus infinity would give NaN where a whole row is masked.
_MASKED_SCORE = -0.5 * float(jnp.finfo(jnp.float32).max)


def packed_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    *,
    window: int | jax.Array | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """Causal attention within the segments of packed rows.

    Args:
      query: [B, S, H, Dh].
      key, value: [B, S, Hkv, Dh], H a multiple of Hkv.
      segment_ids: [B, S] int32; a place attends to itself and to earlier places of the same id. 0 is padding.
      window: a place attends to the last so many places alone, itself included; None: to all.
      implementation: static, one of `IMPLEMENTATIONS`.

    Returns:
      [B, S, H, Dh] in the dtype of `query`; exactly 0, with zero gradient, at padding.
    """
    chosen = _choose(query) if implementation == "auto" else implementation
    if chosen == "blocks":
        attended = _attend_in_blocks(query, key, value, segment_ids, window)
    else:
        attended = _attend_builtin(query, key, value, segment_ids, window, implementation=chosen)
    return jnp.where((segment_ids != 0)[:, :, None, None], attended, 0)


def cached_attention(
    query: jax.Array, keys: jax.Array, values: jax.Array, query_positions: jax.Array, *, window: int | None = None
) -> jax.Array:
    """Attention over a cache in which slot `c` holds the key and value of position `c`.

    Args:
      query: [N, W, H, Dh].
      keys, values: [N, C, Hkv, Dh], H a multiple of Hkv.
      query_positions: [N, W] int32; a query attends to positions 0 .. its own.
      window: to the last so many of them alone, its own included; None: to all.
    Returns:
      [N, W, H, Dh] in the dtype of `query`.
    """
    places = jnp.arange(keys.shape[1])
    mask = places <= query_positions[:, :, None]  # [N, W, C]
    if window is not None:
        mask &= places > query_positions[:, :, None] - window
    if jax.default_backend() != "cpu":
        return jax.nn.dot_product_attention(query, keys, values, mask=mask[:, None])
    if query.shape[1] == 1:
        return _multiply_reduce(query, keys, values, mask)
    return _grouped_softmax(query, keys, values, mask)


def _choose(query: jax.Array) -> str:
    """The implementation for this platform; cuDNN has limits on dtype, head dimension and length."""
    platform = jax.default_backend()
    if platform == "cpu":
        return "blocks"
    fits = query.dtype in _CUDNN_DTYPES and query.shape[3] % 8 == 0 and query.shape[3] <= _CUDNN_MAX_HEAD_DIM
    return "cudnn" if platform in ("gpu", "cuda") and fits and query.shape[1] % 2 == 0 else "xla"


def _attend_in_blocks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    window: int | jax.Array | None = None,
) -> jax.Array:
    """Query block i against keys 0 .. (i + 1) * QUERY_BLOCK only; the loop is unrolled at trace time."""
    length = query.shape[1]
    blocks = []
    for start in range(0, length, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, length)
        mask = _packed_mask(segment_ids, start, stop, window)
        blocks.append(_grouped_softmax(query[:, start:stop], key[:, :stop], value[:, :stop], mask))
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=1)


def _attend_builtin(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    window: int | jax.Array | None = None,
    *,
    implementation: str = "xla",
) -> jax.Array:
    mask = _packed_mask(segment_ids, 0, query.shape[1], window)[:, None]
    # The mask is causal already; saying so lets cuDNN skip what lies above the diagonal.
    causal = implementation == "cudnn"
    return jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=causal, implementation=implementation)


def _packed_mask(segment_ids: jax.Array, start: int, stop: int, window: int | jax.Array | None) -> jax.Array:
    """[B, stop - start, stop]: what the queries start .. stop - 1 may see. Never empty: each sees itself."""
    same_segment = segment_ids[:, start:stop, None] == segment_ids[:, None, :stop]
    distance = jnp.arange(start, stop)[:, None] - jnp.arange(stop)
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return same_segment & seen


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
