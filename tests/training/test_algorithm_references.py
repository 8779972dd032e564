"""A whole PPO and a whole GiGPO step against plain loops over episodes, turns and tokens, written from the formulas.

The reference puts one episode in a row, walks lists in NumPy for everything that is constant, and leaves to jax the
derivative of one flat sum over tokens alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_cases import case_setup, flat, fresh_state, groups_of_episodes, run_update

from jaxagent.models import decoder

GAMMA, WEIGHT = 0.95, 1.0  # GiGPO's defaults
LAM = 0.9  # of the case "ppo"
TRUNK_WEIGHT, VALUE_CLIP = 0.1, 0.2  # the critic's defaults


class Token:
    """One policy token: where it stands, and what the loops found for it."""

    def __init__(self, row, place, token, old, turn):
        self.row, self.place, self.token, self.old, self.turn = row, place, token, old, turn
        self.advantage = self.value = self.target = 0.0


def tokens_of(episodes):
    found = []
    for row, episode in enumerate(episodes):
        place = 0
        for number, turn in enumerate(episode.turns):
            place += len(turn.observation_ids)
            for token, old in zip(turn.sampled_ids, turn.logprobs, strict=True):
                found.append(Token(row, place, token, old, number))
                place += 1
    return found


def rewards_of(episode):
    rewards = [turn.reward for turn in episode.turns]
    rewards[-1] += episode.reward
    return rewards


def normalised(values):
    """(x - mean) / (std + 1e-6) of a list, ddof 1; zeros for one value or equal ones."""
    values = np.array(values, np.float64)
    if len(values) < 2 or np.ptp(values) < 1e-6:
        return np.zeros(len(values))
    return (values - values.mean()) / (values.std(ddof=1) + 1e-6)


def gigpo_advantages(episodes):
    """{(row, turn): advantage}."""
    rewards = [rewards_of(e) for e in episodes]
    found = {}
    for group in {e.group for e in episodes}:
        members = [row for row, e in enumerate(episodes) if e.group == group]
        outer = dict(zip(members, normalised([sum(rewards[row]) for row in members]), strict=True))
        states = {}
        for row in members:
            for number, turn in enumerate(episodes[row].turns):
                future = sum(GAMMA**k * r for k, r in enumerate(rewards[row][number:]))
                states.setdefault(turn.anchor, []).append(((row, number), future))
        for visits in states.values():
            inner = normalised([future for _, future in visits])
            for ((row, number), _), step in zip(visits, inner, strict=True):
                found[row, number] = outer[row] + WEIGHT * step
    return found


def fill_ppo(episodes, tokens, values):
    """Turn-level GAE backwards through each episode, then whitening over all tokens."""
    for token in tokens:
        token.value = values[token.row, token.place - 1]
    for row, episode in enumerate(episodes):
        rewards = rewards_of(episode)
        next_value = next_advantage = 0.0
        for number in reversed(range(len(episode.turns))):
            own = [t for t in tokens if t.row == row and t.turn == number]
            value = own[0].value  # before acting
            advantage = rewards[number] + next_value - value + LAM * next_advantage
            for token in own:
                token.advantage, token.target = advantage, advantage + value
            next_value, next_advantage = value, advantage
    raw = np.array([t.advantage for t in tokens])
    for token, white in zip(tokens, (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8), strict=True):
        token.advantage = white


def one_episode_a_row(episodes):
    length = max(len(e.token_ids()) for e in episodes)
    ids, segments = np.zeros((2, len(episodes), length), np.int32)
    for row, episode in enumerate(episodes):
        ids[row, : len(episode.token_ids())] = episode.token_ids()
        segments[row, : len(episode.token_ids())] = 1
    return ids, np.broadcast_to(np.arange(length), ids.shape), segments


def reference_step(setup, episodes, fill):
    """(loss, gradients of policy and critic) of the flat sum; `fill(tokens, values)` gives the constants."""
    state = fresh_state(setup)
    inputs = one_episode_a_row(episodes)
    tokens = tokens_of(episodes)
    head = (
        state.critic.params["head"] if state.critic else {"weight": jnp.zeros(setup.model.width), "bias": jnp.zeros(())}
    )
    hidden = jax.jit(lambda p: decoder.forward(setup.model, p, *inputs))(state.params)
    fill(tokens, np.asarray(hidden @ head["weight"] + head["bias"], np.float64))
    column = lambda name: np.array([getattr(t, name) for t in tokens])  # noqa: E731
    rows, before = column("row"), column("place") - 1
    advantage, old, value, target = (column(n).astype(np.float32) for n in ("advantage", "old", "value", "target"))

    def loss(params, head):
        hidden = decoder.forward(setup.model, params, *inputs)[rows, before]
        logprobs = jax.nn.log_softmax(hidden @ decoder.head_matrix(params))[np.arange(len(tokens)), column("token")]
        ratio = jnp.exp(logprobs - old)
        policy = jnp.mean(jnp.maximum(-advantage * ratio, -advantage * jnp.clip(ratio, 0.8, 1.28)))
        if not state.critic:
            return policy, policy
        shared = TRUNK_WEIGHT * hidden + (1 - TRUNK_WEIGHT) * jax.lax.stop_gradient(hidden)
        new = shared @ head["weight"] + head["bias"]
        near = value + jnp.clip(new - value, -VALUE_CLIP, VALUE_CLIP)
        return policy + 0.5 * jnp.mean(jnp.maximum((new - target) ** 2, (near - target) ** 2)), policy

    grads, policy = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(state.params, head)
    return policy, grads, tokens


def assert_close(found, expected):
    found, expected = flat(found), flat(expected)
    assert np.linalg.norm(expected) > 1e-2
    assert np.linalg.norm(found - expected) <= 2e-5 * np.linalg.norm(expected)


def spread(batch):
    """The batch's advantages in the order of the reference's tokens."""
    mask = batch.policy_mask & batch.valid & batch.budget_mask
    order = np.lexsort((batch.positions[mask], batch.episode_index[mask]))
    return batch.advantages[mask][order]


@pytest.mark.parametrize("seed", [0, pytest.param(7, marks=pytest.mark.slow)])
def test_a_whole_gigpo_step(seed):
    setup, episodes = case_setup("gigpo", "optimizer.micro_rows=4"), groups_of_episodes(seed=seed)

    def fill(tokens, _):
        advantages = gigpo_advantages(episodes)
        for token in tokens:
            token.advantage = advantages[token.row, token.turn]

    loss, (policy, _), tokens = reference_step(setup, episodes, fill)
    (found, _), metrics, batch, _ = run_update(setup, episodes)
    np.testing.assert_allclose(spread(batch), [t.advantage for t in tokens], atol=2e-5)
    np.testing.assert_allclose(metrics["train/loss"], loss, rtol=1e-4, atol=1e-6)
    assert_close(found, policy)


@pytest.mark.parametrize("seed", [0, pytest.param(7, marks=pytest.mark.slow)])
def test_a_whole_ppo_step(seed):
    setup, episodes = case_setup("ppo", "optimizer.micro_rows=4"), groups_of_episodes(seed=seed)
    loss, (policy, head), tokens = reference_step(setup, episodes, lambda t, values: fill_ppo(episodes, t, values))
    (found, critic), metrics, batch, _ = run_update(setup, episodes)
    np.testing.assert_allclose(spread(batch), [t.advantage for t in tokens], atol=2e-5)
    np.testing.assert_allclose(metrics["train/loss"], loss, rtol=1e-4, atol=1e-6)
    assert_close(found, policy)
    assert_close(critic["head"], head)
