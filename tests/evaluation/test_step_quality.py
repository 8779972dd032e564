"""Step quality and recovery: against values worked out by hand on a world of three states."""

import dataclasses
import math

import numpy as np
import pytest
from three_states import POLICY, ThreeStates, make_task, play

from jaxagent.envs import registry
from jaxagent.errors import UserError
from jaxagent.evaluation.step_quality import (
    average,
    average_by_turn,
    context_ids,
    errors,
    freeze_states,
    gain_split,
    good_steps,
    invalid,
    judge_by_record,
    optimal_mass,
    recovery,
    replay,
    spec_of,
    split_success,
    states_hash,
)
from jaxagent.rollout.engine import environment_seed

X, Y = make_task("x"), make_task("y")
# Budget 4 each. A: an error, an invalid reply, a late step. D recovers. E's error is fatal.
A = play(["go", "back", "junk", "go"], task=X, member=0)
B = play(["go", "go"], task=X, member=1)
C = play(["back", "go", "go"], task=Y, member=2)
D = play(["go", "back", "go", "go"], task=Y, member=0)
E = play(["go", "leap"], task=Y, member=1)


def judge(*episodes):
    return [replay(ThreeStates(), {"x": X, "y": Y}[episode.task_id], episode) for episode in episodes]


def probabilities(episode):
    """The known policy at every state of an episode, by the anchors on record."""
    return [POLICY[int(turn.anchor)] for turn in episode.turns]


def test_replay_judges_every_turn():
    steps = judge(A)[0]
    assert [step.distance for step in steps] == [2, 1, 2, 2]
    assert [step.distance_after for step in steps] == [1, 2, 2, 1]
    assert [step.turns_left for step in steps] == [4, 3, 2, 1]
    assert [step.error for step in steps] == [False, True, True, False]
    assert [set(step.optimal) for step in steps] == [{"go"}] * 4
    assert [set(step.optimal_in_budget) for step in steps] == [{"go"}, {"go"}, {"go"}, {"leap"}]
    assert judge(B)[0][-1].distance_after == 0 and judge(E)[0][-1].distance_after == math.inf


def test_mass_on_optimal_actions_budget_free_and_budget_aware():
    masses = {name: optimal_mass(judge(e)[0], probabilities(e)) for name, e in [("A", A), ("B", B)]}
    np.testing.assert_allclose(masses["A"], [0.6, 0.5, 0.6, 0.6])
    np.testing.assert_allclose(optimal_mass(judge(A)[0], probabilities(A), in_budget=True), [0.6, 0.5, 0.6, 0.1])
    # Per episode, then per task: x has A and B, y has C alone.
    own = average(["x", "x", "y"], [masses["A"], masses["B"], optimal_mass(judge(C)[0], probabilities(C))])
    assert own.task_ids == ("x", "y")
    np.testing.assert_allclose(own.values, [(0.575 + 0.55) / 2, (0.6 + 0.6 + 0.5) / 3])
    assert own.mean == pytest.approx((0.5625 + 17 / 30) / 2)
    by_turn = average_by_turn(list(masses.values()))
    np.testing.assert_array_equal(by_turn.survivors, [2, 2, 1, 1])
    np.testing.assert_allclose(by_turn.mean, [0.6, 0.5, 0.6, 0.6])


def test_recorded_actions_give_the_share_of_optimal_ones():
    assert optimal_mass(judge(A)[0]) == [1, 0, 0, 1]
    assert optimal_mass(judge(A)[0], in_budget=True) == [1, 0, 0, 0]
    assert good_steps(judge(A)[0]) == [1, 0, 0, 1] and good_steps(judge(B)[0]) == [1, 1]


def test_invalid_rate_and_error_rate():
    assert invalid(judge(A)[0]) == [0, 0, 1, 0] and errors(judge(A)[0]) == [0, 1, 1, 0]
    # A step back against the edge loses a turn but no ground.
    assert errors(judge(C)[0]) == [0, 0, 0]


