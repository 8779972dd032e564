"""The algorithm section: every impossible combination is one line that names the option; schedules; arms."""

import numpy as np
import pytest
from tiny_runs import tiny_config

from jaxagent.config import ALGORITHM_ARMS
from jaxagent.config_files import load_config
from jaxagent.errors import UserError
from jaxagent.training import options
from jaxagent.training import state as states

PPO = ("algorithm.name=ppo", "algorithm.normalize_std=False", "algorithm.critic.kind=head")
RECOMPUTED = "algorithm.old_logprobs=recomputed"
KL = "algorithm.kl.coefficient=0.1"
KL_IN_REWARD = (KL, "algorithm.kl.place=reward", "algorithm.kl.kind=k1")
CASES = [
    (("algorithm.name=trpo",), "algorithm.name must be one of grpo"),
    (("algorithm.group_size=1",), "algorithm.group_size=1"),
    (("algorithm.groups=0",), "algorithm.groups"),
    (("algorithm.epochs=0",), "algorithm.epochs"),
    (("algorithm.minibatches=3",), "algorithm.minibatches=3 does not divide"),
    (("algorithm.old_logprobs=guess",), "algorithm.old_logprobs"),
    (("algorithm.ratio=sequence",), "algorithm.ratio"),
    (("algorithm.aggregation=mean",), "algorithm.aggregation"),
    (("algorithm.dual_clip=nan",), "algorithm.dual_clip must exceed 1"),
    ((*PPO, "algorithm.critic.learning_rate=0.0"), "critic.learning_rate=0"),
    (("algorithm.dual_clip=0.5",), "algorithm.dual_clip must exceed 1"),
    (("algorithm.clip_low=1.5",), "algorithm.clip_low"),
    (("algorithm.clip_high=-0.1",), "algorithm.clip_high"),
    (("algorithm.importance_cap=2.0",), "importance_cap compares .*recomputed"),
    (("algorithm.sequence_mask=(0.5, 2.0)",), "sequence_mask compares .*recomputed"),
    ((RECOMPUTED, "algorithm.sequence_mask=(2.0, 3.0)"), "0 <= low <= 1 <= high"),
    ((RECOMPUTED, "algorithm.sequence_mask_mean=True"), "sequence_mask_mean needs"),
    (("algorithm.name=rloo",), "normalize_std=True has no meaning"),
    (("algorithm.name=dr_grpo",), "normalize_std=True has no meaning"),
    (
        ("algorithm.name=dr_grpo", "algorithm.normalize_std=False", "algorithm.aggregation=token_mean"),
        "dr_grpo aggregates",
    ),
    (("algorithm.normalize_std=False", "algorithm.std_floor=0.1"), "std_floor needs"),
    (("budget.turn_cost=0.2",), "std_floor"),
    (("budget.turn_cost=2.0", "algorithm.std_floor=0.25"), "budget.turn_cost must lie"),
    (("algorithm.group_baseline=False",), "reinforce_plus_plus"),
    (("algorithm.overruns=penalty",), "overrun_penalty above 0"),
    (("algorithm.overrun_penalty=0.5",), "overruns=penalty"),
    (("algorithm.overruns=ignore",), "algorithm.overruns"),
    (("algorithm.zero_variance=maybe",), "algorithm.zero_variance"),
    (("algorithm.max_redraws=5",), "zero_variance=redraw"),
    ((*PPO, "algorithm.zero_variance=drop"), "group baselines"),
    ((*PPO, "algorithm.critic.kind=none"), "needs a critic"),
    ((*PPO, "algorithm.ppo.advantage=gae"), "algorithm.ppo.advantage"),
    ((*PPO, "algorithm.ppo.lam=1.5"), r"algorithm.ppo.lam must lie in \[0, 1\]"),
    ((*PPO, "algorithm.ppo.turn_lam=0.9"), "bi_level_gae"),
    ((*PPO, "algorithm.critic.kind=separate", "algorithm.critic.trunk_weight=0.5"), "critic.kind=head"),
    (
        (*PPO, *KL_IN_REWARD, "algorithm.ppo.advantage=bi_level_gae", "algorithm.ppo.bootstrap=turn_end"),
        "bi_level_gae and ppo.bootstrap=turn_end",
    ),
    (("rollout.top_p=0.9",), "rollout.top_p=0.9 with importance ratios"),
    ((*PPO, RECOMPUTED, "rollout.top_p=0.5"), "rollout.top_p=0.5 with importance ratios"),
    (("algorithm.critic.kind=head",), "critic.kind=head has no effect"),
    (("algorithm.gigpo.gamma=0.5",), "gigpo.gamma=0.5 has no effect"),
    (("algorithm.ppo.lam=0.5",), "ppo.lam=0.5 has no effect"),
    (("algorithm.name=gigpo", "algorithm.gigpo.anchor_match=fuzzy"), "anchor_match"),
    (("algorithm.name=gigpo", "algorithm.gigpo.episode_stats=turns"), "episode_stats"),
    (("algorithm.kl.kind=k2",), "kl.kind=k2 has no effect"),
    ((KL, "algorithm.kl.kind=k1"), "gradient of mean 0"),
    ((KL, "algorithm.kl.kind=k2", "algorithm.kl.place=reward"), "a reward has none"),
    ((KL, "algorithm.kl.decay=0.5"), "moving_average"),
    ((KL, "algorithm.kl.reference=best"), "kl.reference"),
    (("algorithm.kl.coefficient=-1.0",), "kl.coefficient"),
    (("env.step_reward=progress",), "reaches gigpo and ppo alone"),
    (("env.step_reward_scale=2.0",), "needs env.step_reward"),
    (("budget.sampler=dice",), "budget.sampler"),
    (("budget.percent=50",), "budget.percent=50 needs"),
]


