import time

import pytest

from jaxagent.envs.deepcoder.judge import job_of, judge, same_text, same_value, short_repr
from jaxagent.envs.sandbox import Calls, Check, Outcome, Script
from jaxagent.envs.sandbox_guest import Opaque


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("0.333333333333", "0.333333", True),
        ("0.333333333333", "0.34", False),
        ("0.5", "5e-1", True),
        ("1000000.5", "1000001.0", True),  # relative
        ("1000000.5", "1000003", False),
        ("42\n", "42", True),
        ("42\n", "42  \n\n", True),
        ("42\n", "  42\t\n", True),
        ("42\n", "42\nextra\n", False),
        ("42\n", "42\n\nextra\n", False),
        ("1 2\n3\n", "1  2 \r\n3\r\n", True),
        ("1 2\n3\n", "1 2 3\n", False),
        ("1\n\n2", "1\n2", False),
        ("42", "", False),
        ("", "", True),
        ("", "\n", True),
        ("123456789012345678901234567890", "123456789012345678901234567890", True),
        ("123456789012345678901234567890", "123456789012345678901234567891", False),
        ("10000000000000000", "1e16", True),
        ("10000000", "10000001", False),  # a whole number is exact
        ("42", "42.0", True),
        ("42", "42.0000001", False),
        ("42", "+42", True),
        ("42", "0042", True),
        ("42", "4_2", False),
        ("42", "\u0664\u0662", False),
        ("nan", "nan", True),
        ("0.5", "nan", False),
        ("0.5", "inf", False),
        ("1e3", "1e99999999999", False),
        ("yes", "YES", False),
        ("a b", "a\u2028b", True),  # any white space within a line
        ("a\nb", "a\u2028b", False),
        ("1" * 200_000, "1" * 200_000, True),
        ("1" * 200_000, "1" * 199_999 + "2", False),
    ],
)
def test_texts(expected, actual, same):
    assert same_text(expected, actual) is same


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        (42, 42, True),
        (42, 42.0, True),
        (42, 43, False),
        (42, "42", False),
        (10**30, 10**30 + 1, False),
        (0.1 + 0.2, 0.3, True),
        (0.333333333333, 0.333333, True),
        (0.333333333333, 0.34, False),
        (2.0, 2, True),
        (1.5, 10**400, False),
        (1.5, float("nan"), False),
        (float("nan"), float("nan"), True),
        ([1, [2.0, "x"]], (1, (2.0000001, "x")), True),
        ([0.1, 0.2], [0.1, 0.20001], False),
        ([1, 2], [1, 2, 3], False),
        ([1, 2], [2, 1], False),
        ([1, 2], {1, 2}, False),
        ([], (), True),
        ({"1": [1]}, {1: (1,)}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        (True, True, True),
        (None, None, True),
        (None, 0, False),
        ("a", ["a"], False),
        (42, Opaque("x"), False),
        ([1, 2], iter([1, 2]), False),
        (1.5, "1.5", False),
    ],
)
def test_values(expected, actual, same):
    assert same_value(expected, actual) is same


def test_what_is_expected_never_goes_in():
    stdin = {"kind": "stdin", "input": "1\n", "output": "SECRET"}
    functional = {"kind": "functional", "name": "f", "arguments": [1], "output": "SECRET"}
    check = {"kind": "check", "test": "assert f(1) == 'SECRET'", "targets": ["f"], "context": "", "shown": None}
    jobs = [job_of(test, "code", "", fingerprint=False) for test in (stdin, functional, check)]
    assert [type(job) for job in jobs] == [Script, Calls, Check]
    assert "SECRET" not in repr(jobs[:2])
    assert jobs[2].source == "code"  # the test itself goes to a sandbox of its own


def test_words():
    test = {"kind": "stdin", "input": "", "output": "1"}
    cases = {
        "time limit 6 s": Outcome("time"),
        "memory limit": Outcome("memory"),
        "output limit": Outcome("output", stdout="1"),
        "runtime error": Outcome("exit", detail="1", stdout="1"),
        "exit code 7": Outcome("exit", detail="7"),
        "killed by SIGSEGV": Outcome("signal", detail="SIGSEGV"),
        "line 3: SyntaxError: bad": Outcome("syntax", detail="line 3: SyntaxError: bad"),
        "wrong answer": Outcome("ok", stdout="passed"),
        "passed": Outcome("ok", stdout="1"),
    }
    for words, outcome in cases.items():
        verdict = judge(test, outcome, 6.0)
        assert (verdict.words, verdict.passed) == (words, words == "passed")


@pytest.mark.parametrize("word", ["1" * 99_999 + "x", "1" * 50_000 + "." + "1" * 49_000 + "e", "9e9999", "." * 99_999])
def test_no_word_is_slow_to_compare(word):
    begun = time.process_time()
    assert not same_text("0.5 42", f"{word} {word}")
    assert time.process_time() - begun < 1.0


def test_short_repr_is_short_and_quick():
    assert short_repr([1, "a"]) == "[1, 'a']"
    assert short_repr(1 << 10**7) == "a whole number of 10000001 bits"
    assert short_repr([0] * 10**6) == "a list of 1000000 items"
    assert short_repr([1 << 40_000]) == "a list"
    assert len(short_repr("x" * 10**6)) == 2000
