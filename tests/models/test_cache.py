"""Decoding with the KV cache equals the training forward, however the tokens are cut into pieces."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.models import cache as kv
from jaxagent.models.decoder import DecoderConfig, forward
from jaxagent.models.logprobs import token_logprobs

CONFIG = DecoderConfig(
    vocab_size=29,
    width=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    mlp_width=24,
    embedding_std=0.5,
    tie_embeddings=False,
)
LENGTH, SLOTS, CAPACITY, WIDTH = 13, 3, 16, 6
run_forward = jax.jit(forward, static_argnums=0)
append = jax.jit(kv.append, static_argnums=0)
unstack = jax.jit(kv.decoding_params, static_argnums=0)


@pytest.fixture(scope="module")
def sequences(random_params):
    """config -> parameters, tokens [N, LENGTH] and the hidden states of the training forward, in NumPy."""

    @functools.cache
    def make(config):
        params = random_params(config)
        tokens = np.random.default_rng(0).integers(0, config.vocab_size, (SLOTS, LENGTH))
        positions = np.broadcast_to(np.arange(LENGTH), tokens.shape)
        hidden = run_forward(config, params, tokens, positions, np.ones_like(tokens))
        return params, tokens, np.asarray(hidden)

    return make


def append_pieces(config, params, cache, tokens, pieces, width=WIDTH):
    """Appends pieces [steps, N] of each row; yields (lengths, hidden, cache) after each step."""
    lengths = np.zeros(SLOTS, int)
    for counts in pieces:
        window = np.full((SLOTS, width), config.vocab_size - 1)
        for row, count in enumerate(counts):
            window[row, :count] = tokens[row, lengths[row] : lengths[row] + count]
        hidden, cache = append(config, params, cache, window, np.asarray(counts))
        lengths = lengths + np.asarray(counts)
        yield lengths, np.asarray(hidden), cache


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, WIDTH), min_size=SLOTS, max_size=SLOTS), min_size=1, max_size=9))
def test_any_split_equals_forward(sequences, pieces):
    params, tokens, expected = sequences(CONFIG)
    room = np.full(SLOTS, LENGTH)
    fitted = []
    for counts in pieces:
        fitted.append(np.minimum(counts, room).tolist())
        room = room - fitted[-1]
    cache = kv.init_cache(CONFIG, SLOTS, CAPACITY)
    decoding = unstack(CONFIG, params)
    for counts, (lengths, hidden, after) in zip(
        fitted, append_pieces(CONFIG, decoding, cache, tokens, fitted), strict=True
    ):
        np.testing.assert_array_equal(after["lengths"], lengths)
        for row in np.flatnonzero(counts):
            np.testing.assert_allclose(hidden[row], expected[row, lengths[row] - 1], atol=1e-5)


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_one_token_at_a_time_equals_forward(sequences, num_kv_heads):
    config = dataclasses.replace(CONFIG, num_kv_heads=num_kv_heads)
    params, tokens, expected = sequences(config)
    cache = kv.init_cache(config, SLOTS, CAPACITY)
    steps = append_pieces(config, unstack(config, params), cache, tokens, [[1] * SLOTS] * LENGTH, width=1)
    for lengths, hidden, _ in steps:
        np.testing.assert_allclose(hidden, expected[:, lengths[0] - 1], atol=1e-5)


def test_idle_rows_and_padding_are_never_written(sequences):
    params, tokens, _ = sequences(CONFIG)
    decoding = unstack(CONFIG, params)
    noise = np.random.default_rng(5)
    empty = kv.init_cache(CONFIG, SLOTS, CAPACITY)
    cache = jax.tree.map(lambda a: noise.normal(size=a.shape).astype(a.dtype), empty)
    cache["lengths"] = np.array([3, CAPACITY - 2, 0], np.int32)
    counts = np.array([0, 2, 4])
    hidden, after = append(CONFIG, decoding, cache, tokens[:, :WIDTH], counts)
    assert np.all(np.isfinite(hidden))
    np.testing.assert_array_equal(after["lengths"], [3, CAPACITY, 4])
    for name in ("k", "v"):
        for old, new in zip(cache[name], after[name], strict=True):
            changed = np.any(np.asarray(old) != np.asarray(new), axis=(2, 3))
            expected = np.zeros((SLOTS, CAPACITY), bool)
            expected[1, CAPACITY - 2 :] = True
            expected[2, :4] = True
            np.testing.assert_array_equal(changed, expected)


def test_a_refilled_slot_does_not_read_what_it_held(sequences):
    params, tokens, expected = sequences(CONFIG)
    decoding = unstack(CONFIG, params)
    cache = kv.init_cache(CONFIG, SLOTS, CAPACITY)
    _, cache = append(CONFIG, decoding, cache, tokens[::-1, :WIDTH], np.full(SLOTS, WIDTH))
    cache["lengths"] = cache["lengths"].at[0].set(0)
    window = tokens[:, :WIDTH]
    hidden, _ = append(CONFIG, decoding, cache, window, np.array([2, 0, 0]))
    np.testing.assert_allclose(hidden[0], expected[0, 1], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_and_trained_log_probs_agree(sequences, dtype):
    config = dataclasses.replace(CONFIG, compute_dtype=dtype)
    params, tokens, hidden = sequences(config)
    score = jax.jit(functools.partial(token_logprobs, config, temperature=1.0, chunk=8))
    trained = np.asarray(score(params, hidden, tokens)[0])
    decoding = unstack(config, params)
    cache = kv.init_cache(config, SLOTS, CAPACITY)
    tolerance = 1e-5 if dtype == "float32" else 0.05
    for lengths, last, _ in append_pieces(config, decoding, cache, tokens, [[4] * SLOTS, [1] * SLOTS]):
        logits = np.asarray(kv.next_token_logits(decoding, last), np.float64)
        assert logits.shape == (SLOTS, config.vocab_size)
        chosen = logits[np.arange(SLOTS), tokens[:, lengths[0]]] - np.log(np.exp(logits).sum(-1))
        np.testing.assert_allclose(chosen, trained[:, lengths[0]], atol=tolerance)


def test_decoding_params_are_unstacked_in_the_compute_dtype(random_params):
    config = dataclasses.replace(CONFIG, compute_dtype="bfloat16", num_layers=1)
    decoding = unstack(config, random_params(config))
    assert isinstance(decoding["blocks"], tuple) and len(decoding["blocks"]) == 1
    assert decoding["blocks"][0]["gate"].dtype == jnp.bfloat16
    assert decoding["blocks"][0]["mlp_norm"].dtype == decoding["final_norm"].dtype == jnp.float32
    jax.tree.map(
        lambda names, leaf: np.testing.assert_equal(len(names), leaf.ndim),
        kv.decoding_axes(config),
        decoding,
        is_leaf=lambda node: isinstance(node, tuple) and isinstance(node[0], str),
    )


def test_donating_the_trained_parameters_leaves_the_copy_alive(random_params):
    consume = jax.jit(lambda params: jax.tree.map(lambda a: a + 1, params), donate_argnums=0)
    source = jax.tree.map(jnp.asarray, random_params(CONFIG))
    for make in (unstack, kv.decoding_params):
        copy = make(CONFIG, source)
        source = consume(source)
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(copy))
