"""What an update says of the sampler: its log-probs against those recomputed before the first gradient step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import tiny_setup

from jaxagent import batches
from jaxagent.models import decoder
from jaxagent.rollout.setup import sampler_params_fn
from jaxagent.rollout.specs import told_specs
from jaxagent.training import loop
from jaxagent.training import state as states

WARM = (
    "rollout.temperature=0.7",
    "optimizer.learning_rate=0.05",
    # Qwen's parts, untied, with two query heads for each key head and a window shorter than an episode:
    "model.qkv_bias=True",
    "model.qk_norm=True",
    "model.tie_embeddings=False",
    "model.sliding_window=24",
)


@pytest.fixture(scope="module")
def sampled():
    """Sixteen episodes of a random policy at temperature 0.7, with its weights."""
    setup = tiny_setup(*WARM)
    params = decoder.init_params(setup.model, jax.random.key(3))
    leaves, tree = jax.tree.flatten(params)
    noise = [0.1 * jax.random.normal(jax.random.key(i), leaf.shape) for i, leaf in enumerate(leaves)]
    params = jax.tree.map(jnp.add, params, jax.tree.unflatten(tree, noise))  # biases and norms are not 0 and 1
    source = setup.tasks("train", 64)
    specs = told_specs([source.task(i) for i in range(4)], percent=50, samples=4, run_seed=5)
    engine = setup.make_engine()
    engine.set_params(sampler_params_fn(setup.model, setup.mesh)(params), version=0)
    finished = batches.sort_episodes(list(engine.run_episodes(specs)))
    engine.close()
    return params, [dataclasses.replace(episode, reward=float(episode.member % 2)) for episode in finished]


def metrics_of(sampled, *overrides, shift=0.0):
    """The metrics of one update; `shift` is added to the first sampled token's recorded log-prob."""
    setup = tiny_setup(*WARM, *overrides)
    params, finished = sampled
    turn = finished[0].turns[0]
    moved = dataclasses.replace(turn, logprobs=(turn.logprobs[0] + shift, *turn.logprobs[1:]))
    changed = dataclasses.replace(finished[0], turns=(moved, *finished[0].turns[1:]))
    optimizer = states.make_optimizer(states.optimizer_settings(setup.config.optimizer))
    update = loop.make_update(setup, optimizer)
    state = dataclasses.replace(states.init_state(setup.model, optimizer, 0), params=jax.tree.map(np.array, params))
    state = jax.device_put(state, states.state_shardings(setup.model, optimizer, setup.mesh))
    arrays, packed = loop.make_batch(setup.config, update, [changed, *finished[1:]])
    _, metrics = loop.apply_update(update, state, arrays, packed)
    return metrics, int(packed.policy_mask.sum())


@pytest.mark.parametrize("overrides", [(), ("algorithm.epochs=3",)], ids=str)
def test_the_first_step_recomputes_what_the_sampler_saw(sampled, overrides):
    """F10: at temperature 0.7; later epochs, at other weights, do not count."""
    metrics, _ = metrics_of(sampled, *overrides)
    assert 0 < metrics["train/logprob_diff_mean"] <= metrics["train/logprob_diff_max"] < 1e-4
    if overrides == ("algorithm.epochs=3",):
        assert metrics["train/kl_behaviour"] > 1e-4, "the weights did move"


def test_a_difference_in_one_token_is_seen(sampled):
    metrics, tokens = metrics_of(sampled, "optimizer.row_tokens=112", shift=0.5)
    assert metrics["train/logprob_diff_max"] == pytest.approx(0.5, abs=1e-3)
    assert metrics["train/logprob_diff_mean"] == pytest.approx(0.5 / tokens, rel=0.05)
