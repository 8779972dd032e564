"""Names and layouts: our parameters and the tensors of published checkpoints, in both directions.

A published matrix maps [out, in]; ours map in to out, with heads on an axis of their own, and blocks are stacked.
"""

import dataclasses

import numpy as np

from jaxagent.models.decoder import DecoderConfig

EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
# Buffers that old checkpoints carry; they follow from the configuration.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
_BLOCK_NAMES = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One published tensor and where it lives in our parameters."""

    name: str
    shape: tuple[int, ...]  # as published
    path: tuple[str, ...]  # of the parameter: ("embedding",), ("blocks", "query")
    layer: int | None  # its place on the parameter's leading axis; None: the parameter has none
    own_shape: tuple[int, ...]  # in our layout, without the layer axis

    def to_own(self, array: np.ndarray) -> np.ndarray:
        """The published array in our layout: a view where the layout allows it."""
        return (array if self._is_plain else array.T).reshape(self.own_shape)

    def to_published(self, array: np.ndarray) -> np.ndarray:
        """Back again, contiguous."""
        flat = array.reshape(self.shape if self._is_plain else self.shape[::-1])
        return np.ascontiguousarray(flat if self._is_plain else flat.T)

    @property
    def _is_plain(self) -> bool:
        return len(self.shape) == 1 or self.path == ("embedding",)


def tensor_specs(config: DecoderConfig, shapes: dict) -> list[TensorSpec]:
    """Every tensor of a checkpoint of this decoder, the large ones outside the blocks first.

    Args:
      config: static.
      shapes: arrays or `jax.ShapeDtypeStruct`s in the structure of `decoder.init_params`.
    """
    outside = {"embedding": EMBEDDING, "head": HEAD, "final_norm": FINAL_NORM}
    specs = []
    for name, published in outside.items():
        if name in shapes:
            specs.append(_spec(published, (name,), None, tuple(shapes[name].shape)))
    for name, stacked in shapes["blocks"].items():
        for layer in range(config.num_layers):
            published = f"model.layers.{layer}.{_BLOCK_NAMES[name]}"
            specs.append(_spec(published, ("blocks", name), layer, tuple(stacked.shape[1:])))
    return specs


def _spec(name: str, path: tuple[str, ...], layer: int | None, own: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name=name, shape=_published_shape(path, own), path=path, layer=layer, own_shape=own)


def _published_shape(path: tuple[str, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    name = path[-1]
    if name in ("query", "key", "value"):  # [D, H, Dh]
        return (own[1] * own[2], own[0])
    if name == "output":  # [H, Dh, D]
        return (own[2], own[0] * own[1])
    if name.endswith("_bias"):  # [H, Dh]
        return (own[0] * own[1],)
    return own if len(own) == 1 or name == "embedding" else own[::-1]
