"""Small published checkpoints made by hand, and what they compute in float64 with plain loops over heads."""

import json
import math
import pathlib

import numpy as np
from safetensors.numpy import save_file

from jaxagent.models.tokenizer import build_tiny_tokenizer

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# Query heads per key-value head 3, 2, 3, 2 and 1; tied and untied.
CASES = {
    "llama3": {"model_type": "llama", "heads": 6, "kv_heads": 2, "tied": True, "rope_scaling": LLAMA3_SCALING},
    "qwen2": {"model_type": "qwen2", "heads": 4, "kv_heads": 2, "tied": False},
    "qwen3": {"model_type": "qwen3", "heads": 3, "kv_heads": 1, "tied": False, "head_dim": 12},
    "qwen3_tied": {"model_type": "qwen3", "heads": 4, "kv_heads": 2, "tied": True, "head_dim": 8},
    "qwen2_window": {"model_type": "qwen2", "heads": 2, "kv_heads": 2, "tied": True, "window": 5},
}
VOCAB = 704  # the tiny tokenizer's tokens and some more


def make_config(case):
    spec = CASES[case]
    width = 48
    config = {
        "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[spec["model_type"]] + "ForCausalLM"],
        "model_type": spec["model_type"],
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": spec["heads"],
        "num_key_value_heads": spec["kv_heads"],
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": spec.get("rope_scaling"),
        "tie_word_embeddings": spec["tied"],
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if "head_dim" in spec:
        config["head_dim"] = spec["head_dim"]
    if "window" in spec:
        config |= {"use_sliding_window": True, "sliding_window": spec["window"], "max_window_layers": 1}
    return config


def make_tensors(config, seed=0, dtype=np.float32):
    """Random tensors under the names and in the layout of published checkpoints."""
    noise = np.random.default_rng(seed)
    width, mlp = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", width // config["num_attention_heads"])
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (VOCAB, width), "model.norm.weight": (width,)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm.weight": (width,), at + "post_attention_layernorm.weight": (width,)}
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, width)
            if config["model_type"] == "qwen2":
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        shapes[at + "self_attn.o_proj.weight"] = (width, queries)
        if config["model_type"] == "qwen3":
            shapes |= {f"{at}self_attn.{n}_norm.weight": (head_dim,) for n in "qk"}
        shapes |= {f"{at}mlp.{n}_proj.weight": (mlp, width) for n in ("gate", "up")}
        shapes[at + "mlp.down_proj.weight"] = (width, mlp)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, width)

    def draw(name, shape):
        if "norm" in name:
            return noise.uniform(0.5, 1.5, shape)
        return noise.normal(size=shape) * (0.3 if len(shape) == 1 else shape[-1] ** -0.5)

    return {name: draw(name, shape).astype(dtype) for name, shape in shapes.items()}


def write_checkpoint(folder, case, *, files=1, seed=0, dtype=np.float32, tokenizer=True):
    """Writes a checkpoint folder; returns its configuration and its tensors."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(case)
    tensors = make_tensors(config, seed, dtype)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    if tokenizer:
        build_tiny_tokenizer(folder)
    if files == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return config, tensors
    weight_map = {}
    names = sorted(tensors)
    for number in range(files):
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        chosen = names[number::files]
        save_file({name: tensors[name] for name in chosen}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(chosen, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return config, tensors


def plain_frequencies(config, head_dim):
    """Radians a position of every pair, band by band as Llama 3 describes them."""
    found = []
    for pair in range(head_dim // 2):
        frequency = config["rope_theta"] ** (-2 * pair / head_dim)
        scaling = config["rope_scaling"]
        if scaling:
            context, wavelength = scaling["original_max_position_embeddings"], 2 * math.pi / frequency
            if wavelength > context / scaling["low_freq_factor"]:
                frequency /= scaling["factor"]
            elif wavelength >= context / scaling["high_freq_factor"]:
                low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
                smooth = (context / wavelength - low) / (high - low)
                frequency = (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
        found.append(frequency)
    return np.array(found)


def plain_log_probs(config, tensors, ids, first_position=0):
    """[S] ids -> [S, V] log-probs of one sequence, float64."""
    tensors = {name: np.asarray(array, np.float64) for name, array in tensors.items()}
    norm = lambda x, scale: x / np.sqrt(np.mean(x * x, -1, keepdims=True) + config["rms_norm_eps"]) * scale  # noqa: E731
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    angles = np.arange(first_position, first_position + len(ids))[:, None] * plain_frequencies(config, head_dim)
    cosine, sine = np.cos(angles), np.sin(angles)

    def turned(x):
        half = head_dim // 2
        return np.concatenate(
            [x[:, :half] * cosine - x[:, half:] * sine, x[:, half:] * cosine + x[:, :half] * sine], -1
        )

    x = tensors["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        get = lambda name, i=i: tensors[f"model.layers.{i}.{name}"]  # noqa: E731
        window = config.get("sliding_window") if i >= config.get("max_window_layers", 0) else None
        normed = norm(x, get("input_layernorm.weight"))

        def project(name, head, normed=normed, get=get):
            rows = slice(head * head_dim, (head + 1) * head_dim)
            out = normed @ get(f"self_attn.{name}_proj.weight")[rows].T
            return out + get(f"self_attn.{name}_proj.bias")[rows] if config["model_type"] == "qwen2" else out

        attended = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            query, key, value = project("q", head), project("k", shared), project("v", shared)
            if config["model_type"] == "qwen3":
                query, key = norm(query, get("self_attn.q_norm.weight")), norm(key, get("self_attn.k_norm.weight"))
            query, key = turned(query), turned(key)
            rows = []
            for s in range(len(ids)):
                first = 0 if window is None else max(0, s - window + 1)
                scores = key[first : s + 1] @ query[s] / math.sqrt(head_dim)
                weights = np.exp(scores - scores.max())
                rows.append(weights / weights.sum() @ value[first : s + 1])
            attended.append(np.array(rows))
        x = x + np.concatenate(attended, -1) @ get("self_attn.o_proj.weight").T
        normed = norm(x, get("post_attention_layernorm.weight"))
        gate = normed @ get("mlp.gate_proj.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ get("mlp.up_proj.weight").T)) @ get("mlp.down_proj.weight").T
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    logits = norm(x, tensors["model.norm.weight"]) @ head.T
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
