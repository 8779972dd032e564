"""The parser: both formats, what counts as no call, and every way of being unreadable. Needs no data."""

import json
import sys

import pytest

from jaxagent.envs.bfcl import calls
from jaxagent.envs.bfcl.calls import Call, MalformedReplyError, RefusedCallError, check_call, parse_reply

LS = Call("ls", {})
A1 = Call("f", {"a": 1})


def block(value) -> str:
    return f"<tool_call>{value if isinstance(value, str) else json.dumps(value)}</tool_call>"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("[ls()]", [LS]),
        ("ls()", [LS]),
        ("ls(), f(a=1)", [LS, A1]),
        ("  [f(a=1),\n ls()]  ", [A1, LS]),
        ("`[ls()]`", [LS]),
        ("```python\n[ls()]\n```", [LS]),
        ("First I look.\n```\n[ls()]\n```\nthen", [LS]),
        ("```\n[f(a=2)]\n```\n```\n[f(a=1)]\n```", [A1]),
        ("<think>[f(a=9)]</think>[ls()]", [LS]),
        ("f(a=9)</think>done", []),
        ("<think>hm", []),
        (block({"name": "ls", "arguments": {}}), [LS]),
        (block({"name": "ls"}), [LS]),
        ("Now: " + block({"name": "f", "arguments": {"a": 1}}) + "\n" + block({"name": "ls"}), [A1, LS]),
        (block({"name": "f", "arguments": {"a": "x\u0000\ud800y"}}), [Call("f", {"a": "xy"})]),
        ("[f(a='it\\'s', b=[1, -2.5], c=(1,), d={'k': None}, e=+3)]",
         [Call("f", {"a": "it's", "b": [1, -2.5], "c": (1,), "d": {"k": None}, "e": 3})]),
        ("[f(a='x' 'y', b=True)]", [Call("f", {"a": "xy", "b": True})]),
        ("[]", []),
        ("", []),
        ("   \n", []),
        ("done", []),
        ("The files are (a) and [b].", []),
        ("I called ls() before.", []),
        ("</tool_call>", []),
        ("1 + 1", []),
        ("[1, 2]", []),
    ],
)  # fmt: skip
def test_reads(reply, expected):
    assert parse_reply(reply) == expected


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (block("{bad"), "bad_json"),
        (block(""), "bad_json"),
        (block("[]"), "bad_json"),
        (block('"ls"'), "bad_json"),
        (block({"name": 5, "arguments": {}}), "bad_json"),
        (block({"arguments": {}}), "bad_json"),
        (block({"name": "ls", "arguments": "a=1"}), "bad_json"),
        (block({"name": "ls", "arguments": [1]}), "bad_json"),
        (block('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}"), "bad_json"),
        (block('{"name": "f", "arguments": {"a": ' + "[" * 6000), "bad_json"),
        (block('{"name": "f", "arguments": {"a": ' + "[" * 20 + "]" * 20 + "}}"), "too_deep"),
        ('<tool_call>{"name": "ls"}', "unclosed_call"),
        ("<tool_call>" + block({"name": "ls"}), "unclosed_call"),
        (block({"name": "ls"}) * 65, "too_many_calls"),
        ('{"name": "ls", "arguments": {}}', "bad_format"),
        ('[{"name": "ls"}]', "bad_format"),
        ("[ls(]", "bad_python"),
        ("[ls()] and more", "bad_python"),
        ("ls() lists", "bad_python"),
        ("[ls(), 5]", "bad_python"),
        ("[f(a=1, a=2)]", "bad_python"),
        ("[f(**{'a': 1})]", "bad_python"),
        ("[f(*[1])]", "bad_python"),
        ("[os.system(a='x')]", "bad_python"),
        ("[f()(a=1)]", "bad_python"),
        ("[f(a=1) for x in y]", "bad_python"),
        ("[f(a=ls())]", "nested_call"),
        ("[f(a=__import__('os'))]", "nested_call"),
        ("[f(a=b)]", "not_a_literal"),
        ("[f(a=1+1)]", "not_a_literal"),
        ("[f(a=2**99)]", "not_a_literal"),
        ("[f(a={1, 2})]", "not_a_literal"),
        ("[f(a={1: 2})]", "not_a_literal"),
        ("[f(a={**{}})]", "not_a_literal"),
        ("[f(a=f'{1}')]", "not_a_literal"),
        ("[f(a=b'x')]", "not_a_literal"),
        ("[f(a=1j)]", "not_a_literal"),
        ("[f(a=...)]", "not_a_literal"),
        ("[f(a=lambda: 1)]", "not_a_literal"),
        ("[f(a=-'x')]", "not_a_literal"),
        ("[f(a=" + "[" * 20 + "]" * 20 + ")]", "too_deep"),
        ("[f(a=" + "-" * 9000 + "1)]", "bad_python"),
        ("[f(a=" + "(" * 9000 + ")]", "bad_python"),
        ("f(" * 9000, "bad_python"),
        ("[f(a=1" + "+1" * 9000 + ")]", None),
        ("[" + ", ".join(["ls()"] * 65) + "]", "too_many_calls"),
        ("[f(a='" + "x" * 40_000 + "')]", "too_long"),
        ("z" * 10_000_000, "too_long"),
        ("<tool_call>" * 2000, "unclosed_call"),
    ],
)  # fmt: skip
def test_refuses(reply, kind):
    with pytest.raises(MalformedReplyError) as caught:
        parse_reply(reply)
    assert kind is None or caught.value.kind == kind
    assert 0 < len(str(caught.value)) < 200


def test_a_long_chain_is_refused_on_every_python():
    # Python 3.13 parses what earlier versions give up on; either way it is no literal.
    with pytest.raises(MalformedReplyError) as caught:
        parse_reply("[f(a=1" + "+1" * 9000 + ")]")
    assert caught.value.kind in ("bad_python", "not_a_literal")


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (Call("f", {"a": float("nan")}), "not_finite"),
        (Call("f", {"a": [float("inf")]}), "not_finite"),
        (Call("f", {"a": 10**21}), "too_large"),
        (Call("f", {"a": {"k": -(10**21)}}), "too_large"),
        (Call("f", {}, (1,)), "positional_arguments"),
    ],
)
def test_checks_values(call, kind):
    with pytest.raises(RefusedCallError) as caught:
        check_call(call)
    assert caught.value.kind == kind


def test_passes_ordinary_values():
    check_call(Call("f", {"a": 10**20, "b": "x" * 10_000, "c": [{"d": [1.5, None, True]}]}))


def test_nothing_is_evaluated_and_recursion_stays_ordinary():
    limit = sys.getrecursionlimit()
    seen = []
    for reply in ("[f(a=print('x'))]", "[__import__('os')]", "[exec('1')]", "__import__('os').system('true')"):
        try:
            seen.append([call.name for call in parse_reply(reply)])
        except MalformedReplyError as error:
            seen.append(error.kind)
    assert seen == ["nested_call", ["__import__"], ["exec"], "bad_python"]
    assert sys.getrecursionlimit() == limit


def test_text_of_a_call_reads_back():
    call = Call("f", {"a": 'it\'s "x"\n', "b": [1, {"k": -0.5}], "c": None})
    assert calls.parse_python(call.as_text()) == [call]
