"""The progress line: on a terminal, without one, and when the stream breaks."""

import io
import math
import sys

import pytest

from jaxagent.reporting import progress as module
from jaxagent.reporting.progress import Progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_plain_lines_at_the_first_and_last_step_and_at_intervals(clock, capsys):
    with Progress(100, "train", interval=10) as progress:
        for step in range(1, 101):
            clock.now += 1
            progress.update(step, {"reward": step / 100})
    steps = [int(line.split("/")[0].split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert steps == [1, 11, 21, 31, 41, 51, 61, 71, 81, 91, 100]


def test_the_line_has_what_it_was_given_and_the_time_left(clock, capsys):
    with Progress(200, "train lookup", start=90, interval=0) as progress:
        clock.now += 500  # compiling
        progress.update(100, {})
        clock.now += 30
        progress.update(110, {"reward": 0.531, "Pass@1": 0.418, "occupancy": 0.87, "turns/s": 1234.6, "other": 0.00123})
    line = capsys.readouterr().out.splitlines()[-1]
    for part in (
        "train lookup 110/200",
        "reward 0.53",
        "Pass@1 42%",
        "occupancy 87%",
        "turns/s 1,235",
        "other 0.00123",
    ):
        assert part in line
    assert line.endswith("ETA 4:30")  # 90 steps left at 3 s each


def test_values_stay_until_replaced_and_non_finite_ones_are_left_out(clock, capsys):
    with Progress(3, "x", interval=0) as progress:
        progress.update(1, {"Pass@1": 0.5, "reward": math.nan})
        progress.update(2, {"reward": 0.25})
        progress.update(3, {"Pass@1": 0.75})
    first, second, third = capsys.readouterr().out.splitlines()
    assert "reward" not in first
    assert "Pass@1 50%" in second
    assert "Pass@1 75%" in third


def test_an_interrupted_run_leaves_its_last_state(clock, capsys):
    with pytest.raises(RuntimeError), Progress(100, "train") as progress:
        progress.update(1, {})
        progress.update(2, {})
        raise RuntimeError
    assert "2/100" in capsys.readouterr().out.splitlines()[-1]


def test_a_terminal_gets_one_line_in_place(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(5, "train [a]") as progress:
        for step in range(1, 6):
            clock.now += 1
            progress.update(step, {"reward": step / 5})
    written = terminal.getvalue()
    assert all(f"train [a] {step}/5" in written for step in range(1, 6))
    assert "\r" in written
    assert written.count("\n") <= 1


def test_a_dumb_terminal_gets_plain_lines(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    with Progress(1, "train") as progress:
        progress.update(1, {})
    assert "\x1b" not in terminal.getvalue()
    assert "1/1" in terminal.getvalue()


class BrokenPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


class BrokenTerminal(BrokenPipe):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize("make", [BrokenPipe, BrokenTerminal, lambda: None, "closed", "ascii"])
def test_a_broken_stream_never_stops_the_run(clock, monkeypatch, make):
    if make == "closed":
        stream = io.StringIO()
        stream.close()
    elif make == "ascii":
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    else:
        stream = make()
    monkeypatch.setenv("TERM", "xterm")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with Progress(2, "Über") as progress:
            progress.update(1, {"reward": 1.0})
            progress.update(2, {"reward": 1.0})


def test_steps_without_a_total_or_beyond_it(clock, capsys):
    with Progress(0, "x", interval=0) as progress:
        progress.update(1, {})
        clock.now += 5
        progress.update(3, {})
    assert capsys.readouterr().out.splitlines()[-1].endswith("ETA 0:00")
