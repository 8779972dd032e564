"""Experiment files by name or path, and overrides of single fields, with errors that name the field.

An experiment is a Python file with `get_config()` or `get_config(variant)` that returns a changed `default_config()`.
Names are looked for in `./configs/`, in the checkout's `configs/`, then in the copy inside the installed package. The
`config.json` of a run folder is read too, so that any run can be repeated or evaluated as it was.
"""

import difflib
import importlib.util
import inspect
import json
import pathlib
import re
import traceback
import types
from collections.abc import Iterator, Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxagent.config import default_config
from jaxagent.errors import UserError

PACKAGE = pathlib.Path(__file__).resolve().parent
_OPEN_SECTIONS = (("env", "options"), ("rollout", "chat", "variables"))  # whoever reads them checks their fields
_OVERRIDE = re.compile(r"^--?(?P<no>no)?config\.(?P<field>[^=]*)(?P<equals>=)?", re.DOTALL)


def config_folders() -> tuple[pathlib.Path, ...]:
    """The folders that hold experiments by name, in the order in which they are searched."""
    folders = [pathlib.Path.cwd() / "configs"]
    if (PACKAGE.parent / "pyproject.toml").is_file():  # a checkout, not site-packages
        folders.append(PACKAGE.parent / "configs")
    folders.append(PACKAGE / "configs")
    return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())


def config_names() -> tuple[str, ...]:
    """The names of all experiments that can be found, sorted: `lookup_tiny`, `paper/...`."""
    names = set()
    for folder in config_folders():
        for path in folder.rglob("*.py"):
            names.add(path.relative_to(folder).with_suffix("").as_posix())
    return tuple(sorted(name for name in names if not name.startswith("_")))


def find_config(name: str) -> pathlib.Path:
    """The file of an experiment: a path that ends in `.py` or `.json`, or a name; `UserError` where there is none."""
    if name.endswith((".py", ".json")):
        path = pathlib.Path(name)
        if path.is_file():
            return path
        raise UserError(f"--config: {name}: no such file")
    for folder in config_folders():
        path = folder / f"{name}.py"
        if path.is_file():
            return path
    known = config_names()
    hint = _nearest(name, known) or f"; known: {', '.join(known) or 'none'}"
    raise UserError(f"--config: no experiment is called {name!r}{hint}")


def load_config(spec: str) -> ConfigDict:
    """The configuration that `NAME_OR_PATH[:variant]` names, locked except `env.options` and
    `rollout.chat.variables`: the environment and the chat template check those.

    Raises `UserError` for a file that is missing, does not load, has no `get_config`, raises, knows no such variant, or
    returns something else than a configuration.
    """
    name, colon, variant = spec.partition(":")
    if not name or (colon and not variant):
        raise UserError(f"--config={spec}: expected NAME_OR_PATH or NAME_OR_PATH:VARIANT")
    path = find_config(name)
    if path.suffix == ".json":
        if colon:
            raise UserError(f"--config={spec}: a resolved config.json has no variants")
        return _config_from_json(path)
    module = _load_module(path)
    config = _call_get_config(module, path, variant if colon else None)
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}: get_config returned {type(config).__name__}, expected an ml_collections.ConfigDict")
    return _locked(config)


