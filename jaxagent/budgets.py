"""Interaction budgets: the candidate grid, the samplers, and the line that tells the agent.

BudgetMix RL (arXiv 2611.06483) draws one budget per task group from a grid of ten per cent steps of the task's full
budget and writes total and remaining turns into the prompt. Everything here is integer arithmetic and keyed
randomness: the same draw on every host and after a resume.
"""

import dataclasses
import hashlib
from typing import Protocol

from jaxagent.errors import UserError

NUM_TENTHS = 10
ANNOUNCEMENTS = ("total_and_remaining", "remaining", "total", "none")
WORDINGS = ("sentence", "words")


def candidate_budgets(max_turns: int) -> tuple[int, ...]:
    """The ten candidate budgets, `ceil(j * max_turns / 10)` for j = 1..10.

    Small `max_turns` repeat values; a draw of j then weights a value by its multiplicity.
    """
    _check_max_turns(max_turns)
    return tuple((j * max_turns + 9) // NUM_TENTHS for j in range(1, NUM_TENTHS + 1))


def percent_of(max_turns: int, percent: int) -> int:
    """`percent` of the full budget in whole turns, rounded up: `(percent * max_turns + 99) // 100`, at least 1."""
    _check_max_turns(max_turns)
    if not 1 <= percent <= 100:
        raise UserError(f"budget percent must lie in 1..100, got {percent}")
    return (percent * max_turns + 99) // 100


def draw_tenths(seed: int, step: int, task_id: str, *, attempt: int = 0) -> int:
    """The tenth j in 1..10 of one group, uniform, keyed by (seed, step, task): no state, no order, same on every host.

    A task that is drawn again within the step (a dynamic-sampling redraw) keeps its j because the key does not change;
    `attempt` is for the rare caller that holds two groups of one task in one step and wants them independent.
    """
    return 1 + _keyed_below(NUM_TENTHS, "tenth", seed, step, task_id, attempt)


class BudgetSampler(Protocol):
    """Anything that draws one budget for one group."""

    def sample(self, max_turns: int, *, seed: int, step: int, task_id: str, attempt: int = 0) -> int:
        """A budget in 1..max_turns, a pure function of its arguments."""
        ...


@dataclasses.dataclass(frozen=True)
class BudgetMix:
    """BudgetMix: j uniform on 1..10, budget `ceil(j * max_turns / 10)`."""

    def sample(self, max_turns: int, *, seed: int, step: int, task_id: str, attempt: int = 0) -> int:
        """One draw from the ten candidates."""
        return candidate_budgets(max_turns)[draw_tenths(seed, step, task_id, attempt=attempt) - 1]


@dataclasses.dataclass(frozen=True)
class FixedBudget:
    """The same share of every task's full budget, in per cent."""

    percent: int = 100

    def __post_init__(self) -> None:
        percent_of(1, self.percent)

    def sample(self, max_turns: int, *, seed: int, step: int, task_id: str, attempt: int = 0) -> int:
        """`ceil(percent / 100 * max_turns)`; nothing is drawn."""
        del seed, step, task_id, attempt
        return percent_of(max_turns, self.percent)


@dataclasses.dataclass(frozen=True)
class UniformBudget:
    """Uniform on 1..max_turns: every whole number of turns, not only the grid's."""

    def sample(self, max_turns: int, *, seed: int, step: int, task_id: str, attempt: int = 0) -> int:
        """One draw from 1..max_turns."""
        _check_max_turns(max_turns)
        return 1 + _keyed_below(max_turns, "uniform", seed, step, task_id, attempt)


@dataclasses.dataclass(frozen=True)
class CurriculumBudget:
    """Piecewise constant share of the full budget over training (as in ScalingInter-RL, arXiv 2509.08755).

    `stages` are (first step, percent) pairs with increasing first steps, the first at step 0. The stage is recomputed
    from the global step at each call, so a resumed run is in the right stage.
    """

    stages: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.stages]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise UserError(f"curriculum stages need increasing first steps from 0, got {self.stages}")
        for _, percent in self.stages:
            percent_of(1, percent)

    def sample(self, max_turns: int, *, seed: int, step: int, task_id: str, attempt: int = 0) -> int:
        """The budget of the stage that contains `step`."""
        del seed, task_id, attempt
        percent = [percent for start, percent in self.stages if start <= step][-1]
        return percent_of(max_turns, percent)


def is_announced(probability: float, *, seed: int, step: int, task_id: str, attempt: int = 0) -> bool:
    """Whether a group is told its budget: true with `probability`, one keyed draw per group."""
    if not 0.0 <= probability <= 1.0:
        raise UserError(f"budget.announce_probability must lie in [0, 1], got {probability}")
    resolution = 1 << 53
    return _keyed_below(resolution, "announce", seed, step, task_id, attempt) < probability * resolution


def remaining_turns(budget: int, turn: int) -> int:
    """Turns left before turn `turn` (1-based) of `budget`, counting the one about to be taken: the first shows the
    budget, the last shows 1, 0 is never shown."""
    if not 1 <= turn <= budget:
        raise ValueError(f"turn {turn} lies outside 1..{budget}")
    return budget - turn + 1


def budget_line(
    told: int | None, turn: int, *, announce: str = "total_and_remaining", wording: str = "sentence"
) -> str:
    """The text that tells the agent its budget before turn `turn` (1-based); empty where nothing is told.

    Args:
      told: the announced budget in turns, None where the group is not told.
      turn: the turn about to be taken.
      announce: one of `ANNOUNCEMENTS`; `total_and_remaining` is the paper's.
      wording: `sentence` for language models; `words` gives one word a number (` total_12 remaining_11`), `remaining`
        last, which a tiny model can read from the position that predicts its reply.
    """
    if announce not in ANNOUNCEMENTS:
        raise UserError(f"budget.announce must be one of {', '.join(ANNOUNCEMENTS)}, got {announce!r}")
    if wording not in WORDINGS:
        raise UserError(f"budget.wording must be one of {', '.join(WORDINGS)}, got {wording!r}")
    if told is None or announce == "none":
        return ""
    remaining = remaining_turns(told, turn)
    if wording == "words":
        total_text, remaining_text = f" total_{told}", f" remaining_{remaining}"
    else:
        total_text, remaining_text = f"\nTurns in total: {told}.", f"\nTurns remaining, this one included: {remaining}."
    return {
        "total_and_remaining": total_text + remaining_text,
        "remaining": remaining_text,
        "total": total_text,
    }[announce]


def make_sampler(name: str, *, percent: int = 100, stages: tuple[tuple[int, int], ...] = ()) -> BudgetSampler:
    """The sampler that a config names: `budgetmix`, `fixed` (with `percent`), `uniform`, `curriculum` (with
    `stages`)."""
    if name == "budgetmix":
        return BudgetMix()
    if name == "fixed":
        return FixedBudget(percent)
    if name == "uniform":
        return UniformBudget()
    if name == "curriculum":
        return CurriculumBudget(tuple((int(start), int(share)) for start, share in stages))
    raise UserError(f"budget.sampler must be budgetmix, fixed, uniform or curriculum, got {name!r}")


def _check_max_turns(max_turns: int) -> None:
    if max_turns < 1:
        raise UserError(f"max_turns must be at least 1, got {max_turns}")


def _keyed_below(bound: int, *key: object) -> int:
    """A uniform integer in 0..bound-1 from a hash of `key`; 128 bits, so the modulo bias is below 1e-22."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return int.from_bytes(digest, "big") % bound
