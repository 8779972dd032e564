"""Several environments as one, with weights: every task is of one of them, so a group stays one task of one of them.

    env.name = "mixture"
    env.options.parts = {"lakes": {"env": "frozen_lake", "weight": 2.0, "options": {"size": 4}}, "lookup": {...}}

A task's `env` reads `mixture/PART/ENVIRONMENT`; its id and data are those of the part's own task, so splits stay
disjoint whatever is mixed. Which part a training index has is keyed by the seed and the index alone.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxagent.envs import registry
from jaxagent.envs.base import (
    Environment,
    Observation,
    Split,
    StepOracle,
    StepResult,
    TaskSource,
    content_id,
)
from jaxagent.envs.generated import keyed_generator, parse_options
from jaxagent.envs.listed import ListedTasks
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = "mixture"
_FIELDS = {"env", "weight", "options"}


@dataclasses.dataclass(frozen=True)
class MixtureOptions:
    """Options of the environment and of its tasks.

    Attributes:
      parts: name of a part -> `env` (a registered environment; the part's name by default), `weight` (its relative
        share of the tasks, 1 by default), `options` (of that environment). Metrics are reported under the part's name.
    """

    parts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise UserError(
                "env.options.parts of 'mixture' must name environments: env.options.parts.NAME.env, .weight, .options"
            )
        for name, part in self.parts.items():
            where = f"env.options.parts.{name}"
            if not str(name).isidentifier():
                raise UserError(f"{where}: a part's name must be a plain word")
            if not isinstance(part, Mapping) or set(part) - _FIELDS:
                raise UserError(f"{where} must hold some of {', '.join(sorted(_FIELDS))}, got {part!r}")
            weight = part.get("weight", 1.0)
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not number or not 0 < weight < math.inf:
                raise UserError(f"{where}.weight must be a positive number, got {weight!r}")


@dataclasses.dataclass(frozen=True)
class Part:
    """One environment of a mixture."""

    name: str
    entry: registry.EnvironmentEntry
    weight: float
    options: Mapping[str, Any]


def parts_of(options: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts in the order of their names; `UserError` on a bad option or an unknown environment."""
    parsed = parse_options(MixtureOptions, NAME, options)
    return tuple(
        Part(name, registry.get(part.get("env", name)), float(part.get("weight", 1.0)), part.get("options", {}))
        for name, part in sorted(parsed.parts.items())
    )


def part_of(env: str) -> str | None:
    """The part that a task's or an episode's `env` names, None where it is of no mixture."""
    return env.split("/", 2)[1] if env.startswith(f"{NAME}/") else None


class Mixture:
    """The environment: whichever part the present task is of. Instances of parts are made when first needed."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        """`reset` before anything else."""
        self._parts = {part.name: part for part in parts}
        self._made: dict[str, Environment] = {}
        self._live = ""
        if all(hasattr(self._environment(name), "oracle") for name in self._parts):
            self.oracle = self._oracle  # only then: process rewards ask for it

    @property
    def live(self) -> tuple[Part, Environment]:
        """The part of the present task, and its environment."""
        if not self._live:
            raise RuntimeError("mixture: reset before anything else")
        return self._parts[self._live], self._made[self._live]

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts `task` in its own environment."""
        name, inner = inner_task(task)
        if name not in self._parts:
            raise ValueError(f"the task {task.id} is of part {name!r}; the parts are {', '.join(self._parts)}")
        environment = self._environment(name)
        self._live = name
        return environment.reset(inner, seed)

    def step(self, reply: str) -> StepResult:
        """As the environment's."""
        return self.live[1].step(reply)

    def close(self) -> None:
        """Closes all that were made."""
        while self._made:
            self._made.popitem()[1].close()

    def _environment(self, name: str) -> Environment:
        if name not in self._made:
            part = self._parts[name]
            self._made[name] = part.entry.make_environment(part.options)
        return self._made[name]

    def _oracle(self, *arguments: Any) -> StepOracle:
        return self.live[1].oracle(*arguments)


