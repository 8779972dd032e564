"""What the agent may call: function documents, who owns a function, and how they are shown."""

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from jaxagent.envs.bfcl import package

# The benchmark's type names -> those of JSON Schema.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


@functools.cache
def documents(class_name: str) -> dict[str, dict[str, Any]]:
    """Function name -> document of one system, in the order of the file, with the type names of JSON Schema."""
    lines = package.read_lines(f"multi_turn_func_doc/{package.MODULES[class_name]}.json")
    return {line["name"]: _with_json_types(line) for line in lines}


@functools.cache
def owners() -> dict[str, str]:
    """Function name -> class, over all systems; no name occurs twice."""
    return {name: class_name for class_name in package.MODULES for name in documents(class_name)}


def offered(class_names: Iterable[str], withheld: Iterable[str]) -> tuple[str, ...]:
    """The functions of some systems less the withheld ones, in the order of their documents."""
    hidden = frozenset(withheld)
    return tuple(name for class_name in class_names for name in documents(class_name) if name not in hidden)


def numbers_of(name: str) -> frozenset[str]:
    """The parameters of a function that its document declares to be numbers."""
    properties = documents(owners()[name])[name]["parameters"]["properties"]
    return frozenset(key for key, value in properties.items() if value.get("type") in ("number", "integer"))


def described(names: Sequence[str], docs: str) -> str:
    """Functions as the prompt shows them: one JSON document a line (`full`), or signatures alone (`names`)."""
    found = [documents(owners()[name])[name] for name in names]
    if docs == "names":
        return ", ".join(_signature(document) for document in found)
    return "\n".join(json.dumps({"type": "function", "function": document}) for document in found)


def _signature(document: dict[str, Any]) -> str:
    """`name(a, b, [c])`, optional parameters in brackets."""
    required = document["parameters"].get("required", [])
    properties = document["parameters"]["properties"]
    return f"{document['name']}({', '.join(key if key in required else f'[{key}]' for key in properties)})"


def _with_json_types(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_json_types(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _with_json_types(item) for key, item in value.items()}
    if isinstance(changed.get("type"), str):
        changed["type"] = _TYPES.get(changed["type"], changed["type"])
    return changed
