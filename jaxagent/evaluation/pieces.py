"""Rollouts of an evaluation that survive an interruption: each finished piece is on disk before the next begins.

A piece is a list of ordered episodes with a name: the panel told one budget, a hybrid, the reference. When the same
evaluation is started again, pieces are read instead of rolled out, and only what they lack is ordered: a budget that
was not reached yet, samples that were added since, and episodes that the infrastructure had voided.
"""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxagent.episodes import Episode, EpisodeSpec, read_episodes, write_episodes
from jaxagent.errors import UserError
from jaxagent.files import write_whole

SETTINGS = "settings.json"
# run(orders) -> their episodes, in any order
Run = Callable[[Sequence[EpisodeSpec]], Iterable[Episode]]


class Pieces:
    """The pieces of one evaluation, in a folder of their own."""

    def __init__(self, folder: str | pathlib.Path, settings: Mapping[str, Any]) -> None:
        """`settings` (flat, plain JSON values) is all that the episodes of given orders depend on.

        Raises:
          UserError: the folder holds pieces that were made under other settings, or cannot be read.
        """
        self._folder = pathlib.Path(folder)
        self._settings = json.loads(json.dumps(dict(settings)))
        self.kept = 0  # episodes that were read instead of rolled out
        if (self._folder / SETTINGS).exists():
            self._check_settings()

    def episodes(self, name: str, specs: Sequence[EpisodeSpec], run: Run) -> list[Episode]:
        """The episodes of `specs`, in the order of their keys: those on disk, and `run` on the orders that are not."""
        path = self._folder / f"{name}.jsonl.gz"
        wanted = {_key(spec.task.id, spec): spec for spec in specs}
        found = {}
        if path.exists():
            stored = ((_key(episode.task_id, episode), episode) for episode in read_episodes(path))
            found = {key: episode for key, episode in stored if key in wanted and not episode.is_void}
        self.kept += len(found)
        missing = [spec for key, spec in wanted.items() if key not in found]
        if missing:
            found |= {_key(episode.task_id, episode): episode for episode in run(missing)}
        episodes = sorted(found.values(), key=lambda episode: (episode.step, episode.group, episode.member))
        if missing:
            self._write_settings()
            write_episodes(path, episodes)
        return episodes

    def _check_settings(self) -> None:
        path = self._folder / SETTINGS
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}; delete {self._folder} to start afresh") from None
        if not isinstance(before, dict):
            raise UserError(f"{path}: expected a JSON object; delete {self._folder} to start afresh")
        differing = [
            f"{name} (then {before.get(name)}, now {self._settings.get(name)})"
            for name in sorted(before.keys() | self._settings.keys())
            if before.get(name) != self._settings.get(name)
        ]
        if differing:
            raise UserError(
                f"{self._folder}: holds an unfinished evaluation with other settings: {'; '.join(differing)}; "
                "delete it, or choose another --name"
            )

    def _write_settings(self) -> None:
        path = self._folder / SETTINGS
        if not path.exists():
            write_whole(path, json.dumps(self._settings, indent=1) + "\n")


def _key(task_id: str, record: EpisodeSpec | Episode) -> tuple:
    """What an order and its episode have in common."""
    budgets = (record.told_budget, record.enforced_budget)
    return (task_id, record.run_seed, record.step, record.group, record.member, *budgets)
