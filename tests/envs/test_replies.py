import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.envs.replies import MAX_ACTION_CHARS, MAX_SHOWN_CHARS, action_text, last_program, shown


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("left", "left"),
        ("  Up.\n", "up"),
        ('"DOWN"!', "down"),
        ("**right**", "right"),
        ("<think>left or up?</think> up", "up"),
        ("<think>a <think> b</think> down", "down"),
        ("I go left</think>right", "right"),  # the opening tag stood in the prompt
        ("<THINK>x</THINK><Answer> Left </Answer>", "left"),
        ("<answer>up</answer> no: <answer>down</answer>", "down"),
        ("<answer>up</answer> and then <answer>dow", "up"),
        ("<think><answer>up</answer></think>left", "left"),
        ("reasoning ```Up```", "up"),
        ("reasoning\n```\nup\n```\n", "up"),
        ("reasoning\n```text\nup\n```\nmore words", "up"),
        ("```up``` then ```left```", "left"),
        ("```up``` <answer>left</answer>", "left"),
        ("<answer>left</answer> ```up```", "up"),
        ("<answer>```left```</answer>", "left"),
        ("left up", "left up"),
        ("", None),
        (" \n ", None),
        ("<think>left", None),  # cut off while thinking
        ("<answer></answer>", None),
        ("ｌｅｆｔ", None),  # full-width letters
        ("loo\u212a", None),  # the Kelvin sign lower-cases to k
        ("x" * (MAX_ACTION_CHARS + 1), None),
        ("left\ud800", None),
    ],
)
def test_action_text(reply, action):
    assert action_text(reply) == action


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("First\n```py\na\n```\nthen\n  ```Python3\r\nb\r\nc\r\n  ```  \nend", "b\nc\n"),
        ("```\nplain\n```", "plain\n"),
        ("```python\nx = 'a```b'\n```", "x = 'a```b'\n"),  # backticks within a line end nothing
        ("```python\na\n```\n```text\nnot a program\n```", "a\n"),
        ("```python\na\n```\n```python\nunfinished", "a\n"),
        ("```python\na\n```\n```python\n\n```", "a\n"),
        ("<think>\n```python\nthought\n```\n</think>\n```python\nsaid\n```", "said\n"),
        ("thought\n```python\nthought\n```\n</think>", None),
        ("```python print(1)```", None),
        ("print(1)", None),
        ("```python\nprint(1)", None),
        ("", None),
    ],
)
def test_last_program(reply, program):
    assert last_program(reply) == program


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<answer>", "```", "<", "<answer><think>"])
def test_long_hostile_replies_take_linear_time(piece):
    started = time.perf_counter()
    action_text(piece * 100_000)
    last_program(f"{piece}\n" * 100_000)
    assert time.perf_counter() - started < 2.0


@given(st.lists(st.text(max_size=20) | st.sampled_from(["\0", "\ud800", "<b>"]), max_size=9).map("".join))
def test_shown_is_short_and_plain(text):
    result = shown(text)
    assert len(result) <= MAX_SHOWN_CHARS + 3
    assert result.isascii() and result.isprintable() and not set(result) & set("<>|`\\")


def test_shown_of_nothing():
    assert shown(None) == ""
