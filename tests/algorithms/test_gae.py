"""Token, turn and bi-level GAE against published vectors and loops over each episode's list of policy tokens."""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.algorithms import advantages

ROWS, LENGTH = 2, 12
quick = hypothesis.settings(max_examples=25, deadline=None)


@functools.cache
def _jitted(name, **options):
    return jax.jit(functools.partial(getattr(advantages, name), **options))


def _padded(array, dtype, fill=0):
    array = np.atleast_2d(np.asarray(array, dtype))
    target = np.full((ROWS, LENGTH), fill, dtype)
    target[: array.shape[0], : array.shape[1]] = array
    return target


def _estimate(name, rewards, values, mask, segment_ids, turn_index=None, **options):
    shape = np.atleast_2d(rewards).shape
    arrays = [_padded(rewards, np.float32), _padded(values, np.float32), _padded(mask, bool)]
    arrays.append(_padded(segment_ids, np.int32))
    if turn_index is not None:
        arrays.append(_padded(turn_index, np.int32, -1))
    results = _jitted(name, **options)(*arrays)
    return tuple(np.asarray(x)[: shape[0], : shape[1]] for x in results)


# Two turns of three tokens, one observation token between them.
VALUES = [0.1, 0.2, 0.3, 9.0, 0.4, 0.5, 0.6]
REWARDS = [0, 0, 0.5, 0, 0, 0, 1.0]
MASK = [1, 1, 1, 0, 1, 1, 1]
TURNS = [0, 0, 0, 1, 1, 1, 1]
PARITY = dict(turn_gamma=0.95, bootstrap="turn_end")


def test_bi_level_vectors():
    result, returns = _estimate("bi_level_gae", REWARDS, VALUES, MASK, [1] * 7, TURNS, **PARITY)
    np.testing.assert_allclose(result[0], [1.35, 1.25, 1.15, 0, 0.6, 0.5, 0.4], atol=1e-5)
    np.testing.assert_allclose(returns[0], [1.45, 1.45, 1.45, 0, 1, 1, 1], atol=1e-5)
    options = PARITY | dict(lam=0.95, turn_lam=0.95)
    result, returns = _estimate("bi_level_gae", REWARDS, VALUES, MASK, [1] * 7, TURNS, **options)
    np.testing.assert_allclose(result[0], [1.21573, 1.17445, 1.131, 0, 0.556, 0.48, 0.4], atol=1e-5)
    np.testing.assert_allclose(returns[0, 2], 1.431, atol=1e-5)


def test_turn_vectors():
    result, _ = _estimate("turn_gae", REWARDS, VALUES, MASK, [1] * 7, TURNS, gamma=0.95)
    np.testing.assert_allclose(result[0], [1.35] * 3 + [0] + [0.6] * 3, atol=1e-5)
    result, returns = _estimate("turn_gae", REWARDS, VALUES, MASK, [1] * 7, TURNS, gamma=0.95, lam=0.95)
    np.testing.assert_allclose(result[0], [1.3215] * 3 + [0] + [0.6] * 3, atol=1e-5)
    np.testing.assert_allclose(returns[0], [1.4215] * 3 + [0] + [1.0] * 3, atol=1e-5)


