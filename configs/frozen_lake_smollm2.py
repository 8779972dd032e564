"""FrozenLake in fog with SmolLM2-135M-Instruct: a real language model that comes in by `jaxagent import smollm2`.

Shows: the whole way of a pretrained model. A short supervised warm-up on scripted players of mixed quality teaches it
to answer with one word (untrained it says "The Up move."), then BudgetMix GRPO (arXiv 2611.06483) teaches it to spend
looks and steps by the turns that it is told.
Hardware and time: one GPU with 24 GB or more for the whole of it (not measured); `runlocal` takes the same steps on two
CPU cores, see the README for what a few updates cost there and what the warm-up changes.
Commands: jaxagent import smollm2
  jaxagent sft --config=frozen_lake_smollm2 --workdir=runs/smol_base
  jaxagent train --config=frozen_lake_smollm2:budgetmix --config.model.init_from=runs/smol_base --workdir=runs/smol
Variants: base, grpo_full, grpo_full_noline, budgetmix, budgetmix_noline, gigpo, gigpo_budgetmix, ppo, ppo_budgetmix,
dr_grpo, rloo; runlocal shrinks any of them to boards of 3 by 3, four turns and a few updates.
"""

from jaxagent.config import apply_variant, default_config

RUNLOCAL = {
    "env.options.size": 3,
    "env.options.min_path": 1,  # near goals: some episodes of the few succeed
    "env.options.max_path": 2,
    "env.options.max_turns": 4,
    "rollout.slots": 6,
    "rollout.max_context": 512,
    "rollout.max_turns": 4,
    "optimizer.row_tokens": 1024,
    "optimizer.micro_rows": 1,
    "optimizer.logprob_chunk": 512,
    "sft.steps": 6,
    "sft.demonstrations": 8,
    "sft.learning_rate": 1e-4,  # few steps: larger ones
    "algorithm.steps": 3,
    "algorithm.groups": 2,
    "algorithm.group_size": 3,
    "eval.every": 0,
    "eval.panel_tasks": 4,
    "eval.panel_samples": 2,
    "eval.k": 2,
    "checkpoint.every": 10,
}


def get_config(variant: str = ""):
    """The experiment, with the arm or `runlocal` of `variant` applied."""
    config = default_config()
    config.model.pretrained = "smollm2"
    config.env.name = "frozen_lake"
    config.env.options = {
        "size": 4,
        "safe_probability": 0.75,
        "min_path": 2,
        "max_path": 6,
        "max_turns": 12,
        "view": "fog",
    }
    config.rollout.max_context = 1280  # 213 + 11 observations of at most 79 tokens + 12 replies
    config.rollout.max_turns = 12
    config.rollout.max_turn_tokens = 16
    config.rollout.on_turn_cap = "close"  # an untrained model explains itself: that costs a turn, not the episode
    config.rollout.extend_buckets = (80, 224)
    config.rollout.slots = 128
    config.sft.steps = 100
    config.sft.demonstrations = 32
    config.sft.learning_rate = 3e-5
    config.sft.observation_weight = 0.0
    config.optimizer.learning_rate = 1e-5
    config.optimizer.eps = 1e-8  # gradients of 135 million weights are small one by one
    config.optimizer.row_tokens = 1280
    config.optimizer.micro_rows = 8
    config.optimizer.logprob_chunk = 2048
    config.algorithm.groups = 16
    config.algorithm.group_size = 8
    config.algorithm.steps = 200
    config.algorithm.normalize_std = True
    return apply_variant(config, variant, RUNLOCAL)
