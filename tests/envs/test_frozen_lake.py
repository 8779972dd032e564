import collections
import copy
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.envs import frozen_lake
from jaxagent.envs.frozen_lake_world import DIRECTIONS, distances, lake_of
from jaxagent.episodes import Task
from jaxagent.errors import UserError

FOG_LAKE = {
    "size": 5,
    "safe_probability": 0.75,
    "min_path": 3,
    "max_path": 6,
    "max_turns": 16,
    "view": "fog",
    "rendering": "compact",
}
ROWS = ["SFHF", "FFFF", "HFHF", "FFFG"]
WAY = ("down", "right", "down", "down", "right", "right")


def task_of(rows=ROWS, success_rate=1.0, on_hole="end", max_turns=8):
    return Task("frozen_lake", "t", {"rows": rows, "success_rate": success_rate, "on_hole": on_hole}, max_turns)


def started(task=None, seed=0, **options):
    environment = frozen_lake.make_environment(options)
    return environment, environment.reset(task or task_of(), seed)


def train_tasks(count, **options):
    source = frozen_lake.make_tasks(options, "train", 2**20, 0)
    return [source.task(index) for index in range(count)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": 4}, "env.options.sizes is no option of 'frozen_lake'; the options are size, safe_probability"),
        ({"size": 1}, r"env.options.size must be 2\.\.9"),
        ({"size": (4, 10)}, r"env.options.size must be 2\.\.9"),
        ({"size": (5, 4)}, "env.options.size must be a number or"),
        ({"size": "4"}, "env.options.size must be a number or"),
        ({"size": 4.5}, r"env.options.size must be 2\.\.9"),
        ({"safe_probability": 0}, "env.options.safe_probability must be in"),
        ({"safe_probability": (0.5, 1.1)}, "env.options.safe_probability must be in"),
        ({"success_rate": 0.0}, "env.options.success_rate"),
        ({"success_rate": True}, "env.options.success_rate"),
        ({"min_path": 0}, "env.options.min_path"),
        ({"min_path": 3, "max_path": 2}, "env.options.max_path"),
        ({"on_hole": "stop"}, "env.options.on_hole must be end or reset, got 'stop'"),
        ({"view": "dark"}, "env.options.view"),
        ({"rendering": "words"}, "env.options.rendering"),
        ({"max_turns": 0}, "env.options.max_turns"),
        ({"max_turns_per_path": 0.5}, "env.options.max_turns_per_path"),
        ({"max_turns": 8, "max_turns_per_path": 2}, "None where max_turns is given"),
    ],
)
def test_bad_options_are_named(options, message):
    for make in (lambda: frozen_lake.make_environment(options), lambda: frozen_lake.make_tasks(options, "train", 1, 0)):
        with pytest.raises(UserError, match=message):
            make()


def test_maps_are_solvable_within_the_filter_and_json():
    sizes = collections.Counter()
    for task in train_tasks(150, size=(3, 6), safe_probability=(0.5, 0.9), min_path=3, max_path=5):
        lake = lake_of(task.data)
        sizes[lake.size] += 1
        assert 3 <= distances(lake)[lake.start] <= 5
        assert task.max_turns == 2 * lake.size
        assert json.loads(json.dumps(task.data)) == task.data
    assert set(sizes) == {3, 4, 5, 6}


def test_path_lengths_have_the_published_distribution():
    """Share of random solvable maps with a path of at most T moves, side 4 and safe probability 0.8."""
    lakes = [lake_of(task.data) for task in train_tasks(1500, size=4, safe_probability=0.8, min_path=1)]
    found = [distances(lake)[lake.start] for lake in lakes]
    for turns, share in [(1, 0.22), (2, 0.47), (3, 0.71), (4, 0.87), (5, 0.96), (6, 0.99)]:
        assert np.mean(np.array(found) <= turns) == pytest.approx(share, abs=0.05)


