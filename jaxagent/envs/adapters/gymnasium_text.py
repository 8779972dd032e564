"""Gymnasium environments whose observations are text, or can be rendered as text.

    env.name = "gymnasium"
    env.options = {"id": "FrozenLake-v1", "actions": ("left", "down", "right", "up"), "kwargs": {"is_slippery": False}}

A task is a seed: it makes the world at `reset`, and the episode's own seed makes the noise after it.
"""

import contextlib
import dataclasses
import operator
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxagent.envs import registry
from jaxagent.envs.adapters.references import called, check_adapter_options
from jaxagent.envs.base import Observation, Split, StepResult
from jaxagent.envs.generated import GeneratedTasks, parse_options
from jaxagent.envs.replies import action_text, shown
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = "gymnasium"
_HIGHLIGHT = re.compile(r"\x1b\[([\d;]*)m")


@dataclasses.dataclass(frozen=True)
class GymnasiumOptions:
    """Options of the environment and of its tasks.

    Attributes:
      id: of a registered Gymnasium environment; its own time limit is taken off, the budget takes its place.
      make: module:function that makes the environment, instead of `id`.
      kwargs: keyword arguments of either.
      actions: the words that stand for the actions 0, 1, ... of a discrete space; empty: actions are text.
      instructions: what the first observation begins with.
      max_turns: full budget of every task; 0: the time limit of `id`.
      success_reward: an episode that ends with at least this reward on its last step is a success.
    """

    id: str = ""
    make: str = ""
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    actions: tuple[str, ...] = ()
    instructions: str = ""
    max_turns: int = 0
    success_reward: float = 1.0

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        if bool(self.id) == bool(self.make):
            raise UserError("env.options of 'gymnasium' need id (a registered environment) or make (module:function)")
        check_adapter_options(self, keywords="kwargs", least_turns=0)
        listed = isinstance(self.actions, list | tuple)
        words = [word.lower() for word in self.actions if isinstance(word, str)] if listed else []
        if not listed or len(set(words)) != len(self.actions) or not all(words):
            raise UserError(f"env.options.actions must be a list of different words, got {self.actions!r}")


class GymnasiumText:
    """The environment. A reply that the action space does not contain costs its turn and changes nothing."""

    def __init__(self, options: GymnasiumOptions) -> None:
        """`reset` before anything else."""
        self.options = options
        self._words = [word.lower() for word in options.actions]
        self._env = _make(options)
        try:
            self._check_actions()
        except BaseException:
            self._env.close()
            raise

    def reset(self, task: Task, seed: int) -> Observation:
        """The world comes from the task's seed, whatever is drawn afterwards from `seed`."""
        observation, _ = self._env.reset(seed=task.data["seed"])
        self._env.unwrapped.np_random = np.random.default_rng(seed)
        self._text = self._as_text(observation)
        first = f"{self.options.instructions}\n\n{self._text}" if self.options.instructions else self._text
        return Observation(first, self._text)

    def step(self, reply: str) -> StepResult:
        """Takes one reply."""
        action, word = self._action(reply)
        if action is None:
            return self._refused("unknown_action", shown(word))
        try:
            observation, reward, terminated, truncated, _ = self._env.step(action)
        except _refusals() as error:  # of the action; anything else is a fault of the environment
            return self._refused("refused", shown(str(error)))
        self._text = self._as_text(observation)
        ended = None
        if terminated or truncated:
            ended = "success" if terminated and reward >= self.options.success_reward else "failure"
        info = {"valid": True, "action": word, "error": None}
        return StepResult(Observation(self._text, self._text), float(reward), ended, info)

    def close(self) -> None:
        """As the environment's."""
        with contextlib.suppress(Exception):
            self._env.close()

    def _action(self, reply: str) -> tuple[Any, str | None]:
        """(the action, None where there is none; what was written)."""
        if self._words:
            word = action_text(reply)
            return (self._words.index(word), word) if word in self._words else (None, word)
        return (reply, reply[:200]) if self._env.action_space.contains(reply) else (None, reply)

    def _refused(self, error: str, what: str) -> StepResult:
        choice = f" Choose one of: {', '.join(self._words)}." if self._words else ""
        text = f"That is no valid action ({what}); nothing has changed.{choice}\n{self._text}"
        return StepResult(Observation(text, self._text), info={"valid": False, "action": None, "error": error})

    def _as_text(self, observation: Any) -> str:
        """The observation, else what it renders as; what a terminal would highlight is put in brackets."""
        if isinstance(observation, str):
            return observation
        rendered = self._env.render()
        if not isinstance(rendered, str):
            raise TypeError(
                f"observations are {type(observation).__name__} and render() gives {type(rendered).__name__}, not text "
                "(render_mode='ansi' in env.options.kwargs makes some environments render text)"
            )
        return _HIGHLIGHT.sub(lambda code: "]" if code[1] in ("", "0") else "[", rendered)

    def _check_actions(self) -> None:
        from gymnasium import spaces

        space = self._env.action_space
        if self._words and not (
            isinstance(space, spaces.Discrete) and space.n == len(self._words) and space.start == 0
        ):
            raise UserError(f"env.options.actions names {len(self._words)} actions, the environment has {space}")
        if not self._words and not isinstance(space, spaces.Text):
            raise UserError(f"the environment's actions are {space}: give them names in env.options.actions")


