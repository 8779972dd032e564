"""Panels: fixed, hashed lists of evaluation tasks that never train, and the rollouts to order for them.

All policies of a comparison meet the same panel under the same keys; what differs is the policy alone.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxagent.budgets import percent_of
from jaxagent.envs.base import hash_of_ids, split_of
from jaxagent.episodes import EpisodeSpec, Task
from jaxagent.errors import UserError
from jaxagent.files import write_whole

SCHEMA = 1
# Steps of panel episodes start here, far above any training step: their keys never repeat a training episode's.
PANEL_STEP = 1 << 30
_NO_LINE = 0  # the place of "no budget line" among the per cents 1..100
_GROUPS_PER_TASK = 101


@dataclasses.dataclass(frozen=True)
class Panel:
    """The tasks of an evaluation: where they come from and their ids, in order. `content_hash` covers the ids."""

    env: str
    options: Mapping[str, Any]
    task_ids: tuple[str, ...]
    content_hash: str


def make_panel(env: str, options: Mapping[str, Any], tasks: Sequence[Task]) -> Panel:
    """A panel of `tasks`.

    Raises:
      UserError: no tasks, a task twice, a task of another environment, or one that is not of the panel split.
    """
    strangers = [task.id for task in tasks if task.env != env and not task.env.startswith(f"{env}/")]
    if strangers:
        raise UserError(f"task {strangers[0]} does not belong to environment {env!r}")
    task_ids = tuple(task.id for task in tasks)
    _check_ids(task_ids, "the panel")
    return Panel(env, dict(options), task_ids, hash_of_ids(list(task_ids)))


def write_panel(path: str | pathlib.Path, panel: Panel) -> None:
    """Writes a panel as JSON; the file appears whole or not at all."""
    path = pathlib.Path(path)
    fields = {
        "schema": SCHEMA,
        "env": panel.env,
        "options": dict(panel.options),
        "content_hash": panel.content_hash,
        "task_ids": list(panel.task_ids),
    }
    text = json.dumps(fields, indent=1, sort_keys=True, allow_nan=False) + "\n"
    try:
        write_whole(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot write the panel: {error}") from None


def read_panel(path: str | pathlib.Path) -> Panel:
    """Reads what `write_panel` wrote.

    Raises:
      UserError: a missing or malformed file, ids that do not have the recorded hash, a task of the training split.
    """
    path = pathlib.Path(path)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such panel file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a panel: {error}") from None
    panel = _panel_from_fields(fields, path)
    if (found := hash_of_ids(list(panel.task_ids))) != panel.content_hash:
        raise UserError(
            f"{path}: its task ids have hash {found}, the file says {panel.content_hash}; it was edited, so restore it"
        )
    _check_ids(panel.task_ids, str(path))
    return panel


def check_panel(panel: Panel, tasks: Sequence[Task]) -> None:
    """Refuses `tasks` that are not the panel's, in its order (another version or option of the environment, say)."""
    if (found := hash_of_ids([task.id for task in tasks])) != panel.content_hash:
        raise UserError(
            f"the tasks at hand have hash {found}, the panel {panel.content_hash}; "
            f"take those that environment {panel.env!r} makes with the panel's options and eval.panel_seed"
        )


def check_no_overlap(panel: Panel, training_ids: Iterable[str]) -> None:
    """Refuses a panel that shares a task with a list of training tasks, for data that does not split by id."""
    shared = sorted(set(panel.task_ids) & set(training_ids))
    if shared:
        raise UserError(
            f"{len(shared)} panel tasks are training tasks too, the first is {shared[0]}; remove them from one"
        )


