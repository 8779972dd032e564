"""GGUF files as tensor sources: published names, dequantised to float32, rows of query and key in published order.

llama.cpp interleaves the two halves of every query and key head of a Llama; published checkpoints keep them apart.
"""

import pathlib
from typing import Any

import numpy as np

from jaxagent.errors import UserError

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


class GGUFFile:
    """The tensors, the configuration and the metadata of one GGUF file."""

    def __init__(self, path: str | pathlib.Path) -> None:
        """Reads the header; `UserError` for a damaged file, an unknown architecture or a tensor without a name here."""
        self.where = str(path)
        try:
            import gguf
        except ImportError:
            raise UserError("reading GGUF needs the package gguf: pip install 'jaxagent[gguf]'") from None
        self._dequantize = gguf.quants.dequantize
        try:
            reader = gguf.GGUFReader(str(path))
            self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except Exception as error:  # the reader answers damage with exceptions of many types
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: is no whole GGUF file ({reason})") from None
        self.architecture = self.metadata.get("general.architecture")
        if self.architecture not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise UserError(f"{path}: architecture {self.architecture!r} is not known; known are {known}")
        self._tensors = {self._published_name(tensor.name): tensor for tensor in reader.tensors}
        self.shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """The tensor in float32 as a published checkpoint holds it."""
        tensor = self._tensors[name]
        array = self._dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(self.shapes[name])
        if self.architecture == "llama" and ".q_proj." in name:
            return _unpermute(array, self._number("attention.head_count"))
        if self.architecture == "llama" and ".k_proj." in name:
            return _unpermute(array, self._number("attention.head_count_kv"))
        return array

    def config(self) -> dict[str, Any]:
        """The `config.json` of the checkpoint."""
        heads, width = self._number("attention.head_count"), self._number("embedding_length")
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        found = {
            "architectures": [_ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": len(tokens) if tokens else self._number("vocab_size"),
            "hidden_size": width,
            "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._number("attention.head_count_kv", heads),
            "hidden_act": "silu",
            "max_position_embeddings": self._number("context_length"),
            "rms_norm_eps": float(f"{self._number('attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": float(self._number("rope.freq_base", 10_000.0)),
            "rope_scaling": None,
            "tie_word_embeddings": "lm_head.weight" not in self.shapes,
            "torch_dtype": "float32",
        }
        if self.architecture != "qwen2":
            found["head_dim"] = self._number("attention.key_length", width // heads)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            number = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
            if number is not None:
                found[f"{name}_token_id"] = int(number)
        return found

    def _number(self, key: str, default: float | None = None) -> Any:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{self.where}: {self.architecture}.{key} is missing or no number")
        return value

    def _published_name(self, name: str) -> str:
        if name in _OUTSIDE:
            return _OUTSIDE[name]
        if name == "rope_freqs.weight":
            raise UserError(
                f"{self.where}: holds scaled rotary frequencies (rope_freqs) without the numbers they were made from; "
                "import the safetensors checkpoint of this model"
            )
        parts = name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _BLOCK:
            return f"model.layers.{int(parts[1])}.{_BLOCK[parts[2]]}.{parts[3]}"
        raise UserError(f"{self.where}: the tensor {name!r} is not known")


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows (head, pair, half) back to (head, half, pair)."""
    rows = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(array.shape)