def make_environment(options: Mapping[str, Any]) -> GymnasiumText:
    """A fresh environment; `UserError` on a bad option."""
    return GymnasiumText(parse_options(GymnasiumOptions, NAME, options))


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> GeneratedTasks:
    """Seeds of one split."""
    parsed = parse_options(GymnasiumOptions, NAME, options)
    world = {"id": parsed.id, "make": parsed.make, "kwargs": dict(parsed.kwargs)}
    max_turns = parsed.max_turns or _time_limit(parsed)

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        return world | {"seed": int(generator.integers(2**31))}

    return GeneratedTasks(NAME, draw, lambda data: max_turns, description=world, split=split, size=size, seed=seed)


def _make(options: GymnasiumOptions) -> Any:
    gymnasium = _gymnasium()
    kwargs = dict(options.kwargs)
    if options.make:
        made = called("make", options.make, kwargs)
        if not isinstance(made, gymnasium.Env):
            raise UserError(f"env.options.make {options.make!r} returns a {type(made).__name__}, not a gymnasium.Env")
        return made
    try:
        return gymnasium.make(options.id, **{"max_episode_steps": -1} | _render_mode(options) | kwargs)
    except Exception as error:  # an unknown id, a package that it lacks, arguments that it does not take
        raise UserError(f"env.options.id {options.id!r} cannot be made: {error!r:.300}") from error


def _render_mode(options: GymnasiumOptions) -> dict[str, str]:
    """Text rendering where the environment has it."""
    gymnasium = _gymnasium()
    try:
        creator = gymnasium.spec(options.id).entry_point
    except gymnasium.error.Error:
        return {}
    made = gymnasium.envs.registration.load_env_creator(creator) if isinstance(creator, str) else creator
    return {"render_mode": "ansi"} if "ansi" in getattr(made, "metadata", {}).get("render_modes", ()) else {}


def _time_limit(options: GymnasiumOptions) -> int:
    gymnasium = _gymnasium()
    try:
        limit = gymnasium.spec(options.id).max_episode_steps if options.id else None
    except gymnasium.error.Error as error:
        raise UserError(f"env.options.id {options.id!r}: {error}") from None
    if not limit:
        raise UserError("env.options.max_turns is needed: the environment has no time limit of its own")
    return operator.index(limit)


def _refusals() -> tuple[type[Exception], ...]:
    return (_gymnasium().error.InvalidAction, ValueError, KeyError, AssertionError)


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise UserError("env.name=gymnasium needs the package gymnasium: pip install gymnasium") from None
    return gymnasium


ENTRY = registry.EnvironmentEntry(NAME, make_environment, make_tasks, registry.no_bound, None, options=GymnasiumOptions)
