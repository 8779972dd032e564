import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.envs.adapters.conversations import conversation_text, message_text, tool_calls, tools_text, without_calls


def call(text):
    return f"<tool_call>{text}</tool_call>"


def test_calls_are_read_in_order_and_thoughts_are_not():
    thought, first, second = (
        call('{"name": "no"}'),
        call('{"name": "a", "arguments": {"x": [1]}}'),
        call(' {"name": "b"}'),
    )
    reply = f"<think>{thought}</think>first {first} then {second}"
    found = tool_calls(reply)
    assert [(c.name, c.arguments, c.error) for c in found] == [("a", {"x": [1]}, None), ("b", {}, None)]
    assert without_calls("say " + call('{"name": "b"}') + " this") == "say  this"


@pytest.mark.parametrize(
    "text",
    [
        *["", "not json", "[1]", '{"arguments": {}}', '{"name": 3}', '{"name": "a", "arguments": [1]}', "[" * 100_000],
        '{"name": "a", "arguments": ' + "9" * 10_000 + "}",
        '{"name": "a", "x": "' + "y" * 20_000 + '"}',
    ],
)
def test_calls_that_cannot_be_made_say_why(text):
    (found,) = tool_calls(call(text))
    assert found.error and found.arguments == {}


PIECES = ["<tool_call>", "</tool_call>", "<think>", "</think>", "{", '"name"', ":", '"a"', "\x00", "\ud800", "}"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_text_raises(text):
    assert all(found.error or found.name for found in tool_calls(text))
    assert len(tool_calls(call("{}") * 100)) == 16


def test_messages_as_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": parts},
        {"role": "user", "content": None},
    ]
    assert conversation_text(messages) == "s\n\nab"
    assert message_text({"role": "tool", "content": "r"}) == "<tool_response>\nr\n</tool_response>"
    assert message_text({"role": "assistant", "content": "r"}) == "assistant: r"
    with pytest.raises(ValueError, match="more than text"):
        message_text({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})
    assert '<tools>\n{"name": "a"}\n{"name": "b"}\n</tools>' in tools_text([{"name": "a"}, {"name": "b"}])
