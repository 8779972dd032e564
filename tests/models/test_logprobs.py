"""Chunked log-probs against the full softmax: values, gradients, temperature, and that no [B, S, V] array exists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.errors import UserError
from jaxagent.models.decoder import DecoderConfig
from jaxagent.models.logprobs import token_logprobs


def config_of(vocab_size=31, width=8, **fields):
    return DecoderConfig(
        vocab_size=vocab_size, width=width, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2, mlp_width=2, **fields
    )


@pytest.fixture
def case(random_params):
    return lambda config, rows=3, length=14: (random_params(config), *draw(config, rows, length))


def draw(config, rows, length):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(rows, length, config.width)).astype(np.float32)
    return hidden, rng.integers(0, config.vocab_size, (rows, length))


def naive(params, hidden, tokens, temperature):
    """Place by place with a loop over rows and the textbook formulas."""
    head = params["head"] if "head" in params else params["embedding"].T
    probabilities = jnp.exp(hidden @ head / temperature)
    probabilities = probabilities / probabilities.sum(-1, keepdims=True)
    entropies = -(probabilities * jnp.log(probabilities)).sum(-1)
    chosen = [probabilities[b, s - 1, tokens[b, s]] if s else 1.0 for b, s in np.ndindex(*tokens.shape)]
    return jnp.log(jnp.array(chosen)).reshape(tokens.shape), jnp.pad(entropies[:, :-1], ((0, 0), (1, 0)))


@pytest.mark.parametrize(("chunk", "tied"), [(1, True), (12, False), (16, True), (10_000, True)])
def test_equals_full_softmax_in_value_and_gradient(case, tied, chunk):
    config = config_of(tie_embeddings=tied, embedding_std=0.4)
    params, hidden, tokens = case(config)
    weights = np.random.default_rng(9).normal(size=(2, *tokens.shape)).astype(np.float32)

    def chunked(params, hidden):
        return token_logprobs(config, params, hidden, tokens, temperature=0.7, chunk=chunk)

    def total(scores):
        return jnp.sum(weights[0] * scores[0]) + jnp.sum(weights[1] * scores[1])

    def both(scores_of):
        return jax.jit(lambda *inputs: (scores_of(*inputs), jax.grad(lambda *i: total(scores_of(*i)), (0, 1))(*inputs)))

    scores, gradient = both(chunked)(params, hidden)
    expected, expected_gradient = both(lambda p, h: naive(p, h, tokens, 0.7))(params, hidden)
    for got, wanted in zip(scores, expected, strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert not np.any(got[:, 0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradient, expected_gradient)


def test_temperature_is_part_of_the_log_prob():
    """Logits [0, 1] at temperature 0.5: log(e^2 / (1 + e^2)) = -0.1269."""
    config = config_of(vocab_size=2, width=1)
    params = {"embedding": jnp.array([[0.0], [1.0]])}
    hidden = jnp.ones((1, 2, 1))
    log_probs, entropy = token_logprobs(config, params, hidden, jnp.array([[0, 1]]), temperature=0.5, chunk=4)
    assert log_probs[0, 1] == pytest.approx(-0.126928, abs=1e-6)
    p = np.exp(-0.126928)
    assert entropy[0, 1] == pytest.approx(-(p * np.log(p) + (1 - p) * np.log(1 - p)), abs=1e-5)


def test_huge_logits_at_a_masked_place_change_nothing(case):
    config = config_of(embedding_std=0.4)
    params, hidden, tokens = case(config)
    mask = np.ones(tokens.shape, bool)
    mask[0, 5] = False

    def loss(params, hidden):
        log_probs, entropy = token_logprobs(config, params, hidden, tokens, temperature=1.0, chunk=9)
        return jnp.sum(jnp.where(mask, log_probs + 0.1 * entropy, 0.0))

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    zeroed, enlarged = hidden.copy(), hidden.copy()
    zeroed[0, 4], enlarged[0, 4] = 0.0, 1e30
    plain, huge = step(params, zeroed), step(params, enlarged)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), plain, huge)
    assert not np.any(np.asarray(huge[1][1])[0, 4])


def largest_vocabulary_array(function, *inputs, vocab_size):
    """The most elements of any value with a vocabulary axis in the jaxpr of `function`, inner jaxprs included."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            for variable in equation.outvars:
                shape = variable.aval.shape
                if vocab_size in shape:
                    yield int(np.prod(shape))
            for parameter in jax.tree.leaves(
                equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")
            ):
                inner = getattr(parameter, "jaxpr", parameter)
                if hasattr(inner, "eqns"):
                    yield from walk(inner)

    return max(walk(jax.make_jaxpr(function)(*inputs).jaxpr))


def test_no_array_of_all_logits_in_forward_or_backward(case):
    config = config_of(vocab_size=257, width=4)
    rows, length, chunk = 4, 65, 32
    params, hidden, tokens = case(config, rows, length)

    def loss(params, hidden, chunk):
        log_probs, entropy = token_logprobs(config, params, hidden, tokens, temperature=1.0, chunk=chunk)
        return jnp.sum(log_probs * 0.3 + entropy)

    def size(chunk):
        gradient = jax.grad(lambda p, h: loss(p, h, chunk), argnums=(0, 1))
        return largest_vocabulary_array(gradient, params, hidden, vocab_size=config.vocab_size)

    assert size(chunk) == chunk * config.vocab_size
    assert size(10_000) == rows * (length - 1) * config.vocab_size  # the walk does see what it looks for

    def temporary_bytes(chunk):
        gradient = jax.jit(jax.grad(lambda p, h: loss(p, h, chunk), argnums=(0, 1)))
        return gradient.lower(params, hidden).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(chunk) < rows * length * config.vocab_size * 4 < temporary_bytes(10_000)


def test_bad_arguments_are_named(case):
    config = config_of()
    params, hidden, tokens = case(config)
    with pytest.raises(UserError, match="temperature"):
        token_logprobs(config, params, hidden, tokens, temperature=0.0, chunk=4)
    with pytest.raises(UserError, match="logprob_chunk"):
        token_logprobs(config, params, hidden, tokens, temperature=1.0, chunk=0)
