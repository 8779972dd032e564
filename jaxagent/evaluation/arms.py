"""What a policy's judged episodes say about its single steps, its errors and its recovery, each with an interval.

Averages are over the turns of an episode, then over the episodes of a task, then over tasks; intervals resample tasks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagent.episodes import Episode, Task
from jaxagent.errors import UserError
from jaxagent.evaluation.intervals import Interval, paired_task_bootstrap, ratio_bootstrap, task_bootstrap
from jaxagent.evaluation.likelihood import ModelPolicy, reply_log_probs
from jaxagent.evaluation.rollouts import make_environment
from jaxagent.evaluation.step_quality import (
    State,
    Step,
    SuccessSplit,
    TaskAverages,
    TurnAverages,
    average,
    average_by_turn,
    context_ids,
    errors,
    good_steps,
    invalid,
    optimal_mass,
    recovery,
    recovery_by_task,
    replay,
    split_success,
)
from jaxagent.rollout.setup import Setup

NOTIONS = (("budget_free", False), ("budget_aware", True))


@dataclasses.dataclass(frozen=True)
class Arm:
    """A policy with the episodes that are analysed (full budget, none void) and their judgement."""

    policy: ModelPolicy
    episodes: list[Episode]
    steps: list[tuple[Step, ...]]
    num_void: int

    @property
    def task_ids(self) -> list[str]:
        """Of each episode."""
        return [episode.task_id for episode in self.episodes]


@dataclasses.dataclass(frozen=True)
class Figures:
    """An arm's figures: averages by task and by turn under `/`-separated names, and its success by errors before."""

    by_task: dict[str, TaskAverages]
    by_turn: dict[str, TurnAverages]
    split: SuccessSplit


def make_arm(setup: Setup, policy: ModelPolicy, episodes: Sequence[Episode], tasks: Sequence[Task]) -> Arm:
    """Judges a policy's episodes by replaying them; void ones are counted and left out.

    Raises `UserError` where all are void, or one does not replay.
    """
    by_id = {task.id: task for task in tasks}
    kept = [episode for episode in episodes if not episode.is_void]
    if not kept:
        raise UserError(
            f"all {len(episodes)} episodes to analyse were voided by the infrastructure; mend it, run again"
        )
    environment = make_environment(setup)
    try:
        steps = [replay(environment, by_id[episode.task_id], episode) for episode in kept]
    finally:
        environment.close()
    return Arm(policy, kept, steps, len(episodes) - len(kept))


def figures_of(setup: Setup, arm: Arm, states: Sequence[State]) -> Figures:
    """Everything that is averaged over an arm's episodes and, where there is an oracle, over the frozen `states`."""
    rows: dict[str, list[list[float]]] = {
        "success": [[float(episode.success)] for episode in arm.episodes],
        "invalid_rate": [invalid(judged) for judged in arm.steps],
        "error_rate": [errors(judged) for judged in arm.steps],
        "good_rate": [good_steps(judged) for judged in arm.steps],
    }
    ids = {name: arm.task_ids for name in rows}
    if states and states[0].step.optimal is not None:
        own = [
            [State(episode.task_id, context_ids(episode, step.index), step) for step in judged]
            for episode, judged in zip(arm.episodes, arm.steps, strict=True)
        ]
        for name, in_budget in NOTIONS:
            rows[f"optimal_rate/{name}"] = [optimal_mass(judged, in_budget=in_budget) for judged in arm.steps]
            ids[f"optimal_rate/{name}"] = arm.task_ids
        for place, groups in (("own_states", own), ("frozen_states", [[state] for state in states])):
            for name, values in _optimal_masses(setup, arm.policy, groups).items():
                rows[f"optimal_mass/{place}/{name}"] = values
                ids[f"optimal_mass/{place}/{name}"] = [group[0].task_id for group in groups if group]
    by_turn = {name: values for name, values in rows.items() if name != "success" and "frozen" not in name}
    return Figures(
        by_task={name: average(ids[name], values) for name, values in rows.items()},
        by_turn={name: average_by_turn(values) for name, values in by_turn.items()},
        split=split_success(arm.episodes, arm.steps),
    )


