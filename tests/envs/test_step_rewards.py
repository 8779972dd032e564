"""Step rewards by oracle and by a user's function: what they pay, where they arrive, what cannot work."""

import math

import numpy as np
import pytest

from jaxagent.envs import registry, step_rewards
from jaxagent.envs.base import InfrastructureError, Observation, StepOracle, StepResult
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.errors import UserError

LAKE = {"size": 4, "rendering": "compact", "min_path": 3, "max_path": 6, "max_turns": 10}


def count_letters(before, result, after):
    """A user's rule."""
    assert isinstance(before, StepOracle) and isinstance(after, StepOracle)
    return len(result.info["action"] or "")


def not_a_number(before, result, after):
    return math.nan


def lake_task(seed=0):
    return registry.get("frozen_lake").make_tasks(LAKE, "train", 4, seed).task(0)


def walk(step_reward, scale=1.0, seed=0):
    """A shortest walk to the goal, by the oracle, one detour first."""
    environment = step_rewards.make_environment("frozen_lake", LAKE, step_reward, scale)
    environment.reset(lake_task(seed), 0)
    distance = environment.oracle().distance
    results = []
    while not results or results[-1].ended is None:
        results.append(environment.step(f"{environment.oracle().optimal_actions[0]}\n"))
    return distance, results


def earned(result):
    return result.info.get("step_reward", 0.0) if result.ended else result.reward


def test_progress_sums_to_the_distance_and_leaves_the_outcome_alone():
    distance, results = walk("progress", scale=0.5)
    assert len(results) == distance >= 3
    np.testing.assert_allclose([earned(r) for r in results], 0.5)
    assert results[-1].ended == "success" and results[-1].reward == 1.0
    _, plain = walk("none")
    assert [r.observation for r in plain] == [r.observation for r in results]
    assert [earned(r) for r in plain] == [0.0] * len(plain)


def test_optimal_pays_each_optimal_action_and_nothing_else():
    _, results = walk("optimal", scale=0.25)
    assert [earned(r) for r in results] == [0.25] * len(results)
    environment = step_rewards.make_environment("frozen_lake", LAKE, "optimal", 1.0)
    environment.reset(lake_task(), 0)
    assert earned(environment.step("gibberish\n")) == 0.0


@pytest.mark.parametrize(
    ("before", "ended", "after", "expected"),
    [
        (5, None, 4, 1),
        (4, None, 5, -1),
        (3, "success", None, 3),
        (3, "failure", 3, 0),
        (3, "gave_up", 3, 0),
        (None, None, 2, 0),
        (3, None, None, 0),
        (3, None, math.inf, 0),
    ],
)
def test_progress_by_cases(before, ended, after, expected):
    result = StepResult(Observation("o"), ended=ended)
    assert step_rewards.progress(StepOracle((), before), result, StepOracle((), after)) == expected
    assert step_rewards.progress(None, result, None) == 0


def test_lookup_pays_for_what_is_found():
    entry = registry.get("lookup")
    task = entry.make_tasks({}, "train", 4, 0).task(0)
    environment = step_rewards.make_environment("lookup", {}, "progress", 1.0)
    environment.reset(task, 0)
    total = start = environment.oracle().distance
    for _ in range(30):
        before = environment.oracle()
        result = environment.step(f"{before.optimal_actions[0]}\n".replace("_", " "))
        total -= earned(result)
        if result.ended:
            break
        assert total == environment.oracle().distance
    assert start > 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_users_function_runs_where_the_environment_runs(num_workers):
    rule = "test_step_rewards:count_letters"
    more = {"num_workers": num_workers, "step_timeout": 60.0, "step_reward": rule, "step_reward_scale": 2.0}
    with EnvironmentPool("frozen_lake", LAKE, **more) as pool:
        pool.run([ResetRequest(0, lake_task(), 0)])
        result = pool.run([StepRequest(0, "left\n")])[0]
    assert earned(result) == 2.0 * len("left")


def test_a_rule_without_a_number_voids_the_episode():
    more = {"num_workers": 0, "step_timeout": 60.0, "step_reward": "test_step_rewards:not_a_number"}
    with EnvironmentPool("frozen_lake", LAKE, **more) as pool:
        pool.run([ResetRequest(0, lake_task(), 0)])
        result = pool.run([StepRequest(0, "left\n")])[0]
    assert isinstance(result, InfrastructureError) and "finite" in str(result)


@pytest.mark.parametrize(
    ("step_reward", "said"),
    [
        ("guess", "must be none, progress, optimal or module:function"),
        ("absent_module:f", "cannot be loaded"),
        ("test_step_rewards:absent", "cannot be loaded"),
        ("test_step_rewards:LAKE", "not a function"),
    ],
)
def test_what_cannot_work_is_named(step_reward, said):
    with pytest.raises(UserError, match=said):
        EnvironmentPool("frozen_lake", LAKE, num_workers=0, step_timeout=1.0, step_reward=step_reward)


def test_an_environment_without_an_oracle_is_named():
    with pytest.raises(UserError, match="needs an oracle"):
        EnvironmentPool("probe_environment:ENTRY", {}, num_workers=0, step_timeout=1.0, step_reward="progress")
