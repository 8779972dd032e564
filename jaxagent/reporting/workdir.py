"""The run folder before anything is written to it: new, or the same run resumed."""

import json
import os
import pathlib

from ml_collections import ConfigDict

from jaxagent.errors import UserError
from jaxagent.reporting.run_folder import write_config, write_environment

# What may change when a run is resumed: how long it goes on and what it writes, never what it computes.
FREE_ON_RESUME = ("algorithm.steps", "sft.steps", "logging.", "checkpoint.")


def prepare_workdir(workdir: str | pathlib.Path, config: ConfigDict, *, resume: bool) -> pathlib.Path:
    """Makes the folder and writes `config.json` and `environment.json`.

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
    saved = workdir / "config.json"
    if saved.exists() and not resume:
        raise UserError(f"--workdir={workdir}: already holds a run; resume it with --resume or choose another folder")
    if saved.exists():
        _check_same_run(saved, config)
    write_config(workdir, config)
    write_environment(workdir, {})
    return workdir


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
    except ValueError:
        raise UserError(f"{saved}: is damaged; choose another --workdir") from None
    now = flatten(json.loads(json.dumps(config.to_dict())))
    differing = [
        f"{name} (run {before.get(name)}, now {now.get(name)})"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and not name.startswith(FREE_ON_RESUME)
    ]
    if differing:
        raise UserError(f"--resume: the config differs from that of the run in {saved.parent}: {'; '.join(differing)}")
