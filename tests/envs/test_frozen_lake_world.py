import functools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from jaxagent.envs import frozen_lake
from jaxagent.envs.frozen_lake_world import (
    best_moves,
    distances,
    lake_of,
    optimal_values,
    path_lengths,
    shortest_moves,
    values_of,
)
from jaxagent.episodes import Task

GYM_4X4 = ["SFFF", "FHFH", "FFFH", "HFFG"]


def random_rows(seed, size):
    """A square map, solvable or not."""
    generator = np.random.default_rng(seed)
    letters = np.where(generator.random(size * size) < 0.7, "F", "H")
    start, goal = generator.permutation(size * size)[:2]
    letters[start], letters[goal] = "S", "G"
    return ["".join(row) for row in letters.reshape(size, size)]


def lake(rows, success_rate=1.0, on_hole="end"):
    return lake_of({"rows": rows, "success_rate": success_rate, "on_hole": on_hole})


@pytest.mark.parametrize("success_rate", [1.0, 1 / 3, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_dynamics_are_those_of_gymnasium(seed, success_rate):
    toy_text = pytest.importorskip("gymnasium.envs.toy_text.frozen_lake")
    rows = random_rows(seed, 3 + 2 * seed)
    theirs = toy_text.FrozenLakeEnv(desc=rows, is_slippery=success_rate < 1.0, success_rate=success_rate).P
    ours = lake(rows, success_rate)
    for cell, letter in enumerate("".join(rows)):
        if letter in "GH":
            continue
        for action in range(4):
            expected, found = defaultdict(float), defaultdict(float)
            for probability, state, reward, ended in theirs[cell][action]:
                expected[state, bool(reward), bool(ended)] += probability
            for outcome in ours.outcomes(cell, action):
                to = outcome.touched
                found[to, to == ours.goal, to == ours.goal or to in ours.holes] += outcome.probability
            assert expected == pytest.approx(found)


def moves_by_hand(rows, on_hole):
    """[cell, action] -> cell, without slip; None where the episode ends in a hole."""
    size = len(rows)
    start = "".join(rows).index("S")
    table = {}
    for row in range(size):
        for column in range(size):
            for action, (down, right) in enumerate([(0, -1), (1, 0), (0, 1), (-1, 0)]):
                r, c = min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1)
                hole = rows[r][c] == "H"
                table[row * size + column, action] = (start if on_hole == "reset" else None) if hole else r * size + c
    return table


@pytest.mark.parametrize("on_hole", ["end", "reset"])
@pytest.mark.parametrize("seed", range(6))
def test_distances_agree_with_matrix_powers(seed, on_hole):
    rows = random_rows(seed, 3 + seed)
    cells = len(rows) ** 2
    steps = np.zeros((cells, cells), dtype=int)
    for (cell, _), to in moves_by_hand(rows, on_hole).items():
        if to is not None and "".join(rows)[cell] not in "GH":
            steps[cell, to] = 1
    goal = "".join(rows).index("G")
    expected = [None] * cells
    reach = np.eye(cells, dtype=int)
    for length in range(cells + 1):
        for cell in range(cells):
            if expected[cell] is None and reach[cell, goal]:
                expected[cell] = length
        reach = ((reach @ steps) > 0).astype(int)
    world = lake(rows, on_hole=on_hole)
    free = [cell for cell in range(cells) if cell not in world.holes]
    assert [distances(world)[cell] for cell in free] == [expected[cell] for cell in free]
    if on_hole == "end":
        assert path_lengths(world, world.holes) == list(distances(world))


def value_by_recursion(rows, success_rate, on_hole, horizon):
    """The best success probability from the start, in exact fractions."""
    letters, table = "".join(rows), moves_by_hand(rows, on_hole)
    side = (1 - success_rate) / 2

    @functools.cache
    def best(cell, turns):
        if cell is None:
            return Fraction(0)
        if letters[cell] == "G":
            return Fraction(1)
        if turns == 0:
            return Fraction(0)
        nexts = [best(table[cell, action], turns - 1) for action in range(4)]
        return max(success_rate * nexts[a] + side * (nexts[a - 1] + nexts[(a + 1) % 4]) for a in range(4))

    return best(letters.index("S"), horizon)


@pytest.mark.parametrize("on_hole", ["end", "reset"])
@pytest.mark.parametrize("success_rate", [Fraction(1), Fraction(4, 5), Fraction(1, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_optimal_values_agree_with_exact_recursion(seed, success_rate, on_hole):
    rows = random_rows(seed, 3 + seed)
    data = {"rows": rows, "success_rate": float(success_rate), "on_hole": on_hole}
    task = Task("frozen_lake", "x", data, 9)
    values = optimal_values(task, 9)
    assert values.shape == (10, len(rows), len(rows))
    start = divmod("".join(rows).index("S"), len(rows))
    for budget in range(10):
        expected = float(value_by_recursion(rows, success_rate, on_hole, budget))
        assert values[budget][start] == pytest.approx(expected, abs=1e-12)
        assert frozen_lake.best_success(task, budget) == pytest.approx(expected, abs=1e-12)


def test_published_values_of_the_gymnasium_map():
    """0.74 is the documented best of the slippery 4x4 map at its 100 steps; about 0.20 within 20."""
    values = values_of(lake(GYM_4X4, 1 / 3), 100)
    assert values[100, 0] == pytest.approx(0.744, abs=1e-3)
    assert values[20, 0] == pytest.approx(0.20, abs=5e-3)
    with pytest.raises(ValueError, match="read-only"):
        values[0, 0] = 1.0


def test_without_slip_feasible_means_the_path_fits():
    world = lake(GYM_4X4)
    assert distances(world)[0] == 6
    assert [float(values_of(world, 8)[turns, 0]) for turns in (5, 6, 8)] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("on_hole", ["end", "reset"])
def test_best_moves_without_slip_come_one_turn_closer(on_hole):
    for seed in range(8):
        rows = random_rows(seed, 5)
        world, table = lake(rows, on_hole=on_hole), moves_by_hand(rows, on_hole)
        lengths = distances(world)
        for cell in range(25):
            if cell in world.holes or cell == world.goal or lengths[cell] is None:
                continue
            closer = [
                a for a in range(4) if table[cell, a] is not None and lengths[table[cell, a]] == lengths[cell] - 1
            ]
            assert list(best_moves(world, cell, 1)) == closer
            assert closer


def test_a_hole_can_be_the_shortest_way_back_to_the_start():
    rows = ["GSFFF", "HHHHF", "FFFFF"]
    rows = [*rows, "HHHHH", "HHHHH"]
    ends, resets = lake(rows), lake(rows, on_hole="reset")
    corner = 2 * 5  # lower left: 4 right, 2 up, 4 left; or up into a hole and 1 left
    assert distances(ends)[corner] == 10
    assert distances(resets)[corner] == 2
    assert best_moves(ends, corner, 10) == (2,)
    assert best_moves(resets, corner, 10) == (1, 3)  # down and up are holes


def test_best_moves_with_slip():
    rows = ["SFG", "HFH", "FFF"]
    world = lake(rows, 0.8)
    table = moves_by_hand(rows, "end")

    def chance(action, turns):
        arrive = [
            0.0 if to is None else values_of(world, turns)[turns - 1, to] for to in (table[1, a] for a in range(4))
        ]
        return 0.8 * arrive[action] + 0.1 * (arrive[action - 1] + arrive[(action + 1) % 4])

    for turns in (1, 2, 5):
        assert best_moves(world, 1, turns) == (int(np.argmax([chance(action, turns) for action in range(4)])),)
    hopeless = lake(
        ["SFF", "HFF", "FFG"], 0.8
    )  # one turn, four away: all tie at 0, so the moves that cannot meet the hole
    assert best_moves(hopeless, 0, 1) == (3,)


def test_shortest_moves_at_the_goal_and_where_there_is_no_way():
    world = lake(["SHF", "HHF", "FFG"])
    assert shortest_moves(world, world.start, distances(world)) == ()
    assert shortest_moves(world, world.goal, distances(world)) == ()


@pytest.mark.parametrize("rows", [["SF", "FGF"], ["SS", "FG"], ["SF", "FF"], ["SX", "FG"]])
def test_bad_maps_are_refused(rows):
    with pytest.raises(ValueError, match="a lake is a square"):
        lake(rows)
