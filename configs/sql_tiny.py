"""Generated databases with a tiny decoder: guess the names of tables and columns, or spend turns on asking for them.

Shows: BudgetMix RL (arXiv 2611.06483) against GRPO at the full budget on real SQL. The careful way takes 4 turns (SHOW
TABLES, DESCRIBE, the query, submit); told 3 of 10 the agent must guess, told 5 it should not.
Hardware and time: two CPU cores; see the README for the measured times of one arm and its evaluation.
Command: jaxagent reproduce --worlds=sql_tiny --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/sql
One arm: jaxagent train --config=sql_tiny:budgetmix --config.model.init_from=runs/base --workdir=runs/budgetmix
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
    config.env.name = "intercode_sql"
    config.env.options = {"levels": (1, 1), "rendering": "compact"}
    config.model.tokenizer = "tiny_sql"
    config.budget.wording = "words"
    config.rollout.max_context = 200  # 9 + 10 turns of at most 19 tokens, replies of up to 10 included
    config.rollout.max_turns = 10
    config.rollout.max_turn_tokens = 12
    config.rollout.extend_buckets = (4, 10)
    config.rollout.slots = 64
    config.sft.steps = 400
    config.sft.observation_weight = 0.0
    config.optimizer.learning_rate = 5e-4
    config.optimizer.row_tokens = 200
    config.optimizer.micro_rows = 16
    config.optimizer.logprob_chunk = 2048
    config.algorithm.steps = 200
    config.algorithm.normalize_std = True
    config.algorithm.entropy_coefficient = 0.01
    return apply_variant(config, variant, RUNLOCAL)
