"""`jaxagent evaluate` writes everything; compared with itself a policy shows no difference anywhere."""

import json

import pytest
from tiny_runs import SilentLog, tiny_config

from jaxagent.episodes import read_episodes
from jaxagent.evaluation import evaluate
from jaxagent.evaluation.pass_at import pass_at_k_percent, told_enforced_matrix
from jaxagent.training import sft


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("run")
    small = ["sft.steps=6", "eval.panel_tasks=4", "eval.panel_samples=4", "eval.k=4", "eval.percents=(50, 100)"]
    sft.run(tiny_config(*small), str(base), resume=False, log=SilentLog())
    extra = ["eval.analysis=True", f"eval.reference_run={base}", "eval.analysis_states=20"]
    evaluate.run(tiny_config(*small, *extra), base, run_folder=str(base), name="panel")
    return base / "eval" / "panel"


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
    assert surface["hazard"]["100"]["survivors"][0] == 16


def test_a_policy_does_not_gain_over_itself(folder):
    analysis = read(folder, "analysis.json")
    assert analysis["policy"] == analysis["reference"] and analysis["policy"]["episodes"] == 16
    assert analysis["gain"]["gain"] == 0
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
            assert 0 < masses[place][kind]["mean"] < 1


def test_without_analysis_nothing_more_is_rolled_out(folder):
    summary = read(folder, "summary.json")
    assert summary["cost"]["rollout/episodes"] == 2 * 16  # the told panel alone
    assert summary["cost"]["time/analysis"] > 0
