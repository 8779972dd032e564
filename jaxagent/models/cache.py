"""Decoding with a KV cache: one static cache for all slots, tokens appended in any width, nothing prefilled twice.

Axes: N slots, C positions (capacity), W tokens appended at once, L layers.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jaxagent.models.attention import cached_attention
from jaxagent.models.decoder import (
    DecoderConfig,
    block_axes,
    block_graphdef,
    embed,
    head_matrix,
    logical_axes,
    rms_norm,
    rotary_angles,
)
from jaxagent.models.lora import merge


def init_cache(config: DecoderConfig, slots: int, capacity: int) -> dict:
    """An empty cache: {"k": L arrays [N, C, Hkv, Dh] in the compute dtype, "v": likewise, "lengths": [N] int32}.

    `lengths` counts the tokens of each slot; setting an entry to 0 frees the slot, what it held is never read again.
    """
    shape = (slots, capacity, config.num_kv_heads, config.head_dim)

    def zeros() -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros(shape, config.compute_dtype) for _ in range(config.num_layers))

    return {"k": zeros(), "v": zeros(), "lengths": jnp.zeros(slots, jnp.int32)}


def decoding_params(config: DecoderConfig, params: dict) -> dict:
    """Parameters in the form that decoding reads: "blocks" is a tuple of L dicts, matrices in the compute dtype.

    LoRA adapters are merged into their matrices. Made once per weight update, under jit. The rounding is the one that
    the block would do at each call, so the numbers are those of training. No array is shared with `params`: donating
    these to the train step leaves the copy whole.
    """

    if config.lora:
        params = merge(config, params)

    def convert(array: jax.Array, is_matrix: bool) -> jax.Array:
        return jnp.array(array, dtype=config.compute_dtype if is_matrix else array.dtype, copy=True)

    def unstack(layer: int) -> dict:
        return jax.tree.map(lambda stacked: convert(stacked[layer], stacked.ndim > 2), params["blocks"])

    outside = {name: convert(array, array.ndim > 1) for name, array in params.items() if name != "blocks"}
    return {**outside, "blocks": tuple(unstack(layer) for layer in range(config.num_layers))}


def decoding_axes(config: DecoderConfig) -> dict:
    """The logical axes of `decoding_params`, in its structure."""
    return {**logical_axes(config), "blocks": (block_axes(config),) * config.num_layers}


def append(
    config: DecoderConfig, params: dict, cache: dict, tokens: jax.Array, counts: jax.Array
) -> tuple[jax.Array, dict]:
    """Appends `counts[i]` tokens to slot i; width 1 is a decode step, larger widths extend by an observation.

    A slot with count 0 keeps its cache bit for bit; places of `tokens` from the count on are never written. The caller
    keeps `lengths + counts` within the capacity: what lies beyond is dropped.

    Args:
      config: static.
      params: as from `decoding_params`.
      cache: as from `init_cache`; donate it.
      tokens: [N, W] int32.
      counts: [N] int32 in 0..W.

    Returns:
      The hidden state [N, D] after the final norm at the last appended token of each slot (finite but without meaning
      where the count is 0), and the new cache.
    """
    lengths = cache["lengths"]
    width = tokens.shape[1]
    positions = lengths[:, None] + jnp.arange(width)  # [N, W]
    capacity = cache["k"][0].shape[1]
    places = jnp.where(jnp.arange(width) < counts[:, None], positions, capacity)
    graphdef = block_graphdef(dataclasses.replace(config, lora=None))
    rotation = rotary_angles(config, positions)
    x = embed(config, params, tokens)
    new_keys, new_values = [], []
    layers = zip(params["blocks"], cache["k"], cache["v"], strict=True)
    for number, (layer_params, keys, values) in enumerate(layers):
        window = config.window_of(number)

        def attend(query, key, value, keys=keys, values=values, window=window):
            kept = _write(keys, key, places), _write(values, value, places)
            return cached_attention(query, *kept, positions, window=window), kept

        x, (keys, values) = nnx.merge(graphdef, layer_params)(x, rotation, attend)
        new_keys.append(keys)
        new_values.append(values)
    last = jnp.maximum(counts - 1, 0)
    x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
    hidden = rms_norm(x, params["final_norm"], config.norm_eps)
    return hidden, {"k": tuple(new_keys), "v": tuple(new_values), "lengths": lengths + counts}


def next_token_logits(params: dict, hidden: jax.Array) -> jax.Array:
    """hidden [N, D] -> logits [N, V] float32, untempered; the same product as `logprobs.token_logprobs`."""
    head = head_matrix(params).astype(hidden.dtype)
    return jnp.einsum("nd,dv->nv", hidden, head, preferred_element_type=jnp.float32)


def _write(cached: jax.Array, new: jax.Array, places: jax.Array) -> jax.Array:
    """Puts new [N, W, Hkv, Dh] at `places` [N, W] of cached [N, C, Hkv, Dh]; a place at or beyond C is dropped."""
    rows = jnp.arange(cached.shape[0])[:, None]
    return cached.at[rows, places].set(new.astype(cached.dtype), mode="drop", unique_indices=False)
