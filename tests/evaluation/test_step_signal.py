"""Steps that an environment without an oracle judges itself: from its `info` to the record, the analysis, recovery."""

import json
import math
import pathlib
import sys

import pytest
from check_list import CheckList

from jaxagent.envs.base import StepResult, step_signal
from jaxagent.episodes import EpisodeSpec, Task, episode_from_json, episode_to_json
from jaxagent.errors import UserError
from jaxagent.evaluation.interventions import WatchingPool, plan_injections
from jaxagent.evaluation.step_quality import errors, good_steps, recovery, replay, split_success
from jaxagent.rollout.engine import EngineConfig, RolloutEngine

sys.path.append(str(pathlib.Path(__file__).parents[1] / "rollout"))
from fake_sampler import FakeSampler

STOP = 1
WORDS = ["left", "right", "up", "query_1", "down", "look", "answer_a", "noop"]
TASK = Task("check_list", "x", {"needed": ["left", "right", "up"]}, 8)


class Chat:
    stop_ids = (STOP,)

    def observation_ids(self, text, *, first):
        return (2,)

    def reply_text(self, ids):
        return WORDS[ids[0] - 10]


def play(*scripts, says=("good", "progress"), budget=8):
    """Real records of scripted episodes of one task, and the pool that watched the last of them."""
    pool = WatchingPool(lambda: CheckList(says))
    sampler = FakeSampler(lambda ids, turn, key: (10 + WORDS.index(scripts[key[3]][turn - 1]), STOP), slots=1)
    specs = [EpisodeSpec(TASK, 0, 0, 0, member, None, budget) for member in range(len(scripts))]
    return list(RolloutEngine(sampler, pool, Chat(), EngineConfig()).run_episodes(specs)), pool


def judge(*scripts, **options):
    return [replay(CheckList(), TASK, episode) for episode in play(*scripts, **options)[0]]


# Ticks, idles, ticks, loses a tick, says nonsense, ticks twice.
LONG = ["left", "look", "right", "down", "noop", "up", "right"]


def test_the_record_holds_what_the_environment_said():
    (episode,), _ = play(LONG)
    assert episode.success_turn == 7
    assert [turn.good for turn in episode.turns] == [True, False, True, False, False, True, True]
    assert [turn.progress for turn in episode.turns] == [n / 3 for n in (1, 1, 2, 1, 1, 2, 3)]
    assert episode_from_json(episode_to_json(episode)) == episode
    (silent,), _ = play(LONG, says=())
    assert all(turn.good is None and turn.progress is None for turn in silent.turns)


def test_progress_and_good_judge_the_steps():
    (steps,) = judge(LONG)
    assert good_steps(steps) == [1, 0, 1, 0, 0, 1, 1]
    assert errors(steps) == [0, 0, 0, 1, 1, 0, 0]  # the lost tick and the nonsense; idling is no error
    assert [round(3 * step.distance) for step in steps] == [3, 2, 2, 1, 2, 2, 1]
    assert [round(3 * step.distance_after) for step in steps] == [2, 2, 1, 2, 2, 1, 0]
    # The lost tick (distance 1 before it) is made good by success, three turns later; the nonsense on the next turn.
    assert recovery([steps], 3).recovered == 2 and recovery([steps], 2).recovered == 1
    split = split_success(play(LONG)[0], [steps])
    assert split.recovered.tolist() == [1] and split.clean.tolist() == [0]


def test_good_alone_counts_the_good_steps():
    (steps,) = judge(LONG, says=("good",))
    assert good_steps(steps) == [1, 0, 1, 0, 0, 1, 1]
    assert errors(steps) == [0, 0, 0, 0, 1, 0, 0]
    assert recovery([steps], 1).rate == 1


def test_progress_alone_calls_good_what_comes_closer():
    (steps,) = judge(LONG, says=("progress",))
    assert good_steps(steps) == [1, 0, 1, 0, 0, 1, 1] and errors(steps) == [0, 0, 0, 1, 1, 0, 0]


def test_giving_up_is_an_error_without_recovery():
    (steps,) = judge(["left", "answer_a"])
    assert errors(steps) == [0, 1] and steps[-1].distance_after == math.inf
    assert (recovery([steps], 3).fatal, recovery([steps], 3).rate) == (1, 0)


@pytest.mark.parametrize("script", [LONG, ["left", "look", "right", "up"], ["left", "answer_a"], ["noop"] * 8])
@pytest.mark.parametrize("says", [("good", "progress"), ("good",), ("progress",), ()])
def test_hybrids_see_the_errors_that_the_analysis_counts(script, says):
    episodes, pool = play(script, says=says)
    assert pool.erred(0) == any(errors(replay(CheckList(), TASK, episodes[0])))


def test_injected_replies_undo_or_waste():
    # Nothing was ticked before turn 1, so there `look` only wastes; before turn 3 `down` leads away.
    episodes, _ = play(["left", "right", "down", "look", "right", "up"], ["left", "right", "up"])
    steps = [replay(CheckList(), TASK, episode) for episode in episodes]
    chosen = {}
    for seed in range(30):
        for injection in plan_injections(CheckList(), {"x": TASK}, episodes, steps, count=2, seed=seed):
            chosen.setdefault(len(injection.prefix), set()).add(injection.wrong)
    assert chosen[0] <= {"look", "down"} and chosen[1] == chosen[2] == {"down"}


@pytest.mark.parametrize(
    ("info", "fault"),
    [
        ({"good": 1}, "good is 1"),
        ({"good": "yes"}, "good is 'yes'"),
        ({"progress": 1.5}, "progress is 1.5"),
        ({"progress": float("nan")}, "progress is nan"),
        ({"progress": True}, "progress is True"),
    ],
)
def test_other_values_are_refused(info, fault):
    with pytest.raises(ValueError, match=fault):
        step_signal(StepResult(None, info=info).info)
    (episode,), _ = play(LONG)
    line = episode_to_json(episode)
    (name, value), *_ = info.items()
    forged = line.replace(f'"{name}":{json.dumps(getattr(episode.turns[0], name))}', f'"{name}":{json.dumps(value)}', 1)
    with pytest.raises(UserError, match=f"turn 1: {fault}"):
        episode_from_json(forged)


def test_the_signal_is_optional_in_old_records():
    (episode,), _ = play(LONG, says=())
    old = episode_to_json(episode).replace(',"good":null,"progress":null', "")
    assert "good" not in old and episode_from_json(old) == episode
