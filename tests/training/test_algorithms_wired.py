"""Every algorithm through the real update: layouts, cuts, masks, epochs, budgets, resumption."""

import dataclasses
import functools

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from algorithm_cases import (
    CASES,
    assert_same_gradient,
    case_setup,
    cut,
    filled_pieces,
    flat,
    fresh_state,
    groups_of_episodes,
    make_update,
    prepared,
    run_update,
    spread_rows,
)
from episode_builder import make_episode, make_turn
from tiny_runs import SilentLog, assert_every_update_moved, tiny_config

from jaxagent.training import loop, step
from jaxagent.training import state as states
from jaxagent.training.throughput import CompileCounter

FAST = ("gigpo", "ppo")
BOTH = pytest.mark.parametrize("case", FAST)
ALL = pytest.mark.parametrize("case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES])


@ALL
def test_one_device_with_four_micro_batches_equals_eight_with_one(case):
    """F12, for every loss: denominators are global, and a device or micro-batch without a token adds nothing."""
    one = run_update(case_setup(case, "optimizer.micro_rows=4"), groups_of_episodes(), edit=spread_rows)
    eight = run_update(case_setup(case, devices=8), groups_of_episodes(), edit=spread_rows)
    assert filled_pieces(one[2], 4) == 4 and 4 <= filled_pieces(eight[2], 8) < 8
    assert_same_gradient(one[0], eight[0])
    for name in ("train/loss", "train/entropy", "train/ratio"):
        np.testing.assert_allclose(one[1][name], eight[1][name], rtol=2e-5, atol=1e-7)
    assert one[1].keys() == eight[1].keys()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pieces", [1, 2])
def test_micro_batches_add_up(case, pieces):
    four = run_update(case_setup(case, "optimizer.micro_rows=4"), groups_of_episodes(), edit=spread_rows)
    setup = case_setup(case, f"optimizer.micro_rows={16 // pieces}")
    fewer = run_update(setup, groups_of_episodes(), edit=spread_rows)
    assert filled_pieces(four[2], 4) == 4 and filled_pieces(fewer[2], pieces) == pieces
    assert_same_gradient(four[0], fewer[0])


@ALL
def test_replayed_budgets_equal_physically_cut_episodes(case):
    setup = case_setup(case, "optimizer.micro_rows=4")
    episodes = groups_of_episodes(seed=5)
    replay = [[3, 5, 8, 2][e.group] for e in episodes]
    masked = run_update(setup, episodes, replay=replay)
    physical = run_update(setup, [cut(e, b) for e, b in zip(episodes, replay, strict=True)])
    assert_same_gradient(masked[0], physical[0])
    by_episode = lambda batch: np.bincount(  # noqa: E731
        batch.episode_index[step.loss_mask(batch)], batch.advantages[step.loss_mask(batch)], minlength=16
    )
    np.testing.assert_allclose(by_episode(masked[2]), by_episode(physical[2]), atol=1e-5)
    assert masked[1].keys() == physical[1].keys()
    for name in masked[1]:
        np.testing.assert_allclose(masked[1][name], physical[1][name], rtol=1e-4, atol=1e-5, err_msg=name)

    def forget(batch):
        return dataclasses.replace(batch, budget_mask=np.ones_like(batch.budget_mask))

    unmasked = run_update(setup, episodes, replay=replay, edit=forget)
    with pytest.raises(AssertionError):
        assert_same_gradient(unmasked[0], physical[0])


def poisoned(tree, outside):
    """Every float field of a batch with NaN and infinity where `outside(its shape)` says so."""
    floats = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
    floats = {k: np.asarray(v) for k, v in floats.items() if v is not None and v.dtype == np.float32}
    return dataclasses.replace(
        tree,
        **{
            k: np.where(outside(v), np.resize([np.nan, np.inf, -np.inf], v.shape), v).astype(np.float32)
            for k, v in floats.items()
        },
    )


@ALL
def test_nan_and_inf_under_masks_are_harmless(case):
    """F22: in void episodes, in turns that were not taken and outside the loss mask, before and after preparation."""
    setup = case_setup(case, "optimizer.micro_rows=4")
    episodes = groups_of_episodes()
    lost = {"end_reason": "infrastructure", "reward": 0.0, "success": False, "success_turn": None}
    episodes[5] = dataclasses.replace(episodes[5], **lost)
    clean = run_update(setup, episodes)

    def poison_batch(batch):
        return poisoned(batch, lambda _: ~np.asarray(step.loss_mask(batch)))

    def poison_inputs(arrays, packed):
        unused = {1: ~arrays.valid, 2: ~(arrays.turn_mask & arrays.valid[:, None])}
        assert unused[1].any()
        return poisoned(arrays, lambda x: unused[x.ndim]), poison_batch(packed)

    dirty = run_update(setup, episodes, edit=poison_batch, edit_inputs=poison_inputs)
    assert not np.isfinite(dirty[3].rewards).all() and not np.isfinite(dirty[2].advantages).all()
    assert_same_gradient(clean[0], dirty[0])
    assert all(np.isfinite(value) for value in dirty[1].values())


@ALL
def test_rows_in_any_order_give_the_same_step(case):
    setup = case_setup(case, "optimizer.micro_rows=4")

    def permute(batch):
        order = np.random.default_rng(3).permutation(batch.tokens.shape[0])
        return jax.tree.map(lambda leaf: leaf[order], batch)

    straight = run_update(setup, groups_of_episodes())
    assert_same_gradient(straight[0], run_update(setup, groups_of_episodes(), edit=permute)[0])
    shuffled = [groups_of_episodes()[i] for i in np.random.default_rng(4).permutation(16)]
    assert_same_gradient(straight[0], run_update(setup, shuffled)[0], tolerance=3e-5)


UNSCORED = {
    "corrected": (
        "algorithm.old_logprobs=behaviour",
        "algorithm.importance_cap=0.0",
        "algorithm.sequence_mask=()",
        "algorithm.sequence_mask_mean=False",
        "algorithm.kl.kind=k3",
        "algorithm.kl.reference=frozen",
    )
}


@pytest.mark.parametrize("case", ["gigpo", "dr_grpo", "rloo", "corrected"])
def test_groups_of_one_and_equal_returns_give_exactly_nothing(case):
    """F7."""
    setup = case_setup(case, "optimizer.micro_rows=4", "algorithm.kl.coefficient=0.0", *UNSCORED.get(case, ()))
    lonely = [make_episode(3, success=True, group=g) for g in range(4)]
    assert not np.any(prepared(setup, lonely)[0].advantages)
    turns = [make_turn(i + 1, anchor="same", reward=0.1) for i in range(1 if case == "gigpo" else 3)]
    equal = [make_episode(turns=turns, success=True, group=0, member=m, reward=0.3) for m in range(4)]
    assert not np.any(prepared(setup, equal)[0].advantages)


PLAIN_GROUPS = {  # the algorithm's formula on the outcomes of a group, for every method without a critic
    "gigpo": ("algorithm.gigpo.step_weight=0.0", "algorithm.normalize_std=False"),
    "dr_grpo": (),
    "gspo_token": ("algorithm.normalize_std=False",),
}


@pytest.mark.parametrize("case", PLAIN_GROUPS)
def test_advantages_of_groups_are_normalised_once(case):
    """F8: two groups [1, 0] and [1, 1, 1, 0]: the group formula exactly, on every token."""
    setup = case_setup(case, "optimizer.micro_rows=4", *PLAIN_GROUPS[case])
    outcomes = [(0, 1), (0, 0), (1, 1), (1, 1), (1, 1), (1, 0)]
    episodes = [make_episode(2, success=bool(r), group=g, member=m) for m, (g, r) in enumerate(outcomes)]
    batch, arrays = prepared(setup, episodes)
    expected = np.array([0.5, -0.5, 0.25, 0.25, 0.25, -0.75])
    mask = np.asarray(step.loss_mask(batch))
    np.testing.assert_allclose(batch.advantages[mask], expected[batch.episode_index[mask]], atol=1e-6)
    assert arrays.valid.sum() == 6


@pytest.mark.parametrize("case", PLAIN_GROUPS)
def test_long_episodes_do_not_dominate_a_baseline(case):
    """F9: rewards 1 (2 turns) and 0 (8 turns): episode part +-0.5 on every token."""
    setup = case_setup(case, "optimizer.micro_rows=4", *PLAIN_GROUPS[case])
    batch = prepared(setup, [make_episode(2, success=True, member=0), make_episode(8, member=1)])[0]
    mask = np.asarray(step.loss_mask(batch))
    np.testing.assert_allclose(batch.advantages[mask], np.where(batch.episode_index[mask] == 0, 0.5, -0.5), atol=1e-6)


# One compilation for what a score pass, a reference, a critic and a temperature must keep apart.
SCORED = ("optimizer.micro_rows=4", "algorithm.old_logprobs=recomputed", "rollout.temperature=0.5")
ALONE = "algorithm.critic.alone_updates=1"


def test_scores_at_the_rollouts_temperature():
    """F10: at a temperature of a half, old log-probs are the policy's (first ratio 1), the reference's likewise."""
    setup = case_setup("ppo_token", *SCORED, ALONE)
    update, extras = make_update(setup), loop.algorithm_options(setup.config).extras
    optimizer = states.make_optimizer(states.optimizer_settings(setup.config.optimizer))
    state = loop.fresh_state(setup, optimizer, extras)  # the reference is the policy
    arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes())
    scores = jax.device_get(update.score_batch(state, packed))
    mask = np.asarray(step.loss_mask(packed))
    cold = dataclasses.replace(loop.make_step_config(setup), temperature=1.0)
    untempered = np.asarray(jax.jit(functools.partial(step.score_tokens, cold))(state.params, packed)[0])
    assert np.abs(scores.old_logprobs - untempered)[mask].max() > 1e-2
    np.testing.assert_allclose(scores.ref_logprobs[mask], scores.old_logprobs[mask], atol=1e-5)
    _, metrics = loop.apply_update(update, state, arrays, packed)
    np.testing.assert_allclose(metrics["train/ratio"], 1.0, atol=1e-6)
    assert metrics["train/clip_share"] == 0 and abs(metrics["train/kl_reference"]) < 1e-6


