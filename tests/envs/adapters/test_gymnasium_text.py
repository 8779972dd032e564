"""Gymnasium's own FrozenLake, and an environment of text, through the adapter; both against Gymnasium itself."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jaxagent.envs import registry
from jaxagent.envs.adapters import gymnasium_text
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.errors import UserError

MOVES = ("left", "down", "right", "up")
LAKE = {"id": "FrozenLake-v1", "actions": MOVES, "kwargs": {"is_slippery": False}}


class Echo(gymnasium.Env):
    """Say the word. Text in, text out; faulty on purpose where asked to be."""

    observation_space = spaces.Text(200)
    action_space = spaces.Text(20, charset="abcdefghijklmnopqrstuvwxyz")

    def __init__(self, bonus=0.0):
        self.bonus = bonus

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = "abc"[int(self.np_random.integers(3))] * 3
        return f"say {self.word}", {}

    def step(self, action):
        if action == "refuse":
            raise ValueError("I refuse")
        if action == "break":
            raise OSError("a fault")
        noise = int(self.np_random.integers(1000))
        right = action == self.word
        return f"{'right' if right else 'wrong'} {noise}", 1.0 if right else self.bonus, right, action == "stop", {}


ECHO = {"make": f"{__name__}:Echo", "max_turns": 5}


@pytest.fixture
def here_importable(monkeypatch, request):
    monkeypatch.syspath_prepend(str(request.path.parent))


def bracketed(text):
    """Gymnasium marks the cell where the agent is in red."""
    assert text.count("\x1b[41m") == text.count("\x1b[0m") == 1
    return text.replace("\x1b[41m", "[").replace("\x1b[0m", "]")


def test_frozen_lake_is_gymnasiums(here_importable):
    source = gymnasium_text.make_tasks(LAKE, "train", 100, 0)
    task = source.task(3)
    assert task.max_turns == 100, "the time limit that Gymnasium registers is the full budget"
    environment = gymnasium_text.make_environment(LAKE)
    bare = gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi")
    bare.reset(seed=task.data["seed"])
    assert environment.reset(task, 0).text == bracketed(bare.render())
    for move in [1, 1, 2, 2, 1]:
        result = environment.step(f"<think>left?</think><answer>{MOVES[move].upper()}</answer>")
        bare.step(move)
        assert (
            result.observation.text == bracketed(bare.render())
            and result.ended is None
            and result.info["action"] == MOVES[move]
        )
    before = result.observation.text
    result = environment.step("north")
    assert (
        not result.info["valid"]
        and before in result.observation.text
        and "left, down, right, up" in result.observation.text
    )
    assert environment.step("right").ended == "success"
    environment.reset(task, 0)
    for move in ("right", "down"):
        result = environment.step(move)
    assert (result.ended, result.reward) == ("failure", 0.0), "a hole"
    environment.close()


def test_its_time_limit_is_taken_off():
    environment = gymnasium_text.make_environment(LAKE)
    environment.reset(gymnasium_text.make_tasks(LAKE, "train", 9, 0).task(0), 0)
    assert {environment.step("left").ended for _ in range(150)} == {None}


def test_text_in_text_out(here_importable):
    source = gymnasium_text.make_tasks(ECHO, "train", 1000, 0)
    environment = gymnasium_text.make_environment(ECHO | {"instructions": "Listen."})
    words = set()
    for index in range(12):
        task = source.task(index)
        first = environment.reset(task, 0).text
        assert first.startswith("Listen.\n\nsay ") and first == environment.reset(task, 1).text, "the task's seed alone"
        words.add(first[-3:])
        noises = []
        for seed in (1, 1, 2):
            environment.reset(task, seed)
            noises.append(environment.step("zzz").observation.text)
        assert noises[0] == noises[1] != noises[2], "what is drawn afterwards comes from the episode's seed"
        assert environment.step("two words").info == {"valid": False, "action": None, "error": "unknown_action"}
        assert environment.step("refuse").info["error"] == "refused"
        assert environment.step("stop").ended == "failure"
        environment.reset(task, 0)
        assert environment.step(first[-3:]).ended == "success"
    assert len(words) == 3
    with pytest.raises(OSError, match="a fault"):
        environment.step("break")


def test_step_rewards_and_workers(here_importable):
    options = ECHO | {"kwargs": {"bonus": 0.25}}
    task = gymnasium_text.make_tasks(options, "train", 10, 0).task(0)
    for workers in (0, 1):
        with EnvironmentPool("gymnasium", options, num_workers=workers, step_timeout=60.0) as pool:
            found = pool.run([ResetRequest(0, task, 1), StepRequest(0, "no"), StepRequest(0, "break")])
            assert found[1].reward == 0.25 and found[1].ended is None
            assert found[2].kind == "worker" and "a fault" in str(found[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "need id"),
        ({"id": "FrozenLake-v1", "make": "a:b"}, "need id"),
        ({"id": "NoSuchWorld-v0", "actions": MOVES}, r"env\.options\.id 'NoSuchWorld-v0'"),
        ({"id": "FrozenLake-v1"}, "give them names"),
        ({"id": "FrozenLake-v1", "actions": ("up", "down")}, "names 2 actions"),
        ({"id": "FrozenLake-v1", "actions": ("up", "Up", "a", "b")}, "different words"),
        ({"make": "no_such_module:make"}, r"env\.options\.make 'no_such_module:make' cannot be loaded"),
        ({"make": f"{__name__}:ECHO"}, "is a dict, not a function"),
        ({"make": "builtins:int"}, r"returns a int, not a gymnasium\.Env"),
        ({"make": "builtins:int", "kwargs": {"odd": 1}}, r"'builtins:int' fails when called: TypeError"),
        ({"id": "FrozenLake-v1", "kwargs": {"odd": 1}, "actions": MOVES}, "cannot be made: TypeError"),
        ({"id": "FrozenLake-v1", "kwargs": 3}, r"env\.options\.kwargs must be a dictionary"),
        ({"id": "FrozenLake-v1", "actions": 3}, "must be a list of different words"),
        ({"id": "FrozenLake-v1", "success_reward": "x"}, r"env\.options\.success_reward must be a number"),
    ],
)
def test_bad_options_are_refused(options, message, here_importable):
    with pytest.raises(UserError, match=message):
        registry.get("gymnasium").make_environment(options)


def test_without_a_time_limit_the_budget_must_be_given(here_importable):
    with pytest.raises(UserError, match=r"env\.options\.max_turns is needed"):
        gymnasium_text.make_tasks({"make": f"{__name__}:Echo"}, "train", 5, 0)
    with pytest.raises(UserError, match=r"env\.options\.id 'NoSuchWorld-v0'"):
        gymnasium_text.make_tasks({"id": "NoSuchWorld-v0"}, "train", 5, 0)
    assert np.isfinite(registry.get("gymnasium").best_success(None, 3))
