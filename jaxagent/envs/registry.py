"""Environments by name: the built-in ones, and what installed packages offer under the entry-point group
`jaxagent.envs`."""

import dataclasses
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxagent.envs.base import Environment, Split, TaskSource
from jaxagent.episodes import Task
from jaxagent.errors import UserError

ENTRY_POINT_GROUP = "jaxagent.envs"
FEASIBLE_SUCCESS = 0.1  # a task counts as feasible where an ideal policy succeeds with at least this probability
_BUILT_IN = {  # built-in names cannot be taken by entry points
    "bfcl": "jaxagent.envs.bfcl.environment:ENTRY",
    "deepcoder": "jaxagent.envs.deepcoder.environment:ENTRY",
    "frozen_lake": "jaxagent.envs.frozen_lake:ENTRY",
    "gymnasium": "jaxagent.envs.adapters.gymnasium_text:ENTRY",
    "intercode_sql": "jaxagent.envs.intercode_sql.environment:ENTRY",
    "lookup": "jaxagent.envs.lookup:ENTRY",
    "mixture": "jaxagent.envs.mixture:ENTRY",
    "trl": "jaxagent.envs.adapters.trl_tools:ENTRY",
    "verifiers": "jaxagent.envs.adapters.verifiers_rollouts:ENTRY",
}


@dataclasses.dataclass(frozen=True)
class EnvironmentEntry:
    """All that the library needs of one environment.

    Attributes:
      name: the registered name, also `Task.env`. make_environment: options -> a fresh environment; an unknown or bad
      option is a `UserError`. make_tasks: (options, split, size, seed) -> tasks of that split alone. best_success:
      (task, budget in turns) -> the highest success probability of an ideal policy, clairvoyant about what
        the environment hides where its exact value without that would be intractable.
        `no_bound` where nothing is known.
      make_demonstrator: (environment, generator) -> a scripted policy of mixed quality on that live environment; after
        each reset make a new one, then each call gives the next reply. It never knows a budget. None where there is
        none.
      options: the dataclass of the options, with defaults, described under `Attributes:` in its docstring; for
        `jaxagent envs`. None where they are not described.
    """

    name: str
    make_environment: Callable[[Mapping[str, Any]], Environment]
    make_tasks: Callable[[Mapping[str, Any], Split, int, int], TaskSource]
    best_success: Callable[[Task, int], float]
    make_demonstrator: Callable[[Environment, np.random.Generator], Callable[[], str]] | None
    options: type | None = None


def no_bound(task: Task, budget: int) -> float:
    """The `best_success` of environments of which nothing is known: nobody succeeds more often than always."""
    del task, budget
    return 1.0


def names() -> tuple[str, ...]:
    """All registered names, sorted."""
    return tuple(sorted({*_BUILT_IN, *(point.name for point in _entry_points())}))


def get(name: str) -> EnvironmentEntry:
    """The entry of a registered name, or of `module:attribute` for one that is not registered.

    Raises `UserError` with the known names where there is none, and where what is registered cannot be used.
    """
    if name in _BUILT_IN:
        return _load(_BUILT_IN[name], name)
    for point in _entry_points():
        if point.name == name:
            return _load(f"{point.module}:{point.attr}", name)
    if ":" in name:
        return _load(name, name)
    raise UserError(f"env.name {name!r} is not registered; the environments are {', '.join(names())}")


def feasible_share(entry: EnvironmentEntry, tasks: Sequence[Task], budgets: Sequence[int]) -> float:
    """phi: the share of tasks that an ideal policy solves with probability >= 0.1 within its budget.

    `budgets` holds one budget in turns for each task.
    """
    if not tasks:
        raise ValueError("the feasible share of no tasks is undefined")
    feasible = [
        entry.best_success(task, budget) >= FEASIBLE_SUCCESS for task, budget in zip(tasks, budgets, strict=True)
    ]
    return sum(feasible) / len(feasible)


def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)


def _load(reference: str, name: str) -> EnvironmentEntry:
    module_name, _, attribute = reference.partition(":")
    try:
        entry = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever a foreign module does when imported is the user's to read
        raise UserError(f"env.name {name!r}: cannot load {reference!r}: {error!r}") from error
    if not isinstance(entry, EnvironmentEntry):
        raise UserError(f"env.name {name!r}: {reference!r} is a {type(entry).__name__}, not an EnvironmentEntry")
    return entry
