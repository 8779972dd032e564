"""The command line: what reaches the commands, and one line and exit status 2 for whatever the user got wrong."""

import errno
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

import jaxagent
from jaxagent import cli
from jaxagent.errors import UserError

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
EXPERIMENT = """
from jaxagent.config import default_config

def get_config(variant="plain"):
    if variant == "broken":
        raise RuntimeError("no luck")
    return default_config()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with one experiment, `toy`."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "toy.py").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """Stands in for what the commands run; records the calls. `calls.failure` is raised by each."""
    record = types.SimpleNamespace(made=[], failure=None)

    def stub(name):
        def run(*arguments, **options):
            record.made.append((name, arguments, options))
            if record.failure is not None:
                raise record.failure
            if name == "jaxagent.evaluation.evaluate":
                return {
                    "world": "toy",
                    "k": 4,
                    "n": 8,
                    "num_tasks": 3,
                    "panel_hash": "0f1e",
                    "seed": 0,
                    "budgets": {"25": {"pass_at_k": 0.5}},
                }
            return None

        module = types.ModuleType(name)
        module.run = run
        package, _, leaf = name.rpartition(".")
        monkeypatch.setitem(sys.modules, name, module)
        # `from package import leaf` reads the attribute first, where the real module was imported before.
        parent = sys.modules.get(package)
        if parent is None:
            parent = types.ModuleType(package)
            monkeypatch.setitem(sys.modules, package, parent)
        monkeypatch.setattr(parent, leaf, module, raising=False)

    for name in (
        "jaxagent.training.sft",
        "jaxagent.training.loop",
        "jaxagent.evaluation.evaluate",
        "jaxagent.reporting.report",
        "jaxagent.reproduce",
    ):
        stub(name)
    return record


def error_line(capsys, *argv: str) -> str:
    """Runs a command line that must fail as the user's fault; returns its one line."""
    status = cli.main(list(argv))
    captured = capsys.readouterr()
    assert status == 2, captured.err
    assert captured.err.startswith("jaxagent: error: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


def test_train_gets_config_workdir_and_resume(here, calls):
    argv = ["train", "--workdir", "run", "--config=toy", "--config.seed=3", "--config.optimizer.learning_rate", "0.5"]
    assert cli.main([*argv, "--noconfig.logging.tensorboard"]) == 0
    name, (config, workdir), options = calls.made[0]
    assert (name, workdir, options["resume"]) == ("jaxagent.training.loop", "run", False)
    assert (config.seed, config.optimizer.learning_rate, config.logging.tensorboard) == (3, 0.5, False)
    assert json.loads((here / "run" / "config.json").read_text())["seed"] == 3


def test_resume_reaches_the_loop(here, calls):
    assert cli.main(["sft", "--config=toy", "--workdir=run"]) == 0
    assert cli.main(["sft", "--config=toy", "--workdir=run", "--resume"]) == 0
    assert [options["resume"] for _, _, options in calls.made] == [False, True]


def test_the_log_writes_into_the_run_folder(here, calls, monkeypatch):
    def run(config, workdir, *, resume, log):
        log.start(step=0, total=1, devices=["cpu 0"])
        log.write(1, {"reward/mean": 0.5})

    monkeypatch.setattr(sys.modules["jaxagent.training.loop"], "run", run)
    argv = ["train", "--config=toy", "--workdir=run", "--config.logging.tensorboard=false"]
    assert cli.main(argv) == 0
    assert json.loads((here / "run" / "metrics.jsonl").read_text()) == {"step": 1, "reward/mean": 0.5}


def test_evaluate_report_and_reproduce_are_called(here, calls, capsys):
    (here / "run").mkdir()
    assert cli.main(["evaluate", "--config=toy", "--workdir=run", "--name=mine"]) == 0
    shown = capsys.readouterr().out
    assert "run     Pass@4 [95 %]  50.0" in shown and "panel 0f1e of 3 tasks" in shown
    assert cli.main(["report", "run", "--output=out", "other"]) == 0
    assert cli.main(["reproduce", "--worlds=a,b", "--seeds=0,2", "--workdir=all", "--set", "seed=4"]) == 0
    (_, evaluate, evaluate_options), (_, report, _), (_, reproduce, options) = calls.made
    assert evaluate[1:] == ("run",)
    assert evaluate_options == {"run_folder": "run", "name": "mine"}
    assert report == (["run", "other"], "out")
    assert reproduce == (["a", "b"], ["base", "grpo_full", "budgetmix"], [0, 2], "all")
    assert options == {"overrides": ["seed=4"]}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trian"], "did you mean 'train'"),
        (["fly"], "commands: sft, train"),
        (["train"], "--config"),
        (["train", "--config=toy"], "--workdir"),
        (["train", "--config=toy", "--workdir"], "Missing value for flag --workdir"),
        (["train", "--config=toy", "--workdir=run", "--resum"], "resume"),
        (["train", "--config=toy", "--workdir=run", "extra"], "'extra'"),
        (["train", "--config=toy", "--workdir=run", "--config.optimizer.learning_rat=1"], "'optimizer.learning_rate'"),
        (["train", "--config=toy", "--workdir=run", "--config.seed=many"], "config.seed"),
        (["train", "--config=toy", "--workdir=run", "--config.budget=3"], "is a section"),
        (["train", "--config=tou", "--workdir=run"], "did you mean 'toy'"),
        (["train", "--config=nothing.py", "--workdir=run"], "nothing.py: no such file"),
        (["train", "--config=toy:broken", "--workdir=run"], "toy.py, line 6"),
        (["train", "--config=lookup_tiny:nope", "--workdir=run"], "'nope'"),
        (["train", "--config=toy", "--workdir=configs/toy.py"], "configs/toy.py: cannot be written"),
        (["train", "--config=toy", "--workdir=configs/toy.py/deeper"], "cannot be written"),
        (["evaluate", "--config=toy", "--workdir=nowhere"], "nowhere: no such folder"),
        (["evaluate", "--config=toy", "--workdir=.", "--name=../up"], "--name=../up"),
        (["report"], "at least one run folder"),
        (["report", "run", "--output=configs/toy.py"], "--output=configs/toy.py: cannot be written"),
        (["reproduce", "--workdir=all", "--seeds=one"], "'one'"),
        (["reproduce", "--workdir=all", "--seeds=1,1"], "--seeds"),
        (["reproduce", "--workdir=all", "--worlds="], "--worlds"),
        (["reproduce", "--workdir=all", "--set", "sed=1"], "did you mean 'seed'"),
        (["reproduce", "--workdir=all", "--set", "seed"], "field=value"),
        (["reproduce"], "--workdir"),
    ],
)
def test_the_users_mistakes_are_one_line(here, calls, capsys, argv, said):
    assert said in error_line(capsys, *argv)
    assert not calls.made


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(here, calls, capsys):
    (here / "locked").mkdir(mode=0o500)
    assert "locked" in error_line(capsys, "train", "--config=toy", "--workdir=locked/run")


