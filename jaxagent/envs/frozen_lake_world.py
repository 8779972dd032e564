"""The frozen lake itself: map, moves, shortest paths and best success probabilities. No text, no randomness.

Cells are numbered row by row from the top left. The dynamics are those of Gymnasium's FrozenLake: a move goes the way
it is meant with probability `success_rate` and to either side of that with half of the rest; a move against the edge
stays.
"""

import collections
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from jaxagent.episodes import Task

DIRECTIONS = ("left", "down", "right", "up")  # Gymnasium's actions 0..3
_STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (row, column) of each direction
_TIE = 1e-12  # values that differ by less are equal


class Outcome(NamedTuple):
    """One way a move can turn out: it went in `direction` (index) with `probability` and touched the cell `touched`."""

    probability: float
    direction: int
    touched: int


@dataclasses.dataclass(frozen=True)
class Lake:
    """A square lake. `on_hole` says what a hole does: `end` the episode, or `reset` to the start."""

    size: int
    start: int
    goal: int
    holes: frozenset[int]
    success_rate: float
    on_hole: str

    def neighbour(self, cell: int, direction: int) -> int | None:
        """The next cell in a direction, None beyond the edge."""
        row, column = divmod(cell, self.size)
        row, column = row + _STEPS[direction][0], column + _STEPS[direction][1]
        inside = 0 <= row < self.size and 0 <= column < self.size
        return row * self.size + column if inside else None

    def surroundings(self, cell: int) -> list[int]:
        """The up to eight cells around a cell."""
        row, column = divmod(cell, self.size)
        rows = range(max(row - 1, 0), min(row + 2, self.size))
        columns = range(max(column - 1, 0), min(column + 2, self.size))
        return [r * self.size + c for r in rows for c in columns if (r, c) != (row, column)]

    def outcomes(self, cell: int, action: int) -> tuple[Outcome, ...]:
        """Every way that the move `action` from `cell` can turn out; probabilities sum to 1."""
        chances = [(self.success_rate, action)]
        if self.success_rate < 1.0:
            side = (1.0 - self.success_rate) / 2.0
            chances = [(side, (action - 1) % 4), *chances, (side, (action + 1) % 4)]
        return tuple(
            Outcome(probability, direction, cell if (touched := self.neighbour(cell, direction)) is None else touched)
            for probability, direction in chances
        )

    def letter(self, cell: int) -> str:
        """S start, G goal, H hole, F frozen."""
        if cell == self.start:
            return "S"
        if cell == self.goal:
            return "G"
        return "H" if cell in self.holes else "F"


def lake_of(data: dict[str, Any]) -> Lake:
    """The lake in a task's data: `rows` (strings of S, F, H, G), `success_rate`, `on_hole`.

    Raises `ValueError` where the rows are not a square with one S and one G.
    """
    return _parsed(tuple(data["rows"]), float(data["success_rate"]), str(data["on_hole"]))


@functools.lru_cache(maxsize=1024)
def _parsed(rows: tuple[str, ...], success_rate: float, on_hole: str) -> Lake:
    letters = "".join(rows)
    square = all(len(row) == len(rows) for row in rows)
    if not square or set(letters) - set("SFHG") or letters.count("S") != 1 or letters.count("G") != 1:
        raise ValueError(f"a lake is a square of S, F, H and G with one S and one G, got {rows}")
    holes = frozenset(cell for cell, letter in enumerate(letters) if letter == "H")
    return Lake(len(rows), letters.index("S"), letters.index("G"), holes, success_rate, on_hole)


def path_lengths(lake: Lake, blocked: frozenset[int]) -> list[int | None]:
    """Moves from each cell to the goal around the `blocked` cells, without slip; None where there is no way. BFS."""
    return _breadth_first(lake, blocked, jump_to=None)


@functools.lru_cache(maxsize=1024)
def distances(lake: Lake) -> tuple[int | None, ...]:
    """Fewest turns from each cell to the goal without slip; None where there is no way (and for holes).

    Where holes send back to the start, stepping into one is a move too, and sometimes the shortest way.
    """
    jump_to = lake.start if lake.on_hole == "reset" else None
    return tuple(_breadth_first(lake, lake.holes, jump_to))


