"""Group advantages against published vectors and against per-row loops in float64 that follow the formulas."""

import functools
import math
from fractions import Fraction

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.algorithms import FUNCTIONS, advantages

INT_MAX = 2**31 - 1


GIGPO_DEFAULTS = {"normalize_std": False, "episode_stats": "trajectories", "require_distinct_trajectories": False}
NUM, WIDTH = 12, 8  # one shape for the small cases: they share compilations, and the rows added are void


@functools.cache
def _jitted(name, **options):
    return jax.jit(functools.partial(getattr(advantages, name), **options))


def _padded(array, dtype, fill):
    """Copies a list into an array of NUM rows (and WIDTH columns); larger ones stay as they are."""
    array = np.asarray(array, dtype)
    if array.shape[0] > NUM:
        return array
    target = np.full((NUM, WIDTH)[: array.ndim], fill, dtype)
    target[tuple(slice(size) for size in array.shape)] = array
    return target


def _group(name, rewards, group_ids, valid=None, **options):
    valid = np.ones(len(rewards), bool) if valid is None else valid
    arrays = _padded(rewards, np.float32, np.nan), _padded(group_ids, np.int32, 1), _padded(valid, bool, False)
    return np.asarray(_jitted(name, **options)(*arrays))[: len(rewards)]


def _gigpo(step_rewards, group_ids, anchor_ids, turn_mask, valid, *, step_weight=1.0, **options):
    shape = np.shape(step_rewards)
    arrays = (
        _padded(step_rewards, np.float32, np.nan),
        _padded(group_ids, np.int32, 1),
        _padded(anchor_ids, np.int32, 1),
        _padded(turn_mask, bool, False),
        _padded(valid, bool, False),
    )
    result = _jitted("gigpo_advantages", **(GIGPO_DEFAULTS | options))(*arrays, step_weight=step_weight)
    return np.asarray(result)[: shape[0], : shape[1]]


# --- references: plain loops
# -------------------------------------------------------------------------------------------


def _centred(values, *, divide=False, floor=0.0):
    """Centred list of one group, the rules of equality and of one member included."""
    if len(values) < 2 or max(values) - min(values) <= 1e-6 * max(1.0, abs(max(values))):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    centred = [v - mean for v in values]
    if not divide:
        return centred
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(values) - 1))
    return [c / (std + max(floor, 1e-6)) for c in centred]


def _by_group(rewards, group_ids, valid, transform):
    result = np.zeros(len(rewards))
    for group in set(group_ids[valid].tolist()):
        members = [i for i in range(len(rewards)) if valid[i] and group_ids[i] == group]
        for i, value in zip(members, transform([float(rewards[i]) for i in members]), strict=True):
            result[i] = value
    return result


def _rloo_of(values):
    if len(values) < 2 or not any(_centred(values)):
        return [0.0] * len(values)
    return [v - (math.fsum(values) - v) / (len(values) - 1) for v in values]


def _gigpo_by_loops(
    step_rewards, group_ids, anchor_ids, turn_mask, valid, *, gamma, weight, divide, rows, distinct, floor=0.0
):
    num, width = step_rewards.shape
    result = np.zeros((num, width))
    returns, totals = {}, {}
    for i in range(num):
        taken = [t for t in range(width) if turn_mask[i, t]]
        totals[i] = math.fsum(float(step_rewards[i, t]) for t in taken)
        for t in taken:
            returns[i, t] = math.fsum(gamma ** (k - t) * float(step_rewards[i, k]) for k in taken if k >= t)
    for group in set(group_ids[valid].tolist()):
        members = [i for i in range(num) if valid[i] and group_ids[i] == group]
        samples = [i for i in members for _ in range(turn_mask[i].sum())] if rows else members
        part = dict(zip(samples, _centred([totals[i] for i in samples], divide=divide, floor=floor), strict=True))
        cells = {}
        for i in members:
            for t in range(width):
                if turn_mask[i, t]:
                    cells.setdefault(int(anchor_ids[i, t]), []).append((i, t))
        for visits in cells.values():
            step = _centred([returns[v] for v in visits], divide=divide, floor=floor)
            if distinct and len({i for i, _ in visits}) < 2:
                step = [0.0] * len(visits)
            for (i, t), value in zip(visits, step, strict=True):
                result[i, t] = part[i] + weight * value
    return result


