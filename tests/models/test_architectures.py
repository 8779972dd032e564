"""Published configurations: every field that matters reaches the decoder, whatever is unknown raises by its name."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from published_checkpoints import CASES, LLAMA3_SCALING, make_config, plain_frequencies

from jaxagent.errors import UserError
from jaxagent.models import decoder
from jaxagent.models.architectures import load_decoder_config, published_config

SCALING = decoder.RopeScaling(8.0, 1.0, 4.0, 8192)


def read(folder, config):
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return load_decoder_config(folder)


@pytest.mark.parametrize("case", CASES)
def test_fields_arrive(tmp_path, case):
    config, spec = make_config(case), CASES[case]
    model = read(tmp_path, config)
    assert (model.width, model.mlp_width, model.num_layers, model.vocab_size) == (48, 64, 3, 704)
    assert (model.num_heads, model.num_kv_heads) == (spec["heads"], spec["kv_heads"])
    assert model.head_dim == spec.get("head_dim", 48 // spec["heads"])
    assert (model.norm_eps, model.rope_base, model.tie_embeddings) == (1e-5, 500_000.0, spec["tied"])
    assert (model.qkv_bias, model.qk_norm) == (spec["model_type"] == "qwen2", spec["model_type"] == "qwen3")
    assert model.rope_scaling == (SCALING if "rope_scaling" in spec else None)
    assert [model.window_of(i) for i in range(3)] == ([None, 5, 5] if "window" in spec else [None] * 3)


@pytest.mark.parametrize("case", CASES)
def test_a_config_made_from_the_shape_describes_the_same_decoder(tmp_path, case):
    model = read(tmp_path, make_config(case))
    assert read(tmp_path, published_config(model, max_positions=100, dtype="bfloat16")) == model


def test_both_spellings_of_rope_parameters_are_read(tmp_path):
    """F24: the scaling counts under either name that releases of transformers write."""
    config = make_config("llama3")
    del config["rope_theta"], config["rope_scaling"]
    model = read(tmp_path, config | {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 1e5}})
    assert model.rope_scaling == SCALING and model.rope_base == 1e5


def test_scaled_frequencies_follow_the_formula_in_every_band(tmp_path):
    config = make_config("llama3")
    model = dataclasses.replace(read(tmp_path, config), head_dim=128, rope_base=500_000.0)
    expected = plain_frequencies(config, 128)
    plain = plain_frequencies(config | {"rope_scaling": None}, 128)
    share = expected / plain
    assert (
        np.sum(share == 1) > 5 and np.sum(np.isclose(share, 1 / 8)) > 5 and np.sum((share > 0.13) & (share < 0.99)) > 5
    )
    for position in (0, 1000, 20_000):
        cosine, sine = decoder.rotary_angles(model, jnp.array([[position]]))
        np.testing.assert_allclose(cosine[0, 0, 0], np.cos(position * expected), atol=2e-3)
        np.testing.assert_allclose(sine[0, 0, 0], np.sin(position * expected), atol=2e-3)
    np.testing.assert_allclose(decoder.scale_frequencies(jnp.array(plain, jnp.float32), SCALING), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "mamba"}, "architecture 'mamba' is not known; known are llama, qwen2, qwen3"),
        ({"model_type": None}, "architecture None"),
        ({"model_type": ["llama"]}, "architecture \\['llama'\\]"),
        ({"architectures": 5}, "architectures must be a list of names, found 5"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification is no LlamaForCausalLM",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not known"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic' is not known"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": LLAMA3_SCALING | {"low_freq_factor": 4.0}}, "low_freq_factor < high_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=true"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"num_key_value_heads": 4}, "num_kv_heads"),
        ({"hidden_size": "wide"}, "config.json"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
    ],
)
def test_what_is_not_computed_exactly_raises_by_name(tmp_path, changed, message):
    with pytest.raises(UserError, match=message) as raised:
        read(tmp_path, make_config("llama3") | changed)
    assert "\n" not in str(raised.value)


def test_layers_with_and_without_window_in_turns_are_not_known(tmp_path):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    with pytest.raises(UserError, match="in turns"):
        read(tmp_path, make_config("qwen2_window") | {"layer_types": kinds})


def test_a_window_without_a_size_is_named(tmp_path):
    changed = {"layer_types": ["sliding_attention"] * 3, "sliding_window": None, "use_sliding_window": False}
    with pytest.raises(UserError, match="no sliding_window"):
        read(tmp_path, make_config("qwen2_window") | changed)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{broken", "[" * 100_000])
def test_a_broken_file_is_named(tmp_path, text):
    with pytest.raises(UserError, match=r"config\.json"):
        read(tmp_path, text)


def test_what_no_published_architecture_can_say_is_not_exported(tmp_path):
    model = read(tmp_path, make_config("qwen3"))
    for changed in ({"qkv_bias": True}, {"qk_norm": False, "num_heads": 5, "num_kv_heads": 5}):
        with pytest.raises(UserError, match="cannot export"):
            published_config(dataclasses.replace(model, **changed), max_positions=10, dtype="float32")
