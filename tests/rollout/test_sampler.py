"""The sampler against NumPy: inverse CDF, keyed noise, any slot count; the trainer recomputes the same log-probs."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import tiny_setup

from jaxagent import batches
from jaxagent.models import decoder
from jaxagent.rollout import sampler
from jaxagent.rollout.setup import sampler_params_fn
from jaxagent.rollout.specs import told_specs
from jaxagent.training import loop, step


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([3, 128, 129, 300]))
def test_sampling_inverts_the_cdf(seed, vocab):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(16, vocab)) * 4).astype(np.float32)
    logits[rng.random((16, vocab)) < 0.3] = -np.inf
    logits[:, 0] = 0.0
    uniforms = rng.random(16).astype(np.float32)
    tokens, logprobs = jax.device_get(sampler.sample_tokens(logits, uniforms))
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    for row in range(16):
        cdf = np.cumsum(probabilities[row])
        before = cdf[tokens[row]] - probabilities[row, tokens[row]]
        assert before - 1e-5 <= uniforms[row] <= cdf[tokens[row]] + 1e-5
        assert probabilities[row, tokens[row]] > 0
        np.testing.assert_allclose(logprobs[row], np.log(probabilities[row, tokens[row]]), atol=1e-5)


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(np.float32(1), np.float32(0))])
def test_the_ends_of_the_unit_interval_never_draw_an_impossible_token(uniform):
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [7, 150, 200]] = [0.0, 1.0, -30.0]
    token, logprob = sampler.sample_tokens(logits, np.full(1, uniform, np.float32))
    assert int(token[0]) in (7, 150, 200) and np.isfinite(logprob[0])


def test_temperature_is_part_of_the_log_prob():
    """F10: temperature 0.5, logits [0, 1]: the second has log-prob -0.1269."""
    logits = np.array([[0.0, 1.0]], np.float32) / 0.5
    token, logprob = sampler.sample_tokens(logits, np.array([0.5], np.float32))
    assert int(token[0]) == 1
    np.testing.assert_allclose(logprob, [-0.1269], atol=1e-4)


def test_uniforms_depend_on_every_word_of_the_key():
    base = np.tile(np.array([[1, 2, 3, 4, 5]], np.uint32), (6, 1))
    for word in range(5):
        base[word + 1, word] += 1
    values = np.asarray(sampler.uniforms_for(base, np.zeros(6, np.int32)))
    assert len(set(values.tolist())) == 6
    assert sampler.uniforms_for(base, np.ones(6, np.int32))[0] != values[0]
    shuffled = np.asarray(sampler.uniforms_for(base[::-1].copy(), np.zeros(6, np.int32)))
    np.testing.assert_array_equal(shuffled[::-1], values)


def roll_out(setup, params, specs):
    engine = setup.make_engine()
    engine.set_params(sampler_params_fn(setup.model, setup.mesh)(params), version=0)
    episodes = batches.sort_episodes(list(engine.run_episodes(specs)))
    engine.close()
    return episodes


@pytest.fixture(scope="module")
def one_device():
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), ("data", "fsdp", "tensor"))


def on_mesh(setup, mesh):
    return dataclasses.replace(setup, mesh=mesh)


@pytest.fixture(scope="module")
def rolled(one_device):
    """The same work list on 1, 4 and 16 slots of one device, and on 16 slots of eight."""
    base = tiny_setup("rollout.temperature=1.3")
    params = decoder.init_params(base.model, jax.random.key(0))
    source = base.tasks("train", 64)
    specs = told_specs([source.task(i) for i in range(6)], percent=50, samples=3, run_seed=11)
    found = {}
    for slots in (1, 4, 16):
        setup = on_mesh(base, one_device)
        setup = dataclasses.replace(setup, config=base.config.copy_and_resolve_references())
        setup.config.rollout.slots = slots
        found[slots] = roll_out(setup, params, specs)
    found["again"] = roll_out(on_mesh(base, one_device), params, specs)
    found["eight devices"] = roll_out(base, params, specs)
    return base, params, found


def test_equal_shapes_give_equal_bits(rolled):
    _, _, found = rolled
    assert found["again"] == found[16]


@pytest.mark.parametrize("other", [1, 4, "eight devices"])
def test_slot_counts_change_nothing_but_rounding(rolled, other):
    """Log-probs agree to 1e-5; a token differs only where its uniform lies at a CDF boundary."""
    base, params, found = rolled
    same = 0
    for left, right in zip(found[16], found[other], strict=True):
        assert (left.group, left.member) == (right.group, right.member)
        if left.token_ids() == right.token_ids():
            same += 1
            for a, b in zip(left.turns, right.turns, strict=True):
                np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
                assert (a.text, a.remaining, a.observation_ids) == (b.text, b.remaining, b.observation_ids)
        else:
            assert_differs_at_a_boundary(base, params, left, right)
    assert same >= len(found[16]) - 1


def assert_differs_at_a_boundary(setup, params, left, right):
    place = next(i for i, (a, b) in enumerate(zip(left.token_ids(), right.token_ids(), strict=False)) if a != b)
    ids = np.array([left.token_ids()[:place]], np.int32)
    hidden = decoder.forward(setup.model, params, ids, np.arange(place)[None], np.ones_like(ids))
    logits = np.asarray(hidden[0, -1] @ decoder.head_matrix(params), np.float64) / 1.3
    cdf = np.cumsum(np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum())
    tokens = sorted((left.token_ids()[place], right.token_ids()[place]))
    assert tokens[1] - tokens[0] == 1 or cdf[tokens[1] - 1] - cdf[tokens[0]] < 1e-5


def test_recomputed_log_probs_are_the_behaviour_ones(rolled):
    """F1, F10: the trainer's log-probs of the recorded ids equal the sampler's, at the rollout's temperature."""
    base, params, found = rolled
    episodes = found[16]
    arrays = batches.episode_arrays(episodes, num_episodes=len(episodes), max_turns=12)
    batch = batches.pack_episodes(episodes, arrays, row_tokens=128, num_rows=24)
    scores = step.score_tokens(loop.make_step_config(base), params, batch)[0]
    mask = batch.policy_mask
    assert mask.sum() > 50
    np.testing.assert_allclose(np.asarray(scores)[mask], batch.behaviour_logprobs[mask], atol=1e-4)
    cold = dataclasses.replace(loop.make_step_config(base), temperature=1.0)
    untempered = np.asarray(step.score_tokens(cold, params, batch)[0])
    assert np.abs(untempered[mask] - batch.behaviour_logprobs[mask]).max() > 0.05
