"""A published checkpoint goes in, trains, and comes out again: whole weights, and LoRA adapters alone."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from published_checkpoints import make_config, write_checkpoint
from safetensors.numpy import load_file
from tiny_runs import SMALL, SilentLog

from jaxagent import exchange
from jaxagent.config_files import apply_overrides, load_config
from jaxagent.errors import UserError
from jaxagent.models import decoder
from jaxagent.rollout.setup import make_setup
from jaxagent.training import checkpoints, loop, sft
from jaxagent.training import state as states

SETTINGS = [field for field in SMALL if not field.startswith("model.")]
LORA = ("model.lora.rank=2", "model.lora.alpha=6.0", "model.lora.targets=('q_proj','o_proj','down_proj')")


def config_of(folder, *overrides):
    return apply_overrides(
        load_config("lookup_tiny:budgetmix,runlocal"),
        [*SETTINGS, f"model.pretrained={folder}", "sft.steps=2", "sft.demonstrations=8", "eval.every=0", *overrides],
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return folder, write_checkpoint(folder, "qwen3_tied", files=2)[1]


@pytest.fixture(scope="module")
def run_of(published, tmp_path_factory):
    """overrides -> the folder of a short supervised run from the published checkpoint."""

    @functools.cache
    def make(*overrides):
        workdir = tmp_path_factory.mktemp("run")
        config = config_of(published[0], *overrides)
        (workdir / "config.json").write_text(config.to_json())
        sft.run(config, workdir, resume=False, log=SilentLog())
        return workdir

    return make


def test_the_shape_comes_from_the_checkpoint_and_a_contradiction_is_named(published):
    setup = make_setup(config_of(published[0], "model.remat=full"))
    assert (setup.model.width, setup.model.vocab_size, setup.model.qk_norm) == (48, 704, True)
    assert setup.model.remat == "full" and setup.pretrained == published[0]
    make_setup(config_of(published[0], "model.width=48"))
    with pytest.raises(UserError, match=r"model\.width=32.*has 48"):
        make_setup(config_of(published[0], "model.width=32"))
    with pytest.raises(UserError, match=r"neither a folder nor an imported model"):
        make_setup(config_of("nothing_of_this_name"))
    with pytest.raises(UserError, match=r"lora\.rank=49 exceeds the model's width of 48"):
        make_setup(config_of(published[0], "model.lora.rank=49")).trained_model  # noqa: B018
    with pytest.raises(UserError, match=r"lora\.targets.*\('lm_head',\)"):
        make_setup(config_of(published[0], "model.lora.rank=2", "model.lora.targets=('lm_head',)")).trained_model  # noqa: B018


def test_training_starts_from_the_published_weights(published):
    setup = make_setup(config_of(published[0], *LORA))
    params = loop.initial_params(setup)
    expected = published[1]["model.layers.1.self_attn.k_proj.weight"]
    got = np.asarray(params["blocks"]["key"][1]).reshape(expected.shape[::-1]).T
    np.testing.assert_array_equal(got, expected)


def test_whole_weights_come_out_as_a_checkpoint_that_goes_in_again(published, run_of, tmp_path):
    run = run_of()
    exchange.export_run(run, str(tmp_path / "out"), kind="hf", dtype="float32")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == published[1].keys()
    moved = {name: np.abs(written[name] - array).max() for name, array in published[1].items()}
    assert all(0 < shift < 0.1 for shift in moved.values())
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == make_config("qwen3_tied")
    again = make_setup(config_of(tmp_path / "out"))
    trained = checkpoints.load_plain(run, again.model)
    jax.tree.map(np.testing.assert_array_equal, loop.initial_params(again), trained)
    with pytest.raises(UserError, match="exists"):
        exchange.export_run(run, str(tmp_path / "out"), kind="hf", dtype="float32")
    with pytest.raises(UserError, match="no LoRA adapters"):
        exchange.export_run(run, str(tmp_path / "adapters"), kind="peft", dtype="float32")


def test_lora_trains_adapters_alone_and_exports_them_merged_or_apart(published, run_of, tmp_path):
    run = run_of(*LORA)
    exchange.export_run(run, str(tmp_path / "merged"), kind="hf", dtype="float32")
    exchange.export_run(run, str(tmp_path / "adapters"), kind="peft", dtype="float32")
    settings = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (2, 6.0)
    assert settings["target_modules"] == ["q_proj", "o_proj", "down_proj"]
    assert settings["base_model_name_or_path"] == str(published[0])
    adapters = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert len(adapters) == 2 * 3 * 3
    for name, before in published[1].items():
        stem = "base_model.model." + name.removesuffix(".weight")
        if f"{stem}.lora_A.weight" not in adapters:
            np.testing.assert_array_equal(merged[name], before)
            continue
        inner, outer = adapters[f"{stem}.lora_A.weight"], adapters[f"{stem}.lora_B.weight"]
        assert inner.shape == (2, before.shape[1]) and outer.shape == (before.shape[0], 2)
        assert np.abs(outer).max() > 0
        np.testing.assert_allclose(merged[name], before + 3.0 * outer @ inner, atol=1e-6)


def test_a_lora_state_holds_moments_of_adapters_alone_and_shards_like_the_base(published):
    setup = make_setup(config_of(published[0], *LORA, "mesh.fsdp=2", "mesh.tensor=2"))
    optimizer = states.make_optimizer(states.optimizer_settings(setup.config.optimizer))
    state = loop.fresh_state(setup, optimizer)
    adapters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    base = sum(leaf.size for leaf in jax.tree.leaves(state.base))
    moments = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
    assert adapters < base / 10 and moments < 2 * adapters + 10
    spec = state.params["blocks"]["query_lora_out"].sharding.spec
    assert spec[2] == "tensor" and state.base["blocks"]["query"].sharding.spec[2] == "tensor"
    assert state.params["blocks"]["query_lora_in"].sharding.spec[1] == "fsdp"


@pytest.mark.parametrize(
    "extra",
    [
        ("algorithm.kl.coefficient=0.01",),
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("algorithm.critic.kind=separate",), marks=pytest.mark.slow),
    ],
)
def test_lora_learns_by_reinforcement_and_samples_what_it_scores(published, tmp_path, extra):
    if extra == ("algorithm.critic.kind=separate",):
        extra = (*extra, "algorithm.name=ppo", "algorithm.normalize_std=False")
    settings = (
        "algorithm.entropy_coefficient=0.1",
        "algorithm.steps=2",
        "checkpoint.every=1",
        "rollout.temperature=0.7",
    )
    config = config_of(published[0], *LORA, *settings, *extra)
    log = SilentLog()
    loop.run(config, tmp_path, resume=False, log=log)
    for line in log.lines.values():
        assert line["train/logprob_diff_mean"] < 1e-5 and line["cost/compilations"] == 0
        assert all(np.isfinite(value) for value in line.values())
    adapters, model = checkpoints.load_adapters(tmp_path)
    assert np.abs(adapters["blocks"]["query_lora_out"]).max() > 0
    plain = checkpoints.load_plain(tmp_path, model)
    expected = published[1]["model.layers.0.mlp.gate_proj.weight"].T
    np.testing.assert_array_equal(plain["blocks"]["gate"][0], expected)
    # A run without adapters starts from the merged weights of one with them.
    started = make_setup(config_of(published[0], f"model.init_from={tmp_path}"))
    jax.tree.map(np.testing.assert_array_equal, loop.initial_params(started), jax.device_get(plain))
    log = SilentLog()
    loop.run(apply_overrides(config, ["algorithm.steps=3"]), tmp_path, resume=True, log=log)
    assert log.started == (2, 3)


@pytest.mark.slow
def test_a_bad_export_is_told_before_the_weights_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "find_checkpoint", lambda run: pytest.fail("read"))
    for target, dtype, message in ((tmp_path, "float32", "exists"), (tmp_path / "new", "int3", "--dtype")):
        with pytest.raises(UserError, match=message):
            exchange.export_run(tmp_path, str(target), kind="hf", dtype=dtype)


def test_a_tiny_run_exports_too(tmp_path):
    config = apply_overrides(
        load_config("lookup_tiny:budgetmix,runlocal"), [*SMALL, "sft.steps=1", "sft.demonstrations=8"]
    )
    (tmp_path / "config.json").write_text(config.to_json())
    sft.run(config, tmp_path, resume=False, log=SilentLog())
    exchange.export_run(tmp_path, str(tmp_path / "out"), kind="hf", dtype="bfloat16")
    setup = make_setup(config_of(tmp_path / "out", "rollout.max_turn_tokens=2"))
    plain = dataclasses.replace(make_setup(config).model, embedding_std=0.02)
    assert dataclasses.replace(setup.model, embedding_std=0.02) == plain
    assert loop.initial_params(setup).keys() == decoder.param_shapes(plain).keys()
