"""Every algorithm arm of the shipped experiments trains: a smoke run of the real loop."""

import functools

import numpy as np
import pytest
from tiny_runs import SMALL, SilentLog

from jaxagent.config import ALGORITHM_ARMS
from jaxagent.config_files import apply_overrides, load_config
from jaxagent.training import loop, sft


def pay(before, result, after):
    """A step reward that even a policy of random words earns."""
    return 1 + len(result.observation.text) % 3


# FrozenLake's words need more room than the smallest run has.
ROOM = {"lookup_tiny": SMALL, "fog_lake_tiny": [s for s in SMALL if "context" not in s and "row_tokens" not in s]}
SHORT = ("algorithm.steps=2", "eval.every=0", "checkpoint.every=9")


def train(workdir, world, arm, *more):
    log = SilentLog()
    config = apply_overrides(load_config(f"{world}:{arm},runlocal"), [*ROOM[world], *SHORT, *more])
    loop.run(config, workdir, resume=False, log=log)
    assert list(log.lines) == [1, 2]
    for line in log.lines.values():
        assert line["cost/compilations"] == 0 and line["train/tokens"] > 0
        assert all(np.isfinite(value) for value in line.values())
        assert ("critic/loss" in line) == arm.startswith("ppo")
    return log.lines


@pytest.mark.parametrize("arm", ["gigpo_budgetmix", "ppo_budgetmix"])
def test_an_arm_trains_on_step_rewards(tmp_path, arm):
    lines = train(tmp_path, "lookup_tiny", arm, "env.step_reward=test_arms:pay")
    assert any(line["reward/step_reward_mean"] != 0 for line in lines.values())
    assert lines[1]["train/grad_norm"] > 0


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """World -> a run folder with a policy that was cloned until it succeeds now and then."""

    @functools.cache
    def clone(world):
        workdir = tmp_path_factory.mktemp(world)
        more = ("sft.steps=60", "sft.demonstrations=32", "sft.learning_rate=1e-2")
        config = apply_overrides(load_config(f"{world}:base,runlocal"), [*ROOM[world], *more])
        sft.run(config, workdir, resume=False, log=SilentLog())
        return workdir

    return clone


@pytest.mark.slow
@pytest.mark.parametrize("world", ROOM)
@pytest.mark.parametrize("arm", ALGORITHM_ARMS)
def test_an_arm_trains_on_outcomes_from_a_base(tmp_path, base, world, arm):
    lines = train(tmp_path, world, arm, f"model.init_from={base(world)}", "algorithm.groups=8")
    assert any(line["reward/success"] > 0 for line in lines.values())
    assert any(line["train/grad_norm"] > 0 and line["train/update_norm"] > 0 for line in lines.values())
