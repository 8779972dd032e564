"""Tool calls in a reply: any text at all to checked literals, without ever evaluating anything.

Two formats are read: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` blocks, and a python list of calls,
`[f(a=1), g(b="x")]`, which is parsed and never run.
"""

import ast
import dataclasses
import json
import math
import re
import warnings
from typing import Any

from jaxagent.envs.replies import without_thoughts

MAX_REPLY_CHARS = 32_768  # of a reply without its thoughts; the longest answer of a user turn has some 7,000
MAX_CALLS = 64  # of one reply; the longest answer of a user turn has 34
MAX_DEPTH = 8  # of nested lists and dictionaries in an argument
MAX_INTEGER = 10**20
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALL_LIST = re.compile(r"\[?\s*[^\W\d]\w*(?:\.\w+)*\(")  # how a python call list begins
_UNREADABLE = re.compile("[\x00\ud800-\udfff]")  # NUL and lone surrogates


@dataclasses.dataclass(frozen=True)
class Call:
    """One call: literals by keyword; `positional` ones are in the benchmark's answers and refused in replies."""

    name: str
    arguments: dict[str, Any]
    positional: tuple[Any, ...] = ()

    def as_text(self) -> str:
        """The call in python notation."""
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"


class MalformedReplyError(Exception):
    """A reply that tries to call and cannot be read; nothing of it is executed."""

    def __init__(self, kind: str, message: str) -> None:
        """`kind` is counted, `message` is for the agent."""
        super().__init__(message)
        self.kind = kind


class RefusedCallError(Exception):
    """One call that must not be executed; the other calls of its reply stand."""

    def __init__(self, kind: str, message: str) -> None:
        """`kind` is counted, `message` is for the agent."""
        super().__init__(message)
        self.kind = kind


def parse_reply(reply: str) -> list[Call]:
    """The calls of a reply in order; an empty list where it does not try to call: the agent is done with the user turn.

    Text inside `<think>...</think>` is ignored. Every `<tool_call>` block counts; without one, the last fenced block
    or else the whole rest is read if it begins like a python call. Values are not checked here: `check_call` does.

    Raises:
      MalformedReplyError: broken JSON or python, nested calls, too long, too many calls.
    """
    text = without_thoughts(reply)
    if len(text) > MAX_REPLY_CHARS:
        raise MalformedReplyError("too_long", f"The reply has more than {MAX_REPLY_CHARS} characters.")
    text = readable(text)
    if _OPEN in text:
        calls = [_json_call(block) for block in text.split(_OPEN)[1:]]
    else:
        candidate = _call_list(text)
        if candidate is None:
            if re.match(r'\s*[\[{]*\s*"name"', text):
                raise MalformedReplyError("bad_format", f"A JSON call must stand between {_OPEN} and {_CLOSE}.")
            return []
        calls = parse_python(candidate)
    if len(calls) > MAX_CALLS:
        raise MalformedReplyError("too_many_calls", f"The reply has more than {MAX_CALLS} calls.")
    return calls


def parse_python(text: str) -> list[Call]:
    """The calls of `[f(a=1), g()]` or of the same without brackets; raises `MalformedReplyError`."""
    text = text.strip()
    if not text.startswith("["):
        text = f"[{text}]"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings are the agent's affair
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MalformedReplyError("bad_python", "The list of calls is not valid python.") from None
    if not isinstance(tree, ast.List):
        raise MalformedReplyError("bad_python", "The reply must be one list of calls and nothing beside it.")
    return [_python_call(node) for node in tree.elts]


def check_call(call: Call) -> None:
    """Raises `RefusedCallError` unless all arguments are finite, bounded literals by keyword."""
    if call.positional:
        raise RefusedCallError("positional_arguments", f"{call.name}: give every argument by its name.")
    for key, value in call.arguments.items():
        _check_value(call.name, key, value, depth=0)


def readable(text: str) -> str:
    """`text` less NUL and lone surrogates."""
    return _UNREADABLE.sub("", text)


def _json_call(block: str) -> Call:
    """The call of what follows an opening tag."""
    inside, closed, _ = block.partition(_CLOSE)
    if not closed:
        raise MalformedReplyError("unclosed_call", f"A {_OPEN} has no {_CLOSE}.")
    try:
        value = json.loads(inside)
    except (ValueError, RecursionError):
        raise MalformedReplyError("bad_json", f"What stands in {_OPEN} is not valid JSON.") from None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedReplyError("bad_json", 'A call is a JSON object with "name" and "arguments".')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise MalformedReplyError("bad_json", f'{value["name"][:64]}: "arguments" must be a JSON object.')
    return Call(readable(value["name"]), _readable_value(arguments, MAX_DEPTH + 1))


def _call_list(text: str) -> str | None:
    """The part of a reply that is to be read as python calls, None where nothing begins like one."""
    pieces = text.split("```")
    fenced = pieces[1:-1:2]
    if fenced:
        first, _, rest = fenced[-1].partition("\n")
        inside = rest if first.strip().isalpha() and rest.strip() else fenced[-1]
        if _CALL_LIST.match(inside.strip()) or inside.strip() == "[]":
            return inside.strip()
    whole = text.strip().strip("`").strip()
    return whole if _CALL_LIST.match(whole) or whole == "[]" else None


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        raise MalformedReplyError("bad_python", "Every item of the list must be a call such as f(a=1).")
    if not isinstance(node.func, ast.Name):
        raise MalformedReplyError("bad_python", "A function is called by its plain name.")
    if any(keyword.arg is None for keyword in node.keywords) or any(isinstance(arg, ast.Starred) for arg in node.args):
        raise MalformedReplyError("bad_python", "Arguments cannot be unpacked with stars.")
    names = [keyword.arg for keyword in node.keywords]
    if len(set(names)) < len(names):
        raise MalformedReplyError("bad_python", "An argument is given twice.")
    arguments = {keyword.arg: _literal(keyword.value, MAX_DEPTH + 1) for keyword in node.keywords}
    return Call(node.func.id, arguments, tuple(_literal(value, MAX_DEPTH + 1) for value in node.args))


def _literal(node: ast.expr, levels: int) -> Any:
    """The value of a literal: strings, numbers, True, False, None, lists, tuples, dictionaries with string keys."""
    if levels < 0:
        raise MalformedReplyError("too_deep", "An argument is nested too deeply.")
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return readable(node.value) if isinstance(node.value, str) else node.value
    if isinstance(node, ast.List | ast.Tuple):
        items = [_literal(item, levels - 1) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        if all(isinstance(key, str) for key in keys):
            values = [_literal(value, levels - 1) for value in node.values]
            return dict(zip(map(readable, keys), values, strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.Call):
        raise MalformedReplyError("nested_call", "A call cannot be an argument of another: call one, read its result.")
    raise MalformedReplyError("not_a_literal", "Arguments must be plain values: strings, numbers, True, False, lists.")


def _readable_value(value: Any, levels: int) -> Any:
    """A JSON value with readable strings; raises where it is nested too deeply."""
    if levels < 0:
        raise MalformedReplyError("too_deep", "An argument is nested too deeply.")
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, list):
        return [_readable_value(item, levels - 1) for item in value]
    if isinstance(value, dict):
        return {readable(key): _readable_value(item, levels - 1) for key, item in value.items()}
    return value


def _check_value(function: str, key: str, value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RefusedCallError("too_deep", f"{function}: argument {key!r} is nested too deeply.")
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedCallError("not_finite", f"{function}: argument {key!r} must be a finite number.")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise RefusedCallError("too_large", f"{function}: argument {key!r} is too large a number.")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in inner:
        _check_value(function, key, item, depth + 1)
