"""The analysis behind an evaluation: what a policy does differently from a reference, and whether it recovers.

It costs rollouts: the reference policy on the panel, injected errors, hybrid policies and, for a policy that is told
budgets, episodes without a budget line. All of it is at the full budget and under the panel's own keys, so that the
two policies meet the same tasks, budgets and environment noise.
"""

from collections.abc import Sequence
from typing import Any

from jaxagent.episodes import Episode, EpisodeSpec, Task
from jaxagent.evaluation.arms import (
    Arm,
    arm_summary,
    difference,
    figures_of,
    interval_of,
    make_arm,
    paired_interval,
)
from jaxagent.evaluation.intervals import mcnemar_exact, task_bootstrap
from jaxagent.evaluation.interventions import (
    Injection,
    hand_over_at_error,
    injection_script,
    plan_hash,
    plan_injections,
)
from jaxagent.evaluation.likelihood import ModelPolicy, compare_policies, shift_by_turn
from jaxagent.evaluation.panels import no_line_specs, panel_specs
from jaxagent.evaluation.pass_at import Mode
from jaxagent.evaluation.rollouts import Rollouts, make_environment
from jaxagent.evaluation.step_quality import (
    TaskAverages,
    average,
    freeze_states,
    gain_split,
    split_success,
    states_hash,
)
from jaxagent.evaluation.surface import FULL
from jaxagent.rollout.setup import Setup


def analyse(
    setup: Setup,
    rollouts: Rollouts,
    policy: ModelPolicy,
    reference: tuple[ModelPolicy, int] | None,
    episodes: Sequence[Episode],
    tasks: Sequence[Task],
    *,
    mode: Mode,
) -> dict[str, Any]:
    """Step quality, recovery and, with a reference, everything that compares with it.

    Args:
      setup: of the evaluation; its `eval` section says how much is rolled out. Environments run in this process.
      rollouts: where they are run, and kept.
      policy: the evaluated one.
      reference: the policy to compare with and the step of its checkpoint.
      episodes: the evaluated policy's panel episodes.
      tasks: the panel.
      mode: whether it was told budgets.
    """
    settings = setup.config.eval
    own = make_arm(setup, policy, _full_budget(episodes, settings.analysis_samples), tasks)
    result: dict[str, Any] = {"percent": FULL, "samples": settings.analysis_samples}
    if reference is None:
        states = freeze_states(own.episodes, own.steps, count=settings.analysis_states)
        figures = figures_of(setup, own, states)
        return result | {"policy": arm_summary(own, figures, settings.recovery_horizon)}
    model, step = reference
    specs = full_budget_specs(tasks, samples=settings.analysis_samples, told=mode == "told", like=episodes)
    other = make_arm(setup, model, rollouts.run("reference", [model], specs), tasks)
    states = freeze_states(other.episodes, other.steps, count=settings.analysis_states)
    figures = [figures_of(setup, arm, states) for arm in (own, other)]
    return result | {
        "reference_run": str(settings.reference_run),
        "reference_step": step,
        "states": {"count": len(states), "hash": states_hash(states)},
        "policy": arm_summary(own, figures[0], settings.recovery_horizon),
        "reference": arm_summary(other, figures[1], settings.recovery_horizon),
        "difference": difference(*figures),
        "gain": gain_summary(own, other),
        "solved_sets": solved_sets(own, other),
        "injected_errors": injection_summary(setup, rollouts, own, other, tasks),
        "hybrids": hybrid_summary(rollouts, own, other, specs),
        "likelihood": {
            "on_policy_episodes": shift_by_turn(compare_policies(policy, model, own.episodes)),
            "on_reference_episodes": shift_by_turn(compare_policies(policy, model, other.episodes)),
        },
    }


def no_line_episodes(
    setup: Setup, rollouts: Rollouts, policy: ModelPolicy, tasks: Sequence[Task], run_seed: int
) -> list[Episode]:
    """The policy on the panel without a budget line, `eval.panel_samples` full-length episodes a task."""
    settings = setup.config.eval
    specs = no_line_specs(tasks, samples=settings.panel_samples, run_seed=run_seed, k=settings.k)
    return rollouts.run("no_line", [policy], specs)


def full_budget_specs(tasks: Sequence[Task], *, samples: int, told: bool, like: Sequence[Episode]) -> list[EpisodeSpec]:
    """The panel's orders at the full budget, under the run seed of the episodes that they will be compared with."""
    run_seed = like[0].run_seed
    if told:
        return panel_specs(tasks, told_percents=[FULL], samples=samples, run_seed=run_seed)
    return no_line_specs(tasks, samples=samples, run_seed=run_seed)


def gain_summary(policy: Arm, reference: Arm) -> dict[str, Any]:
    """The gain in success as clean plus recovered, with paired intervals, over the tasks that both sides have."""
    common = set(policy.task_ids) & set(reference.task_ids)
    splits = []
    for arm in (policy, reference):
        kept = [place for place, task_id in enumerate(arm.task_ids) if task_id in common]
        splits.append(split_success([arm.episodes[place] for place in kept], [arm.steps[place] for place in kept]))
    intervals = {
        f"{name}_interval": paired_interval(*(TaskAverages(split.task_ids, getattr(split, name)) for split in splits))
        for name in ("clean", "recovered")
    }
    return gain_split(*splits) | intervals


