"""Low-rank adapters (arXiv 2106.09685): W stays as it is, and W x + (alpha / rank) B A x is computed instead.

The base's parameters and the adapters are two trees; `combine` puts them into the one that `decoder.forward` reads when
its config has `lora`, `merge` folds the adapters into the matrices.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxagent.models import decoder
from jaxagent.models.decoder import ADAPTER_IN, ADAPTER_OUT, DecoderConfig

# The published names of the matrices that can have an adapter -> ours.
TARGETS = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "output",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
}


def init_adapters(config: DecoderConfig, key: jax.Array) -> dict:
    """{"blocks": {NAME_lora_in: [L, *in, r], NAME_lora_out: [L, r, *out]}}, float32.

    The inner matrices are normal with sd 1/sqrt(fan_in), the outer ones 0: the first policy is the base.
    """
    shapes = decoder.adapter_shapes(config)
    blocks = {}
    for (name, shape), matrix_key in zip(shapes.items(), jax.random.split(key, len(shapes)), strict=True):
        stacked = (config.num_layers, *shape)
        if name.endswith(ADAPTER_OUT):
            blocks[name] = jnp.zeros(stacked, jnp.float32)
        else:
            flat = jax.random.normal(matrix_key, (math.prod(stacked),), jnp.float32)
            blocks[name] = flat.reshape(stacked) * math.prod(shape[:-1]) ** -0.5
    return {"blocks": blocks}


def adapter_axes(config: DecoderConfig) -> dict:
    """The logical axes of `init_adapters`: those of the base's matrices, the rank unsplit."""
    base = decoder.block_axes(dataclasses.replace(config, lora=None))
    axes = {}
    for name in config.lora.targets:
        inner = decoder.input_rank(name)
        axes[name + ADAPTER_IN] = ("layers", *base[name][:inner], "rank")
        axes[name + ADAPTER_OUT] = ("layers", "rank", *base[name][inner:])
    return {"blocks": axes}


def combine(base: dict, adapters: dict) -> dict:
    """One tree of both; no array is copied."""
    return {**base, "blocks": {**base["blocks"], **adapters["blocks"]}}


def merge(config: DecoderConfig, params: dict) -> dict:
    """Plain parameters from a combined tree: W + (alpha / rank) A B, float32."""
    blocks = {name: array for name, array in params["blocks"].items() if not name.endswith((ADAPTER_IN, ADAPTER_OUT))}
    for name in config.lora.targets:
        inner, outer = params["blocks"][name + ADAPTER_IN], params["blocks"][name + ADAPTER_OUT]
        flat_inner = inner.reshape(config.num_layers, -1, config.lora.rank)
        flat_outer = outer.reshape(config.num_layers, config.lora.rank, -1)
        product = jnp.matmul(flat_inner, flat_outer, precision=jax.lax.Precision.HIGHEST)
        blocks[name] = blocks[name] + config.lora.scale * product.reshape(blocks[name].shape)
    return {**params, "blocks": blocks}
