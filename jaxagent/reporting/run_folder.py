"""A run's folder, written and read back: configuration, environment, metrics, evaluations, summary."""

import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

import jaxagent
from jaxagent.episodes import read_episodes
from jaxagent.errors import UserError
from jaxagent.files import write_whole
from jaxagent.reporting.metrics import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    import pandas

CONFIG_FILE = "config.json"
ENVIRONMENT_FILE = "environment.json"
SUMMARY_FILE = "summary.json"
EPISODES_FILE = "episodes.jsonl.gz"
_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "transformers",
    "tokenizers",
    "numpy",
    "ml_collections",
)


def write_config(workdir: str | pathlib.Path, config: ConfigDict) -> pathlib.Path:
    """Writes the resolved configuration to `WORKDIR/config.json`; `--config=WORKDIR/config.json` reads it back."""
    return write_json(pathlib.Path(workdir) / CONFIG_FILE, config.copy_and_resolve_references().to_dict())


def write_environment(workdir: str | pathlib.Path, extra: Mapping[str, Any]) -> pathlib.Path:
    """Writes what the run ran on to `WORKDIR/environment.json`: versions, git commit of a checkout, platform, and
    `extra` (devices, mesh: whatever the caller knows; plain JSON values)."""
    environment = {
        "jaxagent": jaxagent.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        **_git_state(pathlib.Path(jaxagent.__file__).resolve().parent.parent),
        **extra,
    }
    return write_json(pathlib.Path(workdir) / ENVIRONMENT_FILE, environment)


def write_json(path: pathlib.Path, value: Any) -> pathlib.Path:
    """Writes strict, indented JSON; the file appears whole or not at all. Returns the path."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_whole(path, text)
    return path


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder, read. `config` and `environment` are empty where the folder has none."""

    path: pathlib.Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summaries: dict[str, dict[str, Any]]  # of each evaluation by name; the folder's own summary.json under ""

    @property
    def name(self) -> str:
        """The folder's name, for legends."""
        return self.path.resolve().name

    @functools.cached_property
    def metrics(self) -> "pandas.DataFrame":
        """One row a step, indexed by `step`; NaN where a step has no such metric. A step written twice: the later."""
        import pandas  # half a second, and training imports this module

        path = self.path / METRICS_FILE
        lines = read_metrics(path) if path.is_file() else []
        rows = [{name: value for name, value in line.items() if name != "nonfinite"} for line in lines]
        frame = pandas.DataFrame(rows, columns=None if rows else ["step"]).set_index("step")
        frame = frame.apply(pandas.to_numeric, errors="coerce")
        # A step may be written in parts (training, then evaluation): `last` takes the last value of each column.
        return frame.groupby(level="step").last()

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Names of the evaluations whose episodes are there."""
        return tuple(sorted(path.parent.name for path in self.path.glob(f"eval/*/{EPISODES_FILE}")))

    def episodes(self, evaluation: str = "panel") -> "pandas.DataFrame":
        """One row an episode of `eval/EVALUATION/`, without its turns but with their number; read at each call."""
        import pandas

        path = self.path / "eval" / evaluation / EPISODES_FILE
        if not path.is_file():
            known = ", ".join(self.evaluations) or "none"
            raise UserError(f"{self.path}: no evaluation is called {evaluation!r}; there are: {known}")
        rows = []
        for episode in read_episodes(path):
            row = {field.name: getattr(episode, field.name) for field in dataclasses.fields(episode)}
            row["turns"] = len(episode.turns)
            rows.append(row)
        return pandas.DataFrame(rows)


def load_run(path: str | pathlib.Path) -> Run:
    """Reads a run folder; frames are built when asked for. Raises `UserError` for a folder that is no run."""
    path = pathlib.Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such run folder")
    if not any((path / name).is_file() for name in (CONFIG_FILE, METRICS_FILE, SUMMARY_FILE)):
        raise UserError(f"{path}: not a run folder: it has no {CONFIG_FILE}, {METRICS_FILE} or {SUMMARY_FILE}")
    summaries = {}
    if (path / SUMMARY_FILE).is_file():
        summaries[""] = _read_object(path / SUMMARY_FILE)
    for summary in sorted(path.glob(f"eval/*/{SUMMARY_FILE}")):
        summaries[summary.parent.name] = _read_object(summary)
    config, environment = (
        _read_object(path / name) if (path / name).is_file() else {} for name in (CONFIG_FILE, ENVIRONMENT_FILE)
    )
    return Run(path, config, environment, summaries)


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object")
    return value


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_state(checkout: pathlib.Path) -> dict[str, Any]:
    """Commit and whether the files differ from it; empty outside a checkout or without git."""
    if not (checkout / ".git").exists():
        return {}
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, timeout=10, check=True)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit.stdout.strip(), "uncommitted_changes": bool(changes.stdout.strip())}
