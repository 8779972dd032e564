"""The analysis behind an evaluation: the whole Pass@(K,T) surface, and what a policy does differently from a reference.

`surface` costs no rollouts. `analyse` does: the reference policy on the panel, injected errors, hybrid policies and,
for a policy that is told budgets, episodes without a budget line. All of it is at the full budget and under the
panel's own keys, so that the two policies meet the same tasks, budgets and environment noise.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxagent.budgets import percent_of
from jaxagent.episodes import Episode, EpisodeSpec, Task
from jaxagent.evaluation.intervals import Interval, paired_task_bootstrap, task_bootstrap
from jaxagent.evaluation.interventions import (
    DirectedSampler,
    Director,
    Injection,
    WatchingPool,
    hand_over_at_error,
    injection_script,
    plan_injections,
    script,
)
from jaxagent.evaluation.likelihood import ModelPolicy, compare_policies, reply_log_probs, shift_by_turn
from jaxagent.evaluation.panels import no_line_specs, panel_specs
from jaxagent.evaluation.pass_at import (
    Mode,
    cover_at,
    pass_at_k_percent,
    pass_hat_k_t,
    success_hazard,
    told_enforced_matrix,
)
from jaxagent.evaluation.step_quality import (
    State,
    Step,
    average,
    average_by_turn,
    context_ids,
    errors,
    freeze_states,
    gain_split,
    good_steps,
    invalid,
    optimal_mass,
    recovery,
    replay,
    split_success,
    states_hash,
)
from jaxagent.models import decoder
from jaxagent.rollout.engine import EngineConfig, RolloutEngine, sorted_by_work
from jaxagent.rollout.setup import Setup, make_sampler, sampler_params_fn
from jaxagent.sharding import rules
from jaxagent.training.checkpoints import load_params

TAUS = (0.25, 0.5, 0.75)
FULL = 100  # per cent of the budget at which policies are compared


@dataclasses.dataclass(frozen=True)
class Arm:
    """A policy with the episodes that are analysed (full budget, none void) and their judgement."""

    policy: ModelPolicy
    episodes: list[Episode]
    steps: list[tuple[Step, ...]]


def load_policy(setup: Setup, run_folder: str | pathlib.Path) -> tuple[ModelPolicy, int]:
    """The best checkpoint (else the newest) of a run as a policy, and its step."""
    abstract = jax.eval_shape(lambda: decoder.init_params(setup.model, jax.random.key(0)))
    shardings = rules.param_shardings(setup.mesh, decoder.logical_axes(setup.model), abstract)
    params, record = load_params(run_folder, setup.model, shardings)
    return ModelPolicy(setup.model, params, float(setup.config.rollout.temperature)), int(record["step"])


def surface(
    episodes: Sequence[Episode],
    *,
    k: int,
    percents: Sequence[int],
    mode: Mode,
    seed: int,
    untold: Sequence[Episode] = (),
) -> dict[str, Any]:
    """Pass@(K,T), pass^(K,T), Cover@tau, the told x enforced matrix and the hazard, as plain lists.

    Args:
      episodes: of one policy, told each of `percents` (or nothing, with `mode="blind"`).
      k: the K of the matrix; K of the surface are the powers of two up to it, and k itself.
      percents: of the full budget.
      mode: as in `pass_at_k_t`.
      seed: of the bootstrap.
      untold: episodes of the same policy and tasks without a budget line, for a row of their own in the matrix.
    """
    ks = sorted({*(1 << power for power in range(k.bit_length()) if 1 << power <= k), k})
    grid = pass_at_k_percent(episodes, ks, percents, mode=mode)
    interval = task_bootstrap(grid.values, seed=seed)
    hat = pass_hat_k_t(episodes, ks, percents, mode=mode, unit="percent")
    rows: list[int | None] = sorted({*percents, FULL}) if mode == "told" else [None]
    if untold and mode == "told":
        rows.append(None)
    matrix = told_enforced_matrix([*episodes, *untold], k, rows, list(percents), unit="percent")
    return {
        "percents": list(percents),
        "ks": ks,
        "pass_at_k": interval.estimate.tolist(),
        "low": interval.low.tolist(),
        "high": interval.high.tolist(),
        "method": interval.method.tolist(),
        "pass_hat_k": hat.mean.tolist(),
        "cover": {"tau": list(TAUS), "share": cover_at(grid.counts, TAUS).tolist()},
        "told_enforced": {
            "k": k,
            "told_percent": rows,
            "enforced_percent": list(percents),
            "pass_at_k": _without_nan(matrix.mean),
        },
        "hazard": _hazards(episodes, percents, mode),
        "num_void": grid.num_void,
    }


def analyse(
    setup: Setup, policy: ModelPolicy, episodes: Sequence[Episode], tasks: Sequence[Task], *, mode: Mode
) -> dict[str, Any]:
    """Step quality, recovery and, with `eval.reference_run`, everything that compares with a reference policy.

    Args:
      setup: of the evaluation; its `eval` section says how much is rolled out. Environments run in this process.
      policy: the evaluated one.
      episodes: its panel episodes.
      tasks: the panel.
      mode: whether it was told budgets.
    """
    settings = setup.config.eval
    own = _arm(setup, policy, _full_budget(episodes, settings.analysis_samples), tasks)
    result: dict[str, Any] = {"percent": FULL, "samples": settings.analysis_samples}
    if not settings.reference_run:
        states = freeze_states(own.episodes, own.steps, count=settings.analysis_states)
        result["policy"] = arm_summary(setup, own, states)
        return result
    other, step = load_policy(setup, settings.reference_run)
    specs = full_budget_specs(tasks, samples=settings.analysis_samples, told=mode == "told", like=episodes)
    reference = _arm(setup, other, roll_out(setup, [other], specs, lambda pool: script({})), tasks)
    states = freeze_states(reference.episodes, reference.steps, count=settings.analysis_states)
    result |= {
        "reference_run": str(settings.reference_run),
        "reference_step": step,
        "states": {"count": len(states), "hash": states_hash(states)},
        "policy": arm_summary(setup, own, states),
        "reference": arm_summary(setup, reference, states),
        "gain": gain_summary(own, reference),
        "injected_errors": injection_summary(setup, own, reference, tasks),
        "hybrids": hybrid_summary(setup, own, reference, specs),
        "likelihood": {
            "on_policy_episodes": shift_by_turn(compare_policies(own.policy, reference.policy, own.episodes)),
            "on_reference_episodes": shift_by_turn(compare_policies(own.policy, reference.policy, reference.episodes)),
        },
    }
    return result


def no_line_episodes(setup: Setup, policy: ModelPolicy, tasks: Sequence[Task], run_seed: int) -> list[Episode]:
    """The policy on the panel without a budget line, `eval.panel_samples` full-length episodes a task."""
    settings = setup.config.eval
    specs = no_line_specs(tasks, samples=settings.panel_samples, run_seed=run_seed, k=settings.k)
    return roll_out(setup, [policy], specs, lambda pool: script({}), keep_void=True)


def full_budget_specs(tasks: Sequence[Task], *, samples: int, told: bool, like: Sequence[Episode]) -> list[EpisodeSpec]:
    """The panel's orders at the full budget, under the run seed of the episodes that they will be compared with."""
    run_seed = like[0].run_seed
    if told:
        return panel_specs(tasks, told_percents=[FULL], samples=samples, run_seed=run_seed)
    return no_line_specs(tasks, samples=samples, run_seed=run_seed)


