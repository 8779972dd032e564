"""A real recording as episodes: Pass@(1,T), blind, against a count. Needs the folder that JAXAGENT_DATA names."""

import json
import os
import pathlib

import pytest

from jaxagent.episodes import Episode, Turn
from jaxagent.evaluation.pass_at import pass_at_k_t, success_hazard
from jaxagent.evaluation.step_quality import errors, judge_by_record, recovery, split_success

DATA = os.environ.get("JAXAGENT_DATA")
FILE = pathlib.Path(DATA or ".") / "intercode_sql" / "transcripts_text-bison-001_10_turns.json"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA, reason="JAXAGENT_DATA is unset: it names a folder with recorded SQL transcripts"),
]


def episode_of(number, record):
    """A recorded episode that was told no budget; the first exact result (reward 1) is its success and its end."""
    history, full = record["turn_history"], record["summary"]["turns_max"]
    wins = [turn for turn, reward in enumerate(history["rewards"], start=1) if reward == 1]
    length = wins[0] if wins else len(history["rewards"])
    worked = [*history["valid_action"], False]  # the last action of some records was blocked and has no verdict
    turns = [
        Turn(
            index=index + 1,
            observation_ids=None,
            sampled_ids=None,
            logprobs=None,
            weight_version=0,
            text=str(history["actions"][index]),
            action=str(history["actions"][index]),
            valid=True,  # a query that fails is a valid action that was answered with an error
            error=None if worked[index] else "query",
            reward=float(history["rewards"][index]) if index + 1 != length or not wins else 0.0,
            anchor=None,
            remaining=full - index,
        )
        for index in range(length)
    ]
    return Episode(
        run_seed=0,
        step=0,
        task_id=f"sql-{number}",
        env="intercode_sql",
        group=int(number),
        member=0,
        max_budget=full,
        told_budget=None,
        enforced_budget=full,
        turns=tuple(turns),
        reward=float(bool(wins)),
        success=bool(wins),
        success_turn=wins[0] if wins else None,
        end_reason="success" if wins else "budget" if length == full else "gave_up",
    )


@pytest.fixture(scope="module")
def records():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def episodes(records):
    return [episode_of(number, record) for number, record in records.items()]


def test_curve_is_the_plain_count(records, episodes):
    ts = range(1, 11)
    curve = pass_at_k_t(episodes, [1], ts, mode="blind").mean[0]
    for t, found in zip(ts, curve, strict=True):
        solved = 0
        for record in records.values():
            solved += 1.0 in record["turn_history"]["rewards"][:t]
        assert found == pytest.approx(solved / len(records)), t
    assert 0 < curve[0] < curve[-1] < 1


def test_hazard_and_recovery_without_an_oracle(records, episodes):
    hazard = success_hazard(episodes)
    assert hazard.survivors[0] == len(records) and hazard.successes.sum() == sum(e.success for e in episodes)
    steps = [judge_by_record(episode) for episode in episodes]
    failed = blocked = 0
    for record in records.values():
        history = record["turn_history"]
        failed += history["valid_action"].count(False)
        blocked += len(history["actions"]) - len(history["valid_action"])
    assert sum(map(sum, map(errors, steps))) == failed + blocked > 0
    assert 0 < recovery(steps, 3).rate < 1
    split = split_success(episodes, steps)
    assert split.clean.mean() + split.recovered.mean() == pytest.approx(sum(e.success for e in episodes) / len(records))
