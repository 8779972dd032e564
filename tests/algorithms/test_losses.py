"""Loss pieces against hand-derived values and gradients, loops, and the faults that masks and denominators invite."""

import functools
import math

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.algorithms import losses

ROWS, LENGTH = 4, 6
MODES = {"token_mean": None, "sequence_mean": None, "prompt_mean": None, "dr_grpo": 7.0}
quick = hypothesis.settings(max_examples=25, deadline=None)
masks = hnp.arrays(bool, (ROWS, LENGTH))
ids_of_tokens = hnp.arrays(np.int32, (ROWS, LENGTH), elements=st.sampled_from([0, 1, 2**31 - 1, -5]))
terms = hnp.arrays(np.float32, (ROWS, LENGTH), elements=st.floats(-4, 4, width=32))
POISONS = [np.nan, np.inf, -np.inf]


@functools.cache
def _weights_of(mode):
    return jax.jit(functools.partial(losses.token_weights, mode=mode, constant=MODES[mode]))


# --- surrogate
# ---------------------------------------------------------------------------------------------------------


def _surrogate(ratios, advantages, **options):
    """(loss, clipped, gradient by log-ratio) of each token."""
    log_ratio, advantages = jnp.log(jnp.asarray(ratios, jnp.float32)), jnp.asarray(advantages, jnp.float32)
    loss, clipped = losses.surrogate(log_ratio, advantages, **options)
    return loss, clipped, jax.grad(lambda x: losses.surrogate(x, advantages, **options)[0].sum())(log_ratio)


def test_surrogate_by_hand():
    """Inside the bounds L = -A r with gradient -A r; beyond the bound that A pushes to, constant with gradient 0."""
    ratios = [1.0, 1.2, 1.5, 0.5, 1.0, 0.9, 0.5, 1.5]
    signs = [1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]
    loss, clipped, gradient = _surrogate(ratios, signs)
    np.testing.assert_allclose(loss, [-1, -1.2, -1.28, -0.5, 1, 0.9, 0.8, 1.5], rtol=1e-6)
    np.testing.assert_array_equal(clipped, [False, False, True, False, False, False, True, False])
    np.testing.assert_allclose(gradient, [-1, -1.2, 0, -0.5, 1, 0.9, 0, 1.5], rtol=1e-6)


def test_dual_clip_bounds_negative_advantages():
    loss, clipped, gradient = _surrogate([2.0, 4.0, 4.0], [-1.0, -1.0, 1.0], dual_clip=3.0)
    np.testing.assert_allclose(loss, [2, 3, -1.28], rtol=1e-6)
    np.testing.assert_array_equal(clipped, [False, True, True])
    np.testing.assert_allclose(gradient, [2, 0, 0], rtol=1e-6)


def test_log_ratio_is_clamped():
    loss, _ = losses.surrogate(jnp.array([500.0, -500.0]), jnp.array([-1.0, -1.0]))
    np.testing.assert_allclose(loss, [math.exp(20), 0.8], rtol=1e-5)


def test_ratio_is_one_on_policy_and_moves_with_the_policy():
    """Epoch one: ratio 1, gradient -A, nothing clipped. After a large step the same old log-probs clip."""
    old, mask, advantages = jnp.log(jnp.array([0.3, 0.6])), jnp.array([True, True]), jnp.array([1.0, -1.0])

    def loss_of(new):
        loss, clipped = losses.surrogate(losses.masked_difference(new, old, mask), advantages, mask=mask)
        return loss.sum(), clipped

    (_, clipped), gradient = jax.value_and_grad(loss_of, has_aux=True)(old)
    np.testing.assert_allclose(gradient, [-1.0, 1.0], atol=1e-6)
    assert not clipped.any()
    (_, clipped), gradient = jax.value_and_grad(loss_of, has_aux=True)(old - gradient)
    np.testing.assert_array_equal(clipped, [True, True])
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