# --- vectors
# -----------------------------------------------------------------------------------------------------------


def test_grpo_vectors():
    ids = [4, 4, 4, 4]
    np.testing.assert_allclose(_group("grpo_advantages", [1, 0, 0, 1], ids), [0.5, -0.5, -0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(_group("grpo_advantages", [1, 0, 0, 0], ids), [0.75] + [-0.25] * 3, atol=1e-6)
    half = _group("grpo_advantages", [1, 0, 0, 1], ids, normalize_std=True)
    np.testing.assert_allclose(half, np.array([1, -1, -1, 1]) * 0.86602, atol=1e-5)
    quarter = _group("grpo_advantages", [1, 0, 0, 0], ids, normalize_std=True)
    np.testing.assert_allclose(quarter, [1.49999] + [-0.5] * 3, atol=1e-5)


def test_rloo_vector():
    np.testing.assert_allclose(_group("rloo_advantages", [1, 0, 0, 0], [4] * 4), [1, -1 / 3, -1 / 3, -1 / 3], atol=1e-6)


def test_std_floor_bounds_the_push_of_a_turn_cost():
    """Rewards 1.0 and 0.98: plain division blows the difference up to full size, the floor keeps it small."""
    ids, rewards = [0, 0], [1.0, 0.98]
    plain = _group("grpo_advantages", rewards, ids, normalize_std=True)
    floored = _group("grpo_advantages", rewards, ids, normalize_std=True, std_floor=0.1)
    assert abs(plain[0]) > 0.7
    np.testing.assert_allclose(floored, np.array([0.01, -0.01]) / (0.02 / math.sqrt(2) + 0.1), rtol=1e-4)


def test_reinforce_plus_plus_scales_by_the_batch():
    rewards, ids = [1.0, 0, 0, 1, 3, 1], [9, 9, 9, 9, -2, -2]
    centred = np.array([0.5, -0.5, -0.5, 0.5, 1, -1])
    expected = centred / (math.sqrt((4 * 0.25 + 2) / 5) + 1e-6)
    np.testing.assert_allclose(_group("reinforce_plus_plus_advantages", rewards, ids), expected, rtol=1e-5)
    plain = np.array(rewards) - 1.0
    expected = plain / (plain.std(ddof=1) + 1e-6)
    result = _group("reinforce_plus_plus_advantages", rewards, ids, group_baseline=False)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


# A visits s0, s1, s2 and gets 1 at the end; B visits s0, s1, s1, s1 and gets 0.
WALK = dict(
    step_rewards=[[0, 0, 1, 0], [0, 0, 0, 0]],
    group_ids=[5, 5],
    anchor_ids=[[10, 11, 12, 0], [10, 11, 11, 11]],
    turn_mask=[[1, 1, 1, 0], [1, 1, 1, 1]],
    valid=[1, 1],
)


def _walk_parts(**options):
    episode = _gigpo(**WALK, step_weight=0.0, **options)
    return episode, _gigpo(**WALK, step_weight=1.0, **options) - episode


def test_gigpo_walk_mean_norm():
    episode, step = _walk_parts()
    np.testing.assert_allclose(episode, [[0.5, 0.5, 0.5, 0], [-0.5] * 4], atol=1e-6)
    np.testing.assert_allclose(step, [[0.45125, 0.7125, 0, 0], [-0.45125, -0.2375, -0.2375, -0.2375]], atol=1e-5)


def test_gigpo_walk_mean_std_norm():
    episode, step = _walk_parts(normalize_std=True)
    np.testing.assert_allclose(episode, [[0.70711] * 3 + [0], [-0.70711] * 4], atol=1e-5)
    np.testing.assert_allclose(step, [[0.70711, 1.5, 0, 0], [-0.70711, -0.5, -0.5, -0.5]], atol=1e-5)


def test_gigpo_walk_statistics_over_rows():
    episode, _ = _walk_parts(episode_stats="rows")
    np.testing.assert_allclose(episode, [[0.57143] * 3 + [0], [-0.42857] * 4], atol=1e-5)
    episode, _ = _walk_parts(episode_stats="rows", normalize_std=True)
    np.testing.assert_allclose(episode, [[1.06904] * 3 + [0], [-0.80178] * 4], atol=1e-5)


def test_gigpo_golden_with_a_revisit():
    """Episode 1 visits A, B for 0, 1; episode 2 visits A, A, C for nothing: revisits count in A's group."""
    arrays = dict(
        step_rewards=[[0, 1, 0], [0, 0, 0]],
        group_ids=[0, 0],
        anchor_ids=[[1, 2, 1], [1, 1, 3]],
        turn_mask=[[1, 1, 0], [1, 1, 1]],
        valid=[1, 1],
    )
    step = _gigpo(**arrays) - _gigpo(**arrays, step_weight=0.0)
    np.testing.assert_allclose(step, [[0.6333, 0, 0], [-0.3167, -0.3167, 0]], atol=1e-4)
    exact = float(Fraction(19, 20) * Fraction(2, 3))
    np.testing.assert_allclose(step[0, 0], exact, atol=1e-6)


def test_gigpo_distinct_trajectories():
    """A step group that one episode alone visits (with different returns) counts by default and gives 0 on request."""
    arrays = dict(
        step_rewards=[[0, 1, 0], [0, 0, 0]],
        group_ids=[0, 0],
        anchor_ids=[[7, 7, 8], [9, 8, 9]],
        turn_mask=[[1, 1, 1], [1, 1, 1]],
        valid=[1, 1],
    )
    default = _gigpo(**arrays) - _gigpo(**arrays, step_weight=0.0)
    np.testing.assert_allclose(default[0, :2], [-0.025, 0.025], atol=1e-6)
    strict = _gigpo(**arrays, require_distinct_trajectories=True) - _gigpo(**arrays, step_weight=0.0)
    np.testing.assert_array_equal(strict, np.zeros((2, 3)))


def test_gigpo_keeps_equal_anchors_of_two_groups_apart():
    arrays = dict(step_rewards=[[1.0], [0.0]], anchor_ids=[[3], [3]], turn_mask=[[1], [1]], valid=[1, 1])
    np.testing.assert_array_equal(_gigpo(group_ids=[1, 2], **arrays), np.zeros((2, 1)))
    np.testing.assert_allclose(_gigpo(group_ids=[1, 1], **arrays), [[1.0], [-1.0]], atol=1e-6)


# --- properties
# --------------------------------------------------------------------------------------------------------

IDS = st.sampled_from([0, 1, 4096, -1, INT_MAX, -INT_MAX - 1])
REWARD = st.one_of(st.sampled_from([0.0, 1.0, 0.3, 0.7]), st.floats(-5, 5, width=32))
GRPO_LIKE = ["grpo_advantages", "rloo_advantages", "reinforce_plus_plus_advantages"]
quick = hypothesis.settings(max_examples=30, deadline=None)


group_batch = st.tuples(
    hnp.arrays(np.float32, NUM, elements=REWARD),
    hnp.arrays(np.int32, NUM, elements=IDS),
    hnp.arrays(bool, NUM, elements=st.sampled_from([True, True, False])),
)
step_batch = st.tuples(
    hnp.arrays(np.float32, (NUM, WIDTH), elements=REWARD),
    hnp.arrays(np.int32, NUM, elements=IDS),
    hnp.arrays(np.int32, (NUM, WIDTH), elements=IDS),
    hnp.arrays(np.int32, (NUM, 1), elements=st.integers(0, WIDTH)).map(lambda turns: np.arange(WIDTH) < turns),
    hnp.arrays(bool, NUM, elements=st.sampled_from([True, True, False])),
)


GIGPO_OPTIONS = ({}, {"normalize_std": True, "episode_stats": "rows"}, {"require_distinct_trajectories": True})


def _all_methods(batch):
    """(name, result) of every group method on one batch; the [N] methods read the episode's first reward."""
    rewards, group_ids, anchors, mask, valid = batch
    for name in GRPO_LIKE:
        yield name, _group(name, rewards[:, 0], group_ids, valid)
    name = "reinforce_plus_plus_advantages"
    yield f"{name} of the batch", _group(name, rewards[:, 0], group_ids, valid, group_baseline=False)
    yield "grpo std", _group("grpo_advantages", rewards[:, 0], group_ids, valid, normalize_std=True)
    for options in GIGPO_OPTIONS:
        yield f"gigpo {options}", _gigpo(rewards, group_ids, anchors, mask, valid, **options)


def _assert_close(actual, expected, atol):
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=1e-5)


@quick
@hypothesis.given(group_batch)
def test_group_methods_equal_the_loops(batch):
    _assert_close(_group("grpo_advantages", *batch), _by_group(*batch, _centred), 3e-6)
    _assert_close(_group("rloo_advantages", *batch), _by_group(*batch, _rloo_of), 3e-6)
    divided = functools.partial(_centred, divide=True, floor=0.2)
    result = _group("grpo_advantages", *batch, normalize_std=True, std_floor=0.2)
    _assert_close(result, _by_group(*batch, divided), 1e-5)
    centred = _by_group(*batch, _centred)
    scale = math.sqrt(np.square(centred).sum() / max(batch[2].sum() - 1, 1)) + 1e-6
    _assert_close(_group("reinforce_plus_plus_advantages", *batch), centred / scale, 1e-5)


@pytest.mark.parametrize(
    ("divide", "rows", "distinct"),
    [(False, False, False), (True, False, False), (False, True, False), (True, True, False), (False, False, True)],
)
def test_gigpo_equals_the_loops(divide, rows, distinct):
    rng = np.random.default_rng(divide * 4 + rows * 2 + distinct)
    options = dict(
        step_weight=0.7,
        normalize_std=divide,
        episode_stats="rows" if rows else "trajectories",
        require_distinct_trajectories=distinct,
    )
    for _ in range(10):
        rewards = rng.choice([0.0, 1.0, -0.1], (NUM, WIDTH), p=[0.7, 0.2, 0.1]).astype(np.float32)
        ids = rng.choice([3, INT_MAX, -7], NUM)
        anchors = rng.choice([0, 1, INT_MAX, -INT_MAX - 1, 12345], (NUM, WIDTH))
        mask = np.arange(WIDTH) < rng.integers(0, WIDTH + 1, (NUM, 1))
        valid = rng.random(NUM) < 0.8
        expected = _gigpo_by_loops(
            rewards, ids, anchors, mask, valid, gamma=0.95, weight=0.7, divide=divide, rows=rows, distinct=distinct
        )
        _assert_close(_gigpo(rewards, ids, anchors, mask, valid, **options), expected, 1e-5)


@quick
@hypothesis.given(step_batch, st.permutations(range(NUM)))
def test_permuting_rows_permutes_the_result(batch, order):
    order = np.array(order)
    shuffled = tuple(x[order] for x in batch)
    for (name, before), (_, after) in zip(_all_methods(batch), _all_methods(shuffled), strict=True):
        # std division amplifies rounding where the spread is just above the tolerance for equality
        np.testing.assert_allclose(after, before[order], atol=2e-6, rtol=1e-4 if "std" in name else 1e-5, err_msg=name)


@quick
@hypothesis.given(step_batch, st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
def test_void_rows_and_masked_turns_change_nothing(batch, poison):
    rewards, group_ids, anchors, mask, valid = batch
    outcome = np.where(valid, rewards[:, 0], poison).astype(np.float32)
    ids = np.where(valid, group_ids, group_ids[::-1])
    for name in GRPO_LIKE:
        clean = _group(name, rewards[:, 0], group_ids, valid)
        np.testing.assert_array_equal(_group(name, outcome, ids, valid), clean, err_msg=name)
        assert not clean[~valid].any()
    counted = mask & valid[:, None]
    poisoned = np.where(counted, rewards, poison)
    for options in GIGPO_OPTIONS:
        clean = _gigpo(rewards, group_ids, anchors, mask, valid, **options)
        dirty = _gigpo(poisoned, ids, np.where(counted, anchors, 77), mask, valid, **options)
        np.testing.assert_array_equal(dirty, clean, err_msg=str(options))
        assert not clean[~counted].any()


@quick
@hypothesis.given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.lists(IDS, min_size=NUM, max_size=NUM))
def test_equal_rewards_give_exactly_zero(value, ids):
    rewards = np.zeros((NUM, WIDTH), np.float32)
    rewards[:, 0] = value
    anchors = np.zeros((NUM, WIDTH), np.int32)
    mask, valid = np.arange(WIDTH)[None, :] < np.ones((NUM, 1)), np.ones(NUM, bool)
    for name, result in _all_methods((rewards, np.array(ids, np.int32), anchors, mask, valid)):
        np.testing.assert_array_equal(result, np.zeros_like(result), err_msg=name)


@pytest.mark.parametrize(("value", "count"), [(0.3, 6), (0.7, 10), (1e-38, 7), (3e38, 9), (16777217.0, 5)])
def test_equal_rewards_that_break_naive_sums(value, count):
    """Six times 0.3 gave 0.029 in float32 after division by 1e-6; sums of 3e38 overflow."""
    result = _group("grpo_advantages", [value] * count, [1] * count, normalize_std=True)
    np.testing.assert_array_equal(result, np.zeros(count))


def test_nearly_equal_rewards_count_as_equal():
    result = _group("grpo_advantages", [1.0, 1.0 + 5e-7, 1.0], [1] * 3, normalize_std=True)
    np.testing.assert_array_equal(result, np.zeros(3))
    assert _group("grpo_advantages", [1.0, 1.00001, 1.0], [1] * 3, normalize_std=True).any()


@pytest.mark.parametrize("name", GRPO_LIKE)
def test_groups_of_one_give_zero(name):
    result = _group(name, [5.0, -3.0, 1e20, 0.1], [1, 2, INT_MAX, -1])
    np.testing.assert_array_equal(result, np.zeros(4))
    # one survivor among void members is a group of one as well
    result = _group(name, [5.0, 1.0, 0.0], [1, 1, 1], [True, False, False])
    np.testing.assert_array_equal(result, np.zeros(3))


def test_gigpo_groups_of_one_give_zero_unless_revisited():
    arrays = dict(step_rewards=[[0, 1.0]], group_ids=[3], turn_mask=[[1, 1]], valid=[1])
    np.testing.assert_array_equal(_gigpo(anchor_ids=[[1, 2]], **arrays), np.zeros((1, 2)))
    np.testing.assert_allclose(_gigpo(anchor_ids=[[1, 1]], **arrays), [[-0.025, 0.025]], atol=1e-6)


def test_episodes_without_a_turn_are_outside_row_statistics():
    """Two episodes of reward 1 and one that never took a turn: over rows all rewards are equal."""
    mask = [[1, 1], [1, 0], [0, 0]]
    for order in ([0, 1, 2], [2, 0, 1]):
        lists = [[0, 1.0], [1.0, 0], [0, 0]], [7, 7, 7], [[1, 2], [3, 4], [5, 6]], mask
        arrays = [np.array(x)[order] for x in lists]
        rows = _gigpo(*arrays, [1, 1, 1], episode_stats="rows", normalize_std=True)
        np.testing.assert_array_equal(rows, np.zeros((3, 2)))
        assert _gigpo(*arrays, [1, 1, 1]).any()


def test_a_reward_that_is_not_a_number_spoils_its_own_group_alone_and_visibly():
    result = _group("grpo_advantages", [np.nan, 1.0, 1.0, 0.0], [1, 1, 2, 2])
    np.testing.assert_array_equal(result, [np.nan, np.nan, 0.5, -0.5])


def test_groups_do_not_touch_each_others_digits():
    """A group of enormous rewards beside a group of small ones leaves the small ones exact."""
    rewards = [1e30, -1e30, 1.0, 0.0, 2e30, 0.25]
    ids = [1, 1, 2, 2, 1, 2]
    result = _group("grpo_advantages", rewards, ids)
    alone = _group("grpo_advantages", [1.0, 0.0, 0.25], [2, 2, 2])
    np.testing.assert_array_equal(result[[2, 3, 5]], alone)


def test_a_common_offset_costs_no_digits():
    result = _group("grpo_advantages", [1e5 + 1, 1e5, 1e5, 1e5], [1] * 4)
    np.testing.assert_array_equal(result, [0.75, -0.25, -0.25, -0.25])


def test_large_groups_stay_accurate():
    rng = np.random.default_rng(0)
    rewards = rng.random(50_000).astype(np.float32)
    result = _group("grpo_advantages", rewards, np.full(50_000, 17))
    np.testing.assert_allclose(result, rewards - np.float64(rewards).mean(), atol=3e-7)


def test_fixed_composition_of_groups_alone_decides():
    """Two groups [1, 0] and [1, 1, 1, 0]: the formula exactly, and what is kept of a batch keeps its values."""
    rewards, ids = np.array([1, 0, 1, 1, 1, 0]), np.array([3, 3, 8, 8, 8, 8])
    full = _group("grpo_advantages", rewards, ids)
    np.testing.assert_allclose(full, [0.5, -0.5, 0.25, 0.25, 0.25, -0.75], atol=1e-7)
    np.testing.assert_array_equal(_group("grpo_advantages", rewards[2:], ids[2:]), full[2:])
    np.testing.assert_array_equal(_group("rloo_advantages", rewards[:2], ids[:2]), [1.0, -1.0])


def test_long_episodes_do_not_dominate_the_baseline():
    """Reward 1 in 2 turns, reward 0 in 8 turns: the mean is 0.5, not 0.2."""
    rewards = np.zeros((2, 8))
    rewards[0, 1] = 1.0
    mask = np.arange(8) < np.array([[2], [8]])
    distinct_anchors = np.arange(16).reshape(2, 8)
    result = _gigpo(rewards, [0, 0], distinct_anchors, mask, [1, 1])
    np.testing.assert_allclose(result, np.where(mask, [[0.5], [-0.5]], 0.0), atol=1e-7)


def test_turns_beyond_a_drawn_budget_equal_physical_cutting():
    """Masking the turns beyond a budget gives what an array without those columns gives."""
    rng = np.random.default_rng(3)
    rewards, anchors = rng.random((6, 5)), rng.integers(0, 3, (6, 5))
    ids, valid, budget = [1, 1, 1, 2, 2, 2], np.ones(6), 3
    masked = _gigpo(rewards, ids, anchors, np.arange(5)[None] < np.full((6, 1), budget), valid)
    cut = _gigpo(rewards[:, :budget], ids, anchors[:, :budget], np.ones((6, budget)), valid)
    np.testing.assert_allclose(masked[:, :budget], cut, atol=1e-6)
    assert not masked[:, budget:].any()


def test_changed_arrays_do_not_compile_again():
    function = _jitted("gigpo_advantages", **GIGPO_DEFAULTS)
    for turns in range(WIDTH + 1):
        mask = np.arange(WIDTH) < np.full((NUM, 1), turns)
        anchors = np.full((NUM, WIDTH), 2**turns)
        _gigpo(np.ones((NUM, WIDTH)), np.arange(NUM) % (turns + 1), anchors, mask, np.ones(NUM))
    assert function._cache_size() == 1


def test_no_gradient_flows():
    @jax.jit
    def total(rewards):
        ids, valid = jnp.array([1, 1, 2]), jnp.array([True, True, True])
        return sum(jnp.sum(jnp.square(getattr(advantages, name)(rewards, ids, valid))) for name in GRPO_LIKE)

    assert total(jnp.array([1.0, 0.0, 1.0])) > 0.0
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.array([1.0, 0.0, 1.0])), np.zeros(3))


