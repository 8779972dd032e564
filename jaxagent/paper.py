"""What the paper's four experiments share: Qwen3-4B on one host with eight GPUs (arXiv 2611.06483).

The paper gives the model, the metric (Pass@8 at 25, 50, 75 and 100 % of the full budget), the budget grid and the
algorithms; no summary of it gives learning rates or batch sizes. Those here are this project's choice and marked so.
"""

from ml_collections import ConfigDict

from jaxagent.config import apply_variant, default_config

# Shrinks any of the four to two updates of a tiny decoder on a CPU: everything runs, nothing is learnt.
RUNLOCAL = {
    "model.pretrained": "",
    "model.compute_dtype": "float32",
    "model.remat": "none",
    "env.workers": 0,
    "mesh.fsdp": 1,
    "sft.steps": 0,
    "algorithm.steps": 2,
    "algorithm.groups": 2,
    "algorithm.group_size": 4,
    "algorithm.entropy_coefficient": 0.01,  # the only gradient of a random policy that earns nothing
    "rollout.slots": 8,
    "rollout.max_turn_tokens": 8,
    "rollout.extend_buckets": (32, 256),
    "optimizer.micro_rows": 8,
    "optimizer.warmup_steps": 0,
    "eval.every": 0,
    "eval.panel_tasks": 4,
    "eval.panel_samples": 2,
    "eval.k": 2,
    "checkpoint.every": 2,
}


def paper_config(env_name: str) -> ConfigDict:
    """The settings that all four experiments start from; each then sets its environment, context and turn lengths.

    Known from the paper: the model, groups that share one budget of the 10 % grid, GRPO with reward 0 beyond it, and
    Pass@8 at four told budgets. This project's choice: 16 groups of 8 an update, Adam at 1e-6, 300 updates.
    """
    config = default_config()
    config.env.name = env_name
    config.env.workers = 16
    config.model.pretrained = "Qwen/Qwen3-4B"
    config.model.compute_dtype = "bfloat16"
    config.model.remat = "full"
    config.mesh.fsdp = 8
    config.rollout.slots = 128
    config.rollout.extend_buckets = (64, 512)
    config.rollout.decode_chunk = 64
    config.sft.steps = 0  # the instruct model is the base policy
    config.algorithm.groups = 16
    config.algorithm.group_size = 8
    config.algorithm.steps = 300
    config.algorithm.normalize_std = True
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-6
    config.optimizer.warmup_steps = 10
    config.optimizer.micro_rows = 8
    config.optimizer.logprob_chunk = 2048
    config.eval.every = 50
    config.eval.k = 8
    config.eval.panel_samples = 16
    config.checkpoint.every = 25
    return config


def apply_paper_variant(config: ConfigDict, variant: str, runlocal: dict[str, object]) -> ConfigDict:
    """`jaxagent.config.apply_variant`, with a critic that learns ten times as fast as the policy where there is one."""
    config = apply_variant(config, variant, runlocal)
    if config.algorithm.critic.kind != "none":
        config.algorithm.critic.learning_rate = 1e-5
    return config