@pytest.mark.parametrize("poison", [*POISONS, 1e30])
def test_poison_under_the_mask_reaches_no_gradient(poison):
    """The whole chain: log-probs, advantages, values, entropies, all with NaN or infinity in masked places."""
    mask = jnp.array([[True, False, True], [False, False, False]])
    ids = jnp.array([[1, 1, 1], [2, 2, 2]])

    def loss_of(new, old, advantages, values, entropy):
        log_ratio = losses.masked_difference(new, old, mask)
        log_ratio = log_ratio + losses.sequence_log_ratio(new, mask, ids, variant="token")
        term, _ = losses.surrogate(log_ratio, advantages, mask=mask)
        term = term * losses.truncated_importance_weights(old, mask=mask)
        term = term + losses.value_loss(values, advantages, old, mask=mask)[0]
        term = term + losses.entropy_bonus(entropy, 0.1, mask)
        kept = losses.sequence_mask(old, mask, ids)
        return losses.aggregate(term, kept, ids, "sequence_mean") + losses.aggregate(term, mask, None, "token_mean")

    clean = [jnp.full((2, 3), x, jnp.float32) for x in (-0.5, -0.4, 1.0, -0.3, 0.7)]
    dirty = [jnp.where(mask, x, poison) for x in clean]
    function = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1, 2, 3, 4)))
    value, gradients = function(*clean)
    poisoned_value, poisoned_gradients = function(*dirty)
    assert value == poisoned_value
    for good, bad in zip(gradients, poisoned_gradients, strict=True):
        np.testing.assert_array_equal(good, bad)
        assert not np.asarray(bad)[~np.asarray(mask)].any()
    assert np.asarray(gradients[0]).any() and np.asarray(gradients[3]).any()


def test_large_masked_log_ratio_gives_zero_gradient():
    """exp of an unprotected masked value would be infinite, and its gradient NaN."""
    log_ratio, mask = jnp.array([0.1, 1e5]), jnp.array([True, False])
    gradient = jax.grad(lambda x: losses.surrogate(x, jnp.ones(2), mask=mask)[0].sum())(log_ratio)
    assert np.isfinite(gradient).all() and gradient[1] == 0.0 and gradient[0] != 0.0


# --- GSPO
# --------------------------------------------------------------------------------------------------------------


def test_gspo_by_hand():
    log_ratio = jnp.array([[0.3, 0.1, 9.0, -0.2, 0.4, 5.0]])
    mask = jnp.array([[True, True, False, True, True, False]])
    ids = jnp.array([[4, 4, 4, 8, 8, 8]])
    sequence = losses.sequence_log_ratio(log_ratio, mask, ids)
    np.testing.assert_allclose(sequence, [[0.2, 0.2, 0, 0.1, 0.1, 0]], atol=1e-6)
    token = losses.sequence_log_ratio(log_ratio, mask, ids, variant="token")
    np.testing.assert_allclose(token, sequence, atol=1e-6)
    weights = jnp.array([[1.0, 10.0, 0, 100.0, 1000.0, 0]])
    gradient = jax.grad(lambda x: jnp.sum(weights * losses.sequence_log_ratio(x, mask, ids)))(log_ratio)
    np.testing.assert_allclose(gradient, [[5.5, 5.5, 0, 550, 550, 0]], rtol=1e-6)
    token_of = functools.partial(losses.sequence_log_ratio, mask=mask, ids=ids, variant="token")
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(weights * token_of(x)))(log_ratio), weights, rtol=1e-6)


# --- aggregation
# -------------------------------------------------------------------------------------------------------


def _aggregate_by_loops(per_token, mask, ids, mode):
    tokens = [(b, s) for b in range(ROWS) for s in range(LENGTH) if mask[b, s]]
    if not tokens:
        return 0.0
    if mode == "token_mean":
        return sum(float(per_token[t]) for t in tokens) / len(tokens)
    members = {key: [float(per_token[t]) for t in tokens if ids[t] == key] for key in {int(ids[t]) for t in tokens}}
    sums = [sum(m) / (len(m) if mode != "dr_grpo" else MODES[mode]) for m in members.values()]
    return sum(sums) / len(members)