def test_options_that_cannot_work_raise():
    rewards, ids, valid = jnp.ones(2), jnp.array([1, 1]), jnp.array([True, True])
    with pytest.raises(ValueError, match="normalize_std"):
        advantages.grpo_advantages(rewards, ids, valid, std_floor=0.1)
    with pytest.raises(ValueError, match="std_floor"):
        advantages.grpo_advantages(rewards, ids, valid, normalize_std=True, std_floor=-0.1)
    steps = (rewards[:, None], ids, ids[:, None], valid[:, None], valid)
    with pytest.raises(ValueError, match="episode_stats"):
        advantages.gigpo_advantages(*steps, episode_stats="turns")
    with pytest.raises(ValueError, match="gamma"):
        advantages.gigpo_advantages(*steps, gamma=1.5)
    with pytest.raises(AssertionError):
        advantages.grpo_advantages(rewards, ids.astype(jnp.float32), valid)
    with pytest.raises(AssertionError):
        advantages.grpo_advantages(rewards, ids[:1], valid)


def test_the_table_names_every_estimator():
    assert set(FUNCTIONS["group_advantages"]) == {"grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "gigpo"}
    assert set(FUNCTIONS["token_advantages"]) == {"token_gae", "turn_gae", "bi_level_gae"}
    assert set(FUNCTIONS["ratio"]) == {"token", "gspo_sequence", "gspo_token"}
    assert all(callable(f) for table in FUNCTIONS.values() for f in table.values())
