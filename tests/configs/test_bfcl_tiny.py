"""The tiny BFCL experiment builds, and its smoke run clones and trains."""

import json

import pytest
from tiny_runs import assert_every_update_moved

from jaxagent import cli
from jaxagent.config_files import load_config
from jaxagent.envs.bfcl import package, vocabulary
from jaxagent.rollout.setup import make_setup

pytestmark = pytest.mark.skipif(
    not package.is_installed() or not (vocabulary.folder() / "tokenizer.json").is_file(),
    reason="needs `jaxagent data bfcl`",
)


@pytest.mark.parametrize("variant", ["base", "grpo_full", "budgetmix"])
def test_it_builds_and_its_tasks_fit(variant):
    setup = make_setup(load_config(f"bfcl_tiny:{variant}"))
    config = setup.config
    panel, training = setup.tasks("panel", config.eval.panel_tasks), setup.tasks("train", config.env.train_tasks)
    environment = setup.entry.make_environment(config.env.options.to_dict())
    assert not {panel.task(i).id for i in range(len(panel))} & {training.task(i).id for i in range(len(training))}
    for index in range(len(panel)):
        text = environment.reset(panel.task(index), 0).text
        assert len(setup.chat.observation_ids(text, first=True)) < config.rollout.max_context / 2
        assert panel.task(index).max_turns <= config.rollout.max_turns


@pytest.mark.slow
def test_the_smoke_run_clones_and_trains(tmp_path):
    base, arm = tmp_path / "base", tmp_path / "budgetmix"
    assert cli.main(["sft", "--config=bfcl_tiny:base,runlocal", f"--workdir={base}"]) == 0
    train = ["train", "--config=bfcl_tiny:budgetmix,runlocal", f"--config.model.init_from={base}", f"--workdir={arm}"]
    assert cli.main([*train, "--config.algorithm.entropy_coefficient=0.01"]) == 0  # this base earns nothing
    lines = [json.loads(line) for line in (arm / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and all(line["rollout/turns"] > 0 for line in lines)
    assert_every_update_moved(lines)
