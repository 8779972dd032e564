"""The package that ships the tasks, the answers, the function documents and the simulated systems: found or installed.

`nvidia-bfcl` is version 3 of the benchmark. Its declared dependencies are for running other models and are not needed
here, so it is installed without them, beside `mpmath`, the only one that its simulated systems import.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
from typing import Any

from jaxagent import packages
from jaxagent.errors import UserError

DISTRIBUTION, VERSION = "nvidia-bfcl", "26.3"
REQUIREMENTS = (f"{DISTRIBUTION}=={VERSION}", "mpmath==1.3.0")
_SYSTEMS = "bfcl.eval_checker.multi_turn_eval.func_source_code"
# Class of a simulated system -> the module that holds it, which is also the name of its function documents.
MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}


def fetch(source: str | None) -> str:
    """Installs the package into the environment of the running interpreter and trains the tiny policies' tokenizer.

    What is there already is kept.

    Raises:
      UserError: a source folder is named (the data come from a package alone), or pip fails.
    """
    if source is not None:
        raise UserError(f"bfcl comes from the package {DISTRIBUTION}; leave --source out")
    if not is_installed():
        _install()
    from jaxagent.envs.bfcl import vocabulary

    if not (vocabulary.folder() / "tokenizer.json").is_file():
        vocabulary.build()
    return f"bfcl: {DISTRIBUTION} {VERSION} is in {sys.prefix}, a tokenizer for tiny policies in {vocabulary.folder()}"


def _install() -> None:
    reason = packages.run_pip(["install", *REQUIREMENTS])
    importlib.invalidate_caches()
    if reason or not is_installed():
        raise UserError(f"bfcl: pip could not install {' and '.join(REQUIREMENTS)}: {reason or 'it is not there'}")


def is_installed() -> bool:
    """Whether the right version is there, and `mpmath` beside it."""
    try:
        found = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return found == VERSION and importlib.util.find_spec("mpmath") is not None


def read_lines(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a data file of the package; `UserError` where it is not installed."""
    path = _folder() / "data" / name
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"bfcl: {name} of {DISTRIBUTION} cannot be read ({error}); install it anew") from None


@functools.cache
def system_class(name: str) -> type:
    """The class of a simulated system."""
    _folder()
    return getattr(importlib.import_module(f"{_SYSTEMS}.{MODULES[name]}"), name)


@functools.cache
def _folder() -> pathlib.Path:
    if not is_installed():
        raise UserError(f"env.name=bfcl needs {' and '.join(REQUIREMENTS)}: run `jaxagent data bfcl` once")
    folder = pathlib.Path(str(importlib.metadata.distribution(DISTRIBUTION).locate_file("bfcl")))
    spec = importlib.util.find_spec("bfcl")
    if spec is None or str(folder) not in (spec.submodule_search_locations or ()):
        found = "nothing" if spec is None else spec.origin
        raise UserError(f"bfcl: `import bfcl` finds {found}, not the package {DISTRIBUTION}: something shadows it")
    return folder
