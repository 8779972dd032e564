"""Tasks of a fixed list, as a task source, and the checks of what every source is asked for."""

from collections.abc import Sequence
from typing import get_args

from jaxagent.envs.base import Split, hash_of_ids
from jaxagent.episodes import Task
from jaxagent.errors import UserError


class ListedTasks:
    """A `TaskSource` over distinct tasks in their final order; a longer source repeats them."""

    def __init__(self, tasks: Sequence[Task], size: int | None = None) -> None:
        """`size` is the length of the source, that of the list by default."""
        self._tasks = tuple(tasks)
        self._size = len(self._tasks) if size is None else size

    def __len__(self) -> int:
        """How many tasks there are, repetitions included."""
        return self._size

    def task(self, index: int) -> Task:
        """Task number `index`, the same at every call; `IndexError` outside 0..len-1."""
        if not 0 <= index < self._size:
            raise IndexError(f"task {index} of {self._size}")
        return self._tasks[index % len(self._tasks)]

    def content_hash(self) -> str:
        """The hash of the distinct ids, in order."""
        return hash_of_ids([task.id for task in self._tasks[: self._size]])


def check_request(split: str, size: int) -> None:
    """Raises `UserError` for a split that does not exist and for a source without tasks."""
    if split not in get_args(Split):
        raise UserError(f"a split is one of {', '.join(get_args(Split))}, got {split!r}")
    if size < 1:
        raise UserError(f"a task source needs at least one task, got size {size}")
