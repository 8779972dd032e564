"""DAPO's dynamic sampling (arXiv 2503.14476) under budgets: groups of equal returns are drawn again.

A slot is a group's place in the update. A redraw puts another task into the slot; its budget draw stays keyed by the
slot's first task, so the tenth and the announcement stay: the mix of budgets is as drawn, whatever is filtered.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxagent.episodes import Episode

REDRAW_STREAM = 0xDA90

Runner = Callable[[int, Sequence[int]], list[Episode]]  # (round, slots) -> finished episodes of those slots


@dataclasses.dataclass(frozen=True)
class Collected:
    """The episodes of an update, and what was thrown away to get them."""

    episodes: list[Episode]
    redrawn_groups: int = 0
    discarded_episodes: int = 0

    def metrics(self) -> dict[str, float]:
        """For the log."""
        return {
            "groups/redrawn": float(self.redrawn_groups),
            "groups/discarded_episodes": float(self.discarded_episodes),
        }


def collect(
    run: Runner, flat_slots: Callable[[list[Episode]], list[int]], *, groups: int, max_redraws: int
) -> Collected:
    """Runs all slots, then for at most `max_redraws` rounds those whose groups came out flat.

    Args:
      run: runs the given slots; round 0 holds the first draws. Its groups carry numbers `group_number(slot, round)`.
      flat_slots: the slots whose present groups have no variance.
      groups: number of slots.
      max_redraws: rounds after the first.
    """
    kept = run(0, range(groups))
    redrawn = discarded = 0
    for number in range(1, max_redraws + 1):
        flat = flat_slots(kept)
        if not flat:
            break
        stays = [episode for episode in kept if slot_of(episode, groups) not in flat]
        redrawn, discarded = redrawn + len(flat), discarded + len(kept) - len(stays)
        kept = stays + run(number, flat)
    return Collected(kept, redrawn, discarded)


def group_number(slot: int, redraw: int, groups: int) -> int:
    """The `group` of a slot's specs in a round: its own in each, so that no two draws share their sampling noise."""
    return slot + redraw * groups


def slot_of(episode: Episode, groups: int) -> int:
    """The slot that an episode's group stands in."""
    return episode.group % groups


def first_indices(seed: int, step: int, *, num_tasks: int, groups: int) -> np.ndarray:
    """Task indices of all slots, keyed; distinct where there are enough tasks."""
    return np.random.default_rng([seed, step]).choice(num_tasks, groups, replace=num_tasks < groups)


def redraw_indices(seed: int, step: int, redraw: int, *, num_tasks: int, groups: int) -> np.ndarray:
    """Task indices of all slots for a round, keyed; a slot takes its own whether or not others are redrawn."""
    return np.random.default_rng([seed, step, REDRAW_STREAM, redraw]).integers(num_tasks, size=groups)
