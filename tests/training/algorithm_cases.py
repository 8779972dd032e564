"""One tiny update under any algorithm, for the tests: made-up episodes in, the gradient and what led to it out."""

import dataclasses
import functools
import math

import jax
import numpy as np
from episode_builder import random_episode
from tiny_runs import tiny_config

from jaxagent.config_files import apply_overrides
from jaxagent.rollout.setup import make_setup
from jaxagent.sharding.mesh import make_mesh
from jaxagent.training import loop, options
from jaxagent.training import state as states

SHAPE = (
    "optimizer.micro_rows=16",
    "rollout.max_context=64",
    "optimizer.row_tokens=64",
    "rollout.max_turns=8",
    "model.embedding_std=0.05",  # the fresh policy is nearly uniform: about -UNIFORM for every token
)
UNIFORM = math.log(576)  # log of the vocabulary's size
SGD = (
    "optimizer.name=sgd",
    "optimizer.learning_rate=1.0",
    "optimizer.clip_norm=0.0",
    "algorithm.entropy_coefficient=0.0",
)
PPO = (
    "algorithm.name=ppo",
    "algorithm.normalize_std=False",
    "algorithm.critic.kind=head",
    "algorithm.critic.learning_rate=1.0",
)
# Every option of the loss stands in at least one case.
CASES = {
    "gigpo": ("algorithm.name=gigpo", "algorithm.normalize_std=True"),
    "ppo": (*PPO, "algorithm.ppo.lam=0.9"),
    "ppo_token": (
        *PPO,
        "algorithm.critic.kind=separate",
        "algorithm.ppo.advantage=token_gae",
        "algorithm.ppo.whiten=False",
        "algorithm.kl.coefficient=0.1",
        "algorithm.kl.kind=k1",
        "algorithm.kl.place=reward",
    ),
    "ppo_bi_level": (*PPO, "algorithm.ppo.advantage=bi_level_gae", "algorithm.ppo.value_clip=0.0"),
    "dr_grpo": ("algorithm.name=dr_grpo", "algorithm.normalize_std=False", "algorithm.dual_clip=3.0"),
    "rloo": ("algorithm.name=rloo", "algorithm.normalize_std=False", "algorithm.aggregation=prompt_mean"),
    "corrected": (
        "algorithm.name=reinforce_plus_plus",
        "algorithm.normalize_std=False",
        "algorithm.old_logprobs=recomputed",
        "algorithm.importance_cap=2.0",
        "algorithm.sequence_mask=(0.0, 30.0)",
        "algorithm.sequence_mask_mean=True",
        "algorithm.kl.coefficient=0.1",
        "algorithm.kl.kind=k3_st",
        "algorithm.kl.reference=moving_average",
        "algorithm.entropy_coefficient=0.01",
    ),
    "gspo": ("algorithm.name=gigpo", "algorithm.ratio=gspo_sequence", "algorithm.normalize_std=False"),
    "gspo_token": ("algorithm.ratio=gspo_token", "algorithm.aggregation=sequence_mean"),
}


@functools.cache
def case_setup(name, *overrides, devices=1):
    """A setup whose update is one SGD step of rate 1 without clipping: the weights change by minus the gradient."""
    wanted = apply_overrides(tiny_config(*SHAPE, *SGD, *CASES.get(name, ())), overrides)
    setup = make_setup(tiny_config(*SHAPE))  # checked against all devices; the mesh and the update's settings follow
    return dataclasses.replace(setup, config=wanted, mesh=make_mesh(devices=jax.devices()[:devices]))


def groups_of_episodes(seed=0, groups=4, size=4, **fields):
    """Random episodes whose log-probs are about those of the fresh policy, so that some ratios are clipped, not all."""
    rng = np.random.default_rng(seed)
    episodes = [random_episode(rng, group=g, member=m, **fields) for g in range(groups) for m in range(size)]
    return [dataclasses.replace(e, turns=tuple(_near_the_policy(turn) for turn in e.turns)) for e in episodes]


