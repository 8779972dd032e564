"""Scripted players of BFCL: the answer's calls, whole or with the errors of a mixed crowd."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jaxagent.envs.bfcl.calls import Call

if TYPE_CHECKING:
    from jaxagent.envs.bfcl.environment import Bfcl

CLOSING = "done"
INVALID_REPLY = "[noop("
_BATCH_SHARE = 0.4  # of the players put a user turn's calls into one reply
_CARELESS_SHARE = 0.5  # of the players err
_LEAVE, _REPEAT, _GARBLE = 0.08, 0.06, 0.03  # chances of a careless reply: close early, call again, unreadable


def reply_of(calls: list[Call], tool_format: str) -> str:
    """A reply with these calls, one line."""
    if tool_format == "python":
        return f"[{', '.join(call.as_text() for call in calls)}]"
    return "".join(
        f"<tool_call>{json.dumps({'name': call.name, 'arguments': call.arguments})}</tool_call>" for call in calls
    )


def perfect_reply(environment: "Bfcl", *, batched: bool) -> str:
    """The next reply of the answer: all calls that remain in this user turn, or the first; then the closing one."""
    remaining = environment.remaining
    if not remaining:
        return CLOSING
    return reply_of(remaining if batched else remaining[:1], environment.options.tool_format)


def make_demonstrator(environment: "Bfcl", generator: np.random.Generator) -> Callable[[], str]:
    """One player, drawn for the episode that `environment` is at the start of.

    40 % call all that a user turn needs in one reply, 60 % one function a reply. Half of them are careful; the others
    close a user turn early with probability 0.08 a reply, repeat their last calls with 0.06, garble with 0.03. None
    knows a budget.
    """
    batched = generator.random() < _BATCH_SHARE
    careless = generator.random() < _CARELESS_SHARE
    last = CLOSING

    def reply() -> str:
        nonlocal last
        chance = generator.random() if careless else 1.0
        if chance < _LEAVE:
            return CLOSING
        if chance < _LEAVE + _REPEAT and last != CLOSING:
            return last
        if chance < _LEAVE + _REPEAT + _GARBLE:
            return INVALID_REPLY
        last = perfect_reply(environment, batched=batched)
        return last

    return reply