def arm_summary(setup: Setup, arm: Arm, states: Sequence[State]) -> dict[str, Any]:
    """A policy's step quality on its own states and on the frozen ones, its errors and its recovery from them."""
    ids = [episode.task_id for episode in arm.episodes]
    split = split_success(arm.episodes, arm.steps)
    summary: dict[str, Any] = {
        "episodes": len(arm.episodes),
        "success": float((split.clean + split.recovered).mean()),
        "invalid_rate": average(ids, [invalid(judged) for judged in arm.steps]).mean,
        "error_rate": average(ids, [errors(judged) for judged in arm.steps]).mean,
        "errors_by_turn": _turns(average_by_turn([errors(judged) for judged in arm.steps])),
        "good_rate": average(ids, [good_steps(judged) for judged in arm.steps]).mean,
        "success_without_error": split.success_without_error,
        "success_after_error": split.success_after_error,
        "recovery": dataclasses.asdict(recovery(arm.steps, setup.config.eval.recovery_horizon)),
    }
    if states and states[0].step.optimal is not None:
        own = [
            [State(episode.task_id, context_ids(episode, step.index), step) for step in judged]
            for episode, judged in zip(arm.episodes, arm.steps, strict=True)
        ]
        summary["optimal_mass"] = _optimal_masses(setup, arm, own, [[state] for state in states])
    return summary


