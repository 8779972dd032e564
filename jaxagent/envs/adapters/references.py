"""What an option names as `module:attribute`, loaded."""

import importlib
from typing import Any

from jaxagent.errors import UserError


def load(option: str, reference: str) -> Any:
    """The attribute that `env.options.OPTION` names; `UserError` where there is none."""
    module, separator, attribute = reference.partition(":")
    if not (module and separator and attribute):
        raise UserError(f"env.options.{option} must be module:attribute, got {reference!r}")
    try:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except Exception as error:  # whatever a foreign module does when imported is the user's to read
        raise UserError(f"env.options.{option} {reference!r} cannot be loaded: {error!r}") from error
    return found


def load_callable(option: str, reference: str) -> Any:
    """As `load`, for something to be called."""
    found = load(option, reference)
    if not callable(found):
        raise UserError(f"env.options.{option} {reference!r} is a {type(found).__name__}, not a function or class")
    return found