def arm_summary(arm: Arm, figures: Figures, horizon: int) -> dict[str, Any]:
    """An arm's figures as plain values: intervals over tasks, curves by turn, recovery within `horizon` turns."""
    split = figures.split
    counts = recovery_by_task(arm.task_ids, arm.steps, horizon)
    return {
        "episodes": len(arm.episodes),
        "num_void": arm.num_void,
        **_nested({name: interval_of(task_bootstrap(_shares(found))) for name, found in figures.by_task.items()}),
        "success_without_error": _ratio(split.clean, 1.0 - split.erred),
        "success_after_error": _ratio(split.recovered, split.erred),
        "recovery": dataclasses.asdict(recovery(arm.steps, horizon)) | {"interval": _ratio(*counts)},
        "by_turn": _nested(
            {
                name: {"survivors": found.survivors.tolist(), "mean": found.mean.tolist()}
                for name, found in figures.by_turn.items()
            }
        ),
    }


def difference(policy: Figures, reference: Figures) -> dict[str, Any]:
    """Policy minus reference of every average, paired by task, over the tasks that both have."""
    return _nested(
        {
            name: paired_interval(found, reference.by_task[name])
            for name, found in policy.by_task.items()
            if name in reference.by_task
        }
    )


def paired_interval(first: TaskAverages, second: TaskAverages) -> dict[str, Any] | None:
    """The difference of two averages over the tasks that both have; None without any."""
    sides = [dict(zip(found.task_ids, _shares(found), strict=True)) for found in (first, second)]
    common = sorted(sides[0].keys() & sides[1].keys())
    if not common:
        return None
    values = [np.array([side[task_id] for task_id in common]) for side in sides]
    return interval_of(paired_task_bootstrap(*values)) | {"tasks": len(common)}


def interval_of(interval: Interval) -> dict[str, Any]:
    """A single interval as plain values."""
    return {
        "estimate": float(interval.estimate),
        "low": float(interval.low),
        "high": float(interval.high),
        "method": str(interval.method),
    }


def action_probabilities(setup: Setup, policy: ModelPolicy, states: Sequence[State]) -> list[dict[str, float]]:
    """The policy's probability of each optimal action at each state, in the plainest spelling of its reply.

    Other spellings of the same action (white space, an answer tag) are not counted, so for a policy that uses several
    this is a lower bound; the share of optimal actions on record (`optimal_rate`) has no such gap.
    """
    wanted = [sorted(state.step.optimal | state.step.optimal_in_budget) for state in states]
    contexts = [state.context_ids for state, actions in zip(states, wanted, strict=True) for _ in actions]
    replies = [setup.chat.reply_ids(action) for actions in wanted for action in actions]
    scores = iter(np.exp(reply_log_probs(policy, contexts, replies)))
    return [{action: float(next(scores)) for action in actions} for actions in wanted]


def _optimal_masses(
    setup: Setup, policy: ModelPolicy, groups: Sequence[Sequence[State]]
) -> dict[str, list[list[float]]]:
    """Mass on optimal actions in groups of states, by both notions; empty groups are left out."""
    groups = [group for group in groups if group]
    flat = [state for group in groups for state in group]
    probabilities = action_probabilities(setup, policy, flat)
    masses = {}
    for name, in_budget in NOTIONS:
        values = iter(optimal_mass([state.step for state in flat], probabilities, in_budget=in_budget))
        masses[name] = [[next(values) for _ in group] for group in groups]
    return masses


def _shares(averages: TaskAverages) -> np.ndarray:
    """Sums of probabilities may pass 1 by a rounding error."""
    return np.clip(averages.values, 0.0, 1.0)


def _ratio(parts: np.ndarray, wholes: np.ndarray) -> dict[str, Any] | None:
    """A rate with its interval; None where its denominator is 0."""
    return interval_of(ratio_bootstrap(parts, wholes)) if np.sum(wholes) > 0 else None


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Names with slashes as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split("/")
        place = tree
        for word in path:
            place = place.setdefault(word, {})
        place[leaf] = value
    return tree
