"""FogLake with a tiny decoder: FrozenLake whose holes are unknown until a look, which costs a turn.

Shows: BudgetMix RL (arXiv 2611.06483) against GRPO at the full budget. Told 4 of 16 turns the agent should dash, told
16 it should look before every unknown step; no single behaviour is good at both ends.
Hardware and time: two CPU cores; see the README for the measured times of one arm and its evaluation.
Command: jaxagent reproduce --worlds=fog_lake_tiny --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/fog_lake
One arm: jaxagent train --config=fog_lake_tiny:budgetmix --config.model.init_from=runs/base --workdir=runs/budgetmix
Variants: base, grpo_full, grpo_full_noline, budgetmix, budgetmix_noline, gigpo, gigpo_budgetmix, ppo, ppo_budgetmix,
dr_grpo, rloo; runlocal shrinks any of them to a smoke run.
"""

from jaxagent.config import apply_variant, default_config

RUNLOCAL = {
    "sft.steps": 4,
    "algorithm.steps": 3,
    "eval.every": 2,
    "eval.tasks": 4,
    "eval.panel_tasks": 8,
    "eval.panel_samples": 8,
    "eval.k": 4,
    "checkpoint.every": 2,
}


def get_config(variant: str = ""):
    """The experiment, with the arm or `runlocal` of `variant` applied."""
    config = default_config()
    config.env.name = "frozen_lake"
    config.env.options = {
        "size": 5,
        "safe_probability": 0.75,
        "min_path": 3,
        "max_path": 6,
        "max_turns": 16,
        "view": "fog",
        "rendering": "compact",
    }
    config.budget.wording = "words"
    config.rollout.max_context = 164  # 9 + 15 turns of at most 10 tokens, replies of up to 2 included
    config.rollout.max_turns = 16
    config.rollout.max_turn_tokens = 2
    config.rollout.extend_buckets = (9,)
    config.rollout.slots = 64
    config.sft.steps = 80  # more of them leave no room above the base (Pass@8 above 90 %)
    config.sft.observation_weight = 0.0
    config.optimizer.learning_rate = 5e-4
    config.optimizer.row_tokens = 164
    config.optimizer.micro_rows = 16
    config.optimizer.logprob_chunk = 2048
    config.algorithm.steps = 200
    config.algorithm.normalize_std = True
    config.algorithm.entropy_coefficient = 0.01
    return apply_variant(config, variant, RUNLOCAL)
