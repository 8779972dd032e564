"""The decoder against a Llama block written in plain NumPy loops, packing, padding, and its configuration."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.errors import UserError
from jaxagent.models.decoder import DecoderConfig, forward, head_matrix, init_params, logical_axes

SMALL = DecoderConfig(
    vocab_size=23,
    width=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    mlp_width=20,
    rope_base=100.0,
    norm_eps=1e-5,
    embedding_std=0.5,
)
init = jax.jit(init_params, static_argnums=0)
run_forward = jax.jit(forward, static_argnums=0)


def plain_norm(vector, scale, eps):
    return vector / math.sqrt(sum(v * v for v in vector) / len(vector) + eps) * scale


def plain_turn(vector, position, base):
    """Rotary positions through complex numbers: the pair (i, i + half) is one number."""
    half = len(vector) // 2
    pairs = vector[:half] + 1j * vector[half:]
    turned = pairs * np.exp(1j * position * np.array([base ** (-2 * i / len(vector)) for i in range(half)]))
    return np.concatenate([turned.real, turned.imag])


def plain_attention(layer, normed, config):
    """One place and one head at a time."""
    length, share = len(normed), config.num_heads // config.num_kv_heads
    out = np.zeros((length, config.width))
    for head in range(config.num_heads):
        kv_head = head // share
        turn = [lambda v, s=s: plain_turn(v, s, config.rope_base) for s in range(length)]
        queries = [turn[s](normed[s] @ layer["query"][:, head]) for s in range(length)]
        keys = [turn[s](normed[s] @ layer["key"][:, kv_head]) for s in range(length)]
        values = [normed[s] @ layer["value"][:, kv_head] for s in range(length)]
        for s in range(length):
            weights = [math.exp(queries[s] @ keys[t] / math.sqrt(config.head_dim)) for t in range(s + 1)]
            mixed = sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights)
            out[s] += mixed @ layer["output"][head]
    return out


def plain_forward(config, params, tokens):
    """One segment, float64, no batch: [S] -> [S, D]."""
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x = params["embedding"][tokens]
    for index in range(config.num_layers):
        layer = {name: stacked[index] for name, stacked in params["blocks"].items()}
        normed = np.array([plain_norm(v, layer["attention_norm"], config.norm_eps) for v in x])
        x = x + plain_attention(layer, normed, config)
        for s, v in enumerate(x):
            normed_v = plain_norm(v, layer["mlp_norm"], config.norm_eps)
            gate = normed_v @ layer["gate"]
            x[s] = v + (gate / (1 + np.exp(-gate)) * (normed_v @ layer["up"])) @ layer["down"]
    return np.array([plain_norm(v, params["final_norm"], config.norm_eps) for v in x])


def one_segment(tokens):
    tokens = np.asarray(tokens)[None]
    return tokens, np.arange(tokens.shape[1])[None], np.ones_like(tokens)


@pytest.mark.parametrize(("num_kv_heads", "tied"), [(4, True), (2, False), (1, True), (2, True)])
def test_forward_equals_plain_numpy(random_params, num_kv_heads, tied):
    config = dataclasses.replace(SMALL, num_kv_heads=num_kv_heads, tie_embeddings=tied)
    params = random_params(config)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 9)
    hidden = run_forward(config, params, *one_segment(tokens))
    assert hidden.dtype == jnp.float32
    expected = plain_forward(config, params, tokens)
    np.testing.assert_allclose(hidden[0], expected, atol=2e-5)
    head = np.asarray(params["embedding"]).T if tied else np.asarray(params["head"])
    np.testing.assert_array_equal(head_matrix(params), head)
    assert ("head" in params) is not tied


def test_packed_equals_unpacked_across_query_blocks(random_params):
    """Three segments in a row of 300 places: more than two query blocks, segment borders inside blocks."""
    params = random_params(SMALL)
    rng = np.random.default_rng(2)
    lengths = (150, 17, 90)
    pieces = [rng.integers(0, SMALL.vocab_size, n) for n in lengths]
    tokens = np.concatenate([*pieces, rng.integers(0, SMALL.vocab_size, 300 - sum(lengths))])
    positions = np.concatenate([*(np.arange(n) for n in lengths), np.zeros(300 - sum(lengths), int)])
    segments = np.concatenate([*(np.full(n, i + 1) for i, n in enumerate(lengths)), np.zeros(300 - sum(lengths), int)])
    packed = np.asarray(run_forward(SMALL, params, tokens[None], positions[None], segments[None]))[0]
    start = 0
    for piece in pieces:
        alone = run_forward(SMALL, params, *one_segment(piece))[0]
        np.testing.assert_allclose(packed[start : start + len(piece)], alone, atol=1e-5)
        start += len(piece)
    assert not np.any(packed[start:])


def test_padding_is_irrelevant_and_gets_no_gradient(random_params):
    params = random_params(SMALL)
    tokens, positions, segments = one_segment(np.arange(10) % SMALL.vocab_size)
    segments[:, 7:] = 0

    def value(params, tokens):
        return jnp.sum(forward(SMALL, params, tokens, positions, segments) ** 3)

    garbage = tokens.copy()
    garbage[:, 7:] = SMALL.vocab_size - 1  # an id that no real place uses
    step = jax.jit(jax.value_and_grad(value))
    plain, gradient = step(params, tokens)
    other, other_gradient = step(params, garbage)
    assert plain == other
    jax.tree.map(np.testing.assert_array_equal, gradient, other_gradient)
    assert not np.any(np.asarray(other_gradient["embedding"])[SMALL.vocab_size - 1])
    short = run_forward(SMALL, params, tokens[:, :7], positions[:, :7], segments[:, :7])
    whole = np.asarray(run_forward(SMALL, params, tokens, positions, segments))
    np.testing.assert_allclose(whole[:, :7], short, atol=1e-6)


def test_remat_changes_nothing_but_memory(random_params):
    params = random_params(SMALL)
    inputs = one_segment(np.arange(11))

    def gradient(config):
        return jax.jit(jax.grad(lambda params: jnp.sum(forward(config, params, *inputs) ** 3)))(params)

    kept, recomputed = gradient(SMALL), gradient(dataclasses.replace(SMALL, remat="full"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), kept, recomputed)


def test_bfloat16_computes_in_bfloat16_near_float32(random_params):
    params = random_params(SMALL)
    inputs = one_segment(np.arange(11))
    hidden = run_forward(dataclasses.replace(SMALL, compute_dtype="bfloat16"), params, *inputs)
    assert hidden.dtype == jnp.bfloat16
    np.testing.assert_allclose(hidden.astype(jnp.float32), run_forward(SMALL, params, *inputs), atol=0.1)


def test_initial_scales():
    """Matrices sd 1/sqrt(fan_in), the two that write to the residual stream times 1/sqrt(2 L), tables as configured."""
    config = DecoderConfig(
        vocab_size=512,
        width=96,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        mlp_width=200,
        embedding_std=0.3,
        tie_embeddings=False,
    )
    params = init(config, jax.random.key(3))
    expected = {name: 96**-0.5 for name in ("query", "key", "value", "gate", "up")}
    expected |= {"output": 128**-0.5 * 6**-0.5, "down": 200**-0.5 * 6**-0.5}
    for name, std in expected.items():
        for layer in params["blocks"][name]:
            assert np.std(layer) == pytest.approx(std, rel=0.05), name
    assert np.std(params["embedding"]) == pytest.approx(0.3, rel=0.02)
    assert np.std(params["head"]) == pytest.approx(96**-0.5, rel=0.02)
    assert all(np.all(np.asarray(params["blocks"][name]) == 1) for name in ("attention_norm", "mlp_norm"))
    assert not np.array_equal(params["blocks"]["gate"][0], params["blocks"]["gate"][1])


@pytest.mark.parametrize("tied", [True, False])
def test_params_are_plain_and_logical_axes_fit_them(tied):
    config = dataclasses.replace(SMALL, tie_embeddings=tied)
    params = init(config, jax.random.key(0))
    assert type(params["blocks"]) is dict
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    sizes = {
        "layers": 2,
        "vocab": 23,
        "embed": 12,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 6,
        "mlp": 20,
    }
    shapes = jax.tree.map(
        lambda names: tuple(sizes[name] for name in names), logical_axes(config), is_leaf=lambda x: isinstance(x, tuple)
    )
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, params)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_kv_heads", 3),
        ("head_dim", 5),
        ("compute_dtype", "float16"),
        ("remat", "some"),
        ("width", 0),
        ("num_layers", 1.5),
        ("norm_eps", float("nan")),
        ("embedding_std", -1.0),
    ],
)
def test_bad_config_is_named(field, value):
    with pytest.raises(UserError, match=field):
        dataclasses.replace(SMALL, **{field: value})


def test_config_is_hashable_by_value():
    assert hash(SMALL) == hash(dataclasses.replace(SMALL))
    assert dataclasses.replace(SMALL) == SMALL
