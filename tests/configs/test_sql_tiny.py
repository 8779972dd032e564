"""The tiny SQL experiment builds, its demonstrations fit into its lengths, and its smoke run clones and trains."""

import json

import pytest
from tiny_runs import assert_every_update_moved

from jaxagent import cli
from jaxagent.config_files import load_config
from jaxagent.rollout.setup import make_setup
from jaxagent.training.sft import demonstrate


@pytest.mark.parametrize("variant", ["base", "grpo_full", "budgetmix", "gigpo", "ppo_budgetmix"])
def test_demonstrations_fit_its_lengths(variant):
    setup = make_setup(load_config(f"sql_tiny:{variant}"))
    rollout = setup.config.rollout
    tasks = setup.tasks("train", 1 << 20)
    environment = setup.entry.make_environment(setup.config.env.options.to_dict())
    episodes = [demonstrate(setup, environment, tasks.task(i), step=0, member=i) for i in range(120)]
    assert 0.1 < sum(episode.success for episode in episodes) / 120 < 0.6  # room on both sides for the cloned base
    for episode in episodes:
        assert len(episode.token_ids()) <= rollout.max_context
        for turn in episode.turns:
            assert len(turn.sampled_ids) <= rollout.max_turn_tokens
            assert len(turn.observation_ids) < rollout.extend_buckets[-1]


@pytest.mark.slow
def test_the_smoke_run_clones_and_trains(tmp_path):
    base, arm = tmp_path / "base", tmp_path / "budgetmix"
    assert cli.main(["sft", "--config=sql_tiny:base,runlocal", f"--workdir={base}"]) == 0
    train = ["train", "--config=sql_tiny:budgetmix,runlocal", f"--config.model.init_from={base}", f"--workdir={arm}"]
    assert cli.main(train) == 0
    lines = [json.loads(line) for line in (arm / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3] and all(line["rollout/turns"] > 0 for line in lines)
    assert_every_update_moved(lines)
