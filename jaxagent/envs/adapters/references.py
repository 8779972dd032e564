"""What an option names as `module:attribute`, loaded."""

import importlib
import math
from collections.abc import Mapping
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


def called(option: str, reference: str, keywords: Mapping[str, Any] | None = None) -> Any:
    """What the function or class that `env.options.OPTION` names returns; `UserError` where it raises anything."""
    function = load_callable(option, reference)
    try:
        return function(**(keywords or {}))
    except Exception as error:  # foreign code and its arguments: the user's to read
        raise UserError(f"env.options.{option} {reference!r} fails when called: {error!r:.300}") from error


def check_adapter_options(options: Any, *, keywords: str | None, least_turns: int) -> None:
    """The options that all adapters share: `max_turns`, `success_reward` and `keywords`, the name of a dictionary.

    Raises `UserError` on a bad value.
    """
    turns, success = options.max_turns, options.success_reward
    if not isinstance(turns, int) or isinstance(turns, bool) or turns < least_turns:
        raise UserError(f"env.options.max_turns must be a whole number from {least_turns}, got {turns!r}")
    if not isinstance(success, int | float) or isinstance(success, bool) or not math.isfinite(success):
        raise UserError(f"env.options.success_reward must be a number, got {success!r}")
    if keywords is not None and not isinstance(getattr(options, keywords), Mapping):
        raise UserError(
            f"env.options.{keywords} must be a dictionary of keyword arguments, got {getattr(options, keywords)!r}"
        )
