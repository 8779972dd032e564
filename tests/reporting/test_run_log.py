"""The log of a run, and the folder it is written to: new, resumed, or another run's."""

import json

import pytest

from jaxagent.config import default_config
from jaxagent.config_files import apply_overrides
from jaxagent.errors import UserError
from jaxagent.reporting import load_run
from jaxagent.reporting.run_log import RunLog


@pytest.fixture
def config():
    return apply_overrides(default_config(), ["logging.tensorboard=false", "env.options.size=4"])


def log_steps(folder, config, steps, *, resume, start):
    with RunLog(folder, config, resume=resume, label="train") as log:
        log.start(step=start, total=4, devices=["cpu 0"])
        for step in steps:
            log.write(step, {"reward/mean": step / 8, "rollout/occupancy": 0.5, "rollout/turns_per_second": 900.0})


def test_a_resumed_log_forgets_what_came_after_the_checkpoint(tmp_path, config, capsys):
    log_steps(tmp_path / "run", config, (1, 2, 3), resume=False, start=0)
    log_steps(tmp_path / "run", config, (3, 4), resume=True, start=2)
    assert load_run(tmp_path / "run").metrics["reward/mean"].to_dict() == {1: 0.125, 2: 0.25, 3: 0.375, 4: 0.5}
    last = capsys.readouterr().out.splitlines()[-1]
    for part in ("train 4/4", "reward 0.50", "occupancy 50%", "turns/s 900"):
        assert part in last


def test_a_folder_that_holds_a_run_asks_for_resume(tmp_path, config):
    log_steps(tmp_path, config, (1,), resume=False, start=0)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="--resume"):
        RunLog(tmp_path, config, resume=False, label="train")
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_resuming_takes_a_longer_run_but_no_other(tmp_path, config):
    log_steps(tmp_path, config, (1,), resume=False, start=0)
    longer = apply_overrides(config, ["algorithm.steps=999"])
    log_steps(tmp_path, longer, (2,), resume=True, start=1)
    assert json.loads((tmp_path / "config.json").read_text())["algorithm"]["steps"] == 999
    for change, field in (("optimizer.learning_rate=0.5", "optimizer.learning_rate"), ("env.options.size=5", "size")):
        with pytest.raises(UserError, match=field):
            RunLog(tmp_path, apply_overrides(longer, [change]), resume=True, label="train")


def test_resuming_what_has_not_begun_begins(tmp_path, config):
    log_steps(tmp_path / "new", config, (1,), resume=True, start=0)
    assert len(load_run(tmp_path / "new").metrics) == 1


def test_a_folder_where_nothing_was_run_is_free(tmp_path, config):
    """A user error after the folder was made (a bad setting) must not block the next try, with another setting."""
    with RunLog(tmp_path, config, resume=False, label="train"):
        pass
    other = apply_overrides(config, ["seed=5"])
    log_steps(tmp_path, other, (1,), resume=False, start=0)
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 5
    assert json.loads((tmp_path / "environment.json").read_text())["devices"] == ["cpu 0"]


def test_a_damaged_config_is_named(tmp_path, config):
    log_steps(tmp_path, config, (1,), resume=False, start=0)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        RunLog(tmp_path, config, resume=True, label="train")
