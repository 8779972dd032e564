"""The sampler against NumPy: inverse CDF, keyed noise, any slot count; the trainer recomputes the same log-probs."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import tiny_setup

from jaxagent import batches
from jaxagent.errors import UserError
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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([3, 129, 300]), st.floats(0.01, 1.0))
def test_a_nucleus_is_the_shortest_list_of_likeliest_tokens(seed, vocab, top_p):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(4, vocab)) * 4).astype(np.float32)
    logits[:, 1:][rng.random((4, vocab - 1)) < 0.3] = -np.inf
    kept = np.asarray(sampler.nucleus(logits, top_p))
    uniforms = rng.random(4).astype(np.float32)
    tokens, logprobs = jax.device_get(sampler.sample_tokens(kept, uniforms))
    for row in range(4):
        probabilities = np.exp(logits[row].astype(np.float64) - logits[row].max())
        probabilities /= probabilities.sum()
        expected, mass = set(), 0.0
        for token in np.argsort(-probabilities):
            if mass >= top_p - 1e-6:
                boundary = abs(mass - top_p) < 1e-6
                break
            expected.add(int(token))
            mass += probabilities[token]
        else:
            boundary = True
        found = set(np.flatnonzero(np.isfinite(kept[row])).tolist())
        possible = {t for t in expected if probabilities[t] > 0}
        assert found == possible or (boundary and possible <= found | {int(np.argmin(probabilities))})
        np.testing.assert_array_equal(kept[row][sorted(found)], logits[row][sorted(found)])
        total = probabilities[sorted(found)].sum()
        np.testing.assert_allclose(logprobs[row], np.log(probabilities[tokens[row]] / total), atol=2e-5)
        assert int(tokens[row]) in found


def test_a_nucleus_keeps_ties_together_and_the_likeliest_always():
    logits = np.log(np.array([[0.4, 0.2, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]], np.float32))
    kept = lambda p: np.isfinite(np.asarray(sampler.nucleus(logits, p))).tolist()  # noqa: E731
    assert kept(1e-6) == [[True, False, False, False], [True] * 4]
    assert kept(0.5) == [[True] * 4, [True] * 4]
    assert sampler.nucleus(logits, 1.0) is logits


@pytest.mark.parametrize("overrides", [("rollout.top_p=0.0",), ("rollout.top_p=1.5",), ("rollout.top_p=nan",)])
def test_a_top_p_that_cannot_be_is_named(overrides):
    with pytest.raises(UserError, match=r"rollout\.top_p must lie in"):
        tiny_setup(*overrides)


def test_an_analysis_of_whole_distributions_refuses_a_nucleus():
    assert tiny_setup("rollout.top_p=0.5").config.rollout.top_p == 0.5
    with pytest.raises(UserError, match=r"rollout.top_p=0.5 with eval.analysis"):
        tiny_setup("rollout.top_p=0.5", "eval.analysis=True")


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


def test_rollouts_with_top_p_draw_from_the_nucleus_alone(rolled, one_device):
    """Every drawn token lies in the nucleus of the trainer's distribution, and its log-prob is renormalised there."""
    base, params, _ = rolled
    setup = on_mesh(base, one_device)
    setup = dataclasses.replace(setup, config=base.config.copy_and_resolve_references())
    setup.config.rollout.top_p = 0.3
    source = base.tasks("train", 64)
    episodes = roll_out(setup, params, told_specs([source.task(0), source.task(1)], percent=50, samples=3, run_seed=11))
    seen = cut = 0
    for episode in episodes:
        ids = np.array([episode.token_ids()], np.int32)
        hidden = decoder.forward(base.model, params, ids, np.arange(ids.shape[1])[None], np.ones_like(ids))
        logits = np.asarray(hidden[0] @ decoder.head_matrix(params), np.float64) / 1.3
        place = 0
        for turn in episode.turns:
            place += len(turn.observation_ids)
            for token, logprob in zip(turn.sampled_ids, turn.logprobs, strict=True):
                mass = np.exp(logits[place - 1] - logits[place - 1].max())
                mass /= mass.sum()
                likelier = mass[mass > mass[token]].sum()
                assert likelier < 0.3 + 1e-4
                nucleus = [m for m in mass if mass[mass > m].sum() < 0.3]
                np.testing.assert_allclose(logprob, np.log(mass[token] / sum(nucleus)), atol=2e-3)
                seen, cut, place = seen + 1, cut + (len(nucleus) < len(mass)), place + 1
    assert seen > 10 and cut == seen


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
