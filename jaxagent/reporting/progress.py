"""The live progress line: step, reward, Pass@1, occupancy, turns/s, time left; plain lines without a terminal."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

# How a value is written, by its name on the line; others get three digits.
_FORMATS: dict[str, Callable[[float], str]] = {
    "reward": "{:.2f}".format,
    "Pass@1": "{:.0%}".format,
    "loss": "{:.3f}".format,
    "occupancy": "{:.0%}".format,
    "turns/s": "{:,.0f}".format,
}
_REDRAW_SECONDS = 0.1


class Progress:
    """`with Progress(total, label) as progress: progress.update(step, {"reward": ...})`.

    On a terminal one line is redrawn in place; elsewhere (a file, a notebook, a dumb terminal) a plain line is printed
    at the first and the last step and at most every `interval` seconds between. A stream that is closed or breaks never
    stops the run: the display falls silent.

    Args:
      total: steps of the whole run.
      label: stands at the head of the line.
      start: steps done before this process began (a resume), so that the time left is right.
      interval: seconds between plain lines.
    """

    def __init__(self, total: int, label: str, *, start: int = 0, interval: float = 15.0) -> None:
        self._total, self._label, self._start, self._interval = total, label, start, interval
        self._values: dict[str, float] = {}
        self._live: Any = None
        self._silent = False
        self._shown_at = -math.inf
        self._step = self._printed_step = start
        self._clock_from: tuple[int, float] = (start, time.monotonic())  # (step, when): the time left counts from here
        self._updates = 0

    def __enter__(self) -> "Progress":
        """Starts the clock, and the live line where there is a terminal."""
        self._clock_from = (self._start, time.monotonic())
        self._guard(self._open)
        return self

    def __exit__(self, *exception: object) -> None:
        """Leaves the last state on the screen."""
        self._guard(self._finish)

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """`step` steps are done. Values stay on the line until they are replaced (Pass@1 is measured now and then)."""
        self._step = step
        self._values.update(values)
        self._updates += 1
        self._guard(self._show)
        if self._updates == 1:  # what came before the first step's end, compilation above all, comes once
            self._clock_from = (step, time.monotonic())

    def line(self) -> str:
        """The state as one line of text."""
        width = len(str(self._total))
        parts = [f"{self._label} {self._step:>{width}}/{self._total}"]
        for name, value in self._values.items():
            if value is not None and math.isfinite(value):
                write = _FORMATS.get(name, "{:.3g}".format)
                parts.append(f"{name} {write(float(value))}")
        parts.append(f"ETA {self._time_left()}")
        return "  ".join(parts)

    def _time_left(self) -> str:
        since, began = self._clock_from
        done, left = self._step - since, self._total - self._step
        if done <= 0:
            return "?"
        seconds = round((time.monotonic() - began) / done * max(left, 0))
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

    def _open(self) -> None:
        if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
            return
        import rich.console
        import rich.live

        # No refresh thread: an error there would escape the guard.
        console = rich.console.Console(file=sys.stdout)
        self._live = rich.live.Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def _show(self) -> None:
        now = time.monotonic()
        is_last = self._step >= self._total
        if now - self._shown_at < (self._interval if self._live is None else _REDRAW_SECONDS) and not is_last:
            return
        self._shown_at = now
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            print(self.line(), flush=True)
        else:
            import rich.text

            # Text, not markup: a label with brackets is shown as it is. One line: a narrow window cuts it.
            self._live.update(rich.text.Text(self.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        self._printed_step = self._step

    def _finish(self) -> None:
        if self._printed_step != self._step:
            self._draw()
        if self._live is not None:
            self._live.stop()

    def _guard(self, action: Callable[[], None]) -> None:
        """Runs a display action; a broken stream, terminal or encoding silences the display and nothing else."""
        if self._silent:
            return
        try:
            action()
        except Exception:  # whatever the stream does, training goes on
            self._silent = True
