"""BFCL-v3 multi-turn of the paper (arXiv 2611.06483): Qwen3-4B serves a user by calling functions, request by request.

Reproduces: the BFCL-v3 bars of Pass@8 at told budgets of 25, 50, 75 and 100 % for three policies: the instruct model,
GRPO at the full budget, BudgetMix. The paper's row at 25 %: base 3.0, GRPO-Full 2.5, BudgetMix 8.5. Its full budget is
not known; 20 replies over all user turns (the benchmark's own number) leaves 20.5 % of the base tasks feasible at 25 %,
92.5 % at 50 %, so that row can be reached and binds. `--config.env.options.max_turns_per_user_turn=8` (with
`--config.rollout.max_turns=72`) grows with the task and leaves all of them feasible.
Data: `jaxagent data bfcl`, once a machine. 200 scenarios in four variations: 440 tasks train, 132 are held out, 228 are
the panel, whole scenarios apart by content hash; the paper's split is not known.
Hardware: one host with eight 80 GB GPUs. Not run in full yet, so there is no time and no result to state.
Command: jaxagent reproduce --worlds=paper/bfcl_v3 --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/bfcl_v3
It prints the table of the bars (Pass@8, four budgets, three policies) with intervals and the feasible share below them.
One policy:
  jaxagent train    --config=paper/bfcl_v3:gigpo_budgetmix --workdir=runs/gigpo_budgetmix
  jaxagent evaluate --config=paper/bfcl_v3:gigpo_budgetmix --workdir=runs/gigpo_budgetmix
Smoke run, a minute on a CPU: any variant with `,runlocal` behind it, as in paper/bfcl_v3:budgetmix,runlocal.
Variants: base, grpo_full, grpo_full_noline, budgetmix, budgetmix_noline, gigpo, gigpo_budgetmix, ppo, ppo_budgetmix,
dr_grpo, rloo; runlocal.
"""

from jaxagent.paper import RUNLOCAL, apply_paper_variant, paper_config

_RUNLOCAL = RUNLOCAL | {
    "env.options.classes": ("GorillaFileSystem",),
    "env.options.docs": "names",
    "env.options.max_result_chars": 200,
    "rollout.max_context": 1024,  # a prompt takes up to 673 of the tiny tokenizer's ids, nearly all bytes
    "optimizer.row_tokens": 1024,
    "eval.tasks": 1,
}


def get_config(variant: str = ""):
    """The experiment, with the arm or `runlocal` of `variant` applied."""
    config = paper_config("bfcl")
    config.env.options = {
        "categories": ("base", "miss_func", "miss_param", "long_context"),
        "classes": (
            "GorillaFileSystem",
            "MathAPI",
            "MessageAPI",
            "TicketAPI",
            "TradingBot",
            "TravelAPI",
            "TwitterAPI",
            "VehicleControlAPI",
        ),
        "docs": "full",
        "tool_format": "tool_call",
        "max_turns": 20,
        "max_result_chars": 2000,
    }
    config.env.train_tasks = 440  # what there is
    config.rollout.max_turns = 20
    config.rollout.max_turn_tokens = 1024
    config.rollout.max_context = 24_576  # documents of two systems take up to 9,000
    config.rollout.slots = 64
    config.optimizer.row_tokens = 24_576
    config.eval.panel_tasks = 228  # all of them
    return apply_paper_variant(config, variant, _RUNLOCAL)