def _near_the_policy(turn):
    """Log-probs from [-1, 0] to within 0.3 of the uniform distribution's."""
    return dataclasses.replace(turn, logprobs=tuple(0.6 * value + 0.3 - UNIFORM for value in turn.logprobs))


def cut(episode, budget):
    """The episode as it would have been had the engine cut it at `budget`."""
    if len(episode.turns) <= budget:
        return dataclasses.replace(episode, enforced_budget=budget)
    return dataclasses.replace(
        episode,
        enforced_budget=budget,
        turns=episode.turns[:budget],
        reward=0.0,
        success=False,
        success_turn=None,
        end_reason="budget",
    )


@functools.cache
def _first_state(model, optimizer, extras):
    """On the host; cases that start alike share it."""
    return jax.device_get(jax.jit(functools.partial(states.init_state, model, optimizer, 0, extras))())


def fresh_state(setup):
    """The initial state, off the straight line: another reference than the policy, a critic that says something."""
    optimizer = states.make_optimizer(states.optimizer_settings(setup.config.optimizer))
    extras = options.algorithm_options(setup.config).extras
    state = _first_state(setup.model, optimizer, extras)
    if state.reference is not None:
        state = dataclasses.replace(state, reference=jax.tree.map(lambda x: 0.9 * x, state.reference))
    if state.critic is not None:
        head = {"weight": np.linspace(-0.5, 0.5, setup.model.width, dtype=np.float32), "bias": np.float32(0.1)}
        critic = dataclasses.replace(state.critic, params=state.critic.params | {"head": head})
        state = dataclasses.replace(state, critic=critic)
    return jax.device_put(state, states.state_shardings(setup.model, optimizer, setup.mesh, extras))


def make_update(setup):
    return loop.make_update(setup, states.make_optimizer(states.optimizer_settings(setup.config.optimizer)))


def prepared(setup, episodes):
    """(prepared batch, arrays) without a gradient step, for algorithms that need no scores."""
    update = make_update(setup)
    arrays, packed = loop.make_batch(setup.config, update, episodes)
    return jax.device_get(update.prepare(arrays, packed, None)), arrays


def run_update(setup, episodes, *, replay=None, edit=lambda batch: batch, edit_inputs=lambda *inputs: inputs):
    """(minus the change of the weights, metrics, prepared batch, arrays) of an update.

    `edit_inputs` acts on what the host hands over, `edit` on the batch before its gradient step.
    """
    update = make_update(setup)
    state = fresh_state(setup)
    before = jax.device_get((state.params, state.critic.params if state.critic else None))
    arrays, packed = edit_inputs(*loop.make_batch(setup.config, update, episodes, replay=replay))
    scores = update.score_batch(state, packed) if update.score_batch else None
    batch = edit(jax.device_get(update.prepare(arrays, packed, scores)))
    state, metrics = update.train_step(state, batch)
    after = jax.device_get((state.params, state.critic.params if state.critic else None))
    return jax.tree.map(lambda a, b: a - b, before, after), loop.scalar_metrics(jax.device_get(metrics)), batch, arrays


def spread_rows(batch):
    """The filled rows of a batch of sixteen dealt out over its quarters."""
    assert len(batch.tokens) == 16
    return jax.tree.map(lambda leaf: leaf[np.arange(16).reshape(4, 4).T.ravel()], batch)


def filled_pieces(batch, pieces):
    """How many of so many equal pieces hold a policy token."""
    return sum(part.any() for part in np.split(np.asarray(batch.policy_mask & batch.valid), pieces))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def assert_same_gradient(left, right, tolerance=1e-5):
    for one, other in zip(left, right, strict=True):  # the policy's, the critic's
        if one is None:
            assert other is None
            continue
        one, other = flat(one), flat(other)
        assert np.linalg.norm(one) > 1e-3, "a gradient of zero proves nothing"
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(one)
