import pytest
from tiny_runs import SilentLog, assert_every_update_moved

from jaxagent.config_files import apply_overrides, load_config
from jaxagent.envs import registry, sandbox
from jaxagent.errors import UserError
from jaxagent.training import loop

LAYERS, COMPLAINT = sandbox.isolation()
isolated = pytest.mark.skipif(LAYERS is None, reason=f"no isolation here: {COMPLAINT}")
VARIANTS = {
    "grpo_full": ("grpo", "fixed"),
    "budgetmix": ("grpo", "budgetmix"),
    "gigpo": ("gigpo", "fixed"),
    "gigpo_budgetmix": ("gigpo", "budgetmix"),
    "ppo_budgetmix": ("ppo", "budgetmix"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_build(variant, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path))
    config = load_config(f"paper/deepcoder_mt:{variant}")
    assert (config.algorithm.name, config.budget.sampler) == VARIANTS[variant]
    assert config.env.options.max_turns == config.rollout.max_turns == 4
    with pytest.raises(UserError, match="jaxagent data deepcoder --source=FOLDER"):
        registry.get(config.env.name).make_tasks(config.env.options.to_dict(), "train", 4, 0)
    local = load_config(f"paper/deepcoder_mt:{variant},runlocal")
    assert registry.get("deepcoder").make_tasks(local.env.options.to_dict(), "panel", 4, 0).task(0).max_turns == 4


@isolated
@pytest.mark.slow
def test_runlocal_runs_two_updates_on_generated_problems(tmp_path):
    overrides = [
        "model.width=16",
        "model.mlp_width=16",
        "model.head_dim=8",
        "model.num_heads=2",
        "model.num_kv_heads=2",
    ]
    config = apply_overrides(
        load_config("paper/deepcoder_mt:budgetmix,runlocal"), [*overrides, "logging.tensorboard=False"]
    )
    log = SilentLog()
    loop.run(config, tmp_path, resume=False, log=log)
    assert list(log.lines) == [1, 2]
    assert_every_update_moved(log.lines.values())
    for line in log.lines.values():
        assert line["rollout/episodes"] == 8 and line["rollout/void_episodes"] == 0
