import collections

import numpy as np
import pytest

from jaxagent.envs import frozen_lake
from jaxagent.episodes import Task

FOG = {"size": 5, "safe_probability": 0.75, "min_path": 3, "max_path": 6, "max_turns": 16, "view": "fog"}
FULL = {"size": 5, "safe_probability": 0.75, "min_path": 2, "max_path": 8, "max_turns": 16}


def episodes(count, **options):
    """(turn of success or None, replies) of demonstrations of 16 turns at most."""
    source = frozen_lake.make_tasks(options, "train", 2**20, 0)
    environment = frozen_lake.make_environment({**options, "rendering": "compact"})
    for index in range(count):
        environment.reset(source.task(index), index)
        player = frozen_lake.make_demonstrator(environment, np.random.default_rng(index))
        replies, success = [], None
        for turn in range(1, 17):
            replies.append(player())
            ended = environment.step(replies[-1]).ended
            if ended:
                success = turn if ended == "success" else None
                break
        yield success, replies


def success_within(found, turns):
    return np.mean([success is not None and success <= turns for success, _ in found])


@pytest.mark.parametrize("options", [FOG, FULL, {**FULL, "success_rate": 0.8}, {**FULL, "on_hole": "reset"}])
def test_quality_is_mixed(options):
    found = list(episodes(300, **options))
    tight, wide = success_within(found, 4), success_within(found, 16)
    assert 0.05 < tight < 0.35
    assert tight + 0.15 < wide < 0.8
    replies = collections.Counter(reply for _, played in found for reply in played)
    assert set(replies) <= set(frozen_lake.compact_replies())
    assert (replies["look"] > 0) == (options.get("view") == "fog")
    assert 0.01 < replies["noop"] / replies.total() < 0.15


def open_lake(view, on_hole="end"):
    """A player on a lake without holes that walks back and forth for ever: the environment is never stepped."""
    rows = ["SFFFF", "FFFFF", "FFFFF", "FFFFF", "FFFFG"]
    environment = frozen_lake.make_environment({"view": view})
    environment.reset(Task("frozen_lake", "x", {"rows": rows, "success_rate": 1.0, "on_hole": on_hole}, 16), 0)
    return environment


def test_shares_in_fog():
    """On the first turn: dash moves, careful looks, wanderers act at random; a quarter of the rest is random too."""
    environment = open_lake("fog")
    first = collections.Counter(
        frozen_lake.make_demonstrator(environment, np.random.default_rng(seed))() for seed in range(4000)
    )
    random_share = 0.3 + 0.7 * 0.25
    assert first["noop"] / 4000 == pytest.approx(random_share * 0.65 * 0.15, abs=0.01)
    assert first["look"] / 4000 == pytest.approx(random_share * 0.35 + 0.3 * 0.75, abs=0.02)
    wrong_way = random_share * 0.65 * 0.85 / 2  # up and left lead to no shortest path
    assert (first["up"] + first["left"]) / 4000 == pytest.approx(wrong_way, abs=0.02)


@pytest.mark.parametrize(("on_hole", "epsilons"), [("end", (0.5, 0.25)), ("reset", (0.7, 0.5))])
def test_shares_in_full_view(on_hole, epsilons):
    """On the first turn and on the eighth, when all random phases are over."""
    environment = open_lake("full", on_hole)
    first, late = collections.Counter(), collections.Counter()
    for seed in range(2000):
        player = frozen_lake.make_demonstrator(environment, np.random.default_rng(seed))
        replies = [player() for _ in range(8)]
        first[replies[0]] += 1
        late[replies[7]] += 1
    noisy, settled = epsilons
    random_late = 0.5 * noisy + 0.5 * settled
    random_first = 0.5 * noisy + 0.25 + 0.25 * (0.25 + 0.75 * settled)
    for counts, share in ((first, random_first), (late, random_late)):
        assert counts["noop"] / 2000 == pytest.approx(0.15 * share, abs=0.02)
        assert (counts["up"] + counts["left"]) / 2000 == pytest.approx(0.85 * share / 2, abs=0.035)


def test_a_careful_player_never_steps_into_the_unknown_by_plan():
    """Without its random replies a careful player is safe: every death in fog follows a random reply or a dash."""
    environment = frozen_lake.make_environment(FOG)
    source = frozen_lake.make_tasks(FOG, "train", 2**20, 1)

    class CarefulAndSteady:
        """A generator whose draws choose the careful kind and never the random branch."""

        def __init__(self, seed):
            self._integers = np.random.default_rng(seed).integers

        def random(self):
            return 0.5

        def integers(self, *bounds):
            return self._integers(*bounds)

    for index in range(60):
        environment.reset(source.task(index), 0)
        player = frozen_lake.make_demonstrator(environment, CarefulAndSteady(index))
        for _ in range(40):
            result = environment.step(player())
            if result.ended:
                break
        assert result.ended == "success"
