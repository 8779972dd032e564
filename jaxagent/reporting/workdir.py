"""The run folder before anything is written to it: new, or the same run resumed."""

import json
import os
import pathlib

from ml_collections import ConfigDict

from jaxagent.errors import UserError
from jaxagent.reporting.run_folder import write_config

# What may change when a run is resumed: how long it goes on and what it writes, never what it computes.
FREE_ON_RESUME = ("algorithm.steps", "sft.steps", "logging.", "checkpoint.")


def prepare_workdir(workdir: str | pathlib.Path, config: ConfigDict, *, resume: bool) -> pathlib.Path:
    """Makes the folder and writes `config.json`.

    Raises:
      UserError: the folder holds another run, cannot be written, or the config differs from the run to be resumed.
    """
    workdir = pathlib.Path(workdir)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--workdir={workdir}: cannot be created: {error.strerror}") from None
    if not os.access(workdir, os.W_OK | os.X_OK):
        raise UserError(f"--workdir={workdir}: cannot be written")
    if holds_run(workdir):
        if not resume:
            raise UserError(
                f"--workdir={workdir}: already holds a run; resume it with --resume or choose another folder"
            )
        _check_same_run(workdir / "config.json", config)
    write_config(workdir, config)
    return workdir


def holds_run(workdir: pathlib.Path) -> bool:
    """Whether a run got as far as a metric or a checkpoint; one that failed at its settings left nothing to protect."""
    metrics = workdir / "metrics.jsonl"
    return (metrics.exists() and metrics.stat().st_size > 0) or any(workdir.glob("checkpoints/*/[0-9]*"))


def flatten(tree: dict, prefix: str = "") -> dict[str, object]:
    """Nested dictionaries as dotted names."""
    flat: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _check_same_run(saved: pathlib.Path, config: ConfigDict) -> None:
    try:
        before = flatten(json.loads(saved.read_text()))
    except (OSError, ValueError):
        raise UserError(f"{saved}: is missing or damaged; choose another --workdir") from None
    now = flatten(json.loads(json.dumps(config.to_dict())))
    differing = [
        f"{name} (run {before.get(name)}, now {now.get(name)})"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and not name.startswith(FREE_ON_RESUME)
    ]
    if differing:
        raise UserError(f"--resume: the config differs from that of the run in {saved.parent}: {'; '.join(differing)}")
