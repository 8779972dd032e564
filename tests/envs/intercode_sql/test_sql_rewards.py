"""The reward against its definition in plain loops, and the cases that comparisons get wrong."""

import decimal
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.envs.intercode_sql.rewards import canonical_reward, intercode_reward, results_agree

A, B, C, D = ("a",), ("b",), ("c",), ("d",)


def overlap_by_removal(agent, gold):
    """(intersection over union, common rows in the agent's order, in gold's): each gold row is used up once."""
    left, common = list(gold), []
    for row in agent:
        if row in left:
            left.remove(row)
            common.append(row)
    unused, theirs = list(common), []
    for row in gold:
        if row in unused:
            unused.remove(row)
            theirs.append(row)
    return len(common) / (len(agent) + len(gold) - len(common)), common, theirs


def tau_b(first, second):
    """Kendall's tau-b over pairs; NaN where one side is constant."""
    both = ties_first = ties_second = 0
    pairs = list(itertools.combinations(range(len(first)), 2))
    for i, j in pairs:
        left = (first[i] > first[j]) - (first[i] < first[j])
        right = (second[i] > second[j]) - (second[i] < second[j])
        both += left * right
        ties_first += left == 0
        ties_second += right == 0
    scale = (len(pairs) - ties_first) * (len(pairs) - ties_second)
    return both / math.sqrt(scale) if scale else math.nan


ROWS = st.lists(st.tuples(st.sampled_from([1, 2, 3, "x", "", None, 1.0])), max_size=7)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(ROWS, ROWS)
def test_intercode_reward_is_the_published_one(agent, gold):
    texts, gold_texts = [str(row) for row in agent], [str(row) for row in gold]
    if not texts and not gold_texts:
        expected = 1.0
    else:
        overlap, mine, theirs = overlap_by_removal(texts, gold_texts)
        tau = tau_b(mine, theirs)
        expected = overlap if math.isnan(tau) else round(tau * overlap, 2)
    assert intercode_reward(agent, gold) == pytest.approx(expected, abs=0.0101 if expected else 0)


def same(one, other):
    """Equality of cells as the canonical comparison means it, in SQL's sense of values."""
    if one is None or other is None:
        return one is other
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return float(one) == float(other)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(ROWS, ROWS)
def test_canonical_reward_is_a_multiset_overlap(agent, gold):
    left, hits = list(gold), 0
    for (cell,) in agent:
        partner = next((row for row in left if same(cell, row[0])), None)
        if partner is not None:
            left.remove(partner)
            hits += 1
    union = len(agent) + len(gold) - hits
    expected = hits / union if union else 1.0
    assert canonical_reward(agent, gold, ordered=False) == pytest.approx(expected)
    assert 0.0 <= canonical_reward(agent, gold, ordered=True) <= expected + 1e-12
    for ordered in (False, True):
        for other in (gold, agent[::-1]):
            full = canonical_reward(agent, other, ordered=ordered) == 1.0
            assert results_agree(agent, other, ordered=ordered) == full


@pytest.mark.parametrize(
    ("agent", "gold", "canonical", "ordered", "strict"),
    [
        ([A, B, C], [A, B, C], 1, 1, 1),
        ([C, B, A], [A, B, C], 1, 0, -1),
        ([B, A, C], [A, B, C], 1, 1 / 3, 0.33),
        ([A], [A, B], 0.5, 0.5, 0.5),
        ([A, A], [A], 0.5, 0.5, 0.5),
        ([A, A, B], [A, B, B], 0.5, 0.5, 0.5),
        ([A, A], [A, A], 1, 1, 1),
        ([A, B, A], [A, A, B], 1, 1 / 3, -0.5),
        ([], [], 1, 1, 1),
        ([], [A], 0, 0, 0),
        ([A], [], 0, 0, 0),
        ([(None,)], [("",)], 0, 0, 0),
        ([(None,)], [(0,)], 0, 0, 0),
        ([(None,)], [("None",)], 0, 0, 0),
        ([(None,)], [(None,)], 1, 1, 1),
        ([(1,)], [(1.0,)], 1, 1, 0),
        ([(decimal.Decimal("2.50"),)], [(2.5,)], 1, 1, 0),
        ([(1,)], [("1",)], 0, 0, 0),
        ([(True,)], [(1,)], 1, 1, 0),
        ([(0.1 + 0.2,)], [(0.3,)], 1, 1, 0),
        ([(0.3001,)], [(0.3,)], 0, 0, 0),
        ([(-0.0,)], [(0,)], 1, 1, 0),
        ([(2**60,)], [(2**60 + 1024,)], 0, 0, 0),
        ([(float("inf"),)], [(float("inf"),)], 1, 1, 1),
        ([("a", 1)], [(1, "a")], 0, 0, 0),
        ([("a",)], [("A",)], 0, 0, 0),
        ([("a ",)], [("a",)], 0, 0, 0),
        ([(b"\x00",)], [("\x00",)], 0, 0, 0),
    ],
)
def test_results_that_are_easily_confused(agent, gold, canonical, ordered, strict):
    assert canonical_reward(agent, gold, ordered=False) == pytest.approx(canonical)
    assert canonical_reward(agent, gold, ordered=True) == pytest.approx(ordered)
    assert intercode_reward(agent, gold) == pytest.approx(strict)


def test_only_an_equal_result_is_exactly_one():
    gold = [(index,) for index in range(1000)]
    assert canonical_reward(gold, gold, ordered=True) == 1.0
    assert canonical_reward(gold[:-1], gold, ordered=True) < 1.0
    swapped = [gold[1], gold[0], *gold[2:]]
    assert canonical_reward(swapped, gold, ordered=True) < 1.0
    assert intercode_reward(swapped, gold) == 1.0  # rounding: one of the reasons for the canonical comparison
