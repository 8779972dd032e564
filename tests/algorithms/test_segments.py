"""Representatives against a dictionary, for ids that collide in every way the hash table knows."""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from jaxagent.algorithms import segments

quick = hypothesis.settings(max_examples=30, deadline=None)


@functools.cache
def _jitted(name):
    return jax.jit(getattr(segments, name))


def _first_rows(keys, mask):
    """The first selected row with the same key, by a dictionary; a row outside the mask stands for itself."""
    first = {}
    for row, key in enumerate(keys):
        if mask[row]:
            first.setdefault(key, row)
    return [first[key] if mask[row] else row for row, key in enumerate(keys)]


@quick
@hypothesis.given(hnp.arrays(np.int32, 24), hnp.arrays(bool, 24))
def test_representatives_of_any_int32(keys, mask):
    result = _jitted("representatives")(keys, mask)
    np.testing.assert_array_equal(result, _first_rows(keys.tolist(), mask))


@pytest.mark.parametrize("stride", [1, 16, 4096, 2**16, 2**26])
def test_representatives_of_ids_that_share_their_low_bits(stride):
    keys = (np.arange(64) // 2 * stride).astype(np.int32)[np.random.default_rng(stride).permutation(64)]
    mask = np.ones(64, bool)
    np.testing.assert_array_equal(_jitted("representatives")(keys, mask), _first_rows(keys.tolist(), mask))


def test_all_ids_distinct_or_none_selected():
    keys = np.arange(64).astype(np.int32) * 2**25
    np.testing.assert_array_equal(_jitted("representatives")(keys, np.ones(64, bool)), np.arange(64))
    np.testing.assert_array_equal(_jitted("representatives")(keys * 0, np.zeros(64, bool)), np.arange(64))


@quick
@hypothesis.given(
    hnp.arrays(np.int32, 10, elements=st.sampled_from([0, 5, 2**31 - 1, -(2**31)])),
    hnp.arrays(np.int32, (10, 3), elements=st.sampled_from([0, 1, 2, 64, 2**31 - 1, -1])),
    hnp.arrays(bool, (10, 3)),
    hnp.arrays(bool, 10),
)
def test_nested_representatives(outer_ids, inner_ids, mask, valid):
    outer = _jitted("representatives")(outer_ids, valid)
    selected = mask & valid[:, None]
    result = _jitted("nested_representatives")(outer, inner_ids, selected)
    keys = [(outer_ids[i], inner_ids[i, t]) for i in range(10) for t in range(3)]
    np.testing.assert_array_equal(result, _first_rows(keys, selected.reshape(-1)))


def test_centre_with_weights_counts_rows_several_times():
    values, weights = np.array([1.0, 0.0, 7.0], np.float32), np.array([3, 4, 5], np.int32)
    owner, mask = np.array([0, 0, 2], np.int32), np.ones(3, bool)
    result = _jitted("centre")(values, owner, mask, weights)
    np.testing.assert_allclose(result, [4 / 7, -3 / 7, 0.0], atol=1e-7)