def one_by_one(setup, pieces):
    """Gradient steps of a single-step update on each piece in turn."""
    update = make_update(setup)
    state, clipped = fresh_state(setup), []
    for piece in pieces:
        state, metrics = update.train_step(state, piece)
        clipped.append(float(metrics["train/clip_share"]))
    return jax.device_get(state), clipped


@pytest.mark.parametrize("case", ["gigpo", pytest.param("ppo", marks=pytest.mark.slow)])
def test_epochs_and_minibatches_are_single_steps_in_a_row(case):
    """F11: old log-probs, advantages and values stay fixed, so later steps clip; the update counter moves by one."""
    more = ("algorithm.epochs=2", "algorithm.minibatches=2", "algorithm.old_logprobs=recomputed")
    several = case_setup(case, "optimizer.micro_rows=4", *more)
    update = make_update(several)
    state = fresh_state(several)
    arrays, packed = loop.make_batch(several.config, update, groups_of_episodes())
    scores = update.score_batch(state, packed) if update.score_batch else None
    batch = jax.device_get(update.prepare(arrays, packed, scores))
    rows = len(packed.tokens) // 2
    halves = [jax.tree.map(lambda leaf, m=m: leaf[m * rows : (m + 1) * rows], batch) for m in range(2)]
    members = [set(np.unique(half.episode_index)) - {-1} for half in halves]
    assert [len(m) for m in members] == [8, 8] and not members[0] & members[1]
    state, metrics = update.train_step(state, batch)
    expected, clipped = one_by_one(case_setup(case, "optimizer.micro_rows=4"), halves * 2)
    np.testing.assert_allclose(flat(jax.device_get(state.params)), flat(expected.params), rtol=1e-4, atol=1e-5)
    assert int(state.step) == 1 and clipped[0] == 0 < clipped[-1]
    np.testing.assert_allclose(metrics["train/clip_share"], np.mean(clipped), rtol=1e-4)


