"""Data of the benchmarks, fetched or converted once a machine by `jaxagent data NAME`: where it lies and who brings it.

Nothing here is part of the package: data comes from packages that ship it, or from a folder that the user names.
"""

import importlib
import os
import pathlib

from jaxagent.errors import UserError

# Name -> function(source folder or None) -> what was done, in one line for the user.
_FETCHERS: dict[str, str] = {
    "bfcl": "jaxagent.envs.bfcl.package:fetch",
    "deepcoder": "jaxagent.envs.deepcoder.problems:fetch_deepcoder",
    "humaneval": "jaxagent.envs.deepcoder.problems:fetch_humaneval",
    "intercode-sql": "jaxagent.envs.intercode_sql.data:fetch",
}


def names() -> tuple[str, ...]:
    """What `jaxagent data` can bring, sorted."""
    return tuple(sorted(_FETCHERS))


def fetch(name: str, *, source: str | None) -> str:
    """Brings one data set and says in a line what was done.

    Args:
      name: one of `names()`.
      source: a folder with source files, for data that no package ships.

    Raises:
      UserError: an unknown name, a missing source, or whatever stands in the way.
    """
    if name not in _FETCHERS:
        raise UserError(f"no data set is called {name!r}; there are {', '.join(names())}")
    if source is not None and not pathlib.Path(source).is_dir():
        raise UserError(f"--source={source}: no such folder")
    module, _, function = _FETCHERS[name].partition(":")
    return getattr(importlib.import_module(module), function)(source)


def home() -> pathlib.Path:
    """The folder for data and imported models: `$JAXAGENT_HOME`, else `~/.cache/jaxagent`; not made here."""
    return pathlib.Path(os.environ.get("JAXAGENT_HOME") or pathlib.Path.home() / ".cache" / "jaxagent")


def folder(name: str) -> pathlib.Path:
    """Where the data set `name` lies, whether or not it has been brought."""
    return home() / "data" / name