def _breadth_first(lake: Lake, blocked: frozenset[int], jump_to: int | None) -> list[int | None]:
    """BFS backwards from the goal; `jump_to` is the cell that touching a blocked cell leads to, if any."""
    lengths: list[int | None] = [None] * lake.size**2
    lengths[lake.goal] = 0
    queue = collections.deque([lake.goal])
    while queue:
        cell = queue.popleft()
        before = _neighbours(lake, cell)
        if cell == jump_to:
            before += [rim for hole in blocked for rim in _neighbours(lake, hole)]
        for previous in before:
            if lengths[previous] is None and previous not in blocked:
                lengths[previous] = lengths[cell] + 1
                queue.append(previous)
    return lengths


def _neighbours(lake: Lake, cell: int) -> list[int]:
    return [near for direction in range(4) if (near := lake.neighbour(cell, direction)) is not None]


def shortest_moves(lake: Lake, cell: int, lengths: list[int | None] | tuple[int | None, ...]) -> tuple[int, ...]:
    """The directions (indices) that lead to a neighbour one move closer by `lengths`; holes themselves have length
    None."""
    here = lengths[cell]
    if not here:
        return ()
    nears = [lake.neighbour(cell, direction) for direction in range(4)]
    return tuple(d for d, near in enumerate(nears) if near is not None and lengths[near] == here - 1)


def best_moves(lake: Lake, cell: int, turns_left: int) -> tuple[int, ...]:
    """The optimal directions (indices) in a cell.

    Without slip: every move that brings the goal one turn closer, whatever the turns left. With slip: the moves with
    the highest probability of success within `turns_left`, by finite-horizon value iteration; of equally good ones
    those that risk a hole least.
    """
    if lake.success_rate == 1.0:
        lengths = distances(lake)
        here, start = lengths[cell], lengths[lake.start]
        moves = list(shortest_moves(lake, cell, lengths))
        if here and lake.on_hole == "reset" and start == here - 1:
            moves += [d for d in range(4) if lake.neighbour(cell, d) in lake.holes]
        return tuple(sorted(moves))
    before = values_of(lake, turns_left)[turns_left - 1]
    chances, risks = np.zeros(4), np.zeros(4)
    for action in range(4):
        for probability, _, touched in lake.outcomes(cell, action):
            chances[action] += probability * before[touched]
            risks[action] += probability * (touched in lake.holes)
    best = chances >= chances.max() - _TIE
    safest = risks <= risks[best].min() + _TIE
    return tuple(int(action) for action in np.flatnonzero(best & safest))


def optimal_values(task: Task, horizon: int) -> np.ndarray:
    """Highest probability of reaching the goal of a frozen-lake task within h turns, [horizon + 1, size, size].

    The map is known (in fog: a clairvoyant agent). An entry is the value of *arriving* in a cell: 1 at the goal; in a
    hole 0, or the value of the start where holes send back.
    """
    lake = lake_of(task.data)
    return values_of(lake, horizon).reshape(horizon + 1, lake.size, lake.size)


@functools.lru_cache(maxsize=1024)
def values_of(lake: Lake, horizon: int) -> np.ndarray:
    """`optimal_values` of a lake with the cells in a row, [horizon + 1, size**2]; read-only.

    Finite-horizon value iteration: V_h(s) = max_a sum_s' P(s'|s,a) V_{h-1}(s').
    """
    touched = np.array([[[o.touched for o in lake.outcomes(s, a)] for a in range(4)] for s in range(lake.size**2)])
    weights = np.array([outcome.probability for outcome in lake.outcomes(0, 0)])
    values = np.zeros((horizon + 1, lake.size**2))
    values[0, lake.goal] = 1.0
    for turns in range(1, horizon + 1):
        values[turns] = (values[turns - 1][touched] @ weights).max(axis=1)  # [cell, action, outcome] -> [cell]
        values[turns, lake.goal] = 1.0
        values[turns, list(lake.holes)] = values[turns, lake.start] if lake.on_hole == "reset" else 0.0
    values.flags.writeable = False
    return values