def gain_summary(policy: Arm, reference: Arm) -> dict[str, Any]:
    """The gain in success as clean plus recovered, with paired intervals over tasks."""
    splits = [split_success(arm.episodes, arm.steps) for arm in (policy, reference)]
    parts = {
        name: _interval(paired_task_bootstrap(getattr(splits[0], name), getattr(splits[1], name)))
        for name in ("clean", "recovered")
    }
    return gain_split(*splits) | {f"{name}_interval": interval for name, interval in parts.items()}


def injection_summary(setup: Setup, policy: Arm, reference: Arm, tasks: Sequence[Task]) -> dict[str, Any]:
    """Success of both policies from the reference's prefixes, with one wrong reply forced and (control) without."""
    environment = _environment(setup)
    by_id = {task.id: task for task in tasks}
    count = setup.config.eval.analysis_states
    injections = plan_injections(environment, by_id, reference.episodes, reference.steps, count=count)
    environment.close()
    summary: dict[str, Any] = {"count": len(injections)}
    for name, inject in (("after_error", True), ("control", False)) if injections else ():
        success = [inject_errors(setup, arm.policy, injections, inject=inject) for arm in (policy, reference)]
        paired = _paired_by_task(*success)
        summary[name] = {
            "policy": float(np.mean(paired[0])),
            "reference": float(np.mean(paired[1])),
            "difference": _interval(paired_task_bootstrap(*paired)),
        }
    return summary


def inject_errors(
    setup: Setup, policy: ModelPolicy, injections: Sequence[Injection], *, inject: bool = True
) -> list[Episode]:
    """Hands each injection's transcript to a policy and lets it finish; `inject=False` forces the prefix alone."""
    specs = [injection.spec for injection in injections]
    return roll_out(setup, [policy], specs, lambda pool: injection_script(injections, setup.chat, inject=inject))


def hybrid_summary(setup: Setup, policy: Arm, reference: Arm, specs: Sequence[EpisodeSpec]) -> dict[str, Any]:
    """Success of the policy until the first error with the reference after it, and the reverse, beside both alone."""
    pairs = {
        "policy": None,
        "policy_then_reference": (policy, reference),
        "reference_then_policy": (reference, policy),
        "reference": None,
    }
    alone = {"policy": policy.episodes, "reference": reference.episodes}
    summary = {}
    for name, pair in pairs.items():
        episodes = alone[name] if pair is None else roll_out(setup, [a.policy for a in pair], specs, hand_over_at_error)
        ids = [episode.task_id for episode in episodes]
        shares = average(ids, [[float(episode.success)] for episode in episodes])
        summary[name] = _interval(task_bootstrap(shares.values))
    return summary


def _arm(setup: Setup, policy: ModelPolicy, episodes: Sequence[Episode], tasks: Sequence[Task]) -> Arm:
    by_id = {task.id: task for task in tasks}
    kept = [episode for episode in episodes if not episode.is_void]
    environment = _environment(setup)
    steps = [replay(environment, by_id[episode.task_id], episode) for episode in kept]
    environment.close()
    return Arm(policy, kept, steps)


def _full_budget(episodes: Sequence[Episode], samples: int) -> list[Episode]:
    return [
        episode
        for episode in episodes
        if episode.enforced_budget == episode.max_budget and _is_full(episode) and episode.member < samples
    ]


def _is_full(episode: Episode) -> bool:
    return episode.told_budget in (None, episode.max_budget)


def _environment(setup: Setup):
    return setup.entry.make_environment(setup.config.env.options.to_dict())


