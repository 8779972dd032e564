"""Lookup with a tiny decoder: the smallest world in which a turn buys certainty.

Shows: BudgetMix RL (arXiv 2611.06483) against GRPO at the full budget. The agent queries fields or answers now; told
3 of 12 turns it should gamble, told 12 it should make sure.
Hardware and time: two CPU cores; see the README for the measured times of one arm and its evaluation.
Command: jaxagent reproduce --worlds=lookup_tiny --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/lookup
One arm: jaxagent train --config=lookup_tiny:budgetmix --config.model.init_from=runs/base --workdir=runs/budgetmix
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
    config.env.name = "lookup"
    config.env.options = {"rendering": "compact"}
    config.budget.wording = "words"
    config.rollout.max_context = 80  # 7 + 12 turns of at most 6 tokens
    config.rollout.max_turns = 12
    config.rollout.max_turn_tokens = 2
    config.rollout.extend_buckets = (5, 10)
    config.rollout.slots = 64
    config.sft.observation_weight = 0.0  # replies alone: with observations the base is worse (Pass@1 19 against 25 %)
    config.optimizer.learning_rate = 5e-4
    config.optimizer.row_tokens = 160
    config.optimizer.micro_rows = 8
    config.optimizer.logprob_chunk = 2048
    config.algorithm.steps = 200
    config.algorithm.normalize_std = True
    config.algorithm.entropy_coefficient = 0.02  # without it all samples of a task settle on guessing one letter
    return apply_variant(config, variant, RUNLOCAL)