def test_token_gae_skips_observations():
    """With gamma = lam = 1 the return of every policy token is the sum of the rewards from there on."""
    result, returns = _estimate("token_gae", REWARDS, VALUES, MASK, [1] * 7)
    np.testing.assert_allclose(returns[0], [1.5, 1.5, 1.5, 0, 1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(result[0], [1.4, 1.3, 1.2, 0, 0.6, 0.5, 0.4], atol=1e-6)


def test_a_turn_without_reward_keeps_its_boundary():
    """Three turns of one token, rewards 0, 0, 1: each turn discounts once although the first two pay nothing."""
    result, _ = _estimate("turn_gae", [0, 0, 1], [0, 0, 0], [1, 1, 1], [1] * 3, [0, 1, 2], gamma=0.95)
    np.testing.assert_allclose(result[0], [0.9025, 0.95, 1.0], atol=1e-6)
    result, _ = _estimate("bi_level_gae", [0, 0, 0], [0.5] * 3, [1, 1, 1], [1] * 3, [0, 1, 2], **PARITY)
    assert np.isfinite(result).all()


# --- references: one list of policy tokens per episode
# -------------------------------------------------------------------


def _episodes(mask, segment_ids):
    for row in range(mask.shape[0]):
        for segment in dict.fromkeys(segment_ids[row].tolist()):
            tokens = [t for t in range(mask.shape[1]) if mask[row, t] and segment_ids[row, t] == segment]
            if tokens:
                yield row, tokens


def _gae_list(rewards, values, gamma, lam):
    """Textbook GAE of one list, as the explicit double sum of discounted deltas."""
    following = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def _turns_of(row, tokens, turn_index):
    turns = []
    for t in tokens:
        if not turns or turn_index[row, t] != turn_index[row, turns[-1][-1]]:
            turns.append([])
        turns[-1].append(t)
    return turns


def _token_loop(rewards, values, mask, segment_ids, turn_index, gamma, lam):
    result = np.zeros(rewards.shape)
    for row, tokens in _episodes(mask, segment_ids):
        result[row, tokens] = _gae_list(rewards[row, tokens], values[row, tokens], gamma, lam)
    return result


def _turn_loop(rewards, values, mask, segment_ids, turn_index, gamma, lam):
    result = np.zeros(rewards.shape)
    for row, tokens in _episodes(mask, segment_ids):
        turns = _turns_of(row, tokens, turn_index)
        paid = [sum(rewards[row, turn]) for turn in turns]
        for turn, value in zip(turns, _gae_list(paid, [values[row, t[0]] for t in turns], gamma, lam), strict=True):
            result[row, turn] = value
    return result


def _bi_level_loop(rewards, values, mask, segment_ids, turn_index, gamma, lam, turn_gamma, turn_lam, at):
    result = np.zeros(rewards.shape)
    for row, tokens in _episodes(mask, segment_ids):
        turns = _turns_of(row, tokens, turn_index)
        turn_values = [values[row, turn[at]] for turn in turns]
        high = _gae_list([sum(rewards[row, turn]) for turn in turns], turn_values, turn_gamma, turn_lam)
        for turn, advantage, value in zip(turns, high, turn_values, strict=True):
            paid = list(rewards[row, turn])
            paid[-1] = advantage + value - sum(paid[:-1])
            result[row, turn] = _gae_list(paid, values[row, turn], gamma, lam)
    return result


FLOATS = st.floats(-3, 3, width=32)
# Segments and turns are runs: cumulative sums of rare increments; a new segment starts at turn 0 or keeps counting.
packed = st.tuples(
    hnp.arrays(np.float32, (ROWS, LENGTH), elements=FLOATS),
    hnp.arrays(np.float32, (ROWS, LENGTH), elements=FLOATS),
    hnp.arrays(bool, (ROWS, LENGTH), elements=st.sampled_from([True, True, False])),
    hnp.arrays(np.int32, (ROWS, LENGTH), elements=st.sampled_from([0, 0, 0, 0, 1])).map(lambda x: 1 + x.cumsum(axis=1)),
    hnp.arrays(np.int32, (ROWS, LENGTH), elements=st.sampled_from([0, 0, 1])).map(lambda x: x.cumsum(axis=1)),
)


def _cases():
    """(name, options, loop) of each estimator."""
    yield "token_gae", dict(gamma=0.9, lam=0.8), functools.partial(_token_loop, gamma=0.9, lam=0.8)
    yield "turn_gae", dict(gamma=0.95, lam=0.95), functools.partial(_turn_loop, gamma=0.95, lam=0.95)
    options = dict(gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6)
    yield "bi_level_gae", options | {"bootstrap": "turn_start"}, functools.partial(_bi_level_loop, at=0, **options)
    parity = functools.partial(_bi_level_loop, at=-1, gamma=1.0, lam=0.95, turn_gamma=0.95, turn_lam=0.95)
    yield "bi_level_gae", PARITY | dict(lam=0.95, turn_lam=0.95), parity


def _inputs(name, batch):
    return batch[:4] if name == "token_gae" else batch


@quick
@hypothesis.given(packed)
def test_estimators_equal_the_loops(batch):
    for name, options, loop in _cases():
        result, returns = _estimate(name, *_inputs(name, batch), **options)
        expected = loop(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in batch))
        np.testing.assert_allclose(result, expected, atol=2e-5, rtol=1e-5, err_msg=f"{name} {options}")
        if name != "turn_gae":
            np.testing.assert_allclose(returns, np.where(batch[2], expected + batch[1], 0), atol=3e-5, rtol=1e-5)


@quick
@hypothesis.given(packed)
def test_two_levels_without_discounts_are_token_gae(batch):
    """Rewards inside a turn, a KL penalty say, reach the tokens up to them and none behind."""
    no_discount = dict(gamma=1.0, lam=1.0, turn_gamma=1.0, turn_lam=1.0)
    two = _estimate("bi_level_gae", *batch, bootstrap="turn_start", **no_discount)
    one = _estimate("token_gae", *batch[:4])
    for a, b in zip(two, one, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5, rtol=1e-5)


@quick
@hypothesis.given(packed, st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_stands_under_the_mask_is_harmless(batch, poison):
    rewards, values, mask, segment_ids, turn_index = batch
    dirty = (np.where(mask, rewards, poison), np.where(mask, values, poison), mask, segment_ids, turn_index)
    for name, options, _ in _cases():
        clean = _estimate(name, *_inputs(name, batch), **options)
        for a, b in zip(_estimate(name, *_inputs(name, dirty), **options), clean, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)
            assert not b[~mask].any()


@quick
@hypothesis.given(packed)
def test_episodes_of_a_row_do_not_touch_each_other(batch):
    """An enormous critic in every other episode changes nothing here."""
    rewards, values, mask, segment_ids, turn_index = batch
    other = segment_ids != segment_ids[:, :1]
    loud = (rewards, np.where(other, 1e30, values).astype(np.float32), mask, segment_ids, turn_index)
    for name, options, _ in _cases():
        clean, noisy = (_estimate(name, *_inputs(name, b), **options)[0] for b in (batch, loud))
        np.testing.assert_array_equal(noisy[~other], clean[~other], err_msg=name)


def test_turn_rewards_land_on_the_last_policy_token():
    step_rewards = np.array([[1.0, 2.0], [3.0, np.nan]], np.float32)
    mask = np.array([[1, 1, 0, 1, 0, 0, 1, 1], [0] * 8], bool)
    episode = np.array([[0, 0, 0, 0, 0, 1, 1, 1], [99] * 8])
    turn = np.array([[0, 0, 1, 1, 1, 0, 0, 0], [-1] * 8])
    result = jax.jit(advantages.turn_rewards_to_tokens)(step_rewards, mask, episode, turn)
    np.testing.assert_array_equal(result, [[0, 1, 0, 2, 0, 0, 0, 3], [0] * 8])


def test_gae_results_are_constants():
    def total(values):
        result, returns = advantages.token_gae(values * 0, values, values > 0, jnp.ones((1, 3), jnp.int32))
        return jnp.sum(result + returns)

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.ones((1, 3))), np.zeros((1, 3)))


def test_gae_options_that_cannot_work_raise():
    x, ids = jnp.ones((1, 3)), jnp.ones((1, 3), jnp.int32)
    with pytest.raises(ValueError, match="lam"):
        advantages.token_gae(x, x, x > 0, ids, lam=1.2)
    with pytest.raises(ValueError, match="bootstrap"):
        advantages.bi_level_gae(x, x, x > 0, ids, ids, bootstrap="next")
    with pytest.raises(AssertionError):
        advantages.turn_gae(x, x, x > 0, ids, ids[:, :2])
