"""Budgets: the grid, the samplers, the line. The reference is exact fractions, written apart from the code."""

import collections
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent import budgets
from jaxagent.errors import UserError


def exact_ceiling(share: Fraction, max_turns: int) -> int:
    return max(1, math.ceil(share * max_turns))


@pytest.mark.parametrize("max_turns", range(1, 101))
def test_candidates_are_the_exact_ceiling(max_turns):
    expected = tuple(exact_ceiling(Fraction(j, 10), max_turns) for j in range(1, 11))
    assert budgets.candidate_budgets(max_turns) == expected
    assert expected[-1] == max_turns and min(expected) >= 1


def test_known_grids():
    assert budgets.candidate_budgets(5) == (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert budgets.candidate_budgets(16) == (2, 4, 5, 7, 8, 10, 12, 13, 15, 16)
    assert budgets.candidate_budgets(12) == (2, 3, 4, 5, 6, 8, 9, 10, 11, 12)


@given(st.integers(1, 500), st.integers(1, 100))
def test_fixed_budget_is_the_exact_ceiling(max_turns, percent):
    drawn = budgets.FixedBudget(percent).sample(max_turns, seed=0, step=0, task_id="x")
    assert drawn == exact_ceiling(Fraction(percent, 100), max_turns)


def test_budgetmix_is_uniform_on_the_tenths():
    counts = collections.Counter(budgets.draw_tenths(3, step, "task") for step in range(20_000))
    assert set(counts) == set(range(1, 11))
    chi_squared = sum((count - 2000) ** 2 / 2000 for count in counts.values())
    assert chi_squared < 33.7  # 99.99 % quantile of chi^2 with 9 degrees of freedom


def test_a_draw_depends_on_its_key_alone():
    first = budgets.BudgetMix().sample(20, seed=1, step=2, task_id="a")
    budgets.BudgetMix().sample(20, seed=9, step=9, task_id="b")
    assert budgets.BudgetMix().sample(20, seed=1, step=2, task_id="a") == first
    keys = [{"seed": s, "step": t, "task_id": i} for s in range(3) for t in range(3) for i in "abc"]
    assert len({budgets.draw_tenths(key["seed"], key["step"], key["task_id"]) for key in keys}) > 3


def test_uniform_budget_covers_every_turn():
    drawn = {budgets.UniformBudget().sample(7, seed=0, step=step, task_id="t") for step in range(300)}
    assert drawn == set(range(1, 8))


def test_curriculum_is_recomputed_from_the_step():
    curriculum = budgets.make_sampler("curriculum", stages=((0, 25), (100, 50), (200, 100)))
    at = [curriculum.sample(16, seed=0, step=step, task_id="t") for step in (0, 99, 100, 199, 200, 10_000)]
    assert at == [4, 4, 8, 8, 16, 16]


@pytest.mark.parametrize("stages", [(), ((5, 50),), ((0, 50), (0, 60)), ((0, 50), (10, 60), (5, 70)), ((0, 0),)])
def test_bad_curricula_raise(stages):
    with pytest.raises(UserError):
        budgets.make_sampler("curriculum", stages=stages)


def test_remaining_counts_the_turn_about_to_be_taken():
    assert [budgets.remaining_turns(4, turn) for turn in (1, 2, 3, 4)] == [4, 3, 2, 1]
    for turn in (0, 5):
        with pytest.raises(ValueError):
            budgets.remaining_turns(4, turn)


def test_the_line_in_every_style():
    def line(told, turn, announce):
        return budgets.budget_line(told, turn, announce=announce, wording="words")

    assert line(12, 1, "total_and_remaining") == " total_12 remaining_12"
    assert line(12, 12, "total_and_remaining") == " total_12 remaining_1"
    assert line(12, 3, "remaining") == " remaining_10"
    assert line(12, 3, "total") == " total_12"
    assert line(12, 3, "none") == line(None, 3, "total_and_remaining") == ""
    sentence = budgets.budget_line(5, 5)
    assert "5" in sentence and "1" in sentence and "0" not in sentence


def test_unknown_names_raise():
    for call in (
        lambda: budgets.budget_line(3, 1, announce="loud"),
        lambda: budgets.budget_line(3, 1, wording="haiku"),
        lambda: budgets.make_sampler("mix"),
        lambda: budgets.FixedBudget(0),
        lambda: budgets.candidate_budgets(0),
        lambda: budgets.is_announced(1.5, seed=0, step=0, task_id="t"),
    ):
        with pytest.raises(UserError):
            call()


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_announcement_has_its_probability(probability):
    drawn = [budgets.is_announced(probability, seed=0, step=step, task_id="t") for step in range(4000)]
    assert abs(sum(drawn) / 4000 - probability) < 0.03
    tenths = [budgets.draw_tenths(0, step, "t") for step in range(4000)]
    if probability == 0.3:  # the two draws are independent
        told = [tenth for tenth, is_told in zip(tenths, drawn, strict=True) if is_told]
        assert abs(sum(told) / len(told) - 5.5) < 0.3
