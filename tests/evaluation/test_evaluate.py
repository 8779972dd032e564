"""`jaxagent evaluate` writes everything, survives interruptions, and refuses what it could not answer at once."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict
from tiny_runs import tiny_config

from jaxagent.episodes import read_episodes, write_episodes
from jaxagent.errors import UserError
from jaxagent.evaluation import evaluate
from jaxagent.evaluation.pass_at import pass_at_k_percent, pass_at_turn_budget, told_enforced_matrix
from jaxagent.models import decoder
from jaxagent.rollout import setup as setups
from jaxagent.sharding.mesh import make_mesh
from jaxagent.training.checkpoints import Checkpoints
from jaxagent.training.state import TrainState

SMALL = (
    "rollout.extend_buckets=(8,)",
    "eval.panel_tasks=4",
    "eval.panel_samples=4",
    "eval.k=4",
    "eval.analysis_states=20",
)
HALF = "eval.percents=(50, 100)"


@pytest.fixture(scope="module", autouse=True)
def one_device():
    """Compiles for one device instead of eight: a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setups, "make_mesh", lambda *sizes: make_mesh(devices=jax.devices()[:1]))
        yield


def untrained_run(folder, seed=0):
    """A run folder whose checkpoint holds random weights."""
    setup = setups.make_setup(tiny_config())
    shapes = jax.eval_shape(lambda: decoder.init_params(setup.model, jax.random.key(0)))
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype), shapes)
    saved = Checkpoints(folder, setup.model, kind="sft")
    saved.save(TrainState(params, optax.sgd(1.0).init(params), jnp.int32(seed)), {})
    saved.close()
    return folder


def run(folder, name, *overrides, config=None, percents=HALF):
    config = config or tiny_config(*SMALL, percents, *overrides)
    return evaluate.run(config, folder, run_folder=str(folder), name=name)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def folder(base):
    run(base, "panel", "eval.analysis=True", f"eval.reference_run={base}")
    return base / "eval" / "panel"


@pytest.fixture
def copy(base, tmp_path):
    """The base run without its evaluations."""
    return shutil.copytree(base, tmp_path / "copy", ignore=shutil.ignore_patterns("eval"))


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_surface_is_that_of_the_episodes(folder):
    surface, episodes = read(folder, "surface.json"), list(read_episodes(folder / "episodes.jsonl.gz"))
    grid = pass_at_k_percent(episodes, [1, 2, 4], [50, 100])
    assert surface["ks"] == [1, 2, 4] and surface["pass_at_k"] == grid.mean.tolist()
    matrix = surface["told_enforced"]
    assert matrix["told_percent"] == [50, 100, None] and matrix["pass_at_k"][0][1] is None
    own = told_enforced_matrix(episodes, 4, [50, 100], [50, 100], unit="percent").mean
    assert matrix["pass_at_k"][0][0] == own[0, 0] and matrix["pass_at_k"][1] == own[1].tolist()
    for row, ends in zip(matrix["pass_at_k"], zip(matrix["low"], matrix["high"], strict=True), strict=True):
        for value, low, high in zip(row, *ends, strict=True):
            assert (value is None and low is None) or low <= value <= high
    assert surface["hazard"]["100"]["survivors"][0] == 16
    assert surface["tasks_with_equal_samples"] == 0
    solvable = surface["feasible"]["100"]
    assert solvable["num_tasks"] == 4 and solvable["pass_at_k"] == [row[1] for row in surface["pass_at_k"]]
    assert surface["samples_per_task"] == {"least": [4, 4], "most": [4, 4]}
    # Four samples at half the budget make up the turns of two full episodes.
    matched = pass_at_turn_budget(episodes, 200, [50, 100], unit="percent")
    assert surface["turn_budget"]["turns_percent"] == 200 and surface["turn_budget"]["mean_k"] == [4, 2]
    assert surface["turn_budget"]["pass_at_turn_budget"] == matched.mean.tolist()


def test_a_policy_does_not_gain_over_itself(folder):
    analysis = read(folder, "analysis.json")
    assert analysis["policy"] == analysis["reference"] and analysis["policy"]["episodes"] == 16
    assert analysis["gain"]["gain"] == 0 and analysis["difference"]["optimal_mass"]["frozen_states"]
    hybrids = analysis["hybrids"]
    assert hybrids["policy_then_reference"] == hybrids["reference_then_policy"] == hybrids["policy"]
    for name in ("after_error", "control"):
        assert analysis["injected_errors"][name]["difference"]["estimate"] == 0
    for curves in analysis["likelihood"].values():
        assert not any(curves["kl"]) and min(curves["entropy"]) > 0
        assert curves["survivors"][0] == 16
    masses = analysis["policy"]["optimal_mass"]
    for place in ("own_states", "frozen_states"):
        for kind in ("budget_free", "budget_aware"):
            assert 0 <= masses[place][kind]["low"] < masses[place][kind]["estimate"] < masses[place][kind]["high"] < 1


