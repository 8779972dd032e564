"""DeepCoder-MT of the paper (arXiv 2611.06483): Qwen3-4B writes programs, sees which visible tests fail, mends them.

Reproduces: the DeepCoder-MT bars of Pass@8 at told budgets of 25, 50, 75 and 100 % for three policies: the instruct
model, GRPO at the full budget, BudgetMix. The summaries of the paper give neither the turn limit nor the judge: 4 turns
(so that the four budgets differ), hidden tests decide, 1 if all pass and 0 else.
Data: records of agentica-org/DeepCoder-Preview-Dataset (JSON lines or Parquet), brought once by
  jaxagent data deepcoder --source=FOLDER
`--config.env.options.source=generated` trains on generated problems instead; `humaneval` (after `jaxagent data
humaneval`) evaluates on HumanEval.
Hardware: one host with eight 80 GB GPUs and bubblewrap for the sandbox. Not run in full yet, so there is no time and no
result to state.
Command, for the whole table (base = the instruct model as it is):
  jaxagent reproduce --worlds=paper/deepcoder_mt --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/deepcoder_mt
One policy:
  jaxagent train    --config=paper/deepcoder_mt:budgetmix --workdir=runs/budgetmix
  jaxagent evaluate --config=paper/deepcoder_mt:budgetmix --workdir=runs/budgetmix
Smoke run, a minute on a CPU: any variant with `,runlocal` behind it, as in paper/deepcoder_mt:budgetmix,runlocal; it
takes generated problems.
Variants: base, grpo_full, grpo_full_noline, budgetmix, budgetmix_noline, gigpo, gigpo_budgetmix, ppo, ppo_budgetmix,
dr_grpo, rloo; runlocal.
"""

from jaxagent.paper import RUNLOCAL, apply_paper_variant, paper_config

_RUNLOCAL = RUNLOCAL | {
    "env.options.source": "generated",
    "rollout.max_context": 1536,
    "optimizer.row_tokens": 1536,
}


def get_config(variant: str = ""):
    """The experiment, with the arm or `runlocal` of `variant` applied."""
    config = paper_config("deepcoder")
    config.env.options = {
        "source": "deepcoder",
        "path": "",
        "max_turns": 4,
        "sandbox": {"seconds": 6.0, "memory_mb": 512, "parallel": 1, "warm": 1},  # one program a worker at a time
    }
    config.env.step_timeout = 60.0  # the tests of one step get 20 s together, and the last of them 6 s more
    config.rollout.max_turns = 4
    config.rollout.max_turn_tokens = 4096
    config.rollout.max_context = 20_480  # a statement of up to 2,000 tokens, then 4 turns of a program and its feedback
    config.optimizer.row_tokens = 20_480
    config.eval.panel_tasks = 100
    return apply_paper_variant(config, variant, _RUNLOCAL)