def test_maps_and_ids_do_not_depend_on_budget_or_presentation():
    plain = {"size": (3, 6), "min_path": 2, "max_path": 7}
    variants = [
        {},
        {"max_turns": 3},
        {"max_turns": 99},
        {"max_turns_per_path": 2.5},
        {"view": "fog"},
        {"rendering": "compact"},
    ]
    for split in ("train", "panel"):
        sources = [frozen_lake.make_tasks({**plain, **variant}, split, 12, 4) for variant in variants]
        listed = [[(task.id, task.data) for task in map(source.task, range(12))] for source in sources]
        assert all(tasks == listed[0] for tasks in listed)
        assert len({source.content_hash() for source in sources}) == 1
    assert [frozen_lake.make_tasks({**plain, **v}, "train", 9, 4).task(0).max_turns for v in variants[1:3]] == [3, 99]
    for task in train_tasks(30, **plain, max_turns_per_path=2.5):
        lake = lake_of(task.data)
        assert task.max_turns == -(-5 * distances(lake)[lake.start] // 2)


@pytest.mark.parametrize("rendering", ["chatty", "compact"])
@pytest.mark.parametrize("view", ["full", "fog"])
def test_no_observation_knows_the_budget(view, rendering):
    texts = []
    for max_turns in (3, 77):
        environment, first = started(task_of(max_turns=max_turns), view=view, rendering=rendering)
        texts.append([first, *(environment.step(reply) for reply in ("down", "nonsense", "look"))])
    assert texts[0] == texts[1]
    assert not any(word in first.text.lower() for word in ("budget", "turn", "remaining"))


def test_the_way_to_the_goal():
    environment, first = started(rendering="compact")
    assert first.text == (
        " cell_S cell_F cell_H cell_F row_end cell_F cell_F cell_F cell_F row_end"
        " cell_H cell_F cell_H cell_F row_end cell_F cell_F cell_F cell_G row_end y0 x0 start"
    )
    *steps, last = [environment.step(reply) for reply in WAY]
    assert [step.observation.text for step in steps] == [
        " y1 x0 moved",
        " y1 x1 moved",
        " y2 x1 moved",
        " y3 x1 moved",
        " y3 x2 moved",
    ]
    assert [step.observation.anchor for step in steps] == ["1,0", "1,1", "2,1", "3,1", "3,2"]
    assert all(step.reward == 0.0 and step.ended is None for step in steps)
    assert (last.observation.text, last.reward, last.ended) == (" y3 x3 goal", 1.0, "success")
    assert last.info == {"valid": True, "action": "right", "error": None}
    with pytest.raises(RuntimeError, match="ended"):
        environment.step("left")


def test_bumps_and_holes():
    environment, _ = started(rendering="compact")
    bump = environment.step("up")
    assert (bump.observation.text, bump.info["valid"], bump.ended) == (" y0 x0 bump", True, None)
    environment.step("down")
    hole = environment.step("DOWN.")
    assert (hole.observation.text, hole.reward, hole.ended) == (" y2 x0 hole", 0.0, "failure")
    environment, _ = started(task_of(on_hole="reset"), rendering="compact")
    environment.step("down")
    hole = environment.step("down")
    assert (hole.observation.text, hole.observation.anchor, hole.ended) == (" y0 x0 hole", "0,0", None)
    assert [environment.step(reply).ended for reply in WAY][-1] == "success"


def test_fog_hides_and_a_look_shows():
    environment, first = started(view="fog", rendering="compact")
    assert first.text == " row+3 col+3 left=wall down=? right=? up=wall"
    assert environment.known == {0, 15}
    moved = environment.step("right").observation
    assert moved.text == " row+3 col+2 left=free down=? right=? up=wall"
    looked = environment.step("look")
    assert looked.observation.text == " row+3 col+2 left=free down=free right=hole up=wall"
    assert looked.info == {"valid": True, "action": "look", "error": None}
    assert environment.known == {0, 1, 15, 2, 4, 5, 6}
    assert looked.observation.anchor != moved.anchor
    assert environment.step("look").observation == looked.observation
    for reply in ("down", "down", "down", "right"):
        last = environment.step(reply).observation.text
    assert last == " row+0 col+1 left=free down=wall right=goal up=?"


def test_fog_board_shows_no_unseen_hole():
    environment, first = started(view="fog")
    assert first.text.endswith("\nP???\n????\n????\n???G")
    assert environment.step("look").observation.text.endswith("\nP_??\n__??\n????\n???G")
    environment, first = started(view="full")
    assert first.text.endswith("\nP_O_\n____\nO_O_\n___G")
    environment.step("down")
    assert environment.step("down").observation.text == "You fell into a hole.\n__O_\n____\nX_O_\n___G"


@pytest.mark.parametrize(
    ("options", "world", "said", "unsaid"),
    [
        ({}, {}, ["not slippery", "ends the attempt"], ["probability", "look", "sends you back", "not seen"]),
        ({}, {"success_rate": 0.8}, ["slippery", "probability 0.8,", "probability 0.1 each"], ["not slippery"]),
        ({}, {"on_hole": "reset"}, ["sends you back"], ["ends the attempt"]),
        ({"view": "fog"}, {}, ["or look", "eight cells", "not seen"], []),
    ],
)
def test_the_prompt_says_what_is_true(options, world, said, unsaid):
    _, first = started(task_of(**world), **options)
    assert all(text in first.text for text in said)
    assert not any(text in first.text for text in unsaid)


def state_of(environment):
    return environment.cell, environment.known, environment.lake


@settings(max_examples=150, deadline=None)
@given(
    reply=st.one_of(
        st.text(max_size=300),
        st.lists(
            st.sampled_from(
                ["<think>", "</think>", "<answer>", "</answer>", "```", "left", "LOOK", " ", "\n", "\0", "\ud800"]
            ),
            max_size=12,
        ).map("".join),
    ),
    view=st.sampled_from(["full", "fog"]),
    rendering=st.sampled_from(["chatty", "compact"]),
)
def test_any_reply_at_all(reply, view, rendering):
    environment, _ = started(task_of(on_hole="reset"), view=view, rendering=rendering)
    environment.step("down")
    before = state_of(environment)
    result = environment.step(reply)
    text = result.observation.text
    assert 0 < len(text) <= 2000
    assert "\0" not in text
    text.encode()  # no lone surrogate
    if result.info["valid"]:
        assert result.info["action"] in environment.actions
    else:
        assert state_of(environment) == before
        assert (result.reward, result.ended, result.info["action"]) == (0.0, None, None)
        assert result.info["error"] in ("no_action", "unknown_action", "look_without_fog")


@pytest.mark.parametrize(
    ("reply", "view", "error", "said"),
    [
        ("<think>left</think>", "full", "no_action", "holds no action"),
        ("left up", "full", "unknown_action", '"left up" is not an action'),
        ("2", "full", "unknown_action", '"2" is not an action'),
        ("look", "full", "look_without_fog", "the whole lake is in view"),
        ("jump<|end|>", "fog", "unknown_action", '"jumpend" is not an action'),
    ],
)
def test_invalid_replies_are_told_why(reply, view, error, said):
    environment, _ = started(view=view)
    result = environment.step(reply)
    assert result.info == {"valid": False, "action": None, "error": error}
    assert said in result.observation.text
    assert "left, down, right" in result.observation.text
    assert result.observation.text.endswith("G")  # the board again
    compact, _ = started(view="full", rendering="compact")
    assert compact.step(reply).observation.text == " y0 x0 noop"


def test_the_longest_observation_is_bounded():
    rows = ["S" + "H" * 8, *["H" * 9] * 7, "H" * 8 + "G"]
    for world in ({"on_hole": "reset", "success_rate": 1 / 3}, {}):
        _, first = started(task_of(rows, **world), view="fog")
        assert len(first.text) < 1500


def test_slips_come_from_the_seed_alone():
    def trace(seed):
        environment, _ = started(
            task_of(["SFFF"] + ["FFFF"] * 2 + ["FFFG"], success_rate=1 / 3), seed, rendering="compact"
        )
        return [environment.step(reply).observation.text for reply in ("right", "down", "right", "up", "left")]

    traces = [trace(seed) for seed in range(6)]
    assert traces == [trace(seed) for seed in range(6)]
    assert len({tuple(texts) for texts in traces}) > 3


def test_slip_frequencies():
    rows = ["FFFFF", "FFFFF", "FFSFF", "FFFFF", "FFFFG"]
    found = collections.Counter()
    for seed in range(2000):
        environment, _ = started(task_of(rows, success_rate=0.8), seed, rendering="compact")
        found[environment.step("up").observation.text] += 1
    shares = {text: count / 2000 for text, count in found.items()}
    expected = {" y1 x2 moved": 0.8, " y2 x1 slipped": 0.1, " y2 x3 slipped": 0.1}
    assert shares == pytest.approx(expected, abs=0.025)


def test_eight_at_once_and_one_succeeds():
    """Episodes of one task share nothing (RUC-NLPIR/DeepAgent#9)."""
    task = task_of()
    before = copy.deepcopy(task)
    scripts = [WAY if member == 5 else ("right", "left", "look", "up", "left", "nonsense") for member in range(8)]

    def serial(script):
        environment, _ = started(task, view="fog")
        return [environment.step(reply) for reply in script]

    environments = [frozen_lake.make_environment({"view": "fog"}) for _ in range(8)]
    for environment in environments:
        environment.reset(task, 0)
    rounds = [[e.step(s[turn]) for e, s in zip(environments, scripts, strict=True)] for turn in range(6)]
    together = list(zip(*rounds, strict=True))
    assert [results[-1].ended for results in together].count("success") == 1
    assert together[5][-1].ended == "success"
    assert [list(results) for results in together] == [serial(script) for script in scripts]
    assert task == before


@pytest.mark.parametrize("on_hole", ["end", "reset"])
def test_following_the_oracle_takes_the_distance(on_hole):
    for task in train_tasks(20, size=6, on_hole=on_hole):
        environment, _ = started(task)
        oracle = environment.oracle()
        for left in range(int(oracle.distance), 0, -1):
            assert environment.oracle().distance == left
            assert set(environment.oracle().optimal_actions) <= set(DIRECTIONS)
            result = environment.step(environment.oracle().optimal_actions[-1])
        assert result.ended == "success"
        assert environment.oracle().optimal_actions == ()
        assert environment.oracle().distance == 0


def test_the_oracle_with_slip_earns_the_value():
    """Monte Carlo of the best policy in the environment itself, against value iteration."""
    rows = ["SFFH", "FHFF", "FFFF", "HFFG"]
    task = task_of(rows, success_rate=0.7)
    wins = 0
    for seed in range(1500):
        environment, _ = started(task, seed, rendering="compact")
        for left in range(8, 0, -1):
            result = environment.step(environment.oracle(left).optimal_actions[0])
            if result.ended:
                wins += result.ended == "success"
                break
    expected = frozen_lake.best_success(task, 8)
    assert 0.2 < expected < 0.9
    assert wins / 1500 == pytest.approx(expected, abs=3.5 * (expected * (1 - expected) / 1500) ** 0.5)


@pytest.mark.parametrize(
    "options", [FOG_LAKE, {**FOG_LAKE, "view": "full"}, {"rendering": "compact", "success_rate": 0.6}]
)
def test_compact_observations_consist_of_compact_words(options):
    words = frozen_lake.compact_words()
    assert len(set(words)) == len(words)
    assert all(word.startswith(" ") and not word[1:].count(" ") and word.isprintable() for word in words)
    known, environment = {word[1:] for word in words}, frozen_lake.make_environment(options)
    generator = np.random.default_rng(0)
    replies = frozen_lake.compact_replies()
    for index, task in enumerate(train_tasks(25, **options)):
        texts = [environment.reset(task, index).text]
        for _ in range(12):
            result = environment.step(replies[generator.integers(len(replies))])
            texts.append(result.observation.text)
            if result.ended:
                break
        assert all(text.startswith(" ") and set(text[1:].split(" ")) <= known for text in texts)
        assert all(len(text[1:].split(" ")) <= 6 for text in texts[1:])


def test_every_compact_reply_is_what_it_should_be():
    for reply, view in itertools.product(frozen_lake.compact_replies(), ("full", "fog")):
        environment, _ = started(view=view)
        valid = environment.step(reply).info["valid"]
        assert valid == (reply != "noop" and (reply != "look" or view == "fog"))