def roll_out(
    setup: Setup,
    policies: Sequence[ModelPolicy],
    specs: Sequence[EpisodeSpec],
    director: Callable[[WatchingPool], Director],
    *,
    keep_void: bool = False,
) -> list[Episode]:
    """Directed rollouts in the order of their keys; void episodes are dropped unless they are to be counted."""
    convert = sampler_params_fn(setup.model, setup.mesh)
    samplers = []
    for policy in policies:
        samplers.append(make_sampler(setup))
        samplers[-1].set_params(convert(policy.params))
    pool = WatchingPool(lambda: _environment(setup))
    config = EngineConfig(
        announce=setup.config.budget.announce,
        wording=setup.config.budget.wording,
        temperature=setup.config.rollout.temperature,
        retries=setup.config.env.retries,
    )
    engine = RolloutEngine(DirectedSampler(samplers, director(pool)), pool, setup.chat, config)
    try:
        episodes = list(engine.run_episodes(sorted_by_work(specs)))
    finally:
        engine.close()
    episodes.sort(key=lambda episode: (episode.step, episode.group, episode.member))
    return [episode for episode in episodes if keep_void or not episode.is_void]


def _optimal_masses(
    setup: Setup, arm: Arm, own: Sequence[Sequence[State]], frozen: Sequence[Sequence[State]]
) -> dict[str, Any]:
    """Mass on optimal actions, budget-free and budget-aware, on own and on frozen states; means over tasks, by turn."""
    masses: dict[str, Any] = {}
    for place, groups in (("own_states", own), ("frozen_states", frozen)):
        flat = [state for group in groups for state in group]
        probabilities = action_probabilities(setup, arm.policy, flat)
        for name, in_budget in (("budget_free", False), ("budget_aware", True)):
            values = iter(optimal_mass([state.step for state in flat], probabilities, in_budget=in_budget))
            rows = [[next(values) for _ in group] for group in groups]
            averages = average([group[0].task_id for group in groups], rows)
            entry: dict[str, Any] = {"mean": averages.mean, "tasks": len(averages.task_ids)}
            if place == "own_states":
                entry["by_turn"] = _turns(average_by_turn(rows))
            else:
                entry["interval"] = _interval(task_bootstrap(np.clip(averages.values, 0.0, 1.0)))
            masses.setdefault(place, {})[name] = entry
    return masses


def action_probabilities(setup: Setup, policy: ModelPolicy, states: Sequence[State]) -> list[dict[str, float]]:
    """The policy's probability of each optimal action at each state, in the plainest spelling of its reply.

    Other spellings of the same action (white space, an answer tag) are not counted, so for a policy that uses several
    this is a lower bound; the share of optimal actions on record has no such gap.
    """
    wanted = [sorted(state.step.optimal | state.step.optimal_in_budget) for state in states]
    contexts = [state.context_ids for state, actions in zip(states, wanted, strict=True) for _ in actions]
    replies = [setup.chat.reply_ids(action) for actions in wanted for action in actions]
    scores = iter(np.exp(reply_log_probs(policy, contexts, replies)))
    return [{action: float(next(scores)) for action in actions} for actions in wanted]


def _hazards(episodes: Sequence[Episode], percents: Sequence[int], mode: Mode) -> dict[str, Any]:
    """The hazard of success by turn, for each told budget on its own."""
    hazards = {}
    for percent in percents if mode == "told" else (FULL,):
        own = [e for e in episodes if mode == "blind" or e.told_budget == percent_of(e.max_budget, percent)]
        found = success_hazard(own)
        hazards[str(percent)] = {
            "survivors": found.survivors.tolist(),
            "successes": found.successes.tolist(),
            "hazard": found.hazard.tolist(),
        }
    return hazards


def _paired_by_task(first: Sequence[Episode], second: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Success by task, over the episodes that neither side lost to the infrastructure."""

    def by_key(episodes: Sequence[Episode]) -> Mapping[tuple, Episode]:
        return {(episode.task_id, episode.step, episode.group, episode.member): episode for episode in episodes}

    sides = by_key(first), by_key(second)
    keys = sorted(sides[0].keys() & sides[1].keys())
    ids = [key[0] for key in keys]
    values = [average(ids, [[float(side[key].success)] for key in keys]).values for side in sides]
    return values[0], values[1]


def _turns(averages) -> dict[str, list]:
    return {"survivors": averages.survivors.tolist(), "mean": averages.mean.tolist()}


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        "estimate": float(interval.estimate),
        "low": float(interval.low),
        "high": float(interval.high),
        "method": str(interval.method),
    }


def _without_nan(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in values]
