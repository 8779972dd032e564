"""Trained weights out: a Hugging Face checkpoint folder, or LoRA adapters as PEFT safetensors.

Configuration, tokenizer and generation settings come from the folder that describes the model; a model that was not
pretrained gets a configuration made from its shape.
"""

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxagent.errors import UserError
from jaxagent.models import lora
from jaxagent.models.architectures import CONFIG_FILE, load_decoder_config, published_config, read_json
from jaxagent.models.decoder import ADAPTER_IN, ADAPTER_OUT, DecoderConfig
from jaxagent.models.weights.folders import copy_description, new_folder
from jaxagent.models.weights.names import tensor_specs
from jaxagent.models.weights.write import DTYPES, MAX_FILE_BYTES, write_json, write_tensors

ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
# Fields of a DecoderConfig that say how to compute and not what.
_FREE = ("compute_dtype", "remat", "attention", "embedding_std", "lora")


def export_checkpoint(
    folder: str | pathlib.Path,
    model: DecoderConfig,
    params: dict,
    *,
    described_by: str | pathlib.Path,
    max_positions: int,
    dtype: str = "float32",
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Writes a checkpoint folder that transformers, vLLM and SGLang load.

    Args:
      folder: made here; must not exist.
      model: the decoder; its `lora` does not matter.
      params: plain parameters, placed anyhow; they are fetched one tensor at a time.
      described_by: folder with tokenizer files, and with `config.json` for a pretrained model.
      max_positions: the longest context, for the `config.json` of a model that was not pretrained.
      dtype: one of `write.DTYPES`.
      max_file_bytes: weights beyond it are split over several files.

    Raises:
      UserError: the folder exists, the dtype is unknown, or no published architecture fits.
    """
    if dtype not in DTYPES:
        raise UserError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    source = pathlib.Path(described_by)
    config = _config(model, source, max_positions, dtype)
    specs = {spec.name: spec for spec in tensor_specs(model, params)}

    def read(name: str) -> np.ndarray:
        spec = specs[name]
        array = functools.reduce(lambda node, key: node[key], spec.path, params)
        return spec.to_published(jax.device_get(array if spec.layer is None else array[spec.layer]))

    with new_folder(folder) as scratch:
        copy_description(source, scratch)
        write_json(scratch / CONFIG_FILE, config)
        shapes = {name: spec.shape for name, spec in specs.items()}
        write_tensors(scratch, shapes, read, dtype=dtype, max_file_bytes=max_file_bytes)


def export_adapters(folder: str | pathlib.Path, model: DecoderConfig, adapters: dict, *, base: str) -> None:
    """Writes `adapter_model.safetensors` and `adapter_config.json` as PEFT has them, float32.

    Args:
      folder: made here; must not exist.
      model: with `lora`.
      adapters: as from `lora.init_adapters`.
      base: the checkpoint that the adapters belong to, a path or a hub name.
    """
    tensors = dict(_peft_tensors(model, adapters))
    published = {ours: name for name, ours in lora.TARGETS.items()}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": model.lora.rank,
        "lora_alpha": model.lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": [published[name] for name in model.lora.targets],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with new_folder(folder) as scratch:
        shapes = {name: array.shape for name, array in tensors.items()}
        write_tensors(scratch, shapes, tensors.__getitem__, max_file_bytes=1 << 62)
        (scratch / "model.safetensors").rename(scratch / ADAPTER_FILE)
        write_json(scratch / ADAPTER_CONFIG, config)


def _peft_tensors(model: DecoderConfig, adapters: dict) -> Iterator[tuple[str, np.ndarray]]:
    """(name, [r, in] or [out, r]) of every adapter of every layer."""
    for published, name in lora.TARGETS.items():
        if name not in model.lora.targets:
            continue
        inner = jax.device_get(adapters["blocks"][name + ADAPTER_IN])
        outer = jax.device_get(adapters["blocks"][name + ADAPTER_OUT])
        part = "mlp" if name in ("gate", "up", "down") else "self_attn"
        for layer in range(model.num_layers):
            prefix = f"base_model.model.model.layers.{layer}.{part}.{published}"
            yield f"{prefix}.lora_A.weight", np.ascontiguousarray(inner[layer].reshape(-1, model.lora.rank).T)
            yield f"{prefix}.lora_B.weight", np.ascontiguousarray(outer[layer].reshape(model.lora.rank, -1).T)


def _config(model: DecoderConfig, source: pathlib.Path, max_positions: int, dtype: str) -> dict[str, Any]:
    path = source / CONFIG_FILE
    if not path.is_file():
        return published_config(model, max_positions=max_positions, dtype=dtype)
    found = load_decoder_config(source)
    differing = [
        name
        for name in DecoderConfig.__dataclass_fields__
        if name not in _FREE and getattr(found, name) != getattr(model, name)
    ]
    if differing:
        raise UserError(f"{path}: describes another model than the weights: {', '.join(differing)} differ")
    stored = {name: value for name, value in read_json(path).items() if name not in ("auto_map", "dtype")}
    return stored | {"torch_dtype": dtype}
