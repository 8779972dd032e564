"""The decoder: Llama, Qwen2, Qwen3 (RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied head).

What sets them apart are fields of `DecoderConfig`: biases on query, key and value, a norm on every query and key head,
scaled rotary frequencies, a sliding window.

One NNX `Block` describes a layer. Its graph definition is made once per configuration; everything else passes plain
pytrees of arrays. Training scans the block over stacked parameters, decoding loops over the unstacked ones
(`jaxagent.models.cache`): attention is a function that the block is given, so both run the same code.

Axes: B rows, S places, D width, H heads, Hkv key-value heads, Dh head dimension, F MLP width, L layers, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxagent.errors import UserError
from jaxagent.models.attention import IMPLEMENTATIONS, packed_attention

# attend(query [B,S,H,Dh], key [B,S,Hkv,Dh], value [B,S,Hkv,Dh]) -> (attended [B,S,H,Dh], anything to hand back).
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
COMPUTE_DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "dots", "full")
NORMS = ("attention_norm", "mlp_norm")  # the norm scales of a block, [D] each
ADAPTER_IN, ADAPTER_OUT = "_lora_in", "_lora_out"  # behind the name of the adapted matrix
RESIDUAL_WRITERS = ("output", "down")  # the matrices of a block whose product is added to the residual stream
_SIZES = ("vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_width")
_POSITIVE = (*_SIZES, "rope_base", "norm_eps", "embedding_std")
_UNLIMITED = 1 << 30  # a window that no row reaches


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of rotary positions: long wavelengths by `factor`, short ones not at all, a ramp between.

    Source: the published Llama 3.1 models, whose configurations call it `llama3`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        """Raises `UserError` on numbers that describe no ramp."""
        if not (self.factor >= 1 and 0 < self.low_freq_factor < self.high_freq_factor):
            raise UserError(f"rope scaling needs factor >= 1 and 0 < low_freq_factor < high_freq_factor, got {self}")
        if not self.original_max_position_embeddings > 0:
            raise UserError(f"rope scaling needs a positive original_max_position_embeddings, got {self}")


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which matrices of every block have low-rank adapters (`jaxagent.models.lora`)."""

    rank: int
    alpha: float
    targets: tuple[str, ...]  # names of a block's matrices

    @property
    def scale(self) -> float:
        """The factor of the adapters' product."""
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder. Hashable: it is a static argument of jitted functions.

    `compute_dtype` is that of activations and matrix products; parameters, norms, softmax and log-probs are float32.
    `lora` adds adapters to blocks: `init_params` and `logical_axes` speak of the base alone.
    `remat` says what the backward pass recomputes: "none" nothing, "dots" all but the products with weights, "full" all
    but the input of each block. `sliding_window` (0: none) bounds how far back layers from `full_attention_layers` on
    look. `attention` is one of `attention.IMPLEMENTATIONS`.
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    embedding_std: float = 0.02
    compute_dtype: str = "float32"
    remat: str = "none"
    attention: str = "auto"
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None
    sliding_window: int = 0
    full_attention_layers: int = 0
    lora: Lora | None = None

    def __post_init__(self) -> None:
        """Raises `UserError` on sizes that do not fit together and on unknown choices."""
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise UserError(f"model.{name} must be positive, got {getattr(self, name)}")
        for name in _SIZES:
            if not isinstance(getattr(self, name), int):
                raise UserError(f"model.{name} must be a whole number, got {getattr(self, name)!r}")
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"model.num_heads ({self.num_heads}) must be a multiple of model.num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise UserError(f"model.head_dim must be even (rotary positions turn pairs), got {self.head_dim}")
        _check_choice("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        _check_choice("remat", self.remat, REMAT_POLICIES)
        _check_choice("attention", self.attention, IMPLEMENTATIONS)
        if self.lora and not (self.lora.rank > 0 and set(self.lora.targets) <= set(_matrix_shapes(self))):
            raise UserError(f"model.lora needs a positive rank and targets in {', '.join(_matrix_shapes(self))}")
        if self.lora and self.lora.rank > self.width:
            raise UserError(f"model.lora.rank={self.lora.rank} exceeds the model's width of {self.width}")
        for name in ("sliding_window", "full_attention_layers"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 0):
                raise UserError(f"model.{name} must be a whole number from 0 on, got {getattr(self, name)!r}")

    def window_of(self, layer: int) -> int | None:
        """How far back a layer looks, itself included; None for everything."""
        return self.sliding_window if self.sliding_window and layer >= self.full_attention_layers else None


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        """Declares the parameters of one layer; `init_params` draws them for all layers at once."""
        self.config = config
        for name, (shape, _) in _matrix_shapes(config).items():
            setattr(self, name, nnx.Param(jnp.zeros(shape, jnp.float32)))
        for name, (shape, value) in _vector_shapes(config).items():
            setattr(self, name, nnx.Param(jnp.full(shape, value, jnp.float32)))
        for name, shape in adapter_shapes(config).items():
            setattr(self, name, nnx.Param(jnp.zeros(shape, jnp.float32)))

    def __call__(self, x: jax.Array, rotation: tuple[jax.Array, jax.Array], attend: Attend) -> tuple[jax.Array, Any]:
        """One layer on x [B, S, D]; `rotation` is `rotary_angles(...)`. Returns x and what `attend` handed back."""
        attended, kept = self._attention(rms_norm(x, self.attention_norm[...], self.config.norm_eps), rotation, attend)
        x = x + attended
        return x + self._mlp(rms_norm(x, self.mlp_norm[...], self.config.norm_eps)), kept

    def _attention(self, x: jax.Array, rotation: tuple[jax.Array, jax.Array], attend: Attend) -> tuple[jax.Array, Any]:
        query, key, value = (self._project(name, x) for name in ("query", "key", "value"))
        if self.config.qk_norm:
            query = rms_norm(query, self.query_norm[...], self.config.norm_eps)
            key = rms_norm(key, self.key_norm[...], self.config.norm_eps)
        query, key = rotate(query, rotation), rotate(key, rotation)
        attended, kept = attend(query, key, value)
        written = jnp.einsum("bshk,hkd->bsd", attended, self.output[...].astype(x.dtype))
        return self._adapted("output", attended, written), kept

    def _project(self, name: str, x: jax.Array) -> jax.Array:
        """x [B, S, D] -> the heads [B, S, H or Hkv, Dh] of query, key or value."""
        heads = jnp.einsum("bsd,dhk->bshk", x, getattr(self, name)[...].astype(x.dtype))
        heads = self._adapted(name, x, heads)
        return heads + getattr(self, f"{name}_bias")[...].astype(x.dtype) if self.config.qkv_bias else heads

    def _mlp(self, x: jax.Array) -> jax.Array:
        gate = jax.nn.silu(self._adapted("gate", x, x @ self.gate[...].astype(x.dtype)))
        inner = gate * self._adapted("up", x, x @ self.up[...].astype(x.dtype))
        return self._adapted("down", inner, inner @ self.down[...].astype(x.dtype))

    def _adapted(self, name: str, x: jax.Array, product: jax.Array) -> jax.Array:
        """The product of x with a matrix, and what the matrix' adapter adds to it."""
        lora = self.config.lora
        if lora is None or name not in lora.targets:
            return product
        inner, outer = getattr(self, name + ADAPTER_IN)[...], getattr(self, name + ADAPTER_OUT)[...]
        low = jnp.tensordot(x, inner.astype(x.dtype), input_rank(name))
        return product + lora.scale * jnp.tensordot(low, outer.astype(x.dtype), 1)


def init_params(config: DecoderConfig, key: jax.Array) -> dict:
    """Random float32 parameters from a typed PRNG key.

    Matrices have sd 1/sqrt(fan_in); the two that write to the residual stream (`output`, `down`) times 1/sqrt(2 L). The
    embedding has sd `embedding_std`, norm scales are 1, biases 0.

    Returns:
      {"embedding": [V, D], "blocks": {name: [L, ...]}, "final_norm": [D]}, and "head": [D, V] unless tied.
    """
    embedding_key, blocks_key, head_key = jax.random.split(key, 3)
    params = {
        "embedding": _draw(embedding_key, (config.vocab_size, config.width), config.embedding_std),
        "blocks": _init_blocks(config, blocks_key),
        "final_norm": jnp.ones(config.width, jnp.float32),
    }
    if not config.tie_embeddings:
        params["head"] = _draw(head_key, (config.width, config.vocab_size), config.width**-0.5)
    return params


def param_shapes(config: DecoderConfig) -> dict:
    """`jax.ShapeDtypeStruct`s in the structure of `init_params`; computes nothing."""
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


def logical_axes(config: DecoderConfig) -> dict:
    """The logical name of every axis of every parameter, in the structure of `init_params`."""
    axes = {
        "embedding": ("vocab", "embed"),
        "blocks": {name: ("layers", *names) for name, names in block_axes(config).items()},
        "final_norm": ("embed",),
    }
    if not config.tie_embeddings:
        axes["head"] = ("embed", "vocab")
    return axes


def block_axes(config: DecoderConfig) -> dict[str, tuple[str, ...]]:
    """The logical axes of one block's parameters, without the layer axis."""
    axes = {
        "attention_norm": ("embed",),
        "query": ("embed", "heads", "head_dim"),
        "key": ("embed", "kv_heads", "head_dim"),
        "value": ("embed", "kv_heads", "head_dim"),
        "output": ("heads", "head_dim", "embed"),
        "mlp_norm": ("embed",),
        "gate": ("embed", "mlp"),
        "up": ("embed", "mlp"),
        "down": ("mlp", "embed"),
    }
    if config.qkv_bias:
        axes |= {f"{name}_bias": axes[name][1:] for name in ("query", "key", "value")}
    if config.qk_norm:
        axes |= {"query_norm": ("head_dim",), "key_norm": ("head_dim",)}
    return axes


def forward(
    config: DecoderConfig, params: dict, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    """The hidden states of packed rows, after the final norm.

    Args:
      config: static.
      params: as from `init_params`.
      tokens: [B, S] int32; the value at padding does not matter.
      positions: [B, S] int32, the place within the segment, from 0.
      segment_ids: [B, S] int32, 0 for padding. A place attends to itself and to earlier places with the same id.

    Returns:
      [B, S, D] in the compute dtype; 0 at padding.
    """
    graphdef = block_graphdef(config)
    rotation = rotary_angles(config, positions)

    def layer(x: jax.Array, inputs: tuple[dict, jax.Array | None]) -> tuple[jax.Array, None]:
        layer_params, window = inputs

        def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, None]:
            options = {"window": window, "implementation": config.attention}
            return packed_attention(query, key, value, segment_ids, **options), None

        return nnx.merge(graphdef, layer_params)(x, rotation, attend)

    if config.remat != "none":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if config.remat == "dots" else None
        layer = jax.checkpoint(layer, prevent_cse=False, policy=policy)
    # Padding enters as 0 and every block maps 0 to 0: nothing at padding has a value or a gradient.
    x = jnp.where((segment_ids != 0)[:, :, None], embed(config, params, tokens), 0)
    x, _ = jax.lax.scan(layer, x, (params["blocks"], _windows(config)))
    return rms_norm(x, params["final_norm"], config.norm_eps)


def head_matrix(params: dict) -> jax.Array:
    """[D, V]: the matrix from hidden states to logits; the transposed embedding where they are tied."""
    return params["head"] if "head" in params else params["embedding"].T


def embed(config: DecoderConfig, params: dict, tokens: jax.Array) -> jax.Array:
    """tokens [...] -> [..., D] in the compute dtype."""
    return params["embedding"][tokens].astype(config.compute_dtype)


@functools.lru_cache(maxsize=64)
def block_graphdef(config: DecoderConfig) -> nnx.GraphDef:
    """The graph definition of a block: `nnx.merge(block_graphdef(config), layer_params)` is a callable layer."""
    return nnx.split(nnx.eval_shape(lambda: Block(config)))[0]


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * scale over the last axis (arXiv 1910.07467), computed in float32, returned in the dtype of `x`."""
    wide = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * inverse_rms * scale).astype(x.dtype)


def rotary_angles(config: DecoderConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary angles (arXiv 2104.09864): positions [B, S] -> two [B, S, 1, Dh / 2] float32."""
    half = config.head_dim // 2
    frequencies = config.rope_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if config.rope_scaling:
        frequencies = scale_frequencies(frequencies, config.rope_scaling)
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def scale_frequencies(frequencies: jax.Array, scaling: RopeScaling) -> jax.Array:
    """Rotary frequencies (radians a position) after Llama 3's scaling.

    With n turns over the original context, a frequency keeps the share (n - low) / (high - low), clipped to [0, 1], of
    itself, and the rest of it is divided by the factor.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rotate(x: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns the pairs (i, i + Dh / 2) of x [B, S, H, Dh] by their angles: the layout of published Llama weights."""
    cosine, sine = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


def _init_blocks(config: DecoderConfig, key: jax.Array) -> dict:
    """The stacked parameters of all blocks, {name: [L, ...]}."""
    layers, residual_scale = config.num_layers, (2 * config.num_layers) ** -0.5
    vectors = _vector_shapes(config)
    blocks = {name: jnp.full((layers, *shape), value, jnp.float32) for name, (shape, value) in vectors.items()}
    matrices = _matrix_shapes(config)
    for (name, (shape, fan_in)), matrix_key in zip(matrices.items(), jax.random.split(key, len(matrices)), strict=True):
        std = fan_in**-0.5 * (residual_scale if name in RESIDUAL_WRITERS else 1.0)
        blocks[name] = _draw(matrix_key, (layers, *shape), std)
    return blocks


def _draw(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """Normal float32 values, drawn flat: XLA's CPU compiler is several times slower on arrays with small last axes."""
    return std * jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)


def _matrix_shapes(config: DecoderConfig) -> dict[str, tuple[tuple[int, ...], int]]:
    """Name -> (shape, fan in) of the seven matrices of a block."""
    width, head_dim, mlp_width = config.width, config.head_dim, config.mlp_width
    return {
        "query": ((width, config.num_heads, head_dim), width),
        "key": ((width, config.num_kv_heads, head_dim), width),
        "value": ((width, config.num_kv_heads, head_dim), width),
        "output": ((config.num_heads, head_dim, width), config.num_heads * head_dim),
        "gate": ((width, mlp_width), width),
        "up": ((width, mlp_width), width),
        "down": ((mlp_width, width), mlp_width),
    }


def input_rank(name: str) -> int:
    """How many axes of a block's matrix are contracted with its input."""
    return 2 if name == "output" else 1


def adapter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the adapters of one block: [*in, r] and [r, *out] for every adapted matrix."""
    if config.lora is None:
        return {}
    shapes, matrices = {}, _matrix_shapes(config)
    for name in config.lora.targets:
        shape, inner = matrices[name][0], input_rank(name)
        shapes[name + ADAPTER_IN] = (*shape[:inner], config.lora.rank)
        shapes[name + ADAPTER_OUT] = (config.lora.rank, *shape[inner:])
    return shapes


def _vector_shapes(config: DecoderConfig) -> dict[str, tuple[tuple[int, ...], float]]:
    """Name -> (shape, initial value) of the norm scales and biases of a block."""
    shapes = dict.fromkeys(NORMS, ((config.width,), 1.0))
    if config.qkv_bias:
        shapes["query_bias"] = ((config.num_heads, config.head_dim), 0.0)
        shapes |= dict.fromkeys(("key_bias", "value_bias"), ((config.num_kv_heads, config.head_dim), 0.0))
    if config.qk_norm:
        shapes |= dict.fromkeys(("query_norm", "key_norm"), ((config.head_dim,), 1.0))
    return shapes


def _windows(config: DecoderConfig) -> jax.Array | None:
    """[L]: how far back each layer looks; None where all of them look at everything."""
    if not config.sliding_window:
        return None
    return jnp.array([config.window_of(layer) or _UNLIMITED for layer in range(config.num_layers)], jnp.int32)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"model.{name} must be one of {', '.join(choices)}, got {value!r}")
