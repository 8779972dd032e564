"""What an environment is: reset, step, close; and what a source of tasks is.

Environments never see a budget: the engine counts turns, writes the budget line and cuts the episode off.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from jaxagent.episodes import Task, signal_fault

Ended = Literal["success", "failure", "gave_up"]
Split = Literal["train", "held_out", "panel"]
InfrastructureKind = Literal["verifier", "timeout", "sandbox", "worker"]


class InfrastructureError(Exception):
    """The machinery failed, not the agent: the episode is void. Never raised because of agent text."""

    def __init__(self, kind: InfrastructureKind, message: str = "", *, lost: bool = False) -> None:
        """`message` is for people; `kind` is counted. `lost`: the episode only shared the worker of one that failed."""
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.lost = lost


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the agent reads next, and the canonical key of the state it is in (for GiGPO's step groups).

    The anchor never contains the budget or a turn counter.
    """

    text: str
    anchor: str | None = None


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The environment's answer to one reply.

    `ended` says how the environment ended the episode, None if it goes on. `reward` is the outcome on a step that ends
    the episode (1 for success, 0 for failure, or a graded value) and a step reward on any other. `info` holds `valid`
    (bool), `action` (the parsed action as text, or None), `error` (a short kind, or None) and, where the ending step
    earned a step reward of its own, `step_reward`.

    An environment without an exact `oracle` may judge its steps in `info` itself, at every step, for the analysis alone
    (it changes neither reward nor end, and the agent never reads `info`): `good` (bool), whether the reply was a good
    action, False for an invalid one and True for the one that succeeds; `progress` (float in [0, 1]), how near to the
    goal the state stands after the reply: 1 is done, 0 is where `reset` leaves it, and it may fall again. Hidden tests
    and gold answers may be used for both. A key that cannot be known is left out; `step_signal` reads them.
    """

    observation: Observation
    reward: float = 0.0
    ended: Ended | None = None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


def step_signal(info: Mapping[str, Any]) -> dict[str, Any]:
    """`good` and `progress` of `StepResult.info`, checked, as the fields of `Turn` of these names (None: left out).

    Raises:
      ValueError: a value of another type, or a `progress` outside [0, 1]: a fault of the environment.
    """
    good, progress = info.get("good"), info.get("progress")
    if fault := signal_fault(good, progress):
        raise ValueError(f"StepResult.info: {fault}")
    return {"good": good, "progress": None if progress is None else float(progress)}


@dataclasses.dataclass(frozen=True)
class StepOracle:
    """Ground truth about the current state: the optimal actions, and the turns to the goal (None: unknown)."""

    optimal_actions: tuple[str, ...]
    distance: float | None


@runtime_checkable
class Environment(Protocol):
    """One episode at a time; `reset` starts the next. An instance is never shared between episodes that run at once."""

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts `task`; all of the environment's randomness comes from `seed`."""
        ...

    def step(self, reply: str) -> StepResult:
        """Takes one reply, any text at all, and never raises on it: unparsable text is an invalid turn."""
        ...

    def close(self) -> None:
        """Frees what the environment holds; safe to call twice."""
        ...


class TaskSource(Protocol):
    """A list of tasks of one split. Splits are disjoint by content hash."""

    def __len__(self) -> int:
        """How many tasks there are."""
        ...

    def task(self, index: int) -> Task:
        """Task number `index`, the same at every call."""
        ...

    def content_hash(self) -> str:
        """A hash of the content: of all ids, in order, or of the recipe that makes the tasks where none is listed."""
        ...


def content_id(env: str, data: dict[str, Any]) -> str:
    """A task id from its content: equal content has an equal id, whatever seed made it."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return f"{env}-{hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()}"


def split_of(task_id: str) -> Split:
    """The split that a task belongs to, a function of its id alone, so that splits cannot overlap.

    One sixteenth each are kept for the panel and for the held-out set that training looks at; the rest trains.
    """
    return split_by_sixteenths(task_id, person=b"split", panel=1, held_out=1)


def split_by_sixteenths(key: str, *, person: bytes, panel: int, held_out: int) -> Split:
    """The split of `key` by its hash, which `person` keeps apart from other hashes of the same key.

    So many sixteenths are the panel's and the held-out set's; the rest trains.
    """
    sixteenth = hashlib.blake2b(key.encode(), digest_size=2, person=person).digest()[0] % 16
    return "panel" if sixteenth < panel else "held_out" if sixteenth < panel + held_out else "train"


def hash_of_ids(task_ids: list[str]) -> str:
    """The content hash of a list of tasks: order matters."""
    return hashlib.blake2b("\n".join(task_ids).encode(), digest_size=8).hexdigest()
