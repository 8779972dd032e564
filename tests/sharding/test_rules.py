"""Sharding rules, and that eight simulated devices compute what one does."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from jaxagent.models.cache import decoding_axes, decoding_params
from jaxagent.models.decoder import DecoderConfig, forward, init_params, logical_axes
from jaxagent.models.logprobs import token_logprobs
from jaxagent.sharding import rules
from jaxagent.sharding.mesh import make_mesh

CONFIG = DecoderConfig(
    vocab_size=64, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=24, embedding_std=0.5
)

init = jax.jit(init_params, static_argnums=0)


def loss(config, params, batch):
    hidden = forward(config, params, batch["tokens"], batch["positions"], batch["segment_ids"])
    log_probs, entropy = token_logprobs(config, params, hidden, batch["tokens"], temperature=0.8, chunk=32)
    mask = (batch["segment_ids"] != 0) & (batch["positions"] > 0)
    return jnp.sum(jnp.where(mask, log_probs + 0.01 * entropy, 0.0)) / jnp.sum(mask), hidden


def make_batch(config, rows=8, length=20):
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length))
    positions = np.concatenate([np.arange(12), np.arange(length - 12)])
    segments = np.concatenate([np.full(12, 1), np.full(length - 15, 2), np.zeros(3, int)])
    return {
        "tokens": tokens,
        "positions": np.broadcast_to(positions, tokens.shape),
        "segment_ids": np.broadcast_to(segments, tokens.shape),
    }


def computed(config, params, batch, shardings=None, mesh=None):
    places = {} if mesh is None else {"in_shardings": (shardings, rules.batch_sharding(mesh))}
    step = jax.jit(jax.value_and_grad(lambda p, b: loss(config, p, b), has_aux=True), **places)
    (value, hidden), gradient = step(params, batch)
    return value, hidden, gradient


@functools.cache
def on_one_device(tied):
    config = dataclasses.replace(CONFIG, tie_embeddings=tied)
    params = init(config, jax.random.key(0))
    return config, params, computed(config, params, make_batch(config))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("sizes", "tied"),
    [
        ((2, 2, 2), True),
        ((1, 1, 8), False),
        pytest.param((8, 1, 1), True, marks=SLOW),
        pytest.param((1, 8, 1), False, marks=SLOW),
        pytest.param((1, 4, 2), True, marks=SLOW),
    ],
)
def test_eight_devices_equal_one(sizes, tied):
    config, params, (value, hidden, gradient) = on_one_device(tied)
    batch = make_batch(config)
    mesh = make_mesh(*sizes)
    shardings = rules.param_shardings(mesh, logical_axes(config), params)
    got_value, got_hidden, got_gradient = computed(
        config, jax.device_put(params, shardings), jax.device_put(batch, rules.batch_sharding(mesh)), shardings, mesh
    )
    assert got_value == pytest.approx(float(value), abs=1e-5)
    np.testing.assert_allclose(got_hidden, hidden, atol=1e-5)
    norm = np.sqrt(sum(np.sum(np.square(np.asarray(g))) for g in jax.tree.leaves(gradient)))
    errors = jax.tree.map(lambda a, b: float(np.max(np.abs(np.asarray(a) - np.asarray(b)))), got_gradient, gradient)
    assert max(jax.tree.leaves(errors)) < 1e-5 * norm
    assert len(got_hidden.sharding.device_set) == 8


def test_specs_of_the_decoder():
    mesh = make_mesh(2, 2, 2)
    shapes = jax.eval_shape(lambda: init_params(CONFIG, jax.random.key(0)))
    specs = jax.tree.map(lambda s: s.spec, rules.param_shardings(mesh, logical_axes(CONFIG), shapes))
    assert specs["embedding"] == P("tensor", "fsdp")
    assert specs["blocks"]["query"] == P(None, "fsdp", "tensor", None)
    assert specs["blocks"]["output"] == P(None, "tensor", None, "fsdp")
    assert specs["blocks"]["down"] == P(None, "tensor", "fsdp")
    assert specs["final_norm"] == P("fsdp")
    assert rules.batch_sharding(mesh).spec == P(("data", "fsdp"))
    assert rules.replicated(mesh).spec == P()


def test_an_axis_that_does_not_divide_stays_replicated():
    mesh = make_mesh(1, 2, 4)
    shape = jax.ShapeDtypeStruct((16, 2, 4), jnp.float32)  # two key-value heads on four tensor devices
    assert rules.param_shardings(mesh, ("embed", "kv_heads", "head_dim"), shape).spec == P("fsdp", None, None)


def test_sampler_copies_are_split_over_tensor_only():
    mesh = make_mesh(2, 2, 2)
    shapes = jax.eval_shape(lambda: decoding_params(CONFIG, init_params(CONFIG, jax.random.key(0))))
    shardings = rules.sampler_param_shardings(mesh, decoding_axes(CONFIG), shapes)
    used = {axis for s in jax.tree.leaves(shardings) for axis in s.spec if axis is not None}
    assert used == {"tensor"}
    assert shardings["blocks"][0]["gate"].shard_shape(shapes["blocks"][0]["gate"].shape) == (16, 12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(rules.RULES)), st.integers(1, 12)), max_size=5),
    st.sampled_from([(8, 1, 1), (2, 2, 2), (1, 4, 2), (4, 2, 1)]),
)
def test_no_mesh_axis_is_used_twice_and_every_split_divides(dims, sizes):
    mesh = make_mesh(*sizes)
    names, shape = tuple(name for name, _ in dims), tuple(size for _, size in dims)
    for place in (rules.param_shardings, rules.sampler_param_shardings):
        sharding = place(mesh, {"a": names}, {"a": jax.ShapeDtypeStruct(shape, jnp.float32)})["a"]
        flat = [axis for entry in sharding.spec if entry for axis in (entry if isinstance(entry, tuple) else (entry,))]
        assert len(flat) == len(set(flat))
        sharding.shard_shape(shape)  # raises where a split does not divide


def test_unknown_or_missing_axes_are_named():
    mesh = make_mesh()
    shape = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    with pytest.raises(ValueError, match="embbed"):
        rules.param_shardings(mesh, ("embbed", "mlp"), shape)
    with pytest.raises(ValueError, match="do not fit"):
        rules.param_shardings(mesh, ("embed",), shape)
