"""Scripted agents on Lookup for the notebooks: policies whose dependence on the budget is known, without any training.

`careful` queries every needed field before it answers, whatever it is told. `reader` does the same while turns are left
and answers with a guess on the last one that it was told of. Both sometimes write nonsense. Rolling them out needs no
accelerator and no model; the records are those of any other episode.
"""

import random
from collections.abc import Callable, Sequence

from jaxagent.budgets import percent_of
from jaxagent.envs import registry
from jaxagent.episodes import Episode, EpisodeSpec, Task, Turn, finished_episode
from jaxagent.rollout.engine import environment_seed

OPTIONS = {"max_turns": 12, "max_needed": 4}
NONSENSE = 0.08  # chance of an invalid reply
# agent(environment, turns that it believes to have left or None, generator) -> reply
Agent = Callable[..., str]


def careful(environment, told_left: int | None, generator: random.Random) -> str:
    """Queries until everything needed is seen, then answers; deaf to the budget."""
    if generator.random() < NONSENSE:
        return "let me think"
    if environment.unseen:
        return f"query_{generator.choice(environment.unseen)}"
    return f"answer_{environment.letters[0]}"


def reader(environment, told_left: int | None, generator: random.Random) -> str:
    """Like `careful`, but guesses on the last turn that it was told of."""
    if told_left == 1 and generator.random() >= NONSENSE:
        return f"answer_{generator.choice(environment.letters)}"
    return careful(environment, told_left, generator)


def panel(count: int) -> list[Task]:
    """`count` tasks of the panel split."""
    source = registry.get("lookup").make_tasks(OPTIONS, "panel", count, 1)
    return [source.task(index) for index in range(count)]


def make_environment():
    """A fresh Lookup with the options of the tasks."""
    return registry.get("lookup").make_environment(OPTIONS)


def roll_out(agent: Agent, tasks: Sequence[Task], *, percent: int = 100, samples: int = 16, told: bool = True):
    """Independent episodes of every task at a share of its budget, told or not."""
    environment, episodes = make_environment(), []
    for group, task in enumerate(tasks):
        budget = percent_of(task.max_turns, percent)
        for member in range(samples):
            spec = EpisodeSpec(task, 0, percent, group, member, budget if told else None, budget)
            episodes.append(_play(agent, environment, spec))
    return episodes


def _play(agent: Agent, environment, spec: EpisodeSpec) -> Episode:
    """One episode, under the engine's rules: an invalid reply is a turn, success on the last turn counts."""
    generator = random.Random(repr((agent.__name__, spec.task.id, spec.step, spec.member)))
    observation = environment.reset(spec.task, environment_seed(spec))
    turns, ended = [], None
    while not ended and len(turns) < spec.enforced_budget:
        left = None if spec.told_budget is None else spec.told_budget - len(turns)
        text, anchor = agent(environment, left, generator), observation.anchor
        result = environment.step(text)
        observation, ended = result.observation, result.ended
        turns.append(
            Turn(
                index=len(turns) + 1,
                observation_ids=None,
                sampled_ids=None,
                logprobs=None,
                weight_version=0,
                text=text,
                action=result.info["action"],
                valid=result.info["valid"],
                error=result.info["error"],
                reward=0.0,
                anchor=anchor,
                remaining=spec.enforced_budget - len(turns),
            )
        )
    return finished_episode(spec, turns, ended or "budget", outcome=float(ended == "success"))
