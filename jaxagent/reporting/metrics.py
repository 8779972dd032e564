"""Metrics of a run: one strict JSON line a step in `metrics.jsonl`, and the same scalars for TensorBoard."""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxagent.errors import UserError

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
_RESERVED = ("step", "nonfinite")


class MetricsWriter:
    """Appends to `WORKDIR/metrics.jsonl`, flushed line by line, so that a killed run keeps what it wrote.

    Opening an existing file repairs a half-written last line. Raises `UserError` where the folder cannot be written.
    """

    def __init__(self, workdir: str | pathlib.Path, tensorboard: bool) -> None:
        self._workdir = pathlib.Path(workdir)
        self._path = self._workdir / METRICS_FILE
        self._tensorboard = tensorboard
        self._scalars: Any = None  # tensorboardX's writer, opened by the first write: a resume sets where it starts
        self._purge_step: int | None = None
        try:
            self._workdir.mkdir(parents=True, exist_ok=True)
            _drop_half_written_line(self._path)
            self._lines = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (held until close)
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror or error}") from None

    def __enter__(self) -> "MetricsWriter":
        """Itself; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the files."""
        self.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends the scalars of `step`. Non-finite values become null and their names are listed under `nonfinite`."""
        for name in _RESERVED:
            if name in values:
                raise ValueError(f"a metric cannot be called {name!r}")
        numbers = {name: _plain(value) for name, value in values.items()}
        nonfinite = sorted(name for name, value in numbers.items() if not math.isfinite(value))
        line: dict[str, Any] = {"step": int(step)}
        line.update((name, None if name in nonfinite else value) for name, value in numbers.items())
        if nonfinite:
            line["nonfinite"] = nonfinite
        self._lines.write(json.dumps(line, allow_nan=False) + "\n")
        self._lines.flush()
        if self._tensorboard:
            self._write_scalars(int(step), numbers)

    def truncate_after(self, step: int) -> None:
        """Forgets everything after `step`, as a run that resumes there must: the file is replaced in one move, and
        TensorBoard is told to drop what it has seen of later steps."""
        kept = [json.dumps(line, allow_nan=False) for line in read_metrics(self._path) if line["step"] <= step]
        partial = self._path.with_name(METRICS_FILE + ".partial")
        with open(partial, "w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in kept)
            stream.flush()
            os.fsync(stream.fileno())
        self._lines.close()
        partial.replace(self._path)
        self._lines = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (held until close)
        self._close_scalars()
        self._purge_step = step + 1

    def close(self) -> None:
        """Flushes and closes; safe to call twice."""
        self._lines.close()
        self._close_scalars()

    def _write_scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._scalars is None:
            import tensorboardX  # a third of a second, and not every run wants it

            self._scalars = tensorboardX.SummaryWriter(
                str(self._workdir / TENSORBOARD_FOLDER),
                purge_step=self._purge_step,
                # Files are named by the second: without this a writer reopened at once would overwrite its predecessor.
                filename_suffix=f".{self._purge_step or 0}",
            )
        for name, value in numbers.items():
            if math.isfinite(value):
                self._scalars.add_scalar(name, value, step)

    def _close_scalars(self) -> None:
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None


def read_metrics(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, oldest first; a half-written last line is left out.

    Raises `UserError` that names file and line for any other fault.
    """
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    lines = []
    for number, text_line in enumerate(text.splitlines(keepends=True), start=1):
        try:
            line = json.loads(text_line, parse_constant=_no_constant)
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                raise ValueError("expected an object with a whole number as `step`")
        except ValueError as error:
            if not text_line.endswith("\n"):
                break
            raise UserError(f"{path}, line {number}: {error}") from None
        lines.append(line)
    return lines


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")


def _plain(value: Any) -> int | float:
    """A Python number from a Python, numpy or jax scalar; whole numbers stay whole."""
    return value if type(value) is int else float(value)


def _drop_half_written_line(path: pathlib.Path) -> None:
    if not path.exists():
        return
    with open(path, "rb+") as stream:
        content = stream.read()
        if content and not content.endswith(b"\n"):
            stream.truncate(content.rfind(b"\n") + 1)
