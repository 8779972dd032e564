"""Metric lines: strict JSON, flushed, truncated on resume, and safe against a half-written last line."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from jaxagent.errors import UserError
from jaxagent.reporting.metrics import MetricsWriter, read_metrics


def strict(line: str) -> dict:
    """JSON without the NaN and Infinity that Python's reader would let pass."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


def test_a_line_is_on_disk_before_the_next(tmp_path):
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write(1, {"reward": 0.5, "count": 3, "array": np.float32(0.25), "zero_d": np.array(2)})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [strict(line) for line in lines] == [{"step": 1, "reward": 0.5, "count": 3, "array": 0.25, "zero_d": 2.0}]
    writer.close()
    writer.close()


def test_non_finite_values_are_null_and_named(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(1, {"a": math.nan, "b": 1.0, "c": -math.inf})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert strict(line) == {"step": 1, "a": None, "b": 1.0, "c": None, "nonfinite": ["a", "c"]}


@pytest.mark.parametrize("name", ["step", "nonfinite"])
def test_reserved_names_are_refused(tmp_path, name):
    with MetricsWriter(tmp_path, tensorboard=False) as writer, pytest.raises(ValueError, match=name):
        writer.write(1, {name: 1.0})


def test_truncation_drops_later_steps_and_goes_on(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        for step in range(1, 6):
            writer.write(step, {"x": float(step)})
        writer.truncate_after(3)
        writer.write(4, {"x": 40.0})
    assert [(line["step"], line["x"]) for line in read_metrics(tmp_path / "metrics.jsonl")] == [
        *((1, 1.0), (2, 2.0), (3, 3.0)),
        (4, 40.0),
    ]
    assert not list(tmp_path.glob("*.partial"))


def test_truncation_keeps_the_old_file_if_the_new_one_cannot_be_written(tmp_path, monkeypatch):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        for step in (1, 2):
            writer.write(step, {"x": 1.0})

        def full_disk(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space"):
            writer.truncate_after(1)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path):
    def write(writer, steps):
        for step in steps:
            writer.write(step, {"x": step / 7, "bad": math.nan})

    with MetricsWriter(tmp_path / "whole", tensorboard=False) as writer:
        write(writer, range(1, 9))
    with MetricsWriter(tmp_path / "resumed", tensorboard=False) as writer:
        write(writer, range(1, 6))
    with MetricsWriter(tmp_path / "resumed", tensorboard=False) as writer:
        writer.truncate_after(4)
        write(writer, range(5, 9))
    whole, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "resumed"))
    assert whole == resumed


@pytest.mark.parametrize("tail", ['{"step": 2, "x"', '{"step": 2, "x": 1.0}', "\x00\x00"])
def test_a_half_written_last_line_is_dropped(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "x": 1.0}\n' + tail)
    assert read_metrics(path)[0] == {"step": 1, "x": 1.0}
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(2, {"x": 2.0})
    assert [line["x"] for line in read_metrics(path)] == [1.0, 2.0]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2"):
        read_metrics(path)


def test_a_killed_process_keeps_its_lines(tmp_path):
    code = (
        "import os, sys; from jaxagent.reporting.metrics import MetricsWriter;"
        "writer = MetricsWriter(sys.argv[1], tensorboard=False); writer.write(1, {'x': 1.0}); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=os.getcwd(), timeout=60)
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "x": 1.0}]


def test_unwritable_folder_is_the_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        MetricsWriter(tmp_path / "file", tensorboard=False)


def test_tensorboard_has_the_scalars_and_forgets_what_was_truncated(tmp_path):
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    with MetricsWriter(tmp_path, tensorboard=True) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"reward/mean": step / 4, "bad": math.nan})
        writer.truncate_after(2)
        writer.write(3, {"reward/mean": 0.5})
    events = []
    for path in sorted((tmp_path / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:  # records: length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(content[:8], "little")
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    values = [(e.step, v.simple_value) for e in events for v in e.summary.value if v.tag == "reward/mean"]
    assert sorted(values) == [(1, 0.25), (2, 0.5), (3, 0.5), (3, 0.75)]
    assert "bad" not in {value.tag for event in events for value in event.summary.value}
    starts = [event.step for event in events if event.session_log.status == SessionLog.START]
    assert starts == [3]  # TensorBoard drops steps from here on that came before this mark
