"""A whole tiny run in this process: what it logs and writes, no compilation after warm-up, workers change nothing."""

import shutil

import jax
import numpy as np
import pytest
from tiny_runs import SilentLog, assert_every_update_moved, tiny_config

from jaxagent.episodes import read_episodes
from jaxagent.errors import UserError
from jaxagent.rollout.setup import make_setup
from jaxagent.training import checkpoints, loop, sft
from jaxagent.training import state as states


def train(workdir, *overrides, variant="budgetmix,runlocal", resume=False):
    log = SilentLog()
    config = tiny_config(*overrides, variant=variant)
    loop.run(config, workdir, resume=resume, log=log)
    return config, log


def params_of(config, workdir):
    setup = make_setup(config)
    optimizer = states.make_optimizer(states.optimizer_settings(config.optimizer))
    shardings = states.state_shardings(setup.model, optimizer, setup.mesh).params
    return checkpoints.load_params(workdir, setup.model, shardings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    config, log = train(workdir, "logging.trajectories=sample:5", "algorithm.steps=4")
    assert_every_update_moved(log.lines.values())
    return config, log, workdir


def test_a_run_logs_every_update_and_compiles_nothing_after_warm_up(finished):
    _, log, _ = finished
    assert log.started == (0, 4) and list(log.lines) == [1, 2, 3, 4]
    for line in log.lines.values():
        assert line["cost/compilations"] == 0
        assert line["groups/count"] == 4 and line["rollout/episodes"] == 16
        assert 0 < line["rollout/occupancy"] <= 1
        assert line["time/step"] >= line["time/rollout"] + line["time/update"] - 1e-6
        assert all(np.isfinite(value) for value in line.values())
    looks = [step for step, line in log.lines.items() if "eval/pass_at_1" in line]
    assert looks == [2, 4] and {f"eval/pass_at_1_{p}" for p in (25, 50, 75, 100)} <= log.lines[2].keys()


def test_trajectories_and_their_budgets(finished):
    _, _, workdir = finished
    assert sorted(p.name for p in (workdir / "trajectories").iterdir()) == [f"step_{i}.jsonl.gz" for i in range(4)]
    written = list(read_episodes(workdir / "trajectories" / "step_3.jsonl.gz"))
    assert len(written) == 5
    assert all(e.told_budget == e.enforced_budget and e.step == 3 for e in written)


def test_a_finished_run_resumes_to_nothing(finished):
    _, _, workdir = finished
    _, log = train(workdir, "logging.trajectories=sample:5", "algorithm.steps=4", resume=True)
    assert log.started == (4, 4) and not log.lines


def test_the_best_checkpoint_is_loaded_and_a_wrong_model_is_named(finished):
    config, log, workdir = finished
    looks = {step: line["eval/pass_at_1"] for step, line in log.lines.items() if "eval/pass_at_1" in line}
    _, record = params_of(config, workdir)
    assert record["step"] == max(looks, key=lambda step: (looks[step], -step))
    with pytest.raises(UserError, match="width"):
        params_of(tiny_config("model.width=32"), workdir)
    with pytest.raises(UserError, match="no such run folder"):
        params_of(config, workdir / "absent")
    with pytest.raises(UserError, match="no checkpoint"):
        params_of(config, workdir / "trajectories")


def test_workers_change_nothing(finished, tmp_path):
    config, log, workdir = finished
    _, other = train(tmp_path / "workers", "env.workers=2", "algorithm.steps=4")
    left, right = (jax.tree.leaves(params_of(config, path)[0]) for path in (workdir, tmp_path / "workers"))
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [line["reward/mean"] for line in log.lines.values()] == [
        line["reward/mean"] for line in other.lines.values()
    ]


def test_replay_trains_on_untold_rollouts(tmp_path):
    _, log = train(
        tmp_path / "replay",
        "algorithm.replay_budgets=True",
        "budget.announce=none",
        "algorithm.steps=2",
        "eval.every=0",
    )
    assert_every_update_moved(log.lines.values())
    drawn = {tenth for line in log.lines.values() for tenth in range(1, 11) if line[f"budget/groups_tenth_{tenth}"]}
    assert drawn and all(line["groups/count"] == 4 for line in log.lines.values())


def test_cloning_lowers_the_loss_and_gives_a_base(tmp_path):
    base = tmp_path / "base"
    config = tiny_config("sft.steps=12", "sft.demonstrations=16", variant="base,runlocal")
    log = SilentLog()
    sft.run(config, base, resume=False, log=log)
    assert list(log.lines) == list(range(1, 13))
    assert log.lines[12]["sft/policy_nll"] < log.lines[1]["sft/policy_nll"] - 0.5
    params, record = params_of(config, base)
    assert record["step"] == 12
    started, _ = train(tmp_path / "arm", f"model.init_from={base}", "algorithm.steps=1", "eval.every=0")
    moved, _ = params_of(started, tmp_path / "arm")
    shift = max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(moved), strict=True))
    assert 0 < shift < 0.01, "an arm starts from the base"