def test_without_analysis_nothing_more_is_rolled_out(folder):
    summary = read(folder, "summary.json")
    assert summary["cost"]["rollout/episodes"] == 2 * 16  # the told panel alone
    assert summary["cost"]["time/analysis"] > 0 and "rollout/kept_episodes" not in summary["cost"]
    assert not (folder / evaluate.UNFINISHED).exists()


def test_two_policies_differ_and_every_figure_has_its_interval(base, other):
    run(other, "panel", "eval.analysis=True", f"eval.reference_run={base}")
    analysis = read(other / "eval" / "panel", "analysis.json")
    assert analysis["likelihood"]["on_policy_episodes"]["cumulative_kl"][-1] > 0
    for side in ("policy", "reference"):
        for name in ("success", "invalid_rate", "error_rate", "good_rate"):
            figure = analysis[side][name]
            assert figure["low"] <= figure["estimate"] <= figure["high"]
            difference = analysis["difference"][name]
            assert difference["low"] <= difference["estimate"] <= difference["high"]
    for name in ("success", "invalid_rate"):
        gap = analysis["policy"][name]["estimate"] - analysis["reference"][name]["estimate"]
        assert analysis["difference"][name]["estimate"] == pytest.approx(gap)
    sets = analysis["solved_sets"]
    assert sets["both"] + sets["only_policy"] + sets["only_reference"] + sets["neither"] == 4
    gain = analysis["gain"]
    assert gain["gain"] == pytest.approx(analysis["difference"]["success"]["estimate"])
    assert analysis["hybrids"]["reference"]["over_reference"]["estimate"] == 0


# ---- interruptions ----


def interrupt(monkeypatch, folder, where="analyse", **fields):
    """An evaluation that is stopped by Ctrl-C once it gets to `where`."""

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, where, stop)
        with pytest.raises(KeyboardInterrupt):
            run(folder, "panel", "eval.analysis=True", f"eval.reference_run={folder}", **fields)
    return folder / "eval" / "panel" / evaluate.UNFINISHED


def finish(folder, *overrides, **fields):
    return run(folder, "panel", "eval.analysis=True", f"eval.reference_run={folder}", *overrides, **fields)["cost"]


def test_an_interrupted_evaluation_goes_on(folder, copy, monkeypatch):
    pieces = interrupt(monkeypatch, copy)
    assert {path.name for path in pieces.iterdir()} == {
        "settings.json",
        *(f"{name}.jsonl.gz" for name in ("told_50", "told_100", "no_line")),
    }
    (pieces / "told_50.jsonl.gz").unlink()  # as if the signal had come earlier
    full = list(read_episodes(pieces / "told_100.jsonl.gz"))
    void = dataclasses.replace(full[3], end_reason="infrastructure", success=False, success_turn=None, reward=0.0)
    write_episodes(pieces / "told_100.jsonl.gz", [*full[:3], void, *full[4:]])
    cost = finish(copy)
    assert cost["rollout/episodes"] == 16 + 1  # what was missing, and what was void
    assert cost["rollout/kept_episodes"] == 15 + 16
    done = copy / "eval" / "panel"
    for name in ("episodes.jsonl.gz", "surface.json"):
        assert (done / name).read_bytes() == (folder / name).read_bytes()
    found, expected = read(done, "analysis.json"), read(folder, "analysis.json")
    assert found | {"reference_run": ""} == expected | {"reference_run": ""}
    assert not pieces.exists()


def test_more_samples_and_budgets_add_to_what_is_there(copy, monkeypatch):
    interrupt(monkeypatch, copy)
    cost = finish(copy, "eval.panel_samples=5", percents="eval.percents=(25, 50, 100)")
    assert cost["rollout/episodes"] == 3 * 4 * 5 - 2 * 16


@pytest.mark.parametrize("override", ["rollout.temperature=0.9", "budget.wording=sentence", "env.options.retry=True"])
def test_pieces_of_other_settings_are_not_mixed_in(copy, monkeypatch, override):
    interrupt(monkeypatch, copy, where="_panel_episodes")
    interrupt(monkeypatch, copy)
    with pytest.raises(UserError, match=override.split("=")[0]):
        finish(copy, override)