@BOTH
def test_metrics_by_tenth_are_means_over_the_tokens_of_a_tenth(case):
    setup = case_setup(case, "optimizer.micro_rows=4")
    episodes = [cut(e, [1, 2, 5, 8][e.group]) for e in groups_of_episodes()]
    _, metrics, batch, _ = run_update(setup, episodes)
    mask = np.asarray(step.loss_mask(batch))
    budgets = np.array([e.enforced_budget for e in episodes])[batch.episode_index[mask]]
    for budget, tenth in ((1, 2), (2, 3), (5, 7), (8, 10)):  # ceil(10 budget / 8)
        chosen = batch.advantages[mask][budgets == budget]
        np.testing.assert_allclose(metrics[f"train/advantage_tenth_{tenth}"], chosen.mean(), atol=1e-5)
        np.testing.assert_allclose(metrics[f"train/advantage_std_tenth_{tenth}"], chosen.std(), atol=1e-4)
    share = np.bincount(budgets, minlength=9)[[1, 2, 5, 8]] / len(budgets)
    for name in ("ratio", "clip_share", "kl_behaviour", "entropy"):  # their means over all tokens are logged too
        parts = [metrics[f"train/{name}_tenth_{tenth}"] for tenth in (2, 3, 7, 10)]
        np.testing.assert_allclose(share @ parts, metrics[f"train/{name}"], rtol=1e-4, err_msg=name)
        assert np.ptp(parts) > 0
    names = ("ratio", "clip_share", "kl_behaviour", "entropy", "advantage", "advantage_std")
    assert {f"train/{n}_tenth_{t}" for n in names for t in (2, 3, 7, 10)} == {k for k in metrics if "_tenth_" in k}


