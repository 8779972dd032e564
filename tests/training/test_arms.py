"""Every algorithm arm of the shipped experiments trains: a smoke run of the real loop."""

import numpy as np
import pytest
from tiny_runs import SMALL, SilentLog

from jaxagent.config import ALGORITHM_ARMS
from jaxagent.config_files import apply_overrides, load_config
from jaxagent.training import loop

FAST = {("lookup_tiny", "gigpo_budgetmix"), ("lookup_tiny", "ppo_budgetmix")}
RUNS = [
    pytest.param(world, arm, marks=() if (world, arm) in FAST else pytest.mark.slow)
    for world in ("lookup_tiny", "fog_lake_tiny")
    for arm in ALGORITHM_ARMS
]


def pay(before, result, after):
    """A step reward that even a policy of random words earns."""
    return 1 + len(result.observation.text) % 3


# FrozenLake's words need more room than the smallest run has.
ROOM = {"lookup_tiny": SMALL, "fog_lake_tiny": [s for s in SMALL if "context" not in s and "row_tokens" not in s]}


@pytest.mark.parametrize(("world", "arm"), RUNS)
def test_an_arm_trains(tmp_path, world, arm):
    more = ["algorithm.steps=2", "eval.every=0", "checkpoint.every=9", "env.step_reward=none"]
    if arm.startswith(("gigpo", "ppo")):
        more[-1] = "env.step_reward=test_arms:pay"
    log = SilentLog()
    config = apply_overrides(load_config(f"{world}:{arm},runlocal"), [*ROOM[world], *more])
    loop.run(config, tmp_path, resume=False, log=log)
    assert list(log.lines) == [1, 2]
    for line in log.lines.values():
        assert line["cost/compilations"] == 0
        assert all(np.isfinite(value) for value in line.values())
        assert line["train/tokens"] > 0
        assert ("critic/loss" in line) == arm.startswith("ppo")
    if arm.startswith(("gigpo", "ppo")):
        assert any(line["reward/step_reward_mean"] != 0 for line in log.lines.values())
        assert log.lines[1]["train/grad_norm"] > 0