@pytest.mark.parametrize(("overrides", "said"), CASES, ids=[" ".join(o for o in case[0][-2:]) for case in CASES])
def test_what_cannot_be_honoured_is_one_line(overrides, said):
    with pytest.raises(UserError, match=said) as caught:
        options.algorithm_options(tiny_config(*overrides))
    assert "\n" not in str(caught.value)


def test_kl_in_the_reward_works_where_turns_are_told_apart_and_values_stand_before_them():
    for more in ("algorithm.ppo.advantage=token_gae", "algorithm.ppo.advantage=bi_level_gae"):
        assert options.algorithm_options(tiny_config(*PPO, *KL_IN_REWARD, more)).kl.place == "reward"


@pytest.mark.parametrize("world", ["lookup_tiny", "fog_lake_tiny"])
@pytest.mark.parametrize("arm", [*ALGORITHM_ARMS, "rloo,budgetmix"])
def test_arms_are_possible_and_say_their_budgets(world, arm):
    config = load_config(f"{world}:{arm},runlocal")
    found = options.algorithm_options(config)
    assert found.name == arm.split(",")[0].split("_budgetmix")[0]
    assert config.budget.sampler == ("budgetmix" if "budgetmix" in arm else "fixed")
    assert (found.critic is not None) == arm.startswith("ppo")
    if arm == "dr_grpo":
        most = min(config.rollout.max_context, config.rollout.max_turns * config.rollout.max_turn_tokens)
        assert (found.loss.aggregation, found.loss.aggregation_constant) == ("dr_grpo", most)


def test_gspo_averages_over_sequences_unless_told_otherwise():
    aggregation = lambda *o: options.algorithm_options(tiny_config(*o)).loss.aggregation  # noqa: E731
    assert aggregation() == "token_mean"
    assert aggregation("algorithm.ratio=gspo_token") == "sequence_mean"
    assert aggregation("algorithm.ratio=gspo_token", "algorithm.aggregation=token_mean") == "token_mean"


def rates(*overrides, steps=12):
    """Learning rates by what SGD does to a weight of gradient 1."""
    config = tiny_config("optimizer.name=sgd", "optimizer.clip_norm=0.0", "optimizer.learning_rate=1.0", *overrides)
    optimizer = states.make_optimizer(states.optimizer_settings(config.optimizer))
    opt_state, found = optimizer.init(np.float32(0)), []
    for _ in range(steps):
        update, opt_state = optimizer.update(np.float32(1), opt_state)
        found.append(-float(update))
    return found


def test_schedules():
    assert rates(steps=3) == [1, 1, 1]
    np.testing.assert_allclose(rates("optimizer.warmup_steps=4", steps=6), [0, 0.25, 0.5, 0.75, 1, 1])
    cosine = ("optimizer.schedule=cosine", "optimizer.decay_steps=10", "optimizer.final_share=0.1")
    expected = [t / 2 for t in range(2)] + [0.1 + 0.9 * (1 + np.cos(np.pi * t / 8)) / 2 for t in range(9)] + [0.1]
    np.testing.assert_allclose(rates(*cosine, "optimizer.warmup_steps=2"), expected, atol=1e-6)


def test_gradients_are_clipped_by_their_global_norm():
    config = tiny_config("optimizer.name=sgd", "optimizer.learning_rate=1.0", "optimizer.clip_norm=0.5")
    optimizer = states.make_optimizer(states.optimizer_settings(config.optimizer))
    for gradient, expected in (([3.0, -4.0], [-0.3, 0.4]), ([0.3, 0.0], [-0.3, 0.0])):
        leaves = {name: np.float32(x) for name, x in zip("ab", gradient, strict=True)}
        update, _ = optimizer.update(leaves, optimizer.init(leaves))
        np.testing.assert_allclose([update["a"], update["b"]], expected, rtol=1e-6)


def test_the_critic_has_a_rate_and_a_warm_up_of_its_own():
    more = ("algorithm.critic.learning_rate=0.5", "algorithm.critic.warmup_steps=4", "optimizer.learning_rate=0.1")
    settings = options.algorithm_options(tiny_config(*PPO, *more, "optimizer.name=sgd")).critic.optimizer
    optimizer = states.make_optimizer(settings)
    opt_state, found = optimizer.init(np.float32(0)), []
    for _ in range(6):
        update, opt_state = optimizer.update(np.float32(0.5), opt_state)
        found.append(-2 * float(update))
    np.testing.assert_allclose(found, [0, 0.125, 0.25, 0.375, 0.5, 0.5])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("optimizer.schedule=step",), "optimizer.schedule"),
        (("optimizer.schedule=cosine",), "decay_steps"),
        (("optimizer.schedule=cosine", "optimizer.decay_steps=5", "optimizer.warmup_steps=5"), "decay_steps"),
        (("optimizer.decay_steps=5",), "cosine"),
        (("optimizer.schedule=cosine", "optimizer.decay_steps=5", "optimizer.final_share=2.0"), "final_share"),
    ],
)
def test_schedules_that_cannot_be(overrides, said):
    with pytest.raises(UserError, match=said):
        states.optimizer_settings(tiny_config(*overrides).optimizer)