def solved_sets(policy: Arm, reference: Arm) -> dict[str, Any]:
    """Tasks that one side solved at least once and the other never, with McNemar's exact test.

    Never among n episodes is no proof that a task is out of reach: it bounds the chance of success by about 3 / n.
    """
    solved, met = [], []
    for arm in (policy, reference):
        solved.append({episode.task_id for episode in arm.episodes if episode.success})
        met.append(set(arm.task_ids))
    common = sorted(met[0] & met[1])
    test = mcnemar_exact(*([task_id in side for task_id in common] for side in solved))
    return {
        "both": sum(task_id in solved[0] and task_id in solved[1] for task_id in common),
        "only_policy": test.only_first,
        "only_reference": test.only_second,
        "neither": sum(task_id not in solved[0] and task_id not in solved[1] for task_id in common),
        "mcnemar_p": test.p_value,
    }


def injection_summary(
    setup: Setup, rollouts: Rollouts, policy: Arm, reference: Arm, tasks: Sequence[Task]
) -> dict[str, Any]:
    """Success of both policies from the reference's prefixes, with one wrong reply forced and (control) without.

    Both go on with noise of their own. The noise that made a prefix is not drawn again: where in an episode the error
    is forced depends on how that episode went on.
    """
    environment = make_environment(setup)
    by_id = {task.id: task for task in tasks}
    count = setup.config.eval.analysis_states
    try:
        injections = plan_injections(environment, by_id, reference.episodes, reference.steps, count=count)
    finally:
        environment.close()
    summary: dict[str, Any] = {"count": len(injections)}
    for name, inject in (("after_error", True), ("control", False)) if injections else ():
        sides = []
        for side, arm in (("policy", policy), ("reference", reference)):
            piece = f"{name}_{side}_{plan_hash(injections)}"
            sides.append(inject_errors(setup, rollouts, piece, arm.policy, injections, inject=inject))
        averages = [_success(side) for side in _common(*sides)]
        summary[name] = {
            "policy": _mean_interval(averages[0]),
            "reference": _mean_interval(averages[1]),
            "difference": paired_interval(*averages),
        }
    return summary


def inject_errors(
    setup: Setup,
    rollouts: Rollouts,
    name: str,
    policy: ModelPolicy,
    injections: Sequence[Injection],
    *,
    inject: bool = True,
    fresh_noise: bool = True,
) -> list[Episode]:
    """Hands each injection's transcript to a policy and lets it finish; `inject=False` forces the prefix alone."""
    specs = [injection.spec for injection in injections]
    return rollouts.run(
        name,
        [policy],
        specs,
        lambda pool: injection_script(injections, setup.chat, inject=inject),
        fresh_noise=fresh_noise,
    )


def hybrid_summary(rollouts: Rollouts, policy: Arm, reference: Arm, specs: Sequence[EpisodeSpec]) -> dict[str, Any]:
    """Success of the policy until the first error with the reference after it, and the reverse, beside both alone.

    `over_reference` is the paired difference to the reference alone: how much of the gain each half brings.
    """
    models = policy.policy, reference.policy
    success = {
        "policy": _success(policy.episodes),
        "policy_then_reference": _success(rollouts.run("policy_then_reference", models, specs, hand_over_at_error)),
        "reference_then_policy": _success(
            rollouts.run("reference_then_policy", models[::-1], specs, hand_over_at_error)
        ),
        "reference": _success(reference.episodes),
    }
    return {
        name: {"success": _mean_interval(found), "over_reference": paired_interval(found, success["reference"])}
        for name, found in success.items()
    }


def _full_budget(episodes: Sequence[Episode], samples: int) -> list[Episode]:
    return [
        episode
        for episode in episodes
        if episode.enforced_budget == episode.max_budget and _is_full(episode) and episode.member < samples
    ]


def _is_full(episode: Episode) -> bool:
    return episode.told_budget in (None, episode.max_budget)


def _success(episodes: Sequence[Episode]) -> TaskAverages:
    """Success by task; void episodes do not count."""
    kept = [episode for episode in episodes if not episode.is_void]
    return average([episode.task_id for episode in kept], [[float(episode.success)] for episode in kept])


def _mean_interval(averages: TaskAverages) -> dict[str, Any] | None:
    """None where every episode was void."""
    return interval_of(task_bootstrap(averages.values)) if averages.task_ids else None


def _common(first: Sequence[Episode], second: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
    """The episodes of orders that neither side lost to the infrastructure."""

    def key(episode: Episode) -> tuple:
        return (episode.task_id, episode.step, episode.group, episode.member)

    alive = [{key(episode) for episode in side if not episode.is_void} for side in (first, second)]
    common = alive[0] & alive[1]
    return tuple([episode for episode in side if key(episode) in common] for side in (first, second))
