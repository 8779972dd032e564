"""How near a result is to the gold result: InterCode's reward, and the canonical comparison that is recommended.

InterCode (arXiv 2306.14898, and its environment): rows become texts; intersection over union of the two multisets,
times Kendall's tau of the common rows in each side's order where tau is defined, rounded to two digits.
"""

import collections
import decimal
import math
from collections.abc import Hashable, Sequence
from typing import Any

Row = tuple[Any, ...]

SIGNIFICANT_DIGITS = 9  # fractions that agree to so many are equal: two ways to an average differ in the last bits


def intercode_reward(agent: Sequence[Row], gold: Sequence[Row]) -> float:
    """InterCode's reward in [-1, 1], with its peculiarities.

    A reversed result gives -1, also where the question asks for no order; `(3,)` and `(3.0,)` have nothing in common;
    tau compares the rows' alphabetical ranks, and one common row or equal ones have no tau and give the plain
    intersection over union. Two empty results give 1.
    """
    agent_texts, gold_texts = [str(row) for row in agent], [str(row) for row in gold]
    if not agent_texts and not gold_texts:
        return 1.0
    overlap, common = _overlap(agent_texts, gold_texts)
    if not common:
        return 0.0
    rank = {text: number for number, text in enumerate(sorted(common))}
    agent_ranks, gold_ranks = ([rank[text] for text in _kept(texts, common)] for texts in (agent_texts, gold_texts))
    tau = _kendall_tau(agent_ranks, gold_ranks)
    return overlap if math.isnan(tau) else round(tau * overlap, 2)


def canonical_reward(agent: Sequence[Row], gold: Sequence[Row], *, ordered: bool) -> float:
    """The recommended reward in [0, 1]; 1 exactly where the results agree.

    Rows are equal where their cells are: numbers by value (`1` and `1.0`), NULL only with NULL (not with the empty text
    or 0), texts by their characters. Duplicates count. Intersection over union of the multisets; where the gold query
    orders its result, times tau of the common rows, negative ones as 0: the n-th of equal rows stands for the n-th.
    Two empty results give 1.
    """
    agent_keys, gold_keys = [canonical_row(row) for row in agent], [canonical_row(row) for row in gold]
    if not agent_keys and not gold_keys:
        return 1.0
    overlap, common = _overlap(agent_keys, gold_keys)
    if not common or not ordered:
        return overlap
    place = {key: rank for rank, key in enumerate(_numbered(_kept(gold_keys, common)))}
    ranks = [place[key] for key in _numbered(_kept(agent_keys, common))]
    if ranks == sorted(ranks):
        return overlap
    return max(0.0, _kendall_tau(ranks, range(len(ranks)))) * overlap


def results_agree(first: Sequence[Row], second: Sequence[Row], *, ordered: bool) -> bool:
    """Whether `canonical_reward` is 1; needs no SciPy."""
    left, right = ([canonical_row(row) for row in rows] for rows in (first, second))
    return left == right if ordered else collections.Counter(left) == collections.Counter(right)


def canonical_row(row: Row) -> Hashable:
    """A key that equal rows share."""
    return tuple(_canonical_cell(cell) for cell in row)


def _canonical_cell(cell: Any) -> Hashable:
    if cell is None:
        return ("null",)
    if isinstance(cell, int | float | decimal.Decimal):
        number = decimal.Decimal(repr(cell) if isinstance(cell, float) else cell)
        if not number.is_finite():
            return ("number", str(number))
        if number == number.to_integral_value():
            return ("number", str(int(number)))  # keys and counts are exact, however large
        rounded = decimal.Context(prec=SIGNIFICANT_DIGITS).plus(number)
        return ("number", str(int(rounded) if rounded == rounded.to_integral_value() else rounded.normalize()))
    if isinstance(cell, bytes):
        return ("bytes", cell)
    return ("text", str(cell))  # dates too


def _overlap(agent: Sequence[Hashable], gold: Sequence[Hashable]) -> tuple[float, collections.Counter]:
    """(intersection over union of the multisets, the intersection)."""
    left, right = collections.Counter(agent), collections.Counter(gold)
    common = left & right
    return common.total() / (left | right).total(), common


def _kept(rows: Sequence[Hashable], common: collections.Counter) -> list[Hashable]:
    """The first rows of `rows` that make up the multiset `common`, in their order."""
    left = common.copy()
    kept = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            kept.append(row)
    return kept


def _numbered(rows: Sequence[Hashable]) -> list[tuple[Hashable, int]]:
    """Each row with how often it came before."""
    seen: collections.Counter = collections.Counter()
    numbered = []
    for row in rows:
        numbered.append((row, seen[row]))
        seen[row] += 1
    return numbered


def _kendall_tau(first: Sequence[int], second: Sequence[int]) -> float:
    if len(first) < 2:
        return math.nan
    from scipy.stats import kendalltau  # takes a second to import, and many worker processes never need it

    return float(kendalltau(first, second).statistic)
