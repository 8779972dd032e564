"""Tasks drawn from keyed randomness: task sources whose splits are disjoint by content, and checked options."""

import dataclasses
import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from jaxagent.envs.base import Split, content_id, hash_of_ids, split_of
from jaxagent.envs.listed import check_request
from jaxagent.episodes import Task
from jaxagent.errors import UserError

ATTEMPTS = 20_000  # candidates in a row that may be refused before a source gives up
Options = TypeVar("Options")


def parse_options(kind: type[Options], env: str, options: Mapping[str, Any]) -> Options:
    """`options` as the dataclass `kind`; an unknown name is a `UserError` that lists the valid ones.

    The dataclass checks the values itself, in `__post_init__`.
    """
    names = [field.name for field in dataclasses.fields(kind)]
    for name in options:
        if name not in names:
            raise UserError(f"env.options.{name} is no option of {env!r}; the options are {', '.join(names)}")
    return kind(**{name: options[name] for name in options})


def keyed_generator(*key: str | int) -> np.random.Generator:
    """A random generator that is a function of `key` alone (Philox, keyed by a hash)."""
    parts = tuple(part if isinstance(part, str) else operator.index(part) for part in key)
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


class GeneratedTasks:
    """A `TaskSource` whose tasks are drawn on demand from keyed randomness.

    A candidate comes from `draw(generator)`, which returns the task's data; it is kept if its id falls into `split` and
    `admit(data)` gives it a full budget (None refuses it). Candidates are keyed by (env, seed, index, attempt), so
    neither the budget nor any other option that `draw` does not read changes them.

    The train split is virtual: task i is made from its own key when asked for, in constant expected time and memory,
    and two indices may hold the same content. The held-out and panel splits are lists of distinct tasks, made on first
    use.
    """

    def __init__(
        self,
        env: str,
        draw: Callable[[np.random.Generator], dict[str, Any]],
        admit: Callable[[dict[str, Any]], int | None],
        *,
        description: Mapping[str, Any],
        split: Split,
        size: int,
        seed: int,
    ) -> None:
        """`description` holds the JSON-able options that decide which tasks `draw` and `admit` make."""
        check_request(split, size)
        self._env, self._draw, self._admit = env, draw, admit
        self._description = dict(description)
        self._split, self._size, self._seed = split, size, operator.index(seed)
        self._distinct: list[Task] | None = None

    def __len__(self) -> int:
        """How many tasks there are."""
        return self._size

    def task(self, index: int) -> Task:
        """Task number `index`, the same at every call; `IndexError` outside 0..len-1."""
        if not 0 <= index < self._size:
            raise IndexError(f"task {index} of {self._size}")
        return self._virtual_task(index) if self._split == "train" else self._distinct_tasks()[index]

    def content_hash(self) -> str:
        """Held-out and panel: the hash of all ids, in order. Train, which may be huge: of what generates it."""
        if self._split != "train":
            return hash_of_ids([task.id for task in self._distinct_tasks()])
        recipe = {"options": self._description, "split": self._split, "size": self._size, "seed": self._seed}
        return content_id(self._env, recipe)

    def _candidate(self, index: int, attempt: int) -> Task | None:
        data = self._draw(keyed_generator(self._env, "task", self._seed, index, attempt))
        task_id = content_id(self._env, data)
        if split_of(task_id) != self._split:
            return None
        max_turns = self._admit(data)
        return None if max_turns is None else Task(self._env, task_id, data, max_turns)

    def _virtual_task(self, index: int) -> Task:
        for attempt in range(ATTEMPTS):
            task = self._candidate(index, attempt)
            if task is not None:
                return task
        raise self._too_narrow(0)

    def _distinct_tasks(self) -> list[Task]:
        if self._distinct is None:
            found: dict[str, Task] = {}
            index, last = 0, 0
            while len(found) < self._size:
                task = self._candidate(index, 0)
                if task is not None and task.id not in found:
                    found[task.id] = task
                    last = index
                index += 1
                if index - last > ATTEMPTS:
                    raise self._too_narrow(len(found))
            self._distinct = list(found.values())
        return self._distinct

    def _too_narrow(self, found: int) -> UserError:
        options = json.dumps(self._description)
        return UserError(
            f"{self._env}: found only {found} of {self._size} {self._split} tasks, then none in {ATTEMPTS} candidates; "
            f"widen env.options ({options}) or ask for fewer tasks"
        )
