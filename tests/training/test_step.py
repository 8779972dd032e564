"""The training step: global denominators over micro-batches, devices and packings; masks that select; epochs that
clip."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from episode_builder import make_episode, make_turn, random_episode
from tiny_runs import tiny_setup

from jaxagent import batches
from jaxagent.algorithms import advantages
from jaxagent.models import decoder
from jaxagent.sharding import rules
from jaxagent.sharding.mesh import make_mesh
from jaxagent.training import loop, step
from jaxagent.training import state as states

BUDGET = 8


@pytest.fixture(scope="module")
def setup():
    return tiny_setup(
        "optimizer.micro_rows=16",
        "rollout.max_context=64",
        "optimizer.row_tokens=64",
        "rollout.max_turns=8",
        "algorithm.entropy_coefficient=0.0",
    )


def groups_of_episodes(seed=0, groups=4, size=4, **fields):
    rng = np.random.default_rng(seed)
    return [random_episode(rng, group=g, member=m, **fields) for g in range(groups) for m in range(size)]


def make_optimizer(config):
    return states.make_optimizer(states.optimizer_settings(config.optimizer))


def change(setup, mesh=None, **optimizer):
    """The setup on another mesh, or with other optimizer settings."""
    config = setup.config.copy_and_resolve_references()
    config.optimizer.update(optimizer)
    return dataclasses.replace(setup, config=config, mesh=mesh or setup.mesh)


def gradient_and_metrics(setup, episodes, *, replay=None, edit=lambda batch: batch, params=None):
    """One SGD step of learning rate 1 without clipping: the change of the weights is minus the gradient."""
    setup = change(setup, name="sgd", learning_rate=1.0, clip_norm=0.0)
    optimizer = make_optimizer(setup.config)
    update = loop.make_update(setup, optimizer)
    state = states.init_state(setup.model, optimizer, 0)
    if params is not None:
        state = dataclasses.replace(state, params=params)
    state = jax.device_put(state, states.state_shardings(setup.model, optimizer, setup.mesh))
    before = jax.device_get(state.params)
    arrays, packed = loop.make_batch(setup.config, update, episodes, replay=replay)
    batch = edit(jax.device_get(update.prepare(arrays, packed, None)))
    state, metrics = update.train_step(state, batch)
    return jax.tree.map(lambda a, b: a - b, before, jax.device_get(state.params)), jax.device_get(metrics), batch


def logprobs_of(setup, params, batch):
    return jax.jit(functools.partial(step.score_tokens, loop.make_step_config(setup)))(params, batch)[0]


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def assert_same_gradient(left, right, tolerance=1e-5):
    left, right = flat(left), flat(right)
    assert np.linalg.norm(left) > 1e-3, "a gradient of zero proves nothing"
    assert np.linalg.norm(left - right) <= tolerance * np.linalg.norm(left)


@pytest.fixture(scope="module")
def reference(setup):
    return gradient_and_metrics(setup, groups_of_episodes())


@pytest.mark.parametrize("micro_rows", [8])
def test_micro_batches_add_up(setup, reference, micro_rows):
    grads, metrics, _ = gradient_and_metrics(change(setup, micro_rows=micro_rows), groups_of_episodes())
    assert_same_gradient(reference[0], grads)
    np.testing.assert_allclose(metrics["train/loss"], reference[1]["train/loss"], rtol=1e-5)


def test_four_micro_batches_and_one_device_add_up(setup, reference):
    """Eight devices with one micro-batch, one device with four: the same gradient (F12)."""
    one = make_mesh(devices=jax.devices()[:1])
    grads, metrics, _ = gradient_and_metrics(change(setup, mesh=one, micro_rows=4), groups_of_episodes())
    assert_same_gradient(reference[0], grads)
    np.testing.assert_allclose(metrics["train/loss"], reference[1]["train/loss"], rtol=1e-5)


def test_fsdp_and_tensor_axes_give_the_same_gradient(setup, reference):
    grads, _, _ = gradient_and_metrics(change(setup, mesh=make_mesh(2, 2, 2)), groups_of_episodes())
    assert_same_gradient(reference[0], grads)


def test_packed_equals_padded(setup, reference):
    """Rows of 64 hold one or a few episodes; rows of 256 hold many."""
    grads, _, batch = gradient_and_metrics(change(setup, row_tokens=256), groups_of_episodes())
    assert batch.segment_ids.max() > reference[2].segment_ids.max(), "the longer rows really are packed tighter"
    assert_same_gradient(reference[0], grads)


def test_permuted_rows_change_nothing(setup, reference):
    def permute(batch):
        order = np.random.default_rng(3).permutation(batch.tokens.shape[0])
        return jax.tree.map(lambda leaf: leaf[order], batch)

    grads, _, _ = gradient_and_metrics(setup, groups_of_episodes(), edit=permute)
    assert_same_gradient(reference[0], grads)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_under_masks_are_harmless(setup, reference, poison):
    def edit(batch):
        outside = ~np.asarray(step.loss_mask(batch))
        dirty = {
            name: np.where(outside, poison, getattr(batch, name)).astype(np.float32)
            for name in ("advantages", "old_logprobs", "behaviour_logprobs")
        }
        return dataclasses.replace(batch, **dirty)

    grads, metrics, _ = gradient_and_metrics(setup, groups_of_episodes(), edit=edit)
    assert_same_gradient(reference[0], grads)
    assert all(np.isfinite(value) for value in loop.scalar_metrics(metrics).values())


def test_loss_is_the_plain_formula(setup, reference):
    """Against NumPy loops over episodes: policy tokens only, token mean, advantage by group, ratio against old
    log-probs."""
    _, metrics, batch = reference
    params = states.init_state(setup.model, make_optimizer(setup.config), 0).params
    episodes = groups_of_episodes()
    rewards = np.array([e.reward for e in episodes])
    total, count = 0.0, 0
    for index, episode in enumerate(episodes):
        mates = [i for i, other in enumerate(episodes) if other.group == episode.group]
        spread = rewards[mates].std(ddof=1)
        advantage = (rewards[index] - rewards[mates].mean()) / (spread + 1e-6) if np.ptp(rewards[mates]) else 0.0
        ids = np.array([episode.token_ids()], np.int32)
        hidden = decoder.forward(setup.model, params, ids, np.arange(ids.shape[1])[None], np.ones_like(ids))
        logits = np.asarray(hidden[0] @ decoder.head_matrix(params), np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        place = 0
        for turn in episode.turns:
            place += len(turn.observation_ids)
            for token, old in zip(turn.sampled_ids, turn.logprobs, strict=True):
                ratio = np.exp(logprobs[place - 1, token] - old)
                total += max(-advantage * ratio, -advantage * np.clip(ratio, 0.8, 1.28))
                count += 1
                place += 1
    np.testing.assert_allclose(metrics["train/loss"], total / count, rtol=2e-4)
    assert metrics["train/tokens"] == count == batch.policy_mask.sum()


def cut(episode, budget):
    if len(episode.turns) <= budget:
        return dataclasses.replace(episode, enforced_budget=budget)
    return dataclasses.replace(
        episode, enforced_budget=budget, turns=episode.turns[:budget], reward=0.0, success=False, success_turn=None
    )


def test_replayed_budgets_equal_physically_cut_episodes(setup):
    episodes = groups_of_episodes(seed=5)
    replay = [[3, 5, 8, 2][e.group] for e in episodes]
    masked = gradient_and_metrics(setup, episodes, replay=replay)
    physical = gradient_and_metrics(setup, [cut(e, b) for e, b in zip(episodes, replay, strict=True)])
    assert_same_gradient(masked[0], physical[0])
    np.testing.assert_allclose(masked[1]["train/loss"], physical[1]["train/loss"], rtol=1e-5)

    def forget(batch):
        return dataclasses.replace(batch, budget_mask=np.ones_like(batch.budget_mask))

    unmasked = gradient_and_metrics(setup, episodes, replay=replay, edit=forget)
    with pytest.raises(AssertionError):
        assert_same_gradient(unmasked[0], physical[0])


def test_only_policy_tokens_are_trained(setup):
    """F3: other observation tokens of the same episodes change the loss's inputs, never its mask; a reward for nothing
    sampled gives no gradient."""
    turn = make_turn(1, observed=(5, 6, 7), sampled=(), logprobs=())
    silent = [make_episode(turns=[turn], group=0, member=m, reward=float(m % 2)) for m in range(4)]
    grads, metrics, batch = gradient_and_metrics(setup, silent)
    assert not batch.policy_mask.any() and not np.any(flat(grads)) and metrics["train/loss"] == 0
    assert all(np.isfinite(value) for value in loop.scalar_metrics(metrics).values())


def test_void_episodes_are_outside_loss_and_statistics(setup):
    episodes = groups_of_episodes(seed=2)
    void = dataclasses.replace(episodes[5], end_reason="infrastructure", reward=0.0, success=False, success_turn=None)
    with_void = gradient_and_metrics(setup, [*episodes[:5], void, *episodes[6:]])
    without = gradient_and_metrics(setup, [*episodes[:5], *episodes[6:]])
    assert_same_gradient(with_void[0], without[0])


def test_a_group_of_one_gives_no_gradient(setup):
    """F7."""
    lonely = [make_episode(3, success=True, group=g) for g in range(4)]
    grads, _, batch = gradient_and_metrics(setup, lonely)
    assert not np.any(flat(grads)) and not np.any(batch.advantages)


def test_long_episodes_do_not_dominate_the_baseline(setup):
    """F9: rewards 1 (2 turns) and 0 (8 turns): advantages +-0.5."""
    pair = [make_episode(2, success=True, member=0), make_episode(8, budget=8, member=1)]
    arrays = batches.episode_arrays(pair, num_episodes=2, max_turns=8)
    values = advantages.grpo_advantages(*map(jnp.asarray, (arrays.rewards, arrays.group_ids, arrays.valid)))
    np.testing.assert_allclose(values, [0.5, -0.5])


def test_second_epoch_clips(setup):
    """F11: epoch 1 has ratio 1; after a large step on the same batch the ratio moved and clipping acts."""
    config = setup.config.copy_and_resolve_references()
    config.optimizer.update({"name": "sgd", "learning_rate": 5.0, "clip_norm": 0.0})
    setup = dataclasses.replace(setup, config=config)
    optimizer = make_optimizer(config)
    update = loop.make_update(setup, optimizer)
    state = jax.device_put(
        states.init_state(setup.model, optimizer, 0), states.state_shardings(setup.model, optimizer, setup.mesh)
    )
    arrays, packed = loop.make_batch(config, update, groups_of_episodes())
    fresh = logprobs_of(setup, state.params, packed)
    batch = update.prepare(arrays, dataclasses.replace(packed, behaviour_logprobs=np.asarray(fresh)), None)
    behaviour = np.asarray(batch.behaviour_logprobs).copy()
    state, first = update.train_step(state, batch)
    state, second = update.train_step(state, batch)
    np.testing.assert_allclose(first["train/ratio"], 1.0, atol=1e-6)
    assert first["train/clip_share"] == 0
    assert abs(second["train/ratio"] - 1) > 1e-3 and second["train/clip_share"] > 0
    np.testing.assert_array_equal(batch.behaviour_logprobs, behaviour)


def test_adam_agrees_over_five_steps_on_any_layout(setup):
    def train(setup):
        optimizer = make_optimizer(setup.config)
        update = loop.make_update(setup, optimizer)
        state = jax.device_put(
            states.init_state(setup.model, optimizer, 0), states.state_shardings(setup.model, optimizer, setup.mesh)
        )
        for number in range(5):
            arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes(seed=number))
            state, _ = loop.apply_update(update, state, arrays, packed)
        return flat(jax.device_get(state.params))

    eight = train(setup)
    one = train(change(setup, mesh=make_mesh(devices=jax.devices()[:1]), micro_rows=4))
    np.testing.assert_allclose(eight, one, atol=1e-5)
    fresh = flat(states.init_state(setup.model, make_optimizer(setup.config), 0).params)
    assert np.abs(eight - fresh).max() > 1e-3


def test_donated_state_shares_no_buffer(setup):
    """F23: no two leaves are one buffer, and a copy for the sampler outlives the donated step."""
    optimizer = make_optimizer(setup.config)
    update = loop.make_update(setup, optimizer)
    state = jax.jit(
        lambda: states.init_state(setup.model, optimizer, 0),
        out_shardings=states.state_shardings(setup.model, optimizer, setup.mesh),
    )()
    pointers = [
        shard.data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards
    ]
    assert len(set(pointers)) == len(pointers)
    arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes())
    before = np.asarray(logprobs_of(setup, state.params, packed))
    kept = jax.tree.map(jnp.copy, state.params)
    donated = state
    state, _ = loop.apply_update(update, state, arrays, packed)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
    np.testing.assert_array_equal(logprobs_of(setup, kept, packed), before)


def test_budgets_change_without_a_compilation(setup):
    from jaxagent.training.throughput import CompileCounter

    optimizer = make_optimizer(setup.config)
    update = loop.make_update(setup, optimizer)
    state = jax.device_put(
        states.init_state(setup.model, optimizer, 0), states.state_shardings(setup.model, optimizer, setup.mesh)
    )
    counter = CompileCounter()
    jax.jit(lambda x: x * 3 + jax.device_count())(np.arange(7))
    assert counter.count == 1, "the counter counts"
    counter.close()
    arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes())
    state, _ = loop.apply_update(update, state, arrays, packed)
    counter = CompileCounter()
    for number, replay in enumerate([None, [2] * 16, [7] * 16]):
        arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes(seed=number), replay=replay)
        state, _ = loop.apply_update(update, state, arrays, packed)
    assert counter.count == 0
    counter.close()


def test_rows_lie_on_all_devices(setup):
    assert rules.batch_sharding(setup.mesh).num_devices == 8
