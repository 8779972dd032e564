"""InterCode-SQL of the paper (arXiv 2611.06483): Qwen3-4B answers questions by querying databases it does not know.

Reproduces: the InterCode-SQL bars of Pass@8 at told budgets of 25, 50, 75 and 100 % of 10 turns, three policies: the
instruct model, GRPO at the full budget, BudgetMix. Spider's 1,034 development questions as InterCode has them, less 80
whose gold result is empty; by query, not by wording, 12/16 train, 1/16 are held out, 3/16 are the panel. The reward is
the canonical comparison (`env.options.strict_intercode=True` for InterCode's own). The summaries of the paper do not
say how it splits or scores.
Feasible: a policy that knows or guesses the schema needs 2 turns, so all at any budget; one that asks for all of it
needs 3 + tables, so none at 25 % (3 turns), 95 % at 50 % (5 turns), and all beyond.
Data: jaxagent data intercode-sql --source=FOLDER (a copy of the InterCode repository's data/sql/spider).
Hardware: one host with eight 80 GB GPUs. Not run in full yet, so there is no time and no result to state.
Command, for the whole table (base = the instruct model as it is):
  jaxagent reproduce --worlds=paper/intercode_sql --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/intercode_sql
One policy:
  jaxagent train    --config=paper/intercode_sql:gigpo_budgetmix --workdir=runs/gigpo_budgetmix
  jaxagent evaluate --config=paper/intercode_sql:gigpo_budgetmix --workdir=runs/gigpo_budgetmix
Without data: --config.env.options.source=generated trains on generated databases of all five levels.
Smoke run, a minute on a CPU, on generated tasks: any variant with `,runlocal` behind it.
Variants: base, grpo_full, grpo_full_noline, budgetmix, budgetmix_noline, gigpo, gigpo_budgetmix, ppo, ppo_budgetmix,
dr_grpo, rloo; runlocal.
"""

from jaxagent.paper import RUNLOCAL, apply_paper_variant, paper_config

_RUNLOCAL = RUNLOCAL | {
    "env.options.source": "generated",
    "env.options.levels": (1, 1),
    "env.options.rendering": "compact",
    "model.tokenizer": "tiny_sql",
    "budget.wording": "words",
    "rollout.max_context": 256,
    "rollout.extend_buckets": (16,),
    "optimizer.row_tokens": 256,
}


def get_config(variant: str = ""):
    """The experiment, with the arm or `runlocal` of `variant` applied."""
    config = paper_config("intercode_sql")
    config.env.options = {
        "source": "spider",
        "levels": (1, 5),  # of generated tasks
        "mode": "submit",
        "strict_intercode": False,
        "max_turns": 10,
        "shown_rows": 50,
        "shown_chars": 1000,
    }
    config.rollout.max_turns = 10
    config.rollout.max_turn_tokens = 512
    config.rollout.max_context = 10_240  # rules and question, then 10 turns of up to 450 tokens shown and 512 replied
    config.optimizer.row_tokens = 10_240
    config.eval.panel_tasks = 150
    return apply_paper_variant(config, variant, _RUNLOCAL)
