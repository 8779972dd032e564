"""What the surface adds to the estimators: averages over feasible tasks, copies among samples, a blind policy."""

import numpy as np
import pytest
from evaluation_builders import blind_episodes, make_episode, told_episodes

from jaxagent.evaluation.surface import surface

TURNS = {"A": [2, 4, None, 4], "B": [None, None, 3, None]}


def surface_of(episodes, **changes):
    return surface(episodes, **({"k": 2, "percents": [50, 100], "mode": "blind", "seed": 0} | changes))


def test_blind_surface_has_one_row_and_one_hazard():
    found = surface_of(blind_episodes(TURNS, 4))
    assert found["told_enforced"]["told_percent"] == [None] and list(found["hazard"]) == ["100"]
    np.testing.assert_allclose(found["told_enforced"]["pass_at_k"], [found["pass_at_k"][1]])
    np.testing.assert_allclose(found["pass_at_k"], [[1 / 8, 1 / 2], [1 / 4, 3 / 4]])
    np.testing.assert_allclose(found["turn_budget"]["pass_at_turn_budget"], [0.5, 3 / 4])
    assert found["turn_budget"]["mean_k"] == [4, 2] and found["feasible"] is None
    # A takes 2, 4, 4, 4 turns and B 4, 4, 3, 4; cut at half, all take 2.
    np.testing.assert_allclose(found["turn_budget"]["turns_spent_percent"], [200, 2 * 100 * (14 / 16 + 15 / 16) / 2])


def test_feasible_tasks_alone():
    found = surface_of(blind_episodes(TURNS, 4), feasible={50: ["A"], 100: ["A", "B"]})["feasible"]
    assert found["50"]["num_tasks"] == 1
    np.testing.assert_allclose(found["50"]["pass_at_k"], [1 / 4, 1 / 2])
    np.testing.assert_allclose(found["100"]["pass_at_k"], [1 / 2, 3 / 4])
    assert surface_of(blind_episodes(TURNS, 4), feasible={50: [], 100: ["B"]})["feasible"]["50"] == {"num_tasks": 0}


def test_copies_among_samples_are_counted():
    copies = blind_episodes(
        {"A": [2, 2, 2], "B": [1, 2, 3]}, 4
    )  # their replies are empty: length alone tells them apart
    assert surface_of(copies)["tasks_with_equal_samples"] == 1
    void = make_episode("C", 0, None, told=None, enforced=4, void=True)
    lone = [make_episode("C", 1, 1, told=None, enforced=4), void]
    assert surface_of([*copies, *lone], k=1)["tasks_with_equal_samples"] == 1


def test_too_few_samples_for_a_full_episode_give_no_matched_curve():
    told = told_episodes({("A", 1): [1, 1], ("A", 4): [2, None]}, 4)
    assert surface_of(told, mode="told", percents=[25, 100])["turn_budget"] is None
    matrix = surface_of(told, mode="told", percents=[25, 100])["told_enforced"]
    assert matrix["pass_at_k"] == [[1.0, None], [0.0, pytest.approx(1.0)]] and matrix["method"][0][1] is None