def test_a_folder_that_holds_a_run_is_not_overwritten(here, calls, capsys):
    assert cli.main(["train", "--config=toy", "--workdir=run"]) == 0
    (here / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    assert "--resume" in error_line(capsys, "train", "--config=toy", "--workdir=run")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (UserError("the checkpoint\ndoes not fit"), "error: the checkpoint does not fit"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device, while working in run"),
        (PermissionError(errno.EACCES, "Permission denied", "/some/file"), "/some/file: Permission denied"),
    ],
)
def test_what_the_users_machine_does_is_one_line(here, calls, capsys, failure, said):
    calls.failure = failure
    assert said in error_line(capsys, "train", "--config=toy", "--workdir=run")


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), ValueError("a bug"), OSError("a bug"), KeyError("a bug")])
def test_a_bug_shows_its_traceback(here, calls, capsys, failure):
    calls.failure = failure
    assert cli.main(["train", "--config=toy", "--workdir=run"]) == 1
    assert "Traceback" in (err := capsys.readouterr().err)
    assert "a bug" in err


@pytest.mark.parametrize(("failure", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_interrupted(here, calls, capsys, failure, status):
    calls.failure = failure
    assert cli.main(["train", "--config=toy", "--workdir=run"]) == status
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupted_evaluation_says_how_to_go_on(here, calls, capsys):
    (here / "run").mkdir()
    calls.failure = KeyboardInterrupt()
    assert cli.main(["evaluate", "--config=toy", "--workdir=run"]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_version_and_overview(capsys):
    assert cli.main(["--version"]) == 0
    assert jaxagent.__version__ in capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(command in overview for command in ("sft", "train", "evaluate", "report", "reproduce"))
    assert cli.main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_has_help(capsys, command):
    assert cli.main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: jaxagent {command}" in out
    assert ("--config.optimizer.learning_rate = 0.0005" in out) == cli.COMMANDS[command].takes_config


def test_a_mistake_is_answered_without_jax(here):
    code = (
        "import sys; from jaxagent import cli;"
        "status = cli.main(['train', '--config=toy', '--workdir=run', '--config.sed=1']);"
        "print(status, 'jax' in sys.modules, 'pandas' in sys.modules, 'matplotlib' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.split() == ["2", "False", "False", "False"]
    assert "did you mean 'seed'" in done.stderr
