"""Likelihood: against values worked out by hand, plain forward passes, and the chain rule by simulation."""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import pytest
from episode_builder import make_episode, random_episode

from jaxagent.errors import UserError
from jaxagent.evaluation.likelihood import (
    ModelPolicy,
    compare_distributions,
    compare_policies,
    reply_log_probs,
    shift_by_turn,
)
from jaxagent.models import decoder

LN2 = math.log(2)
MODEL = decoder.DecoderConfig(
    vocab_size=50, width=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_width=16, embedding_std=0.5
)
LONGEST = 36  # what follows a place cannot change it, so one length serves all
FORWARD = jax.jit(functools.partial(decoder.forward, MODEL))


def make_policy(seed, temperature=1.0, model=MODEL):
    return ModelPolicy(model, decoder.init_params(model, jax.random.key(seed)), temperature)


def plain_log_probs(policy, ids):
    """Next-token log-probs [S, V] in float64 numpy after a forward pass of one row; row s speaks of token s + 1."""
    tokens = np.full((1, LONGEST), 7)
    tokens[0, : len(ids)] = ids
    hidden = FORWARD(policy.params, tokens, np.arange(LONGEST)[None], np.ones_like(tokens))[0, : len(ids)]
    logits = np.asarray(hidden, np.float64) @ np.asarray(decoder.head_matrix(policy.params), np.float64)
    logits /= policy.temperature
    return (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )


def test_two_known_policies_by_hand():
    # State 0: p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4). State 1: p = (.8, .1, .1), q = (.1, .8, .1).
    p = np.array([[[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], [[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]])
    q = np.array([[[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], [[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]])
    mask = np.array([[True, True], [True, False]])  # the second episode ends after one turn
    table = compare_distributions(p, q, np.array([[0, 0], [1, 0]]), mask)
    np.testing.assert_allclose(table.log_ratio, [[LN2, 3 * LN2], [-LN2, 0]])
    np.testing.assert_allclose(table.kl, [[0.25 * LN2, 2.1 * LN2], [0.25 * LN2, 0]])
    np.testing.assert_allclose(table.reverse_kl, table.kl)
    np.testing.assert_allclose(table.entropy[:, 0], [1.5 * LN2, 1.5 * LN2])
    curves = shift_by_turn(table)
    assert curves["survivors"] == [2, 1]
    np.testing.assert_allclose(curves["kl"], [0.25 * LN2, 2.1 * LN2])  # over the survivors
    np.testing.assert_allclose(curves["cumulative_kl"], [0.25 * LN2, 0.25 * LN2 + 1.05 * LN2])  # over all
    np.testing.assert_allclose(curves["log_ratio"], [0, 3 * LN2])
    np.testing.assert_allclose(curves["cumulative_log_ratio"], [0, 1.5 * LN2])
    with pytest.raises(UserError, match="infinite"):
        compare_distributions(p, q, np.array([[0, 0], [1, 0]]), np.ones((2, 2), bool))


def test_chain_rule_on_every_trajectory_of_a_small_world():
    # Three actions a turn, action 2 ends the episode, at most three turns: the trajectories can all be listed.
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    trajectories = []
    for actions in itertools.product(range(3), repeat=3):
        length = next((t + 1 for t, action in enumerate(actions) if action == 2), 3)
        if all(action == 0 for action in actions[length:]):  # one spelling of each
            trajectories.append(actions[:length])
    truth = sum(
        math.prod(p[a] for a in t) * math.log(math.prod(p[a] for a in t) / math.prod(q[a] for a in t))
        for t in trajectories
    )
    rng, n = np.random.default_rng(0), 20_000
    actions = rng.choice(3, size=(n, 3), p=p)
    alive = np.cumprod(np.pad(actions[:, :2] != 2, ((0, 0), (1, 0)), constant_values=True), axis=1).astype(bool)
    shape = (n, 3, 3)
    curves = shift_by_turn(compare_distributions(np.broadcast_to(p, shape), np.broadcast_to(q, shape), actions, alive))
    assert curves["cumulative_kl"][-1] == pytest.approx(truth, rel=0.02)
    assert curves["cumulative_log_ratio"][-1] == pytest.approx(truth, abs=0.03)
    assert curves["survivors"][0] == n > curves["survivors"][2]


def test_models_agree_with_plain_forward_passes():
    rng = np.random.default_rng(1)
    episodes = [random_episode(rng, budget=5, member=i) for i in range(4)]
    first, second = make_policy(0), make_policy(1, temperature=0.7)
    table = compare_policies(first, second, episodes, rows=2, chunk=6)
    for row, episode in enumerate(episodes):
        ids = episode.token_ids()
        p, q = plain_log_probs(first, ids), plain_log_probs(second, ids)
        place = 0
        assert table.mask[row].sum() == len(episode.turns)
        for column, turn in enumerate(episode.turns):
            start = place + len(turn.observation_ids)
            place = start + len(turn.sampled_ids)
            rows = range(start - 1, place - 1)
            ratio = sum(p[s, ids[s + 1]] - q[s, ids[s + 1]] for s in rows)
            kl = sum(sum(math.exp(p[s, v]) * (p[s, v] - q[s, v]) for v in range(50)) for s in rows)
            reverse = sum(sum(math.exp(q[s, v]) * (q[s, v] - p[s, v]) for v in range(50)) for s in rows)
            entropy = [sum(-np.sum(np.exp(log[s]) * log[s]) for s in rows) for log in (p, q)]
            found = [getattr(table, name)[row, column] for name in ("log_ratio", "kl", "reverse_kl")]
            np.testing.assert_allclose(found, [ratio, kl, reverse], atol=2e-4)
            assert table.entropy[row, column] == pytest.approx(entropy[0], abs=2e-4)
            assert table.reference_entropy[row, column] == pytest.approx(entropy[1], abs=2e-4)


def test_a_policy_does_not_differ_from_itself():
    episodes = [random_episode(np.random.default_rng(2), budget=4, member=i) for i in range(3)]
    table = compare_policies(make_policy(3), make_policy(3), episodes, rows=2, chunk=6)
    assert not table.kl.any() and not table.log_ratio.any() and (table.entropy[table.mask] > 0).all()


def test_replies_have_their_whole_probability():
    policy = make_policy(4)
    context = [3, 7, 9]
    singles = reply_log_probs(policy, [context] * 50, [[token] for token in range(50)], rows=2)
    assert np.exp(singles).sum() == pytest.approx(1, abs=1e-5)
    pair = reply_log_probs(policy, [context, context[:2]], [[5, 6], [8]])
    plain = plain_log_probs(policy, [*context, 5, 6])
    assert pair[0] == pytest.approx(plain[2, 5] + plain[3, 6], abs=1e-4)
    assert pair[1] == pytest.approx(plain_log_probs(policy, [3, 7, 8])[1, 8], abs=1e-4)
    assert reply_log_probs(policy, [], []).shape == (0,)


def test_what_cannot_be_compared_is_refused():
    other = dataclasses.replace(MODEL, vocab_size=51)
    episode = random_episode(np.random.default_rng(6))
    with pytest.raises(UserError, match="vocabularies"):
        compare_policies(make_policy(0), make_policy(0, model=other), [episode])
    with pytest.raises(UserError, match="void"):
        compare_policies(make_policy(0), make_policy(0), [make_episode(end_reason="infrastructure")])
    with pytest.raises(UserError, match="no episodes"):
        compare_policies(make_policy(0), make_policy(0), [])