@BOTH
def test_budgets_change_without_a_compilation(case):
    setup = case_setup(case, "optimizer.micro_rows=4")
    update = make_update(setup)
    state = fresh_state(setup)
    counter = CompileCounter()
    for number in range(3):
        counter.count = counter.count if number > 1 else 0  # round 0 warms up
        replay = [[3, 5, 8, 2][(e.group + number) % 4] for e in groups_of_episodes()]
        arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes(seed=number), replay=replay)
        state, _ = loop.apply_update(update, state, arrays, packed)
    counter.close()
    assert counter.count == 0


def test_a_reference_and_a_critic_share_no_buffer_with_the_policy():
    """F23: the donated state's leaves are distinct, and the frozen reference outlives the steps unchanged."""
    setup = case_setup("ppo_token", *SCORED, ALONE)
    optimizer = states.make_optimizer(states.optimizer_settings(setup.config.optimizer))
    update = loop.make_update(setup, optimizer)
    extras = loop.algorithm_options(setup.config).extras
    state = loop.fresh_state(setup, optimizer, extras)
    create = functools.partial(states.from_params, setup.model, optimizer, seed=0, extras=extras)
    started = jax.jit(create, donate_argnums=0)(jax.tree.map(lambda leaf: 1.01 * leaf, state.params))
    for one in (state, started):
        pointers = [
            shard.data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(one) for shard in leaf.addressable_shards
        ]
        assert len(set(pointers)) == len(pointers)
    np.testing.assert_array_equal(flat(started.reference), flat(started.params))
    np.testing.assert_array_equal(flat(started.critic.params["trunk"]), flat(started.params))
    before = flat(jax.device_get(started.reference))
    arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes())
    scored = np.asarray(update.score_batch(started, packed).ref_logprobs)
    for _ in range(2):  # in the first the critic learns alone
        started, _ = loop.apply_update(update, started, arrays, packed)
    np.testing.assert_array_equal(flat(jax.device_get(started.reference)), before)
    np.testing.assert_array_equal(update.score_batch(started, packed).ref_logprobs, scored)
    assert np.abs(flat(jax.device_get(started.params)) - before).max() > 1e-4


