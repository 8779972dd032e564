"""A scripted programmer of mixed quality: wrong drafts, then the fix."""

from collections.abc import Callable

import numpy as np

from jaxagent.envs.deepcoder.mutations import draft
from jaxagent.errors import UserError

INVALID_REPLY = "I need to think about this."
_DRAFTS = (0.15, 0.5, 0.2, 0.15)  # chance of 0, 1 or 2 wrong drafts before the fix, and of drafts for ever
_INVALID_SHARE = 0.07


def make_demonstrator(reference: str | None, generator: np.random.Generator) -> Callable[[], str]:
    """One programmer, drawn for an episode whose problem has the program `reference`.

    It hands in 0, 1 or 2 drafts (15, 50 and 20 %), each with an operator or a number changed or a line dropped, then
    the reference; 15 % never find it. 7 % of the replies hold no program. It never knows a budget, and a draft may
    happen to be right. Raises `UserError` where the data hold no reference.
    """
    if reference is None:
        raise UserError("these problems have no reference programs to demonstrate with; set sft.steps=0")
    kind = int(generator.choice(4, p=_DRAFTS))
    drafts = kind if kind < 3 else 10**6
    written = 0

    def reply() -> str:
        nonlocal written
        if generator.random() < _INVALID_SHARE:
            return INVALID_REPLY
        written += 1
        program = draft(reference, generator) if written <= drafts else reference
        return "```python\n" + program.rstrip() + "\n```"  # the closing fence stands at the start of a line

    return reply
