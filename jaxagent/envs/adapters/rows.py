"""Tasks from the rows of a data set: distinct by content, split by id, each row the data of one task."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxagent.envs.base import Split, content_id, split_of
from jaxagent.envs.listed import ListedTasks
from jaxagent.episodes import Task
from jaxagent.errors import UserError


def row_tasks(
    env: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    max_turns: Callable[[Mapping[str, Any]], int],
    split: Split,
    size: int,
    unnamed: tuple[str, ...] = (),
) -> ListedTasks:
    """The first `size` rows of `split`, in the order of `rows`, each a task; equal rows are one.

    `unnamed` columns are no part of a task's id. Raises `UserError` where there are no rows, a row is no JSON object or
    the split has none.
    """
    if not isinstance(rows, Iterable) or isinstance(rows, str):
        raise UserError(f"{env}: the data set is a {type(rows).__name__}, not rows")
    found: dict[str, Task] = {}
    for number, row in enumerate(rows):
        if len(found) == size:
            break
        data = _plain(env, number, row)
        task_id = content_id(env, {name: value for name, value in data.items() if name not in unnamed})
        if split_of(task_id) == split and task_id not in found:
            found[task_id] = Task(env, task_id, {"row": data}, max_turns(data))
    if not found:
        raise UserError(f"{env}: no row of the data set falls into the split {split!r}; it needs more rows")
    return ListedTasks(list(found.values()))


def _plain(env: str, number: int, row: Any) -> dict[str, Any]:
    """The row as JSON would give it back, so that a worker, a file and this process see the same."""
    try:
        data = json.loads(json.dumps(dict(row), allow_nan=False, default=_dumped))
    except (TypeError, ValueError) as error:
        raise UserError(f"{env}: row {number} of the data set is no JSON object: {error}") from None
    return data


def _dumped(value: Any) -> Any:
    """What a pydantic object (a message, say) holds."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