@quick
@hypothesis.given(terms, masks, ids_of_tokens)
def test_aggregates_equal_the_loops_and_micro_batches_add_up(per_token, mask, ids):
    for mode in MODES:
        weights = np.asarray(_weights_of(mode)(mask, ids))
        expected = _aggregate_by_loops(per_token, mask, ids, mode)
        for parts in (1, 2, 4):
            split = [np.split(x, parts) for x in (per_token, mask, weights)]
            total = sum(float(losses.weighted_sum(*map(jnp.asarray, part))) for part in zip(*split, strict=True))
            np.testing.assert_allclose(total, expected, atol=1e-5, rtol=1e-5, err_msg=f"{mode} in {parts}")
        assert not weights[~mask].any()


def test_global_denominator_over_two_shards():
    """Five tokens of loss 1 on one shard, one token of loss 7 on the other: 2.0, where the mean of means says 4.0."""
    per_token = np.array([[1.0] * 5 + [99.0], [7.0] + [99.0] * 5], np.float32)
    mask = np.array([[True] * 5 + [False], [True] + [False] * 5])
    weights = losses.token_weights(mask, None, "token_mean")
    shards = [losses.weighted_sum(per_token[i], mask[i], weights[i]) for i in range(2)]
    np.testing.assert_allclose(sum(shards), 2.0, rtol=1e-6)
    empty = losses.weighted_sum(per_token[0], mask[0] & False, weights[0])
    assert empty == 0.0


def test_shards_on_two_devices_give_the_gradient_of_one():
    """The same on a mesh: rows on two devices when there are two, gradient equal to the unsharded one."""
    devices = np.array(jax.devices()[:2])
    mesh = jax.sharding.Mesh(devices, ("data",))
    rows = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    per_token = np.arange(12, dtype=np.float32).reshape(2, 6)
    mask = np.array([[True] * 5 + [False], [False] * 6])

    def loss_of(x, mask):
        return losses.aggregate(jnp.square(x), mask, None, "token_mean")

    expected = np.where(mask, 2 * per_token / 5, 0)
    placed = [jax.device_put(x, rows) for x in (per_token, mask)]
    np.testing.assert_allclose(jax.jit(jax.grad(loss_of))(*placed), expected, rtol=1e-6)


def test_every_trajectory_weighs_the_same_under_sequence_mean():
    """Two policy tokens against eight: half of the weight each."""
    mask = np.ones((1, 10), bool)
    ids = np.array([[3] * 2 + [1] * 8])
    weights = np.asarray(losses.token_weights(mask, ids, "sequence_mean"))
    np.testing.assert_allclose([weights[ids == 3].sum(), weights[ids == 1].sum()], [0.5, 0.5], rtol=1e-6)


def test_empty_masks_weigh_nothing():
    for mode in MODES:
        weights = _weights_of(mode)(np.zeros((ROWS, LENGTH), bool), np.zeros((ROWS, LENGTH), np.int32))
        np.testing.assert_array_equal(weights, np.zeros((ROWS, LENGTH)))


# --- importance, values, whitening
# -------------------------------------------------------------------------------------


def test_truncated_importance_weights():
    log_ratio = jnp.log(jnp.array([0.5, 1.0, 1.9, 3.0, 1e30]))
    np.testing.assert_allclose(losses.truncated_importance_weights(log_ratio), [0.5, 1, 1.9, 2, 2], rtol=1e-5)
    gradient = jax.grad(lambda x: losses.truncated_importance_weights(x).sum())(log_ratio)
    np.testing.assert_array_equal(gradient, np.zeros(5))


def test_sequence_mask_drops_whole_sequences():
    log_ratio = jnp.array([[0.6, 0.6, 50.0, 0.2, -0.3, 0.0]])
    mask = jnp.array([[True, True, False, True, True, True]])
    ids = jnp.array([[1, 1, 1, 2, 2, 2]])
    kept = losses.sequence_mask(log_ratio, mask, ids)  # exp(1.2) = 3.32 leaves, exp(-0.1) stays
    np.testing.assert_array_equal(kept, [[False, False, False, True, True, True]])
    kept = losses.sequence_mask(log_ratio, mask, ids, geometric=True, high=2.0)  # exp(0.6) = 1.82 stays
    np.testing.assert_array_equal(kept, mask)
    kept = losses.sequence_mask(log_ratio, mask, ids, low=0.95)
    np.testing.assert_array_equal(kept, np.zeros((1, 6), bool))


