"""Pass@(K,T) against enumeration in exact fractions, simulation, and the guards."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from evaluation_builders import blind_episodes, make_episode, told_episodes
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.errors import UserError
from jaxagent.evaluation.pass_at import (
    cover_at,
    pass_at_k,
    pass_at_k_percent,
    pass_at_k_t,
    pass_at_k_t_rescored,
    pass_at_t,
    pass_at_turn_budget,
    pass_hat_k,
    pass_hat_k_t,
    success_counts,
    success_hazard,
    told_enforced_matrix,
)

# Two tasks, four episodes, full budget 6: the turn of success, or None.
EXAMPLE = {"A": [2, 4, None, 6], "B": [None, None, 5, None]}


def share_of_subsets(outcomes, k, rule):
    """Exact share of the k-subsets of `outcomes` for which `rule` (any or all) holds."""
    subsets = list(itertools.combinations(outcomes, k))
    return Fraction(sum(rule(subset) for subset in subsets), len(subsets))


def outcomes_of(n, c):
    return [True] * c + [False] * (n - c)


def within_three_errors(values, truth):
    """Whether the mean of independent estimates agrees with the truth."""
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    return abs(np.mean(values) - truth) <= 3 * error + 1e-12


# ---- the per-task estimators ----


def test_golden_table_of_pass_at_k():
    golden = ["1/4", "13/28", "9/14", "11/14", "25/28", "27/28", "1", "1"]
    found = [pass_at_k(8, 2, k) for k in range(1, 9)]
    np.testing.assert_allclose(found, [float(Fraction(text)) for text in golden], rtol=1e-15)


def test_golden_table_of_pass_hat_k():
    golden = ["3/4", "15/28", "5/14", "3/14", "3/28", "1/28", "0", "0"]
    found = [pass_hat_k(8, 6, k) for k in range(1, 9)]
    np.testing.assert_allclose(found, [float(Fraction(text)) for text in golden], rtol=1e-14, atol=0)


def test_estimators_equal_enumeration_of_subsets():
    for n in range(1, 9):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            assert pass_at_k(n, c, k) == pytest.approx(float(share_of_subsets(outcomes_of(n, c), k, any)), abs=1e-14)
            assert pass_hat_k(n, c, k) == pytest.approx(float(share_of_subsets(outcomes_of(n, c), k, all)), abs=1e-14)


def test_large_counts_do_not_overflow():
    exact = 1 - Fraction(math.comb(4000, 700), math.comb(5000, 700))
    assert pass_at_k(5000, 1000, 700) == pytest.approx(float(exact))
    exact = Fraction(math.comb(3000, 100), math.comb(5000, 100))
    assert pass_hat_k(5000, 3000, 100) == pytest.approx(float(exact), rel=1e-10)


def test_arrays_broadcast_and_mark_what_cannot_be_estimated():
    found = pass_at_k([[2], [4]], [[1], [1]], [1, 2, 3])
    np.testing.assert_allclose(found, [[0.5, 1.0, np.nan], [0.25, 0.5, 0.75]])
    assert np.isnan(pass_hat_k([2], [2], 3)).all()


@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k])
def test_more_than_the_samples_is_refused_and_never_one(estimator):
    # Fault F18: n=2, c=0, k=5 must not give 1.
    with pytest.raises(ValueError, match="no unbiased estimate"):
        estimator(2, 0, 5)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4.0, 2, 1), (4, 2, 1.5)])
def test_counts_outside_the_domain_are_refused(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_one_sample_a_task_gives_pass_at_1_and_nothing_more():
    # Fault F18: 50 of 164 tasks solved; the number of tasks is not a number of samples.
    episodes = blind_episodes({f"t{i:03}": [1 if i < 50 else None] for i in range(164)}, 1)
    assert pass_at_k_t(episodes, [1], [1], mode="blind").mean[0, 0] == pytest.approx(50 / 164)
    with pytest.raises(UserError, match=r"K=10 .* task t000 .* it has 1 "):
        pass_at_k_t(episodes, [10], [1], mode="blind")


# ---- Pass@(K,T), blind ----


def test_golden_example_of_the_surface():
    grid = pass_at_k_t(blind_episodes(EXAMPLE, 6), [1, 2, 4], [1, 2, 3, 4, 5, 6], mode="blind")
    golden = [
        ["0", "1/8", "1/8", "1/4", "3/8", "1/2"],
        ["0", "1/4", "1/4", "5/12", "2/3", "3/4"],
        ["0", "1/2", "1/2", "1/2", "1", "1"],
    ]
    np.testing.assert_allclose(grid.mean, [[float(Fraction(text)) for text in row] for row in golden], atol=1e-15)
    assert grid.task_ids == ("A", "B") and grid.values.shape == (2, 3, 6)
    assert (grid.num_samples == 4).all() and grid.num_void == 0


def test_pass_hat_k_t_counts_subsets_of_the_surface():
    ks, ts = [1, 2, 3], [2, 4, 6]
    grid = pass_hat_k_t(blind_episodes(EXAMPLE, 6), ks, ts, mode="blind")
    for (row, turns), (i, k), (j, t) in itertools.product(enumerate(EXAMPLE.values()), enumerate(ks), enumerate(ts)):
        solved = [turn is not None and turn <= t for turn in turns]
        assert grid.values[row, i, j] == pytest.approx(float(share_of_subsets(solved, k, all)))


def test_percents_use_each_tasks_own_full_budget():
    episodes = [
        make_episode(name, member, turn, told=None, enforced=full)
        for name, full, turns in [("long", 12, [3, 4, None]), ("short", 5, [2, 3, None])]
        for member, turn in enumerate(turns)
    ]
    grid = pass_at_k_percent(episodes, [1], [25, 50], mode="blind")
    np.testing.assert_array_equal(grid.counts.budgets, [[3, 6], [2, 3]])
    np.testing.assert_allclose(grid.values[:, 0], [[1 / 3, 2 / 3], [1 / 3, 2 / 3]])


def test_percents_that_round_to_one_budget_share_its_episodes():
    # 75 and 100 per cent of 3 turns are both 3.
    episodes = told_episodes({("x", 3): [1, None, 3, None]}, 3)
    grid = pass_at_k_percent(episodes, [2], [75, 100])
    assert grid.values[0, 0, 0] == grid.values[0, 0, 1] == pytest.approx(5 / 6)


def test_void_episodes_are_dropped_and_counted():
    episodes = [
        *blind_episodes({"A": [1, None]}, 2),
        make_episode("A", 2, None, told=None, enforced=2, void=True),
        make_episode("A", 0, None, told=None, enforced=2, void=True),  # a first try of member 0
    ]
    grid = pass_at_k_t(episodes, [1, 2], [2], mode="blind")
    np.testing.assert_allclose(grid.mean[:, 0], [0.5, 1.0])
    assert grid.num_void == 2 and grid.num_samples[0, 0] == 2
    with pytest.raises(UserError, match=r"K=3 .* task A .* it has 2 \(2 void"):
        pass_at_k_t(episodes, [3], [2], mode="blind")


def test_a_task_with_only_void_episodes_is_not_forgotten():
    episodes = [*blind_episodes({"A": [1]}, 2), make_episode("B", 0, None, told=None, enforced=2, void=True)]
    with pytest.raises(UserError, match="task B"):
        pass_at_k_t(episodes, [1], [2], mode="blind")


def test_blind_mode_is_unbiased_and_agrees_with_true_reruns():
    rng, hazard, full, n, k, tasks = np.random.default_rng(7), 0.2, 6, 5, 3, 3000
    drawn = rng.geometric(hazard, size=(tasks, n))
    episodes = blind_episodes(
        {f"t{i:04}": [int(s) if s <= full else None for s in row] for i, row in enumerate(drawn)}, full
    )
    grid = pass_at_k_t(episodes, [k], [2, 4, 6], mode="blind")
    for column, t in enumerate([2, 4, 6]):
        p = 1 - (1 - hazard) ** t
        assert within_three_errors(grid.values[:, 0, column], 1 - (1 - p) ** k)
    rerun = rng.geometric(hazard, size=(tasks, n)) <= 2  # cut at 2 for real
    fresh = [float(share_of_subsets(list(row), k, any)) for row in rerun]
    gap = np.mean(fresh) - grid.mean[0, 0]
    assert abs(gap) <= 3 * math.hypot(np.std(fresh), np.std(grid.values[:, 0, 0])) / math.sqrt(tasks)


def test_known_wrong_estimators_fail_the_same_check():
    rng, p, n, k, tasks = np.random.default_rng(8), 0.25, 8, 4, 4000
    truth = 1 - (1 - p) ** k
    outcomes = rng.random((tasks, n)) < p
    correct = outcomes.sum(axis=1)
    assert within_three_errors(pass_at_k(np.full(tasks, n), correct, k), truth)
    plug_in = 1 - (1 - correct / n) ** k
    assert not within_three_errors(plug_in, truth)
    redrawn = np.take_along_axis(outcomes, rng.integers(0, n, (tasks, k)), axis=1).any(axis=1)
    assert not within_three_errors(redrawn.astype(float), truth)
    few = outcomes[:, :2].sum(axis=1)  # two samples, k = 4, and the shortcut "n - c < k, hence 1"
    assert not within_three_errors(np.where(2 - few < k, 1.0, 0.0) + rng.normal(0, 1e-9, tasks), truth)
    with pytest.raises(UserError):
        pass_at_k_t(blind_episodes({"x": [1, None]}, 1), [k], [1], mode="blind")


def test_other_wrong_estimators_fail_the_same_check_too():
    rng, hazard, full, n, k, tasks = np.random.default_rng(18), 0.2, 4, 6, 3, 4000
    drawn = rng.geometric(hazard, size=(tasks, n))
    p = 1 - (1 - hazard) ** full

    def estimate(correct, samples=n):
        return pass_at_k(np.full(tasks, samples), correct, k)

    assert within_three_errors(estimate((drawn <= full).sum(axis=1)), 1 - (1 - p) ** k)
    # Success on turn T itself must count.
    assert not within_three_errors(estimate((drawn < full).sum(axis=1)), 1 - (1 - p) ** k)
    # pass^k by the plain power is too high.
    correct = (drawn <= full).sum(axis=1)
    assert within_three_errors(pass_hat_k(np.full(tasks, n), correct, k), p**k)
    assert not within_three_errors((correct / n) ** k, p**k)
    # One n for all tasks where some samples are missing is too low.
    missing = rng.random((tasks, n)) < 0.3
    missing[:, :k] = False
    found = ((drawn <= full) & ~missing).sum(axis=1)
    assert within_three_errors(pass_at_k(n - missing.sum(axis=1), found, k), 1 - (1 - p) ** k)
    assert not within_three_errors(estimate(found), 1 - (1 - p) ** k)
    # Pooling the samples of unequal tasks answers for their average task.
    unequal = rng.binomial(n, np.where(np.arange(tasks) % 2, 0.9, 0.05))
    assert within_three_errors(estimate(unequal), np.mean([1 - 0.1**k, 1 - 0.95**k]))
    pooled = pass_at_k(n * tasks, int(unequal.sum()), k)
    assert abs(pooled - np.mean([1 - 0.1**k, 1 - 0.95**k])) > 0.1


def test_the_first_pass_of_a_verdict_that_can_be_undone_says_too_much():
    # Right after each turn with chance 0.3, whatever came before: the truth at every T is 0.3.
    rng, tasks, n = np.random.default_rng(19), 400, 4
    verdicts = rng.random((tasks, n, 3)) < 0.3
    episodes = blind_episodes({f"t{i:03}": [None] * n for i in range(tasks)}, 3)
    rescored = pass_at_k_t_rescored(episodes, verdicts.reshape(-1, 3), [1], [1, 2, 3])
    first = blind_episodes(
        {f"t{i:03}": [int(v.argmax()) + 1 if v.any() else None for v in row] for i, row in enumerate(verdicts)}, 3
    )
    thresholded = pass_at_k_t(first, [1], [1, 2, 3], mode="blind")
    for column in range(3):
        assert within_three_errors(rescored.values[:, 0, column], 0.3)
        assert within_three_errors(thresholded.values[:, 0, column], 0.3) == (column == 0)


# ---- Pass@(K,T), told ----


def gambler_episodes(rng, tasks, n):
    """Told 2 it guesses (0.5 by turn 2); told 6 it looks for two turns and then succeeds on turn 4 with 0.9."""
    told_2 = {(f"t{i:04}", 2): [2 if hit else None for hit in rng.random(n) < 0.5] for i in range(tasks)}
    told_6 = {(f"t{i:04}", 6): [4 if hit else None for hit in rng.random(n) < 0.9] for i in range(tasks)}
    return told_episodes(told_2, 6), told_episodes(told_6, 6)


def test_told_mode_is_unbiased_and_thresholding_told_episodes_is_not():
    told_2, told_6 = gambler_episodes(np.random.default_rng(9), 2000, 4)
    grid = pass_at_k_t(told_2 + told_6, [2], [2, 6])
    assert within_three_errors(grid.values[:, 0, 0], 1 - 0.5**2)
    assert within_three_errors(grid.values[:, 0, 1], 1 - 0.1**2)
    cut = pass_at_k_t(told_6, [2], [2, 4], unannounced=True)
    assert not within_three_errors(cut.values[:, 0, 0], 1 - 0.5**2)  # the announced figure, wrongly
    assert (cut.values[:, 0, 0] == 0).all()  # the unannounced figure, rightly
    assert within_three_errors(cut.values[:, 0, 1], 1 - 0.1**2)


def test_told_mode_refuses_to_answer_for_a_budget_that_was_not_told():
    # Fault F13.
    told_2, told_6 = gambler_episodes(np.random.default_rng(10), 2, 4)
    with pytest.raises(UserError, match=r"task t0000 has no episodes told T=2 \(told: 6\)"):
        pass_at_k_t(told_6, [1], [2])
    with pytest.raises(UserError, match=r"task t0001 has no episodes told T=2 \(told: 6\)"):
        pass_at_k_t([e for e in told_2 if e.task_id == "t0000"] + told_6, [1], [2])


def test_unannounced_needs_one_told_budget_a_task():
    told_2, told_6 = gambler_episodes(np.random.default_rng(11), 1, 2)
    with pytest.raises(UserError, match="told 2, 6 turns"):
        pass_at_k_t(told_2 + told_6, [1], [2], unannounced=True)
    with pytest.raises(UserError, match="belongs to mode='told'"):
        pass_at_k_t(blind_episodes(EXAMPLE, 6), [1], [2], mode="blind", unannounced=True)


def test_told_and_untold_are_never_mixed():
    told, untold = told_episodes({("A", 6): [1, 2]}, 6), blind_episodes({"A": [1, 2]}, 6)
    for episodes, mode in [(told, "blind"), (told + untold, "blind"), (untold, "told"), (told + untold, "told")]:
        with pytest.raises(UserError, match="task A"):
            pass_at_k_t(episodes, [1], [6], mode=mode)


def test_turns_after_the_cut_off_are_not_invented():
    with pytest.raises(UserError, match="T=7 lies beyond the enforced budget 6"):
        pass_at_k_t(blind_episodes(EXAMPLE, 6), [1], [7], mode="blind")
    capped = [make_episode("A", 0, None, told=6, enforced=4, full=6)]
    with pytest.raises(UserError, match="T=6 lies beyond the enforced budget 4"):
        pass_at_k_t(capped, [1], [6])
    with pytest.raises(UserError, match="T=7 lies beyond"):
        pass_at_k_t(told_episodes({("A", 6): [1]}, 6), [1], [7], unannounced=True)


def test_faulty_records_are_refused():
    episodes = blind_episodes(EXAMPLE, 6)
    with pytest.raises(UserError, match="two episodes with told budget None, group 0, member 0"):
        pass_at_k_t([*episodes, episodes[0]], [1], [6], mode="blind")
    other = make_episode("A", 9, None, told=None, enforced=6, full=8)
    with pytest.raises(UserError, match="full budgets 6 and 8"):
        pass_at_k_t([*episodes, other], [1], [6], mode="blind")
    with pytest.raises(UserError, match="no episodes"):
        pass_at_k_t([], [1], [6])


@pytest.mark.parametrize(
    ("ks", "ts", "mode"),
    [
        ([], [1], "blind"),
        ([0], [1], "blind"),
        ([1, 1], [1], "blind"),
        ([1.0], [1], "blind"),
        ([1], [], "blind"),
        ([1], [0], "blind"),
        ([1], [2, 2], "blind"),
        ([1], [True], "blind"),
        ([1], [1], "seen"),
    ],
)
def test_meaningless_requests_are_refused(ks, ts, mode):
    with pytest.raises(UserError):
        pass_at_k_t(blind_episodes(EXAMPLE, 6), ks, ts, mode=mode)


# ---- the relatives ----


def test_pass_at_t_is_the_row_of_one_k():
    episodes = blind_episodes(EXAMPLE, 6)
    np.testing.assert_array_equal(
        pass_at_t(episodes, 2, [2, 6], mode="blind").values, pass_at_k_t(episodes, [2], [2, 6], mode="blind").values
    )


def test_turn_budget_buys_more_short_episodes():
    curve = pass_at_turn_budget(blind_episodes(EXAMPLE, 6), 8, [2, 3, 4, 6], mode="blind")
    np.testing.assert_array_equal(curve.ks, [[4, 2, 2, 1]] * 2)
    expected = [
        np.mean(
            [float(share_of_subsets([s is not None and s <= t for s in turns], k, any)) for turns in EXAMPLE.values()]
        )
        for t, k in zip([2, 3, 4, 6], [4, 2, 2, 1], strict=True)
    ]
    np.testing.assert_allclose(curve.mean, expected)
    # Task A uses 2, 4, 6 and 6 turns; cut at 4: 2, 4, 4 and 4.
    np.testing.assert_allclose(curve.counts.turns_used[0, [2, 3]], [14 / 4, 18 / 4])
    np.testing.assert_allclose(curve.turns_spent[0, [2, 3]], [2 * 14 / 4, 18 / 4])
    with pytest.raises(UserError, match="does not buy one episode of 6 turns"):
        pass_at_turn_budget(blind_episodes(EXAMPLE, 6), 5, [2, 6], mode="blind")
    with pytest.raises(UserError, match="K=5"):
        pass_at_turn_budget(blind_episodes(EXAMPLE, 6), 10, [2], mode="blind")


def test_turn_budget_in_percent_is_of_each_tasks_own():
    episodes = [
        make_episode(name, member, turn, told=None, enforced=full)
        for name, full in [("long", 12), ("short", 5)]
        for member, turn in enumerate([1, None, 4, None, None, None, None, None])
    ]
    curve = pass_at_turn_budget(episodes, 200, [25, 50, 100], mode="blind", unit="percent")
    # 24 turns buy 8, 4, 2 episodes of 3, 6, 12; 10 turns buy 5, 3, 2 of 2, 3, 5.
    np.testing.assert_array_equal(curve.ks, [[8, 4, 2], [5, 3, 2]])
    np.testing.assert_array_equal(curve.counts.full_budgets, [12, 5])
    np.testing.assert_allclose(curve.values[0], [1, 1 - 15 / 70, 1 - 15 / 28])
    with pytest.raises(UserError, match=r"turn_budget 50% does not buy one episode of 12 turns"):
        pass_at_turn_budget(episodes, 50, [100], mode="blind", unit="percent")


def test_rescored_prefixes_may_lose_success_again():
    # The verifier passes the state after turn 1 of the first episode, which turn 2 spoils.
    episodes = blind_episodes({"A": [None, None, 2]}, 2)
    verdicts = np.array([[True, False], [False, False], [False, True]])
    grid = pass_at_k_t_rescored(episodes, verdicts, [1, 2], [1, 2])
    np.testing.assert_allclose(grid.values[0], [[1 / 3, 1 / 3], [2 / 3, 2 / 3]])
    with pytest.raises(ValueError, match="shape"):
        pass_at_k_t_rescored(episodes, verdicts[:2], [1], [1, 2])
    with pytest.raises(ValueError, match="true and false"):
        pass_at_k_t_rescored(episodes, verdicts * 0.5, [1], [1, 2])
    with pytest.raises(UserError, match="mode='blind'"):
        pass_at_k_t_rescored(told_episodes({("A", 2): [None] * 3}, 2), verdicts, [1], [1, 2])


def test_rescoring_an_absorbing_verifier_changes_nothing():
    episodes, ts = blind_episodes(EXAMPLE, 6), [1, 3, 5]
    verdicts = [[e.success_turn is not None and e.success_turn <= t for t in ts] for e in episodes]
    np.testing.assert_array_equal(
        pass_at_k_t_rescored(episodes, verdicts, [1, 2], ts).values,
        pass_at_k_t(episodes, [1, 2], ts, mode="blind").values,
    )


def test_cover_counts_tasks_at_or_above_tau():
    counts = success_counts(blind_episodes(EXAMPLE, 6), [4, 6], mode="blind")  # shares A: 1/2, 3/4; B: 0, 1/4
    np.testing.assert_array_equal(cover_at(counts, [0.25, 0.5, 0.75, 1.0]), [[0.5, 1], [0.5, 0.5], [0, 0.5], [0, 0]])
    with pytest.raises(ValueError, match="tau"):
        cover_at(counts, [0.0])


def test_hazard_divides_by_those_who_got_so_far():
    episodes = blind_episodes({"A": [1, 2, None], "B": [3, 3]}, 4)
    gave_up = make_episode("B", 5, None, told=None, enforced=4, num_turns=1)
    hazard = success_hazard([*episodes, gave_up, make_episode("B", 6, None, told=None, enforced=4, void=True)])
    np.testing.assert_array_equal(hazard.survivors, [6, 4, 3, 1])
    np.testing.assert_array_equal(hazard.successes, [1, 1, 2, 0])
    np.testing.assert_allclose(hazard.hazard, [1 / 6, 1 / 4, 2 / 3, 0])
    assert hazard.num_void == 1


def test_hazard_refuses_mixtures_and_cut_records():
    with pytest.raises(UserError, match="told 2, 6"):
        success_hazard(told_episodes({("A", 2): [1], ("A", 6): [1]}, 6))
    with pytest.raises(UserError, match="each kind alone"):
        success_hazard(told_episodes({("A", 6): [1]}, 6) + blind_episodes({"A": [1]}, 6))
    with pytest.raises(UserError, match="whole records"):
        success_hazard([make_episode("A", 0, 3, told=None, enforced=4, num_turns=0)])


# ---- told x enforced ----


def test_matrix_holds_announced_unannounced_and_untold():
    told_2, told_6 = gambler_episodes(np.random.default_rng(12), 3, 4)
    untold = blind_episodes({f"t{i:04}": [1, 3, None, None] for i in range(3)}, 6)
    matrix = told_enforced_matrix(told_2 + told_6 + untold, 1, [2, 6, None], [2, 4, 6])
    own = pass_at_k_t(told_2, [1], [2]).mean[0, 0]
    late = pass_at_k_t(told_6, [1], [6]).mean[0, 0]
    np.testing.assert_allclose(matrix.mean, [[own, np.nan, np.nan], [0, late, late], [0.25, 0.5, 0.5]])
    assert matrix.values.shape == (3, 3, 3) and matrix.num_void == 0


def test_matrix_in_percent_of_unequal_tasks():
    episodes = told_episodes({("x", 2): [2, None], ("x", 4): [4, 1]}, 4) + told_episodes(
        {("y", 4): [None, 3], ("y", 8): [5, 2]}, 8
    )
    matrix = told_enforced_matrix(episodes, 1, [50, 100], [50, 100], unit="percent")
    np.testing.assert_allclose(matrix.mean, [[0.5, np.nan], [0.5, 1.0]])


def test_matrix_refuses_a_row_without_episodes():
    told_2, _ = gambler_episodes(np.random.default_rng(13), 2, 2)
    with pytest.raises(UserError, match="task t0000 has no episodes told 6"):
        told_enforced_matrix(told_2, 1, [2, 6], [2])
    with pytest.raises(UserError, match="without a budget line"):
        told_enforced_matrix(told_2, 1, [2, None], [2])
    with pytest.raises(UserError, match="no episodes"):
        told_enforced_matrix([], 1, [2], [2])
    with pytest.raises(UserError, match="full budgets 6 and 8"):
        told_enforced_matrix([*told_2, *blind_episodes({"t0000": [1, 2], "t0001": [1, 2]}, 8)], 1, [2, None], [2])


# ---- properties ----

success_turns = st.lists(st.one_of(st.none(), st.integers(1, 6)), min_size=4, max_size=7)
surfaces = st.dictionaries(st.sampled_from("abcd"), success_turns, min_size=1)


@settings(max_examples=60, deadline=None)
@given(surfaces)
def test_surface_rises_with_k_and_blind_with_t(example):
    grid = pass_at_k_t(blind_episodes(example, 6), [1, 2, 3, 4], range(1, 7), mode="blind")
    assert (np.diff(grid.values, axis=1) >= -1e-12).all()
    assert (np.diff(grid.values, axis=2) >= -1e-12).all()
    assert ((grid.values >= 0) & (grid.values <= 1)).all()
    hat = pass_hat_k_t(blind_episodes(example, 6), [1, 2, 3, 4], range(1, 7), mode="blind")
    assert (np.diff(hat.values, axis=1) <= 1e-12).all()
    np.testing.assert_allclose(hat.values[:, 0], grid.values[:, 0], atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(surfaces, st.randoms(use_true_random=False))
def test_order_of_episodes_does_not_matter(example, shuffler: random.Random):
    episodes = blind_episodes(example, 6)
    shuffled = episodes[:]
    shuffler.shuffle(shuffled)
    first, second = (pass_at_k_t(some, [1, 3], [2, 5], mode="blind") for some in (episodes, shuffled))
    np.testing.assert_array_equal(first.values, second.values)
    assert first.task_ids == second.task_ids
    assert success_hazard(episodes).survivors.tolist() == success_hazard(shuffled).survivors.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_estimate_is_the_share_of_subsets(outcomes, data):
    k = data.draw(st.integers(1, len(outcomes)))
    found = pass_at_k(len(outcomes), sum(outcomes), k)
    assert found == pytest.approx(float(share_of_subsets(outcomes, k, any)), abs=1e-14)