def apply_overrides(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """A copy of `config` with `field=value` settings applied, typed like the fields (`optimizer.learning_rate=1e-4`).

    Raises `UserError` that names the field and the nearest existing one, or the value that does not fit.
    """
    for override in overrides:
        if not re.match(r"^[A-Za-z_][\w.]*=", override):
            raise UserError(f"expected field=value, got {override!r}")
    flag_values = flags.FlagValues()
    arguments = [f"--config.{override}" for override in overrides]
    config = define_override_flags(flag_values, config, arguments)
    try:
        flag_values(["jaxagent", *arguments])
    except flags.Error as error:
        raise UserError(str(error)) from None
    return config


def define_override_flags(flag_values: flags.FlagValues, config: ConfigDict, arguments: Sequence[str]) -> ConfigDict:
    """Defines a flag `--config.FIELD` for every field that `arguments` override; parsing changes the copy it returns.

    Raises `UserError` for a field that does not exist. Fields of an unlocked section (`env.options`) may be new: their
    values are read as Python literals, else as text.
    """
    config = config.copy_and_resolve_references()
    _locked(config)
    for field, value in _overridden_fields(arguments):
        section, name = _section_of(config, field)
        if name not in section:
            section[name] = _literal(value)  # only its type counts; absl parses the value
    config_flags.DEFINE_config_dict(
        "config", config, flag_values=flag_values, lock_config=False, sys_argv=["jaxagent", *arguments]
    )
    return config


def _locked(config: ConfigDict) -> ConfigDict:
    config.lock()
    for names in _OPEN_SECTIONS:
        section = config
        for name in names:
            section = section.get(name) if isinstance(section, ConfigDict) else None
        if isinstance(section, ConfigDict):
            section.unlock()
    return config


def _config_from_json(path: pathlib.Path) -> ConfigDict:
    """The default configuration with every field that the file holds; JSON lists are tuples."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a configuration: {error}") from None
    if not isinstance(stored, dict):
        raise UserError(f"{path}: cannot be read as a configuration: expected an object")
    config = _locked(default_config())
    for field, value in config_fields(ConfigDict(stored)):
        section, name = _section_of(config, field)
        try:
            section[name] = _tuples(value)
        except TypeError:
            expected = type(section[name]).__name__
            raise UserError(f"{path}: config field {field!r}: expected {expected}, got {value!r}") from None
    return config


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _load_module(path: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"jaxagent_config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:  # the file is the user's: whatever it raises is theirs to mend, and is named
        raise UserError(_blame(path, "cannot be loaded", error)) from error
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"{path}: has no get_config()")
    return module


def _call_get_config(module: types.ModuleType, path: pathlib.Path, variant: str | None) -> object:
    arguments = () if variant is None else (variant,)
    try:
        inspect.signature(module.get_config).bind(*arguments)
    except TypeError:
        wish = "takes no variant" if arguments else "needs a variant: --config=NAME:VARIANT"
        raise UserError(f"{path}: get_config {wish}") from None
    try:
        return module.get_config(*arguments)
    except UserError:
        raise
    except Exception as error:  # as above
        call = f"get_config({variant!r})" if arguments else "get_config()"
        raise UserError(_blame(path, f"{call} failed", error)) from error


def _blame(path: pathlib.Path, what: str, error: Exception) -> str:
    """The last line inside the config file that led to `error`."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno}: {what}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f"{path}, line {lines[-1]}" if lines else f"{path}"
    return f"{place}: {what}: {type(error).__name__}: {error}"


def _overridden_fields(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(field, value as text) of every `--config.field=value`, `--config.field value` and `--noconfig.field`."""
    for position, argument in enumerate(arguments):
        if argument == "--":
            return
        match = _OVERRIDE.match(argument)
        if match is None:
            continue
        if match["equals"]:
            yield match["field"], argument[match.end() :]
        elif match["no"] or position + 1 == len(arguments):
            yield match["field"], None
        else:
            yield match["field"], arguments[position + 1]


def _section_of(config: ConfigDict, field: str) -> tuple[ConfigDict, str]:
    """The section that holds a dotted field, and the field's name there. Raises `UserError` for a field that does not
    exist, unless its section is unlocked, and for a section where a field is meant. Sections inside an unlocked one are
    made where they are missing."""
    section = config
    *parents, last = field.split(".")
    for parent in parents:
        unlocked = isinstance(section, ConfigDict) and not section.is_locked
        if unlocked and parent not in section and parent.isidentifier():
            section[parent] = ConfigDict()
        section = section.get(parent) if isinstance(section, ConfigDict) else None
    if not isinstance(section, ConfigDict) or (last not in section and section.is_locked) or not last.isidentifier():
        names = [name for name, _ in config_fields(config)]
        raise UserError(f"config has no field {field!r}{_nearest(field, names)}")
    if isinstance(section.get(last), ConfigDict):
        names = ", ".join(f"{field}.{name}" for name in section[last]) or f"{field}.NAME"
        raise UserError(f"config field {field!r} is a section; set its fields: {names}")
    return section, last


def config_fields(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted name, value) of every field."""
    for name in config:
        if isinstance(config[name], ConfigDict):
            yield from config_fields(config[name], f"{prefix}{name}.")
        else:
            yield prefix + name, config[name]


def _literal(text: str | None) -> object:
    """A value of the type that a new field gets: bool, int, float, tuple, else text."""
    if text is None or text.lower() in ("true", "false"):
        return False
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return () if text[:1] in ("(", "[") else ""


def _nearest(wrong: str, known: Sequence[str]) -> str:
    """`; did you mean ...?` with the nearest of `known`: by the whole dotted name, else by its last part."""
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    if not close:
        by_last = {name.rsplit(".", 1)[-1]: name for name in known}
        last = difflib.get_close_matches(wrong.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.6)
        close = [by_last[name] for name in last]
    return f"; did you mean {close[0]!r}?" if close else ""
