"""Orders for rollouts: one group a task in training, one group a task and told budget in evaluation. Free of jax."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from jaxagent import budgets
from jaxagent.episodes import EpisodeSpec, Task


def group_specs(
    config: ConfigDict,
    tasks: list[Task],
    *,
    step: int,
    group_size: int,
    sampler: budgets.BudgetSampler,
    groups: Sequence[int] | None = None,
    keys: Sequence[str] | None = None,
) -> list[EpisodeSpec]:
    """The specs of one training step: one group a task, one budget and one announcement a group.

    With `algorithm.replay_budgets` episodes run to the full budget untold; the drawn budget is applied afterwards.
    `groups` are the groups' numbers (0, 1, ... by default) and `keys` the task ids that key their budgets (by default
    the tasks' own): a redrawn group has a number of its own and the key of the group that it stands in for.
    """
    specs = []
    groups = range(len(tasks)) if groups is None else groups
    keys = [task.id for task in tasks] if keys is None else keys
    for task, group, key in zip(tasks, groups, keys, strict=True):
        drawn, told = draw_budget(config, task.max_turns, key, step=step, sampler=sampler)
        enforced = task.max_turns if config.algorithm.replay_budgets else drawn
        specs += [
            EpisodeSpec(
                task=task,
                run_seed=config.seed,
                step=step,
                group=group,
                member=member,
                told_budget=drawn if told else None,
                enforced_budget=enforced,
            )
            for member in range(group_size)
        ]
    return specs


def draw_budget(
    config: ConfigDict, max_turns: int, task_id: str, *, step: int, sampler: budgets.BudgetSampler
) -> tuple[int, bool]:
    """The budget of one group of a task with `max_turns`, keyed by `task_id`, and whether it is told."""
    key = {"seed": config.seed, "step": step, "task_id": task_id}
    told = config.budget.announce != "none" and budgets.is_announced(config.budget.announce_probability, **key)
    return sampler.sample(max_turns, **key), told


def told_specs(
    tasks: Sequence[Task], *, percent: int, samples: int, run_seed: int, announced: bool = True
) -> list[EpisodeSpec]:
    """`samples` independent episodes of each task at `percent` of its budget, told (`announced`) or not, but enforced.

    The keys' `step` is the percentage and `group` the task's place, so that no two budgets share their noise.
    """
    specs = []
    for group, task in enumerate(tasks):
        budget = budgets.percent_of(task.max_turns, percent)
        specs += [
            EpisodeSpec(
                task=task,
                run_seed=run_seed,
                step=percent,
                group=group,
                member=member,
                told_budget=budget if announced else None,
                enforced_budget=budget,
            )
            for member in range(samples)
        ]
    return specs
