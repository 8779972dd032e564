"""Process rewards: an environment whose steps earn what a rule says, from its oracle or from a user's function.

Applied on the host, where the environment runs. Step rewards stand beside the outcome: they change neither it nor
success nor what the agent reads.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxagent.envs import registry
from jaxagent.envs.base import Environment, Observation, StepOracle, StepResult
from jaxagent.episodes import Task
from jaxagent.errors import UserError

# rule(oracle before the step, the step's result, oracle after it) -> reward before scaling; None without an oracle.
Rule = Callable[[StepOracle | None, StepResult, StepOracle | None], float]


class RewardedEnvironment:
    """An environment with step rewards added to those of its own."""

    def __init__(self, environment: Environment, rule: Rule, scale: float) -> None:
        """`scale` multiplies what the rule returns."""
        self._environment = environment
        self._rule = rule
        self._scale = scale
        self._before: StepOracle | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        """As the environment's."""
        observation = self._environment.reset(task, seed)
        self._before = self.oracle()
        return observation

    def step(self, reply: str) -> StepResult:
        """The environment's step, with its reward; a rule that returns no finite number raises `ValueError`."""
        result = self._environment.step(reply)
        after = self.oracle()
        earned = self._scale * float(self._rule(self._before, result, after))
        if not math.isfinite(earned):
            raise ValueError(f"env.step_reward returned {earned}, not a finite number")
        self._before = after
        if result.ended is None:
            return dataclasses.replace(result, reward=result.reward + earned)
        own = result.info.get("step_reward", 0.0)
        return dataclasses.replace(result, info=result.info | {"step_reward": own + earned})

    def oracle(self) -> StepOracle | None:
        """The environment's oracle on the present state, None where it has none."""
        return self._environment.oracle() if hasattr(self._environment, "oracle") else None

    def close(self) -> None:
        """As the environment's."""
        self._environment.close()


def progress(before: StepOracle | None, result: StepResult, after: StepOracle | None) -> float:
    """Turns to the goal before minus after the step, so a detour costs what the way back earns; 0 where unknown.

    A success has arrived; a failure, from which no way leads on, earns nothing.
    """
    start = _distance(before)
    end = 0.0 if result.ended == "success" else None if result.ended else _distance(after)
    return 0.0 if start is None or end is None else start - end


def optimal(before: StepOracle | None, result: StepResult, after: StepOracle | None) -> float:
    """1 for a valid action that the oracle calls optimal, else 0."""
    del after
    action = result.info.get("action")
    return float(before is not None and bool(result.info.get("valid", True)) and action in before.optimal_actions)


RULES: Mapping[str, Rule] = {"progress": progress, "optimal": optimal}


def make_environment(env_name: str, options: Mapping[str, Any], step_reward: str, scale: float) -> Environment:
    """A fresh environment, with step rewards unless `step_reward` is `none`.

    Raises:
      UserError: an unknown rule, a `module:function` that cannot be loaded, or an environment without the oracle that
        the rule reads.
    """
    environment = registry.get(env_name).make_environment(options)
    if step_reward == "none":
        return environment
    if step_reward in RULES and not hasattr(environment, "oracle"):
        raise UserError(f"env.step_reward={step_reward} needs an oracle, and env.name={env_name} has none")
    return RewardedEnvironment(environment, RULES.get(step_reward) or _load(step_reward), scale)


def _distance(oracle: StepOracle | None) -> float | None:
    known = oracle is not None and oracle.distance is not None and math.isfinite(oracle.distance)
    return oracle.distance if known else None


def _load(reference: str) -> Rule:
    module, separator, name = reference.partition(":")
    if not (module and separator and name):
        raise UserError(f"env.step_reward must be none, {', '.join(RULES)} or module:function, got {reference!r}")
    try:
        rule = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a foreign module does when imported is the user's to read
        raise UserError(f"env.step_reward {reference!r} cannot be loaded: {error!r}") from error
    if not callable(rule):
        raise UserError(f"env.step_reward {reference!r} is a {type(rule).__name__}, not a function")
    return rule
