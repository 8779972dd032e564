"""Published configurations and ours: which decoder a `config.json` describes, and the `config.json` of a decoder.

Known are Llama 2 and 3 (SmolLM2 among them), Qwen2, Qwen2.5 and Qwen3. Whatever we do not compute exactly raises by its
name: an architecture, an activation, a rope type, biases elsewhere, quantised weights.
"""

import json
import os
import pathlib
from typing import Any

from jaxagent.errors import UserError
from jaxagent.models.decoder import DecoderConfig, RopeScaling

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
CONFIG_FILE = "config.json"
_MAX_LAYERS = 10_000  # transformers makes lists of this length before anything can be checked against the weights
_SCALING_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a file; `UserError` names the file where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(found).__name__}")
    return found


def load_decoder_config(
    folder: str | pathlib.Path, *, compute_dtype: str = "float32", remat: str = "none", attention: str = "auto"
) -> DecoderConfig:
    """The decoder that the `config.json` of a checkpoint folder describes.

    Defaults that the file leaves out are those of `transformers`. No code from the folder runs.

    Raises:
      UserError: no such file, or one that describes something else than the decoders we know; names what it is.
    """
    path = pathlib.Path(folder) / CONFIG_FILE
    stored = read_json(path)
    _check_architecture(path, stored)
    config = _published_config(path, stored)
    _check_known(path, config)
    full_layers, window = _window(path, config)
    try:
        return DecoderConfig(
            vocab_size=config.vocab_size,
            width=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            mlp_width=config.intermediate_size,
            rope_base=float(config.rope_parameters["rope_theta"]),
            norm_eps=float(config.rms_norm_eps),
            tie_embeddings=bool(config.tie_word_embeddings),
            compute_dtype=compute_dtype,
            remat=remat,
            attention=attention,
            qkv_bias=config.model_type == "qwen2",
            qk_norm=config.model_type == "qwen3",
            rope_scaling=_rope_scaling(config),
            sliding_window=window,
            full_attention_layers=full_layers,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"{path}: describes no decoder: {type(error).__name__}: {error}") from None


def published_config(model: DecoderConfig, *, max_positions: int, dtype: str) -> dict[str, Any]:
    """The `config.json` of a decoder, in the keys that every release of `transformers` reads.

    Raises:
      UserError: no published architecture has this combination of fields.
    """
    name = "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama"
    if model.qk_norm and model.qkv_bias:
        raise UserError("no published architecture has model.qkv_bias and model.qk_norm together: cannot export")
    if name == "qwen2" and model.head_dim * model.num_heads != model.width:
        raise UserError("Qwen2 has no head_dim of its own: cannot export model.head_dim * model.num_heads != width")
    if name == "llama" and (model.sliding_window or model.width % model.num_heads):
        raise UserError("Llama has no sliding window, and a width that its heads divide: cannot export this model")
    found = {
        "architectures": [ARCHITECTURES[name]],
        "model_type": name,
        "vocab_size": model.vocab_size,
        "hidden_size": model.width,
        "intermediate_size": model.mlp_width,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": max_positions,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tie_embeddings,
        "rope_theta": model.rope_base,
        "rope_scaling": _published_scaling(model.rope_scaling),
        "torch_dtype": dtype,
    }
    if name != "qwen2":
        found |= {"head_dim": model.head_dim, "attention_bias": False}
    if name != "llama":
        layers = model.full_attention_layers if model.sliding_window else model.num_layers
        found |= {"use_sliding_window": bool(model.sliding_window), "max_window_layers": layers}
        found["sliding_window"] = model.sliding_window or None
    return found


def _check_architecture(path: pathlib.Path, stored: dict[str, Any]) -> None:
    name = stored.get("model_type")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UserError(f"{path}: architecture {name!r} is not known; known are {', '.join(ARCHITECTURES)}")
    architectures = stored.get("architectures") or []
    if not isinstance(architectures, list):
        raise UserError(f"{path}: architectures must be a list of names, found {architectures!r}")
    for architecture in architectures:
        if architecture != ARCHITECTURES[name]:
            raise UserError(f"{path}: {architecture} is no {ARCHITECTURES[name]}: only causal language models load")
    layers = stored.get("num_hidden_layers", 1)
    if not isinstance(layers, int) or not 0 < layers <= _MAX_LAYERS:
        raise UserError(f"{path}: num_hidden_layers={layers} is no number of layers")
    quantised = stored.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unnamed") if isinstance(quantised, dict) else "unnamed"
        raise UserError(f"{path}: the weights are quantised ({method}); take the checkpoint in bfloat16 or float32")


def _published_config(path: pathlib.Path, stored: dict[str, Any]) -> Any:
    """The file as a `transformers` configuration, with its defaults filled in."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoConfig

    try:
        known = {name: value for name, value in stored.items() if name not in ("auto_map", "model_type")}
        return AutoConfig.for_model(stored["model_type"], **known)
    except Exception as error:  # transformers validates by exceptions of several libraries
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: is no valid configuration: {reason}") from None


def _check_known(path: pathlib.Path, config: Any) -> None:
    if config.hidden_act != "silu":
        raise UserError(f"{path}: activation hidden_act={config.hidden_act!r} is not known; known is 'silu'")
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            raise UserError(f"{path}: {name}=true is not known; Qwen2's biases on query, key and value are")
    partial = config.rope_parameters.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise UserError(f"{path}: partial_rotary_factor={partial} is not known; whole heads are rotated")


def _rope_scaling(config: Any) -> RopeScaling | None:
    found = config.rope_parameters
    kind = found.get("rope_type", "default")
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(f"rope type {kind!r} is not known; known are 'default' and 'llama3'")
    missing = [name for name in _SCALING_FIELDS if found.get(name) is None]
    if missing:
        raise UserError(f"rope type 'llama3' lacks {', '.join(missing)}")
    *factors, context = (found[name] for name in _SCALING_FIELDS)
    return RopeScaling(*(float(factor) for factor in factors), int(context))


def _published_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    return {"rope_type": "llama3"} | {name: getattr(scaling, name) for name in _SCALING_FIELDS}


def _window(path: pathlib.Path, config: Any) -> tuple[int, int]:
    """(layers that look at everything, window of those after them); (0, 0) without a window."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UserError(f"{path}: layer type {sorted(unknown)[0]!r} is not known")
    if "sliding_attention" not in kinds:
        return 0, 0
    full = kinds.index("sliding_attention")
    if "full_attention" in kinds[full:]:
        raise UserError(f"{path}: layers with and without sliding window in turns are not known; full ones come first")
    if config.sliding_window is None:
        raise UserError(f"{path}: has layers with a sliding window, and no sliding_window")
    return full, int(config.sliding_window)
