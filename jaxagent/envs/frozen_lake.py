"""FrozenLake as a text world: walk to the goal around the holes; in fog the holes are hidden until a look is spent.

Maps with random start and goal, solvable, filtered by the length of the shortest path; they depend on the seed and the
map options alone, never on a budget. One reply is one move. The dynamics are in `frozen_lake_world`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxagent.envs.base import Observation, Split, StepOracle, StepResult
from jaxagent.envs.frozen_lake_demonstrators import make_demonstrator
from jaxagent.envs.frozen_lake_world import DIRECTIONS, Lake, best_moves, distances, lake_of, values_of
from jaxagent.envs.generated import GeneratedTasks, keyed_generator, parse_options
from jaxagent.envs.registry import EnvironmentEntry
from jaxagent.envs.replies import action_text, shown
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = "frozen_lake"
MAX_SIZE = 9
LOOK = "look"
_GENERATION = ("size", "safe_probability", "success_rate", "min_path", "max_path", "on_hole")
_OUTCOMES = ("start", "moved", "bump", "slipped", "hole", "goal", "noop")  # words of the compact full view
_SEEN = ("?", "free", "hole", "wall", "goal")


@dataclasses.dataclass(frozen=True)
class FrozenLakeOptions:
    """Options of the environment and of its tasks.

    Attributes:
      size: side of the board, 2..9, or (low, high): uniform, one draw a map.
      safe_probability: chance of a cell to be no hole, in (0, 1], or (low, high): uniform, one draw a map.
      success_rate: chance of a move to go the way it is meant; the rest is split between the two sides.
      min_path, max_path: shortest path from start to goal, in moves; max_path None: no limit.
      on_hole: `end` (failure) or `reset` (back to the start).
      max_turns: full budget of every task; None: twice the size of the board.
      max_turns_per_path: full budget as a multiple of the shortest path, rounded up, instead of `max_turns`.
      view: `full`, or `fog`: holes are unknown until a `look` (one turn) shows the eight cells around the agent.
      rendering: `chatty` sentences, or `compact` words for tiny models.
    """

    size: int | tuple[int, int] = (2, MAX_SIZE)
    safe_probability: float | tuple[float, float] = (0.6, 0.85)
    success_rate: float = 1.0
    min_path: int = 2
    max_path: int | None = None
    on_hole: str = "end"
    max_turns: int | None = None
    max_turns_per_path: float | None = None
    view: str = "full"
    rendering: str = "chatty"

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        low, high = _range("size", self.size)
        _require(low == int(low) and high == int(high) and low >= 2 and high <= MAX_SIZE, "size", "2..9", self.size)
        low, high = _range("safe_probability", self.safe_probability)
        _require(low > 0.0 and high <= 1.0, "safe_probability", "in (0, 1]", self.safe_probability)
        _require(
            _is_number(self.success_rate) and 0.0 < self.success_rate <= 1.0,
            "success_rate",
            "in (0, 1]",
            self.success_rate,
        )
        _require(_is_count(self.min_path), "min_path", "a whole number from 1", self.min_path)
        longest = self.max_path is None or (_is_count(self.max_path) and self.max_path >= self.min_path)
        _require(longest, "max_path", "None or at least min_path", self.max_path)
        _require(self.on_hole in ("end", "reset"), "on_hole", "end or reset", self.on_hole)
        _require(self.view in ("full", "fog"), "view", "full or fog", self.view)
        _require(self.rendering in ("chatty", "compact"), "rendering", "chatty or compact", self.rendering)
        _require(self.max_turns is None or _is_count(self.max_turns), "max_turns", "None or at least 1", self.max_turns)
        multiple = self.max_turns_per_path
        _require(
            multiple is None or (_is_number(multiple) and multiple >= 1),
            "max_turns_per_path",
            "None or at least 1",
            multiple,
        )
        both = self.max_turns is not None and multiple is not None
        _require(not both, "max_turns_per_path", "None where max_turns is given", multiple)


def compact_words() -> tuple[str, ...]:
    """Every word that the compact renderings can produce, each with its leading space."""
    far = MAX_SIZE - 1
    offsets = [f" {axis}{offset:+d}" for axis in ("row", "col") for offset in range(-far, far + 1)]
    neighbours = [f" {direction}={seen}" for direction in DIRECTIONS for seen in _SEEN]
    cells = [*(f" cell_{letter}" for letter in "SFHG"), " row_end"]
    positions = [f" {axis}{place}" for axis in ("y", "x") for place in range(MAX_SIZE)]
    return (*offsets, *neighbours, *cells, *positions, *(f" {outcome}" for outcome in _OUTCOMES))


def compact_replies() -> tuple[str, ...]:
    """The replies of the demonstrators; `noop` stands for all that is invalid."""
    return (*DIRECTIONS, LOOK, "noop")


class FrozenLake:
    """The environment. The task's data hold the world (map, slip, holes); the options say how it is shown."""

    def __init__(self, options: FrozenLakeOptions) -> None:
        """`reset` before anything else."""
        self.options = options
        self._lake: Lake | None = None

    @property
    def lake(self) -> Lake:
        """The present map."""
        if self._lake is None:
            raise RuntimeError("frozen_lake: reset before anything else")
        return self._lake

    @property
    def cell(self) -> int:
        """Where the agent is."""
        return self._cell

    @property
    def known(self) -> frozenset[int]:
        """The cells that the agent has seen; in full view all."""
        return frozenset(self._known)

    @property
    def actions(self) -> tuple[str, ...]:
        """The valid replies."""
        return (*DIRECTIONS, LOOK) if self.options.view == "fog" else DIRECTIONS

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts `task`; the slips come from `seed`."""
        self._lake = lake = lake_of(task.data)
        self._max_turns = task.max_turns
        self._generator = keyed_generator(NAME, "slip", seed) if lake.success_rate < 1.0 else None
        self._cell, self._ended = lake.start, False
        everything = range(lake.size**2)
        self._known = {lake.start, lake.goal} if self.options.view == "fog" else set(everything)
        if self.options.rendering == "chatty":
            return self._observation(f"{_rules(lake, self.actions)}\n\n{self._board()}")
        first = "" if self.options.view == "fog" else self._cells_in_words()
        return self._observation(first + self._state_in_words("start"))

    def step(self, reply: str) -> StepResult:
        """Takes one reply; an invalid one costs the turn and changes nothing."""
        if self._ended:
            raise RuntimeError("frozen_lake: the episode has ended; reset first")
        lake, action = self.lake, action_text(reply)
        if action not in self.actions:
            error = "look_without_fog" if action == LOOK else "no_action" if action is None else "unknown_action"
            return self._result("noop", _complaint(error, action, self.actions), action=None, error=error)
        if action == LOOK:
            self._known.update(lake.surroundings(self._cell))
            return self._result("looked", "You looked at the cells around you.", action)
        return self._move(DIRECTIONS.index(action), action)

    def close(self) -> None:
        """Nothing to free."""

    def oracle(self, turns_left: int | None = None) -> StepOracle:
        """The optimal moves here, knowing the map (fog too), and the distance to the goal in turns without slip.

        With slip the best move depends on `turns_left`; None takes the task's full budget.
        """
        distance = distances(self.lake)[self._cell]
        if self._ended:
            return StepOracle((), distance)
        moves = best_moves(self.lake, self._cell, turns_left or self._max_turns)
        return StepOracle(tuple(DIRECTIONS[move] for move in moves), distance)

    def _move(self, direction: int, action: str) -> StepResult:
        lake = self.lake
        went, touched = self._draw(direction)
        stayed = touched == self._cell
        self._known.add(touched)
        self._cell = touched
        if touched == lake.goal:
            self._ended = True
            return self._result("goal", "You reached the goal.", action, reward=1.0, ended="success")
        if touched in lake.holes:
            if lake.on_hole == "end":
                self._ended = True
                return self._result("hole", "You fell into a hole.", action, ended="failure")
            self._cell = lake.start
            return self._result("hole", "You fell into a hole and are back where you started.", action)
        if went != direction:
            where = "against the edge and stayed where you are" if stayed else DIRECTIONS[went]
            return self._result("slipped", f"You slipped and went {where}.", action)
        if stayed:
            return self._result("bump", f"You went {action}, against the edge, and stayed where you are.", action)
        return self._result("moved", f"You went {action}.", action)

    def _draw(self, direction: int) -> tuple[int, int]:
        """(the direction that the move takes, the cell that it touches)."""
        outcomes = self.lake.outcomes(self._cell, direction)
        if self._generator is not None:
            chance = self._generator.random()
            for outcome in outcomes[:-1]:
                if chance < outcome.probability:
                    return outcome.direction, outcome.touched
                chance -= outcome.probability
        return outcomes[-1].direction, outcomes[-1].touched

    def _result(
        self, word: str, sentence: str, action: str | None, *, reward=0.0, ended=None, error=None
    ) -> StepResult:
        chatty = self.options.rendering == "chatty"
        observation = self._observation(f"{sentence}\n{self._board()}" if chatty else self._state_in_words(word))
        return StepResult(observation, reward, ended, {"valid": error is None, "action": action, "error": error})

    def _observation(self, text: str) -> Observation:
        row, column = divmod(self._cell, self.lake.size)
        anchor = f"{row},{column}"
        if self.options.view == "fog":
            anchor += f";{sum(1 << cell for cell in self._known):x}"
        return Observation(text, anchor)

    def _board(self) -> str:
        return "\n".join("".join(self._symbol(cell) for cell in row) for row in self._rows())

    def _rows(self) -> list[range]:
        size = self.lake.size
        return [range(row * size, (row + 1) * size) for row in range(size)]

    def _symbol(self, cell: int) -> str:
        hole = cell in self.lake.holes
        if cell == self._cell:
            return "X" if hole else "P"
        if cell not in self._known:
            return "?"
        return "G" if cell == self.lake.goal else "O" if hole else "_"

    def _cells_in_words(self) -> str:
        return "".join("".join(f" cell_{self.lake.letter(cell)}" for cell in row) + " row_end" for row in self._rows())

    def _state_in_words(self, outcome: str) -> str:
        lake = self.lake
        row, column = divmod(self._cell, lake.size)
        if self.options.view == "full":
            return f" y{row} x{column} {outcome}"
        goal_row, goal_column = divmod(lake.goal, lake.size)
        nears = [lake.neighbour(self._cell, direction) for direction in range(4)]
        seen = "".join(f" {name}={self._seen(near)}" for name, near in zip(DIRECTIONS, nears, strict=True))
        return f" row{goal_row - row:+d} col{goal_column - column:+d}{seen}"

    def _seen(self, cell: int | None) -> str:
        if cell is None:
            return "wall"
        if cell not in self._known:
            return "?"
        return "goal" if cell == self.lake.goal else "hole" if cell in self.lake.holes else "free"


def make_environment(options: Mapping[str, Any]) -> FrozenLake:
    """A fresh environment; `UserError` on a bad option."""
    return FrozenLake(parse_options(FrozenLakeOptions, NAME, options))


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> GeneratedTasks:
    """Solvable maps of one split; the map options alone decide them, the full budget is written beside."""
    parsed = parse_options(FrozenLakeOptions, NAME, options)
    described = {name: getattr(parsed, name) for name in _GENERATION}

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        return _draw_map(parsed, generator)

    def admit(data: dict[str, Any]) -> int | None:
        return _full_budget(parsed, lake_of(data))

    return GeneratedTasks(NAME, draw, admit, description=described, split=split, size=size, seed=seed)


def best_success(task: Task, budget: int) -> float:
    """The highest probability of reaching the goal within `budget` turns, knowing the map and the chance of a slip."""
    lake = lake_of(task.data)
    return float(values_of(lake, budget)[budget, lake.start])


def _draw_map(options: FrozenLakeOptions, generator: np.random.Generator) -> dict[str, Any]:
    low, high = _range("size", options.size)
    size = int(low + np.floor(generator.random() * (high - low + 1)))
    low, high = _range("safe_probability", options.safe_probability)
    safe = low + generator.random() * (high - low)
    cells = size * size
    start = int(generator.random() * cells)
    goal = (start + 1 + int(generator.random() * (cells - 1))) % cells
    letters = ["F" if chance < safe else "H" for chance in generator.random(cells)]
    letters[start], letters[goal] = "S", "G"
    rows = ["".join(letters[row * size : (row + 1) * size]) for row in range(size)]
    return {"rows": rows, "success_rate": float(options.success_rate), "on_hole": options.on_hole}


def _full_budget(options: FrozenLakeOptions, lake: Lake) -> int | None:
    """The full budget of a map, None where its shortest path is outside the limits (or there is none)."""
    path = distances(lake)[lake.start]
    longest = lake.size**2 if options.max_path is None else options.max_path
    if path is None or not options.min_path <= path <= longest:
        return None
    if options.max_turns_per_path is not None:
        return int(np.ceil(options.max_turns_per_path * path))
    return 2 * lake.size if options.max_turns is None else options.max_turns


def _rules(lake: Lake, actions: tuple[str, ...]) -> str:
    """What is true of this world, in sentences."""
    lines = [
        f"You are on a frozen lake of {lake.size} by {lake.size} cells. Walk to the goal, one step a reply.",
        "P is you, G the goal, O a hole, _ ice" + (", ? a cell that you have not seen." if LOOK in actions else "."),
        "Falling into a hole ends the attempt: it has failed."
        if lake.on_hole == "end"
        else "Falling into a hole sends you back to where you started.",
        "A step against the edge of the lake leaves you where you are.",
    ]
    if lake.success_rate < 1.0:
        side = (1.0 - lake.success_rate) / 2.0
        lines.append(
            f"The ice is slippery: a step goes the way you say with probability {lake.success_rate:.3g}, "
            f"and to the left or the right of that with probability {side:.3g} each."
        )
    else:
        lines.append("The ice is not slippery: a step goes the way you say.")
    if LOOK in actions:
        lines.append(
            "You see a cell once you stood on it. The reply look shows the eight cells around you instead of a step."
        )
    lines.append(f"Reply with one word: {_listed(actions)}. You may think first inside <think></think>.")
    return "\n".join(lines)


def _complaint(error: str, action: str | None, actions: tuple[str, ...]) -> str:
    wanted = f"Reply with one word: {_listed(actions)}. Nothing has changed."
    if error == "no_action":
        return f"That reply holds no action. {wanted}"
    if error == "look_without_fog":
        return f"There is nothing to look for: the whole lake is in view. {wanted}"
    return f'"{shown(action)}" is not an action. {wanted}'


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + f" or {words[-1]}"


def _range(name: str, value: Any) -> tuple[float, float]:
    """(low, high) of a number or of a pair of numbers."""
    pair = (value, value) if _is_number(value) else tuple(value) if isinstance(value, list | tuple) else ()
    if len(pair) != 2 or not all(_is_number(end) for end in pair) or pair[0] > pair[1]:
        raise UserError(f"env.options.{name} must be a number or (low, high), got {value!r}")
    return pair[0], pair[1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(holds: bool, name: str, what: str, value: Any) -> None:
    if not holds:
        raise UserError(f"env.options.{name} must be {what}, got {value!r}")


ENTRY = EnvironmentEntry(NAME, make_environment, make_tasks, best_success, make_demonstrator, FrozenLakeOptions)
