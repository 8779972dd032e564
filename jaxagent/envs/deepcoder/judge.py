"""Whether a program passes a test: what to run in the sandbox, and the comparison, which happens outside of it.

A test is a plain dictionary of one of three kinds:
  stdin       `input`, `output`: texts; what the program prints is compared line by line, word by word.
  functional  `name`, `arguments`, `output`: a function's name, plain data; the result is compared as data.
  check       `test`, `targets`, `context`, `shown`: asserts of a data set on named functions, with what has to be
              defined for them, and what an agent may read of them (None: nothing).
"""

import dataclasses
import decimal
import re
from collections.abc import Mapping
from typing import Any

from jaxagent.envs.sandbox import Call, Calls, Check, Job, Outcome, Script

TOLERANCE = 1e-6  # absolute or relative, on numbers that are not whole
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")  # matched in linear time
_LONGEST_NUMBER = 100_000  # characters; a longer word is text


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One test of one program: whether it passed, a word or two for the agent, and what the program gave (cut later).

    `kind` is that of the sandbox's outcome, or `wrong`: the program ended well and gave something else.
    """

    passed: bool
    kind: str
    words: str
    got: str = ""


def job_of(test: Mapping[str, Any], source: str, prelude: str, *, fingerprint: bool) -> Job:
    """What to run: the program with the input of this test and nothing of what is expected."""
    if test["kind"] == "stdin":
        return Script(source, test["input"].encode("utf-8", "replace"), fingerprint)
    if test["kind"] == "functional":
        return Calls(source, (Call(test["name"], test["arguments"]),), prelude, fingerprint)
    return Check(source, test["test"], test["targets"], test["context"], prelude, fingerprint)


def judge(test: Mapping[str, Any], outcome: Outcome, seconds: float) -> Verdict:
    """The verdict on a run of `job_of(test, ...)`, whose limit was `seconds`."""
    if outcome.kind != "ok":
        return Verdict(False, outcome.kind, _words(outcome, seconds), outcome.stderr)
    if test["kind"] == "stdin":
        passed, got = same_text(test["output"], outcome.stdout), outcome.stdout
    elif test["kind"] == "functional":
        passed, got = same_value(test["output"], outcome.values[0]), short_repr(outcome.values[0])
    else:
        return Verdict(True, "ok", "passed")
    return Verdict(passed, "ok" if passed else "wrong", "passed" if passed else "wrong answer", got)


def same_text(expected: str, actual: str) -> bool:
    """Whether two outputs agree: white space around words and lines aside, numbers by value.

    Where a whole number is expected the number must be exactly that, elsewhere it may be off by 1e-6, absolute or
    relative. Every line counts.
    """
    wanted, given = (text.strip().split("\n") for text in (expected, actual))
    if len(wanted) != len(given):
        return False
    for one, other in zip(wanted, given, strict=True):
        words, others = one.split(), other.split()
        if len(words) != len(others) or not all(map(_same_word, words, others)):
            return False
    return True


def same_value(expected: Any, actual: Any) -> bool:
    """Whether a result is the expected JSON value: a tuple is as good as a list, a key may be the number it spells.

    Numbers other than whole ones may be off by 1e-6, absolute or relative. `actual` is plain data of unknown shape.
    """
    if isinstance(expected, float) and isinstance(actual, int | float):
        return _close(expected, actual)
    if isinstance(expected, list):
        if not isinstance(actual, list | tuple) or len(expected) != len(actual):
            return False
        return all(map(same_value, expected, actual))
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or len(expected) != len(actual):
            return False
        by_text = {_key(key): value for key, value in actual.items()}
        return by_text.keys() == expected.keys() and all(same_value(expected[key], by_text[key]) for key in expected)
    if isinstance(actual, list | tuple | dict | set | frozenset):
        return False
    return bool(expected == actual)


def short_repr(value: Any, length: int = 2000) -> str:
    """What a result looks like, without the cost of writing a huge one out."""
    if isinstance(value, int) and value.bit_length() > 10_000:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, list | tuple | set | frozenset | dict) and len(value) > length:
        return f"a {type(value).__name__} of {len(value)} items"
    try:
        return repr(value)[:length]
    except ValueError:  # a huge number somewhere inside
        return f"a {type(value).__name__}"


def _words(outcome: Outcome, seconds: float) -> str:
    if outcome.kind == "exit":
        return "runtime error" if outcome.detail == "1" else _exit_words(outcome.detail)
    return {
        "time": f"time limit {seconds:g} s",
        "memory": "memory limit",
        "output": "output limit",
        "syntax": outcome.detail,
        "signal": f"killed by {outcome.detail}",
        "failed": "wrong answer" if outcome.detail == "AssertionError" else f"wrong answer ({outcome.detail})",
    }[outcome.kind]


def _exit_words(detail: str) -> str:
    return f"exit code {detail}" if detail.isdigit() else detail


def _same_word(expected: str, actual: str) -> bool:
    if expected == actual:
        return True
    if max(len(expected), len(actual)) > _LONGEST_NUMBER:
        return False
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(actual)):
        return False
    wanted, given = decimal.Decimal(expected), decimal.Decimal(actual)
    if _INTEGER.fullmatch(expected):
        return wanted == given
    return abs(wanted - given) <= decimal.Decimal(TOLERANCE) * max(1, abs(wanted))


def _close(expected: float, actual: float) -> bool:
    if expected != expected:
        return actual != actual
    try:
        difference = abs(expected - actual)
    except OverflowError:
        return False
    return expected == actual or difference <= TOLERANCE * max(1.0, abs(expected)) < float("inf")


def _key(key: Any) -> Any:
    return str(key) if isinstance(key, int) and not isinstance(key, bool) and abs(key) < 10**20 else key
