"""BFCL-v3 multi-turn with a tiny decoder: one simulated system (a car), signatures instead of documents, real verdicts.

Shows: that the whole path works on real tasks with a policy that fits two CPU cores, and what BudgetMix RL
(arXiv 2611.06483) changes in it: told few turns, put all calls of a user turn into one reply. It says nothing about
language models: the base remembers what it cloned, and panel tasks have siblings (other variations of the same story)
in training, `split_by="entry"`.
Hardware and time: two CPU cores, 36 minutes (cloning 14, training 16, each evaluation 3); the README has the figures.
Command: jaxagent data bfcl
         jaxagent reproduce --worlds=bfcl_tiny --arms=base,budgetmix --seeds=0 --workdir=runs/bfcl_tiny
Variants: base, grpo_full, budgetmix and the others of `jaxagent.config`; runlocal shrinks any of them to a smoke run.
"""

from jaxagent.config import apply_variant, default_config
from jaxagent.envs import datasets

RUNLOCAL = {
    "sft.steps": 2,
    "sft.demonstrations": 8,
    "algorithm.steps": 2,
    "algorithm.groups": 2,
    "algorithm.group_size": 4,
    "rollout.slots": 8,
    "rollout.ready_slots": 0,
    "optimizer.micro_rows": 8,
    "eval.every": 0,
    "eval.panel_tasks": 4,
    "eval.panel_samples": 2,
    "eval.k": 2,
    "checkpoint.every": 2,
}


def get_config(variant: str = ""):
    """The experiment, with the arm or `runlocal` of `variant` applied."""
    config = default_config()
    config.env.name = "bfcl"
    config.env.options = {
        "classes": ("VehicleControlAPI",),
        "categories": ("base", "miss_func", "miss_param", "long_context"),
        "docs": "names",
        "tool_format": "python",
        "max_result_chars": 120,
        "split_by": "entry",
    }
    config.env.train_tasks = 1024  # the training entries, over and over
    config.budget.wording = "words"
    config.model.tokenizer = str(datasets.folder("bfcl") / "tokenizer")  # `jaxagent data bfcl` makes it
    config.model.width = 128
    config.model.num_layers = 2
    config.model.head_dim = 32
    config.model.num_kv_heads = 4
    config.model.mlp_width = 352
    config.rollout.max_context = 1152
    config.rollout.max_turns = 20
    config.rollout.max_turn_tokens = 80
    config.rollout.extend_buckets = (24, 64)
    config.rollout.slots = 32
    config.rollout.ready_slots = 12  # an append costs as much as a reply: 1.6 times the episodes/s of an eighth of 64
    config.sft.steps = 300  # the replies cost 0.06 nats a token by then, most of it the demonstrators' own dice
    config.sft.demonstrations = 16
    config.sft.observation_weight = 0.0
    config.optimizer.learning_rate = 3e-4
    config.optimizer.row_tokens = 1152
    config.optimizer.micro_rows = 8
    config.optimizer.logprob_chunk = 1152
    config.algorithm.steps = 60
    config.algorithm.groups = 4
    config.algorithm.normalize_std = True
    config.eval.every = 0
    config.eval.tasks = 7  # there are no more held-out ones
    config.eval.panel_tasks = 20
    config.eval.panel_samples = 8
    return apply_variant(config, variant, RUNLOCAL)