def test_pieces_of_other_weights_are_not_mixed_in(copy, other, monkeypatch):
    interrupt(monkeypatch, copy)
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree(other / "checkpoints", copy / "checkpoints")
    with pytest.raises(UserError, match="weights"):
        finish(copy)


def test_damaged_pieces_are_named(copy, monkeypatch):
    pieces = interrupt(monkeypatch, copy)
    (pieces / "told_50.jsonl.gz").write_bytes(b"\x1f\x8bdamaged")
    with pytest.raises(UserError, match="told_50"):
        finish(copy)
    (pieces / "settings.json").write_text("{")
    with pytest.raises(UserError, match=r"settings.json: .* start afresh"):
        finish(copy)


# ---- panels ----


def test_a_panel_file_decides_which_tasks_are_met(folder, copy):
    result = run(copy, "again", f"eval.panel={folder / 'panel.json'}", "eval.panel_tasks=9")
    assert result["num_tasks"] == 4 and result["panel_hash"] == read(folder, "panel.json")["content_hash"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields["task_ids"].reverse(), "it was edited"),
        (lambda fields: fields.update(env="frozen_lake"), "is of frozen_lake"),
        (lambda fields: fields["options"].update(retry=True), "the config says"),
        (lambda fields: fields.pop("env"), "not a panel"),
    ],
)
def test_panel_files_that_do_not_fit_are_refused(folder, copy, tmp_path, change, message):
    fields = read(folder, "panel.json")
    change(fields)
    (tmp_path / "panel.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=message):
        run(copy, "again", f"eval.panel={tmp_path / 'panel.json'}")
    with pytest.raises(UserError, match="no such panel"):
        run(copy, "again", "eval.panel=missing.json")


def test_a_panel_of_another_seed_is_not_this_one(folder, copy):
    with pytest.raises(UserError, match="the tasks at hand have hash"):
        run(copy, "again", f"eval.panel={folder / 'panel.json'}", "eval.panel_seed=2")


def test_training_tasks_never_enter_the_panel(copy, monkeypatch):
    setup_tasks = setups.Setup.tasks
    monkeypatch.setattr(setups.Setup, "tasks", lambda self, split, size: setup_tasks(self, "panel", size))
    with pytest.raises(UserError, match="panel tasks are training tasks too"):
        run(copy, "again")


# ---- refusals before anything is rolled out ----


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["eval.reference_run=somewhere"], "set eval.analysis=True"),
        (["eval.analysis=True", "eval.analysis_samples=5"], "exceeds eval.panel_samples=4"),
        (["eval.analysis=True", "eval.analysis_states=0"], "eval.analysis_states must be"),
        (["eval.analysis=True", "eval.recovery_horizon=0"], "eval.recovery_horizon must be"),
        (["eval.analysis=True", "eval.reference_run=missing"], "missing: no such run folder"),
        (["eval.panel_samples=3"], "eval.k=4 exceeds"),
    ],
)
def test_what_cannot_be_answered_is_refused_at_once(copy, monkeypatch, overrides, message):
    monkeypatch.setattr(evaluate, "_panel_episodes", lambda *args: pytest.fail("rolled out before it was refused"))
    with pytest.raises(UserError, match=message):
        run(copy, "refused", *overrides)
    assert not (copy / "eval" / "refused").exists()


# ---- no exact oracle ----


def test_an_environment_without_an_oracle_is_analysed_by_its_own_word(base, other, tmp_path):
    config = tiny_config(*SMALL, HALF, "eval.analysis=True", f"eval.reference_run={base}", "rollout.max_turns=8")
    with config.unlocked():
        config.env.name, config.env.options = "check_list:ENTRY", ConfigDict()
    result = run(other, "check_list", config=config)
    assert result["world"] == "check_list:ENTRY"
    done = other / "eval" / "check_list"
    episodes = list(read_episodes(done / "episodes.jsonl.gz"))
    # A reply that hit its cap never reached the environment.
    assert {turn.good for e in episodes for turn in e.turns if not turn.truncated} == {True, False}
    analysis = read(done, "analysis.json")
    full = [e for e in episodes if e.told_budget == 8]
    shares = {}
    for episode in full:
        shares.setdefault(episode.task_id, []).append(sum(bool(t.good) for t in episode.turns) / len(episode.turns))
    expected = sum(sum(values) / len(values) for values in shares.values()) / len(shares)
    assert analysis["policy"]["good_rate"]["estimate"] == pytest.approx(expected)
    assert "optimal_mass" not in analysis["policy"]
    assert analysis["policy"]["recovery"]["errors"] > 0 and analysis["injected_errors"]["count"] > 0
    assert "estimate" in analysis["injected_errors"]["after_error"]["difference"]
