"""Scripted players of FrozenLake, of mixed quality, for cloning a base policy that leaves room to learn.

They see what the agent sees and never a budget. The mixtures (random phases, early errors, epsilon) give a base with
full support that succeeds sometimes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jaxagent.envs.frozen_lake_world import DIRECTIONS, path_lengths, shortest_moves

if TYPE_CHECKING:
    from jaxagent.envs.frozen_lake import FrozenLake

INVALID_REPLY = "noop"
_INVALID_SHARE = 0.15  # of random actions
_LOOK_SHARE = 0.35  # of random actions in fog
_FOG_EPSILON = 0.25
_DASH_SHARE, _CAREFUL_SHARE = 0.4, 0.3  # in fog; the rest wanders first


def make_demonstrator(environment: "FrozenLake", generator: np.random.Generator) -> Callable[[], str]:
    """One player, drawn from the mixture of the world, for the episode that `environment` is at the start of.

    In fog: 40 % dash (shortest path, unknown cells taken as free), 30 % are careful (look before a step into the
    unknown), 30 % act at random for 2 to 6 turns and then do either; all with epsilon 0.25. In full view: 50 % follow
    the shortest path with epsilon 0.5; 25 % act at random for 2 to 6 turns, then epsilon 0.25; 25 % act at random once,
    in one of the first four turns, else epsilon 0.25. Where holes send back to the start, the three epsilons are 0.7,
    0.5 and 0.5.
    """
    if environment.options.view == "fog":
        return _fog_player(environment, generator)
    return _full_view_player(environment, generator)


def _fog_player(environment: "FrozenLake", generator: np.random.Generator) -> Callable[[], str]:
    kind = generator.random()
    wandering = 0
    if kind >= _DASH_SHARE + _CAREFUL_SHARE:
        wandering = int(generator.integers(2, 7))
        careful = generator.random() < _CAREFUL_SHARE / (_DASH_SHARE + _CAREFUL_SHARE)
    else:
        careful = kind >= _DASH_SHARE
    turn = 0

    def reply() -> str:
        nonlocal turn
        turn += 1
        if turn <= wandering or generator.random() < _FOG_EPSILON:
            return _random_reply(generator, looks=True)
        return _next_on_path(environment, generator, careful)

    return reply


def _full_view_player(environment: "FrozenLake", generator: np.random.Generator) -> Callable[[], str]:
    noisy, settled = (0.5, 0.25) if environment.lake.on_hole == "end" else (0.7, 0.5)
    kind = generator.random()
    epsilon = noisy if kind < 0.5 else settled
    random_turns = range(0)
    if 0.5 <= kind < 0.75:
        random_turns = range(int(generator.integers(2, 7)))
    elif kind >= 0.75:
        first = int(generator.integers(0, 4))
        random_turns = range(first, first + 1)
    turn = -1

    def reply() -> str:
        nonlocal turn
        turn += 1
        if turn in random_turns or generator.random() < epsilon:
            return _random_reply(generator, looks=False)
        return _next_on_path(environment, generator, careful=False)

    return reply


def _random_reply(generator: np.random.Generator, *, looks: bool) -> str:
    if looks and generator.random() < _LOOK_SHARE:
        return "look"
    if generator.random() < _INVALID_SHARE:
        return INVALID_REPLY
    return DIRECTIONS[int(generator.integers(4))]


def _next_on_path(environment: "FrozenLake", generator: np.random.Generator, careful: bool) -> str:
    """A step of a shortest path over the cells not known to be holes, ties at random; `careful` looks before the
    unknown."""
    lake = environment.lake
    lengths = path_lengths(lake, lake.holes & environment.known)
    moves = shortest_moves(lake, environment.cell, lengths)
    move = moves[int(generator.integers(len(moves)))]
    if careful and lake.neighbour(environment.cell, move) not in environment.known:
        return "look"
    return DIRECTIONS[move]
