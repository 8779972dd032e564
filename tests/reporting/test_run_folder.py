"""A run folder, written and read back as frames."""

import json
import math
import subprocess

import pytest

from jaxagent.config import default_config
from jaxagent.config_files import load_config
from jaxagent.episodes import Episode, Turn, write_episodes
from jaxagent.errors import UserError
from jaxagent.reporting import load_run
from jaxagent.reporting.metrics import MetricsWriter
from jaxagent.reporting.run_folder import write_config, write_environment, write_json


def episode(member: int, turns: int, success: bool) -> Episode:
    records = tuple(
        Turn(t + 1, (1,), (2,), (-0.5,), 0, "go", "go", True, None, 0.0, None, turns - t) for t in range(turns)
    )
    end = "success" if success else "budget"
    when = turns if success else None
    return Episode(0, 0, "task-a", "lookup", 0, member, 12, 6, 6, records, float(success), success, when, end)


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    with MetricsWriter(folder, tensorboard=False) as writer:
        writer.write(1, {"reward/mean": 0.25, "loss": math.nan})
        writer.write(2, {"reward/mean": 0.5, "loss": 1.0})
        writer.write(2, {"eval/pass_at_1": 0.75})
    write_config(folder, default_config())
    write_environment(folder, {"devices": ["cpu:0"]})
    write_json(folder / "eval" / "panel" / "summary.json", {"k": 8, "budgets": {}})
    write_episodes(folder / "eval" / "panel" / "episodes.jsonl.gz", [episode(0, 3, True), episode(1, 6, False)])
    return folder


def test_config_is_strict_json_that_loads_as_a_config(run_folder):
    stored = json.loads((run_folder / "config.json").read_text())
    assert stored["eval"]["percents"] == [25, 50, 75, 100]
    assert load_config(f"{run_folder}/config.json").to_dict() == default_config().to_dict()


def test_environment_names_versions_and_devices(run_folder):
    environment = load_run(run_folder).environment
    assert environment["devices"] == ["cpu:0"]
    assert environment["versions"]["numpy"].count(".") == 2
    assert {"python", "platform", "jaxagent"} <= environment.keys()


def test_environment_has_the_commit_of_a_checkout(tmp_path, monkeypatch):
    import jaxagent

    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    (tmp_path / "jaxagent").mkdir()
    (tmp_path / "jaxagent" / "__init__.py").write_text("")
    monkeypatch.setattr(jaxagent, "__file__", str(tmp_path / "jaxagent" / "__init__.py"))
    write_environment(tmp_path / "outside", {})
    git("init", "-q")
    git("add", "jaxagent")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    write_environment(tmp_path / "clean", {})
    (tmp_path / "jaxagent" / "__init__.py").write_text("changed")
    write_environment(tmp_path / "dirty", {})
    outside, clean, dirty = (
        json.loads((tmp_path / name / "environment.json").read_text()) for name in ("outside", "clean", "dirty")
    )
    assert "commit" not in outside
    assert len(clean["commit"]) == 40
    assert (clean["uncommitted_changes"], dirty["uncommitted_changes"]) == (False, True)


def test_metrics_frame(run_folder):
    frame = load_run(run_folder).metrics
    assert list(frame.index) == [1, 2]
    assert frame.loc[2].to_dict() == {"reward/mean": 0.5, "loss": 1.0, "eval/pass_at_1": 0.75}
    assert math.isnan(frame.loc[1, "loss"])
    assert math.isnan(frame.loc[1, "eval/pass_at_1"])
    assert all(kind == "float64" for kind in frame.dtypes)


def test_episodes_and_summaries(run_folder):
    run = load_run(run_folder)
    assert run.evaluations == ("panel",)
    assert run.summaries == {"panel": {"k": 8, "budgets": {}}}
    frame = run.episodes()
    assert frame[["member", "turns", "success", "told_budget", "end_reason"]].values.tolist() == [
        [0, 3, True, 6, "success"],
        [1, 6, False, 6, "budget"],
    ]
    with pytest.raises(UserError, match="there are: panel"):
        run.episodes("other")


def test_a_run_that_has_just_begun_has_an_empty_frame(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    run = load_run(tmp_path)
    assert len(run.metrics) == 0
    assert run.config == {}


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(UserError, match="no such run folder"):
        load_run(tmp_path / "missing")
    with pytest.raises(UserError, match="not a run folder"):
        load_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json"):
        load_run(tmp_path)


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = write_json(tmp_path / "summary.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": math.inf})
    assert json.loads(path.read_text()) == {"a": 1}
