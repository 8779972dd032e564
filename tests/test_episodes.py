"""Records: JSON in and out, faults named, files whole or absent."""

import dataclasses
import json

import numpy as np
import pytest
from episode_builder import make_episode, random_episode

from jaxagent import episodes
from jaxagent.errors import UserError


@pytest.mark.parametrize("name", ["episodes.jsonl", "episodes.jsonl.gz"])
def test_files_return_what_was_written(tmp_path, name):
    rng = np.random.default_rng(0)
    written = [random_episode(rng, group=i, told=8 if i % 2 else None) for i in range(20)]
    written.append(make_episode(2, end_reason="infrastructure", detail="worker: gone"))
    path = tmp_path / "deep" / name
    assert episodes.write_episodes(path, written) == 21
    assert list(episodes.read_episodes(path)) == written
    first = path.read_bytes()
    episodes.write_episodes(path, written)
    assert path.read_bytes() == first, "equal episodes give equal bytes"
    assert not list(path.parent.glob("*.partial"))


def test_served_episodes_have_no_ids():
    turn = dataclasses.replace(make_episode().turns[0], observation_ids=None, sampled_ids=None, logprobs=None)
    served = make_episode(turns=[turn])
    assert episodes.episode_from_json(episodes.episode_to_json(served)) == served
    with pytest.raises(ValueError, match="no token ids"):
        served.token_ids()


def test_token_ids_are_the_turns_in_order():
    episode = random_episode(np.random.default_rng(1))
    expected = []
    for turn in episode.turns:
        expected += [*turn.observation_ids, *turn.sampled_ids]
    assert episode.token_ids() == expected


def fields(**changes):
    return json.loads(episodes.episode_to_json(make_episode(success=True))) | changes


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("not json", "JSON"),
        ("[1]", "object"),
        (json.dumps(fields(schema=2)), "schema 2"),
        (json.dumps(fields(end_reason="bored")), "bored"),
        (json.dumps(fields(success_turn=99)), "99"),
        (json.dumps(fields(success_turn=None)), "success_turn"),
        (json.dumps(fields(reward="NaN")), "reward"),
        (json.dumps(fields(surplus=1)), "surplus"),
        (json.dumps(fields(enforced_budget=2)), "success_turn 3"),
        (json.dumps({k: v for k, v in fields().items() if k != "turns"}), "turns"),
        (json.dumps(fields(turns=[{"index": 1}])), "observation_ids"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, line, named):
    path = tmp_path / "broken.jsonl"
    path.write_text(episodes.episode_to_json(make_episode()) + "\n" + line + "\n")
    with pytest.raises(UserError, match="line 2") as caught:
        list(episodes.read_episodes(path))
    assert named in str(caught.value)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(UserError, match="no such episode file"):
        list(episodes.read_episodes(tmp_path / "absent.jsonl"))
    path = tmp_path / "cut.jsonl.gz"
    episodes.write_episodes(path, [make_episode() for _ in range(50)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz"):
        list(episodes.read_episodes(path))


def test_specs_check_their_budgets():
    task = episodes.Task("test", "t", {}, 8)
    with pytest.raises(ValueError, match="below"):
        episodes.EpisodeSpec(task, 0, 0, 0, 0, told_budget=3, enforced_budget=4)
    with pytest.raises(ValueError, match="at least 1"):
        episodes.EpisodeSpec(task, 0, 0, 0, 0, told_budget=None, enforced_budget=0)