def test_value_loss_by_hand():
    values, returns, old = jnp.array([1.0, 1.0, 0.0]), jnp.array([0.5, 2.0, 1.0]), jnp.array([0.9, 0.5, 0.5])
    loss, clipped = losses.value_loss(values, returns, old)
    # within reach of old: plain; 1.0 pulled back to 0.7, farther from 2; 0.0 pulled up to 0.3, nearer to 1: plain wins
    np.testing.assert_allclose(loss, [0.5 * 0.25, 0.5 * 1.69, 0.5 * 1.0], rtol=1e-5)
    np.testing.assert_array_equal(clipped, [False, True, False])
    gradient = jax.grad(lambda v: losses.value_loss(v, returns, old)[0].sum())(values)
    np.testing.assert_allclose(gradient, [0.5, 0.0, -1.0], atol=1e-6)
    plain, clipped = losses.value_loss(values, returns, old, clip=None)
    np.testing.assert_allclose(plain, 0.5 * np.square([0.5, -1, -1]), rtol=1e-6)
    assert not clipped.any()


def test_entropy_bonus():
    np.testing.assert_allclose(
        losses.entropy_bonus(jnp.array([2.0, jnp.nan]), 0.25, jnp.array([True, False])), [-0.5, 0]
    )


whiten = jax.jit(losses.whiten)


@quick
@hypothesis.given(terms, masks, st.sampled_from([*POISONS, 0.0]))
def test_whitening_equals_numpy(x, mask, poison):
    result = np.asarray(whiten(np.where(mask, x, poison).astype(np.float32), mask))
    chosen = x[mask].astype(np.float64)
    expected = np.zeros(x.shape)
    if chosen.size < 2:
        expected[mask] = chosen
    elif chosen.max() - chosen.min() > 1e-6 * max(1.0, abs(chosen.max())):
        expected[mask] = (chosen - chosen.mean()) / math.sqrt(chosen.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(result, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [0.3, 0.7, 1e30, -1e-30])
def test_whitening_of_equal_values_is_zero(value):
    x = np.full((ROWS, LENGTH), value, np.float32)
    np.testing.assert_array_equal(whiten(x, np.ones((ROWS, LENGTH), bool)), np.zeros((ROWS, LENGTH)))


# --- options
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x, m, i: losses.surrogate(x, x, clip_low=-0.1), "clip_low"),
        (lambda x, m, i: losses.surrogate(x, x, dual_clip=0.9), "dual_clip"),
        (lambda x, m, i: losses.token_weights(m, i, "mean"), "aggregation"),
        (lambda x, m, i: losses.token_weights(m, i, "dr_grpo"), "constant"),
        (lambda x, m, i: losses.token_weights(m, i, "token_mean", constant=3.0), "constant"),
        (lambda x, m, i: losses.token_weights(m, i, "dr_grpo", constant=-1.0), "constant"),
        (lambda x, m, i: losses.token_weights(m, None, "prompt_mean"), "ids"),
        (lambda x, m, i: losses.sequence_log_ratio(x, m, i, variant="both"), "variant"),
        (lambda x, m, i: losses.truncated_importance_weights(x, cap=0.0), "cap"),
        (lambda x, m, i: losses.sequence_mask(x, m, i, high=0.5), "high"),
        (lambda x, m, i: losses.value_loss(x, x, x, clip=0.0), "clip"),
    ],
)
def test_options_that_cannot_work_raise_and_name_the_option(call, named):
    x = jnp.ones((2, 3))
    with pytest.raises(ValueError, match=named):
        call(x, x > 0, jnp.ones((2, 3), jnp.int32))


def test_shapes_are_checked_at_the_border():
    x = jnp.ones((2, 3))
    with pytest.raises(AssertionError):
        losses.surrogate(x, x[:, :1])
    with pytest.raises(AssertionError):
        losses.weighted_sum(x, x > 0, x[0])
