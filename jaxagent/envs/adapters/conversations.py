"""Chat messages and tool calls as text: what an agent reads of them, and the calls that it writes in `<tool_call>`."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CALLS = 16  # of one reply; what comes behind is not executed
MAX_CALL_CHARS = 16_384
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_INSTRUCTIONS = """You may call these functions, described as JSON Schema:
<tools>
{tools}
</tools>
A call is one JSON object: <tool_call>{{"name": "NAME", "arguments": {{"ARGUMENT": VALUE}}}}</tool_call>"""


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """One call that a reply asks for; `error` says why it cannot be made, and then `arguments` is empty."""

    name: str
    arguments: dict[str, Any]
    text: str
    error: str | None = None


def tool_calls(reply: str) -> list[ToolCall]:
    """The complete `<tool_call>` blocks of a reply, in order, outside of thoughts; never raises on any text."""
    spoken = reply.rpartition("</think>")[2]
    return [_call(match[1].strip()) for match in list(_CALL.finditer(spoken))[:MAX_CALLS]]


def without_calls(reply: str) -> str:
    """A reply less its calls."""
    return _CALL.sub("", reply).strip()


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """What to tell an agent about its tools: one JSON object each with name, description and parameters."""
    return _INSTRUCTIONS.format(tools="\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools))


def tool_response(text: str) -> str:
    """The answer to a call as the agent reads it."""
    return f"<tool_response>\n{text}\n</tool_response>"


def message_text(message: Mapping[str, Any]) -> str:
    """A message as text: tool answers in their tag, words of an assistant (an example, say) marked as such.

    Raises `ValueError` for content that is no text.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
            raise ValueError(f"a {message.get('role')} message holds more than text")
        content = "".join(part["text"] for part in content)
    role = message.get("role")
    return tool_response(content) if role == "tool" else f"assistant: {content}" if role == "assistant" else content


def conversation_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages one after another, a blank line between."""
    return "\n\n".join(text for text in map(message_text, messages) if text)


def _call(text: str) -> ToolCall:
    if len(text) > MAX_CALL_CHARS:
        return ToolCall("", {}, "", "the call is too long")
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, text, f"the call is no JSON: {type(error).__name__}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", {}, text, 'a call needs a "name"')
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(call["name"], {}, text, '"arguments" must be an object')
    return ToolCall(call["name"], arguments, text)
