"""Every experiment in configs/paper: each variant builds, and its `runlocal` trains and evaluates on a CPU."""

import json
import pathlib

import pytest
from tiny_runs import assert_every_update_moved

from jaxagent import cli
from jaxagent.config_files import load_config
from jaxagent.errors import UserError
from jaxagent.rollout.setup import make_setup
from jaxagent.training.options import algorithm_options, check_algorithm

ROOT = pathlib.Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "configs" / "paper").glob("*.py"))
VARIANTS = ("base", "grpo_full", "budgetmix", "gigpo", "gigpo_budgetmix", "ppo_budgetmix")
MISSING = ("jaxagent data", "bubblewrap", "pip install")  # what a machine may lack, as the errors call it


def setup_of(config):
    try:
        return make_setup(config)
    except UserError as error:
        if any(word in str(error) for word in MISSING):
            pytest.skip(str(error))
        raise


def test_there_are_experiments():
    assert "frozen_lake" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_builds(name):
    for variant in VARIANTS:
        config = load_config(f"paper/{name}:{variant}")
        check_algorithm(config)
        algorithm_options(config)
        assert config.model.pretrained and config.rollout.max_turns <= config.rollout.max_context
        assert ("mix" in variant) == (config.budget.sampler == "budgetmix" and variant != "base")
        assert config.algorithm.name == {"gigpo": "gigpo", "ppo": "ppo"}.get(variant.split("_")[0], "grpo")
        assert config.eval.k == 8 and tuple(config.eval.percents) == (25, 50, 75, 100)
        local = setup_of(load_config(f"paper/{name}:{variant},runlocal"))
        assert local.config.algorithm.steps == 2 and not local.config.model.pretrained
    text = (ROOT / "configs" / "paper" / f"{name}.py").read_text()
    for word in ("Reproduces", "Hardware", "Command", "jaxagent reproduce", "arXiv 2611.06483"):
        assert word in text, word


def runs(name, variant, folder, capsys, *, evaluate):
    """Two updates, and an evaluation, through the command line."""
    setup_of(load_config(f"paper/{name}:{variant},runlocal"))
    config = f"--config=paper/{name}:{variant},runlocal"
    assert cli.main(["train", config, f"--workdir={folder}"]) == 0, capsys.readouterr().err
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert_every_update_moved(lines)
    assert all(line["cost/compilations"] == 0 and line["rollout/turns"] > 0 for line in lines)
    assert all(line["reward/void_share"] == 0 for line in lines)
    if not evaluate:
        return
    assert cli.main(["evaluate", config, f"--workdir={folder}"]) == 0, capsys.readouterr().err
    summary = json.loads((folder / "eval" / "panel" / "summary.json").read_text())
    assert set(summary["budgets"]) == {"25", "50", "75", "100"}


@pytest.mark.parametrize("name", NAMES)
def test_runlocal_runs(name, tmp_path, capsys):
    runs(name, "budgetmix", tmp_path, capsys, evaluate=False)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in ("base", "budgetmix")])
@pytest.mark.parametrize("name", NAMES)
def test_runlocal_of_the_other_variants_runs(name, variant, tmp_path, capsys):
    runs(name, variant, tmp_path, capsys, evaluate=True)