def panel_specs(
    tasks: Sequence[Task], *, told_percents: Sequence[int], samples: int, run_seed: int, k: int = 1
) -> list[EpisodeSpec]:
    """Rollouts for announced budgets: each (task, told per cent) is one group of members 0..samples-1.

    The keys of a group depend on its task's place in the panel and its per cent alone: more per cents, or more
    samples, add episodes and change none. Caps that nobody announced need no rollouts of their own: they threshold
    the group that was told 100 per cent.

    Args:
      tasks: the panel's tasks, in its order.
      told_percents: per cents of each task's full budget, rounded up to turns; told and enforced alike.
      samples: n, independent episodes per group.
      run_seed: of the evaluation, the same for every policy of a comparison.
      k: the largest K that will be asked of them.

    Raises:
      UserError: samples < k (no unbiased estimate would exist), repeated tasks or per cents, none of either.
    """
    if len(told_percents) == 0 or len(set(told_percents)) != len(told_percents):
        raise UserError(f"told per cents must be given, each once, got {list(told_percents)}")
    _check_order(tasks, samples, k)
    return [
        _spec(index, task, percent, percent_of(task.max_turns, percent), run_seed, member)
        for index, task in enumerate(tasks)
        for percent in told_percents
        for member in range(samples)
    ]


def no_line_specs(tasks: Sequence[Task], *, samples: int, run_seed: int, k: int = 1) -> list[EpisodeSpec]:
    """Rollouts of full length without a budget line, one group a task; arguments and errors as in `panel_specs`.

    They answer for every shorter cap as well (`mode="blind"`).
    """
    _check_order(tasks, samples, k)
    return [
        _spec(index, task, _NO_LINE, None, run_seed, member)
        for index, task in enumerate(tasks)
        for member in range(samples)
    ]


def _spec(index: int, task: Task, percent: int, told: int | None, run_seed: int, member: int) -> EpisodeSpec:
    return EpisodeSpec(
        task=task,
        run_seed=run_seed,
        step=PANEL_STEP + percent,
        group=index * _GROUPS_PER_TASK + percent,
        member=member,
        told_budget=told,
        enforced_budget=task.max_turns if told is None else told,
    )


def _check_order(tasks: Sequence[Task], samples: int, k: int) -> None:
    if k < 1:
        raise UserError(f"K must be at least 1, got {k}")
    if samples < k:
        raise UserError(
            f"{samples} samples a task give no unbiased Pass@{k}; order at least {k} (four times as many is good)"
        )
    ids = [task.id for task in tasks]
    if not ids or len(set(ids)) != len(ids):
        raise UserError("the panel's tasks must be given, each once")


def _check_ids(task_ids: Sequence[str], where: str) -> None:
    if not task_ids:
        raise UserError(f"{where} has no tasks")
    if len(set(task_ids)) != len(task_ids):
        raise UserError(f"{where} holds a task twice")
    outside = [task_id for task_id in task_ids if split_of(task_id) != "panel"]
    if outside:
        raise UserError(
            f"{where} holds {len(outside)} tasks that are not of the panel split, the first is {outside[0]} "
            f"({split_of(outside[0])}); they may have been trained on, so take panel tasks"
        )


def _panel_from_fields(fields: Any, path: pathlib.Path) -> Panel:
    names = {"schema", "env", "options", "content_hash", "task_ids"}
    if not isinstance(fields, dict) or set(fields) != names:
        raise UserError(f"{path}: not a panel: expected an object with {', '.join(sorted(names))}")
    if fields["schema"] != SCHEMA:
        raise UserError(
            f"{path}: panel schema {fields['schema']!r} is not supported; this version reads schema {SCHEMA}"
        )
    ids = fields["task_ids"]
    texts = isinstance(fields["env"], str) and isinstance(fields["content_hash"], str)
    if not texts or not isinstance(fields["options"], dict) or not isinstance(ids, list):
        raise UserError(f"{path}: not a panel: a field has the wrong type")
    if not all(isinstance(task_id, str) for task_id in ids):
        raise UserError(f"{path}: not a panel: task ids must be strings")
    return Panel(fields["env"], fields["options"], tuple(ids), fields["content_hash"])
