"""FrozenLake of the paper (arXiv 2611.06483): Qwen3-4B walks random lakes of 2 to 9 cells a side, one move a reply.

Reproduces: the FrozenLake bars of Pass@8 at told budgets of 25, 50, 75 and 100 % for three policies: the instruct
model, GRPO at the full budget, BudgetMix. The summaries of the paper do not give the maps; these are the ones that rLLM
trains on (not slippery, random start and goal, chance of a cell to be ice 0.6 to 0.85, 2 * side turns, 1 for the goal
and 0 for all else), less those whose goal is next to the start.
At most 38, 83, 98 and 100 % of these lakes can be solved within the four budgets (`jaxagent envs frozen_lake`).
Hardware: one host with eight 80 GB GPUs. Not run in full yet, so there is no time and no result to state.
Command, for the whole table (base = the instruct model as it is):
  jaxagent reproduce --worlds=paper/frozen_lake --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/frozen_lake
One policy:
  jaxagent train    --config=paper/frozen_lake:gigpo_budgetmix --workdir=runs/gigpo_budgetmix
  jaxagent evaluate --config=paper/frozen_lake:gigpo_budgetmix --workdir=runs/gigpo_budgetmix
Smoke run, a minute on a CPU: any variant with `,runlocal` behind it, as in paper/frozen_lake:budgetmix,runlocal.
Variants: base, grpo_full, grpo_full_noline, budgetmix, budgetmix_noline, gigpo, gigpo_budgetmix, ppo, ppo_budgetmix,
dr_grpo, rloo; runlocal.
"""

from jaxagent.paper import RUNLOCAL, apply_paper_variant, paper_config

_RUNLOCAL = RUNLOCAL | {
    "env.options.size": (2, 4),
    "rollout.max_turns": 8,
    "rollout.max_context": 512,
    "optimizer.row_tokens": 512,
}


def get_config(variant: str = ""):
    """The experiment, with the arm or `runlocal` of `variant` applied."""
    config = paper_config("frozen_lake")
    config.env.options = {
        "size": (2, 9),
        "safe_probability": (0.6, 0.85),
        "success_rate": 1.0,
        "min_path": 2,
        "on_hole": "end",
    }
    config.env.train_tasks = 10_000
    config.env.workers = 0  # a step takes microseconds
    config.rollout.max_turns = 18  # twice the longest side
    config.rollout.max_turn_tokens = 512
    config.rollout.max_context = 12_288  # rules, then 18 turns of a board of up to 130 tokens and a reply of up to 512
    config.optimizer.row_tokens = 12_288
    config.eval.panel_tasks = 100
    return apply_paper_variant(config, variant, _RUNLOCAL)