def test_frozen_states_are_the_same_for_everybody():
    episodes, steps = [A, D], judge(A, D)
    states = freeze_states(episodes, steps, count=5, seed=1)
    again = freeze_states(episodes[::-1], steps[::-1], count=5, seed=1)
    assert states == again and states_hash(states) == states_hash(again)
    assert len(states) == 5 and len({(s.task_id, s.step.index) for s in states}) == 5
    assert states != freeze_states(episodes, steps, count=5, seed=2)
    everything = freeze_states(episodes, steps, count=100)
    assert len(everything) == 8
    mass = optimal_mass([s.step for s in everything], [POLICY[2 - int(s.step.distance)] for s in everything])
    rows = average([s.task_id for s in everything], [[value] for value in mass])
    np.testing.assert_allclose(rows.values, [0.575, (0.6 + 0.5 + 0.6 + 0.5) / 4])


def test_contexts_end_with_the_observation_before_the_reply():
    assert context_ids(B, 1) == (3, 4)
    assert context_ids(B, 2) == (3, 4, 12, 1, 3, 5)
    served = dataclasses.replace(B, turns=(dataclasses.replace(B.turns[0], sampled_ids=None),))
    assert context_ids(served, 1) is None


@pytest.mark.parametrize(
    ("horizon", "eligible", "recovered", "kaplan_meier"),
    # Errors: A2 (2 turns left, never made good), A3 (1 left, made good by the next turn), D2 (2 left, made good by
    # the second), E2 (2 left, fatal). Kaplan-Meier: 1/4 of four at turn 1, then 1/3 of the three left.
    [(1, 4, 1, 1 / 4), (2, 3, 1, 1 - 3 / 4 * 2 / 3), (3, 0, 0, 1 / 2)],
)
def test_recovery_by_hand(horizon, eligible, recovered, kaplan_meier):
    found = recovery(judge(A, B, C, D, E), horizon)
    assert (found.errors, found.fatal, found.eligible, found.recovered) == (4, 1, eligible, recovered)
    assert found.rate == (pytest.approx(recovered / eligible) if eligible else None)
    assert found.kaplan_meier == pytest.approx(kaplan_meier)


def test_recovery_without_errors_has_no_rate():
    found = recovery(judge(B, C), 2)
    assert (found.errors, found.rate, found.kaplan_meier) == (0, None, None)
    assert recovery(judge(E), 1).kaplan_meier == 0
    with pytest.raises(UserError, match="at least one turn"):
        recovery(judge(B), 0)


def test_censored_recovery_is_unbiased_where_counting_early_recoveries_is_not():
    # From an error each turn makes it good with chance 0.3; errors fall on any turn of a budget of 6.
    rng, chance, horizon = np.random.default_rng(3), 0.3, 3
    made = []
    for _ in range(3000):
        at = int(rng.integers(0, 6))
        wait = int(rng.geometric(chance))
        replies = ["back"] * at + ["junk"] + ["back"] * (wait - 1) + ["go"] * 6
        made.append(play(replies, task=X, budget=6))
    steps = judge(*made)
    found = recovery(steps, horizon)
    truth = 1 - (1 - chance) ** horizon
    assert abs(found.rate - truth) < 3 * math.sqrt(truth * (1 - truth) / found.eligible)
    assert abs(found.kaplan_meier - truth) < 0.03
    naive = np.mean([any(good_steps(judged)) for judged in steps])
    assert naive < truth - 0.05


def test_success_is_split_by_errors_on_the_way():
    split = split_success([A, B, D, E], judge(A, B, D, E))
    np.testing.assert_allclose([split.clean, split.recovered, split.erred], [[0.5, 0], [0, 0.5], [0.5, 1]])
    assert split.success_after_error == pytest.approx(1 / 3) and split.success_without_error == 1
    worse = split_success([A, E], judge(A, E))
    gain = gain_split(split, worse)
    assert gain == {"gain": 0.5, "clean": 0.25, "recovered": 0.25, "recovered_share": 0.5}
    with pytest.raises(UserError, match="same panel"):
        gain_split(split, split_success([A], judge(A)))