def test_two_epochs_count_as_one_update_and_keep_the_old_log_probs(tmp_path):
    """F11 in the loop itself: in the last epoch the ratio against the fixed old log-probs has moved."""
    _, log = train(
        tmp_path / "epochs",
        "algorithm.epochs=2",
        "algorithm.entropy_coefficient=0.5",
        "optimizer.learning_rate=0.05",
        "algorithm.steps=2",
        "eval.every=2",
    )
    assert list(log.lines) == [1, 2] and "eval/pass_at_1" in log.lines[2]
    assert all(abs(line["train/ratio"] - 1) > 1e-4 for line in log.lines.values())


def test_training_does_not_go_on_from_cloning(tmp_path):
    config = tiny_config("sft.steps=1", "sft.demonstrations=8")
    sft.run(config, tmp_path / "run", resume=False, log=SilentLog())
    with pytest.raises(UserError, match="init_from"):
        train(tmp_path / "run", "sft.steps=1", "sft.demonstrations=8", resume=True)


def test_a_damaged_checkpoint_is_one_clear_line(finished, tmp_path):
    config, _, workdir = finished
    copy = tmp_path / "copy"
    shutil.copytree(workdir, copy)
    for path in (copy / "checkpoints").rglob("*"):
        if path.is_file() and "state" in path.parts:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match="cannot be read"):
        params_of(config, copy)
    with pytest.raises(UserError, match="cannot be read"):
        train(copy, "logging.trajectories=sample:5", "algorithm.steps=5", resume=True)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algorithm.name=trpo", "algorithm.name"),
        ("algorithm.group_size=1", "group_size"),
        ("algorithm.old_logprobs=guess", "old_logprobs"),
        ("algorithm.replay_budgets=True", "budget.announce"),
        ("budget.sampler=dice", "budget.sampler"),
        ("budget.announce=shout", "budget.announce"),
        ("budget.percent=50", "budget.sampler=fixed"),
        ("budget.stages=((0, 50),)", "budget.sampler=curriculum"),
        ("rollout.temperature=0.0", "temperature"),
        ("rollout.extend_buckets=(8, 4)", "extend_buckets"),
        ("optimizer.row_tokens=16", "row_tokens"),
        ("optimizer.micro_rows=3", "micro_rows"),
        ("optimizer.name=lion", "optimizer.name"),
        ("optimizer.weight_decay=0.1", "weight_decay"),
        ("logging.trajectories=some", "trajectories"),
        ("model.tokenizer=absent_folder", "absent_folder"),
        ("model.init_from=absent_run", "absent_run"),
        ("env.name=chess", "chess"),
        ("env.options.colour=red", "colour"),
        ("mesh.data=3", "mesh.data"),
        ("seed=-1", "seed"),
        ("checkpoint.every=0", "checkpoint.every"),
        ("checkpoint.keep=0", "checkpoint.keep"),
        ("optimizer.micro_rows=0", "micro_rows"),
        ("optimizer.learning_rate=-1.0", "learning_rate"),
        ("algorithm.clip_low=2.0", "clip_low"),
        ("eval.percents=(0,)", "eval.percents"),
        ("eval.percents=()", "eval.percents"),
        ("eval.samples=0", "eval.samples"),
        ("eval.k=99", "eval.k"),
        ("rollout.ready_slots=-1", "ready_slots"),
    ],
)
def test_what_cannot_be_honoured_is_named(tmp_path, override, named):
    with pytest.raises(UserError, match=named.replace(".", r"\.")):
        train(tmp_path / "run", override)


def test_without_cloning_steps_the_base_is_another_bases_weights_as_they_are(tmp_path):
    sft.run(tiny_config("sft.steps=1", "sft.demonstrations=8"), tmp_path / "first", resume=False, log=SilentLog())
    config = tiny_config("sft.steps=0", f"model.init_from={tmp_path / 'first'}")
    sft.run(config, tmp_path / "base", resume=False, log=SilentLog())
    first, _ = params_of(config, tmp_path / "first")
    base, record = params_of(config, tmp_path / "base")
    assert record["step"] == 0
    jax.tree.map(np.testing.assert_array_equal, base, first)