def inner_task(task: Task) -> tuple[str, Task]:
    """(name of the part, the task as its own environment made it)."""
    _, name, env = task.env.split("/", 2)
    return name, dataclasses.replace(task, env=env)


class MixedTasks:
    """Training tasks of a mixture, drawn on demand: index -> part by weight -> a task of the part's own source."""

    def __init__(self, parts: tuple[Part, ...], size: int, seed: int) -> None:
        """Every part's source is asked for `size` tasks; it may have fewer."""
        self._parts, self._size, self._seed = parts, size, seed
        self._sources = [part.entry.make_tasks(part.options, "train", size, seed) for part in parts]
        weights = np.array([part.weight for part in parts])
        self._bounds = np.cumsum(weights / weights.sum())

    def __len__(self) -> int:
        """How many tasks there are."""
        return self._size

    def task(self, index: int) -> Task:
        """Task number `index`, the same at every call."""
        if not 0 <= index < self._size:
            raise IndexError(f"task {index} of {self._size}")
        generator = keyed_generator(NAME, "part", self._seed, index)
        number = min(int(np.searchsorted(self._bounds, generator.random(), side="right")), len(self._parts) - 1)
        source = self._sources[number]
        return _outer_task(self._parts[number], source.task(int(generator.integers(len(source)))))

    def content_hash(self) -> str:
        """Of what the parts hold and how they are mixed."""
        pairs = zip(self._parts, self._sources, strict=True)
        held = {part.name: [part.weight, source.content_hash()] for part, source in pairs}
        return content_id(NAME, {"parts": held, "size": self._size, "seed": self._seed})


def listed_tasks(parts: tuple[Part, ...], split: Split, size: int, seed: int) -> ListedTasks:
    """Held-out or panel tasks of a mixture: a list whose every beginning has the parts in about their proportions.

    A part has its share of `size`, rounded, less what its source lacks and what another part has too.
    """
    placed = []
    for order, (part, count) in enumerate(zip(parts, shares([part.weight for part in parts], size), strict=True)):
        source = part.entry.make_tasks(part.options, split, count, seed) if count else ()
        placed += [((i + 0.5) / len(source), order, _outer_task(part, source.task(i))) for i in range(len(source))]
    placed.sort(key=lambda item: item[:2])
    distinct: dict[str, Task] = {}
    for *_, task in placed:
        distinct.setdefault(task.id, task)
    return ListedTasks(list(distinct.values()))


def shares(weights: list[float], size: int) -> list[int]:
    """`size` split by weight: rounded down, what is left goes to the largest fractions, the first of equal ones."""
    exact = [size * weight / math.fsum(weights) for weight in weights]
    counts = [math.floor(value) for value in exact]
    by_fraction = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_fraction[: size - sum(counts)]:
        counts[i] += 1
    return counts


def make_environment(options: Mapping[str, Any]) -> Mixture:
    """A fresh environment; `UserError` on a bad option of the mixture or of a part."""
    return Mixture(parts_of(options))


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> TaskSource:
    """Tasks of one split of every part."""
    parts = parts_of(options)
    return MixedTasks(parts, size, seed) if split == "train" else listed_tasks(parts, split, size, seed)


def best_success(task: Task, budget: int) -> float:
    """As the environment that the task is of has it."""
    _, inner = inner_task(task)
    return _entry(inner.env.split("/", 1)[0]).best_success(inner, budget)


def make_demonstrator(environment: Mixture, generator: np.random.Generator) -> Callable[[], str]:
    """The scripted policy of the environment that the present task is of."""
    part, live = environment.live
    if part.entry.make_demonstrator is None:
        raise UserError(f"env.options.parts.{part.name}: {part.entry.name} has no scripted demonstrations to clone")
    return part.entry.make_demonstrator(live, generator)


_entry = functools.lru_cache(maxsize=64)(registry.get)


def _outer_task(part: Part, task: Task) -> Task:
    return dataclasses.replace(task, env=f"{NAME}/{part.name}/{task.env}")


ENTRY = registry.EnvironmentEntry(NAME, make_environment, make_tasks, best_success, make_demonstrator, MixtureOptions)