@pytest.mark.slow
def test_a_reference_that_follows_the_policy():
    setup = case_setup("corrected", "optimizer.micro_rows=4", "algorithm.kl.decay=0.75")
    update, state = make_update(setup), fresh_state(setup)
    before = flat(jax.device_get(state.reference))
    arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes())
    state, metrics = loop.apply_update(update, state, arrays, packed)
    after = flat(jax.device_get(state.params))
    np.testing.assert_allclose(flat(jax.device_get(state.reference)), 0.75 * before + 0.25 * after, atol=1e-6)
    assert np.abs(after - before).max() > 1e-3 and metrics["train/kl_reference"] > 0


def test_a_plain_run_carries_nothing_extra():
    state = fresh_state(case_setup("gigpo", "optimizer.micro_rows=4"))
    assert state.reference is None and state.critic is None
    batch = prepared(case_setup("gigpo", "optimizer.micro_rows=4"), groups_of_episodes())[0]
    assert batch.ref_logprobs is None and batch.old_values is None and batch.returns is None


def test_the_critic_learns_alone_at_first():
    setup = case_setup("ppo_token", *SCORED, ALONE)
    update = make_update(setup)
    state = fresh_state(setup)
    histories = [jax.device_get((state.params, state.critic.params))]
    for number in range(2):
        arrays, packed = loop.make_batch(setup.config, update, groups_of_episodes(seed=number))
        state, _ = loop.apply_update(update, state, arrays, packed)
        histories.append(jax.device_get((state.params, state.critic.params)))
    np.testing.assert_array_equal(flat(histories[0][0]), flat(histories[1][0]))
    assert np.abs(flat(histories[0][1]) - flat(histories[1][1])).max() > 1e-3
    assert np.abs(flat(histories[1][0]) - flat(histories[2][0])).max() > 1e-4


RESUMED = (
    "algorithm.kl.coefficient=0.05",
    "algorithm.kl.reference=moving_average",
    "algorithm.kl.decay=0.5",
    "algorithm.critic.kind=separate",
    "eval.every=0",
    "checkpoint.every=2",
    "env.step_reward=test_arms:pay",
)


@pytest.mark.slow
def test_a_resumed_run_with_critic_and_reference_equals_the_straight_one(tmp_path):
    logs = {}
    for folder, ends in (("straight", (4,)), ("resumed", (2, 4))):
        logs[folder] = SilentLog()
        for steps in ends:
            config = tiny_config(*RESUMED, f"algorithm.steps={steps}", variant="ppo_budgetmix,runlocal")
            loop.run(config, tmp_path / folder, resume=steps > ends[0], log=logs[folder])
    paths = [tmp_path / folder / "checkpoints" / "latest" / "4" / "state" for folder in logs]
    left, right = (ocp.PyTreeCheckpointer().restore(path.absolute()) for path in paths)
    assert jax.tree.structure(left) == jax.tree.structure(right)
    assert {"reference", "critic"} <= set(left)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert np.abs(flat(left["reference"]) - flat(left["params"])).max() > 1e-6
    assert_every_update_moved(logs["straight"].lines.values())
    assert all(line["critic/grad_norm"] > 0 for line in logs["straight"].lines.values())
    for number in range(1, 5):
        volatile = ("time/", "cost/", "per_second")
        one, other = (
            {k: v for k, v in logs[f].lines[number].items() if not any(w in k for w in volatile)} for f in logs
        )
        assert one == other
        assert logs["resumed"].lines[number]["cost/compilations"] == 0