def test_without_an_oracle_rewards_and_errors_speak():
    turns = [dataclasses.replace(t, reward=r) for t, r in zip(A.turns, [0.5, 0.25, 0.0, 0.75], strict=True)]
    steps = judge_by_record(dataclasses.replace(A, turns=tuple(turns)))
    assert [step.distance for step in steps] == [1, 0.5, 0.5, 0.5]
    assert [step.distance_after for step in steps] == [0.5, 0.5, 0.5, 0.25]
    assert errors(steps) == [0, 0, 1, 0] and good_steps(steps) == [1, 0, 0, 1]
    assert recovery([steps], 1).rate == 1
    assert judge_by_record(B)[-1].distance_after == 0
    with pytest.raises(UserError, match="without an oracle"):
        optimal_mass(steps)


def test_replies_that_the_environment_never_saw_are_errors():
    cut = dataclasses.replace(B.turns[1], truncated=True, action=None, text="go go go")
    episode = dataclasses.replace(
        B, turns=(B.turns[0], cut), success=False, success_turn=None, end_reason="turn_tokens"
    )
    steps = judge(episode)[0]
    assert errors(steps) == [0, 1] and invalid(steps) == [0, 1]
    assert (steps[1].distance, steps[1].distance_after) == (1, 1)


def test_records_of_another_world_do_not_replay():
    forged = dataclasses.replace(B, turns=(B.turns[0], dataclasses.replace(B.turns[1], anchor="0")))
    with pytest.raises(UserError, match=r"turn 2 .* does not replay"):
        judge(forged)
    other = dataclasses.replace(B, turns=(B.turns[0], dataclasses.replace(B.turns[1], action="back")))
    with pytest.raises(UserError, match="does not replay"):
        judge(other)
    with pytest.raises(UserError, match="void"):
        judge(dataclasses.replace(B, end_reason="infrastructure"))
    with pytest.raises(UserError, match="task x was given with task y"):
        replay(ThreeStates(), Y, B)


@pytest.mark.parametrize("name", ["frozen_lake", "lookup"])
def test_demonstrations_of_the_built_in_worlds_replay(name):
    entry = registry.get(name)
    options = {"success_rate": 0.7, "max_turns": 8} if name == "frozen_lake" else {"max_turns": 8}
    world, fresh = entry.make_environment(options), entry.make_environment(options)
    tasks = entry.make_tasks(options, "panel", 6, 1)
    seen = 0
    for index in range(len(tasks)):
        task = tasks.task(index)
        blank = dataclasses.replace(A, env=name, task_id=task.id, turns=(), max_budget=8, enforced_budget=8)
        observation = world.reset(task, environment_seed(spec_of(blank, task)))
        reply, turns, ended = entry.make_demonstrator(world, np.random.default_rng(index)), [], None
        while len(turns) < 8 and not ended:
            text, anchor = reply(), observation.anchor
            result = world.step(text)
            info = {"text": text, "anchor": anchor, "remaining": 8 - len(turns), "index": len(turns) + 1}
            info |= {key: result.info[key] for key in ("action", "valid", "error")}
            turns.append(dataclasses.replace(A.turns[0], **info))
            observation, ended = result.observation, result.ended
        steps = replay(fresh, task, dataclasses.replace(blank, turns=tuple(turns)))
        assert len(steps) == len(turns) and all(step.optimal_in_budget for step in steps)
        assert (steps[-1].distance_after == 0) == (ended == "success")
        seen += sum(errors(steps))
    assert seen > 0


def test_kaplan_meier_agrees_with_a_product_over_turns():
    rng = np.random.default_rng(5)
    made = [play(rng.choice(["go", "back", "junk"], 5, p=[0.3, 0.4, 0.3]).tolist(), budget=5) for _ in range(80)]
    steps = judge(*made)
    waits = []  # (turns watched, recovered)
    for judged in steps:
        for place, step in enumerate(judged):
            if step.error:
                later = [t for t, s in enumerate(judged[place + 1 :], 1) if s.distance_after < step.distance]
                waits.append((later[0], True) if later else (step.turns_left - 1, False))
    for horizon in (1, 2, 3):
        survival = 1.0
        for t in range(1, horizon + 1):
            at_risk = sum(wait >= t for wait, _ in waits)
            survival *= 1 - sum(wait == t and event for wait, event in waits) / at_risk
        assert recovery(steps, horizon).kaplan_meier == pytest.approx(1 - survival)
