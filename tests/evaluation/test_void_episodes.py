"""Failures of the machinery, from the environment through the engine to the estimates: never failures of the agent."""

import pathlib
import sys

import pytest
from three_states import ThreeStates, make_task

from jaxagent.envs.base import InfrastructureError
from jaxagent.episodes import EpisodeSpec
from jaxagent.errors import UserError
from jaxagent.evaluation.interventions import WatchingPool
from jaxagent.evaluation.pass_at import pass_at_k_t, success_hazard
from jaxagent.rollout.engine import EngineConfig, RolloutEngine

sys.path.append(str(pathlib.Path(__file__).parents[1] / "rollout"))
from fake_sampler import FakeSampler

STOP, GO = 1, 10


class GoChat:
    stop_ids = (STOP,)

    def observation_ids(self, text, *, first):
        return (2,)

    def reply_text(self, ids):
        return "go"


class Failing(ThreeStates):
    """The task says on which turn the machinery fails, and how."""

    def reset(self, task, seed):
        self.turn, self.fault = 0, task.data
        return super().reset(task, seed)

    def step(self, reply):
        self.turn += 1
        if self.turn == self.fault.get("on"):
            raise InfrastructureError(self.fault["kind"], "broken")
        return super().step(reply)


def run(tasks, budget=4):
    pool = WatchingPool(Failing)
    specs = [EpisodeSpec(task, 0, 0, group, 0, None, budget) for group, task in enumerate(tasks)]
    sampler = FakeSampler(lambda ids, turn, key: (GO, STOP))
    engine = RolloutEngine(sampler, pool, GoChat(), EngineConfig(retries=1))
    return sorted(engine.run_episodes(specs), key=lambda episode: episode.group)


def test_three_kinds_of_failure_are_told_apart_and_count_for_nothing():
    # Fault F14: a verifier that raises, an environment that times out, a sandbox that dies.
    kinds = ("verifier", "timeout", "sandbox")
    tasks = [make_task(kind, kind=kind, on=2) for kind in kinds]
    void = run(tasks)
    assert [episode.end_reason for episode in void] == ["infrastructure"] * 3
    assert [episode.detail.split(":")[0] for episode in void] == list(kinds)
    assert all(episode.is_void and not episode.success and episode.reward == 0 for episode in void)
    good = run([make_task(kind) for kind in kinds])
    grid = pass_at_k_t([*void, *good], [1], [1, 2], mode="blind")
    assert grid.mean[0].tolist() == [0, 1]  # not 1/2: a void episode is no failure
    assert grid.num_void == 3 and grid.counts.void_per_task.tolist() == [1, 1, 1]
    assert success_hazard([*void, *good]).survivors.tolist() == [3, 3]
    with pytest.raises(UserError, match=r"task sandbox .* it has 0 \(1 void"):
        pass_at_k_t(void, [1], [2], mode="blind")


def test_a_failure_after_the_goal_changes_nothing():
    (episode,) = run([make_task("late", kind="timeout", on=3)])
    assert episode.success and episode.success_turn == 2 and not episode.is_void
