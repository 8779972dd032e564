"""Plain records of what happened: Task, Turn, Episode, EpisodeSpec; JSON lines in and out, versioned.

Everything downstream (arrays, advantages, estimators, reports) reads these and nothing else, whoever made them.
"""

import dataclasses
import gzip
import json
import math
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from jaxagent.errors import UserError

SCHEMA = 1
EndReason = Literal["success", "failure", "gave_up", "budget", "context", "turn_tokens", "infrastructure"]
END_REASONS: tuple[str, ...] = get_args(EndReason)


@dataclasses.dataclass(frozen=True)
class Task:
    """One problem instance: `id` is unique and derived from the content, `max_turns` is its full budget T_max(x)."""

    env: str
    id: str
    data: dict[str, Any]
    max_turns: int


@dataclasses.dataclass(frozen=True)
class EpisodeSpec:
    """An order for one rollout. Told and enforced are two columns: `told_budget` is what the prompt says (None:
    nothing)."""

    task: Task
    run_seed: int
    step: int
    group: int
    member: int
    told_budget: int | None
    enforced_budget: int

    def __post_init__(self) -> None:
        if self.enforced_budget < 1:
            raise ValueError(f"enforced_budget must be at least 1, got {self.enforced_budget}")
        if self.told_budget is not None and self.told_budget < self.enforced_budget:
            raise ValueError(f"told_budget {self.told_budget} lies below enforced_budget {self.enforced_budget}")


@dataclasses.dataclass(frozen=True)
class Turn:
    """One policy reply and the environment step after it. `index` counts from 1.

    `observation_ids` are the tokens that were appended before the reply (the budget line among them), `sampled_ids` the
    tokens that the sampler drew, `logprobs` their log-probs under the distribution that drew them; all three are None
    for served policies. `remaining` is what the engine counted, whether or not it was told. `truncated`: the reply
    hit its token cap; where the episode went on, the ids that closed it open the next turn's observation. `good` and
    `progress` are the environment's own verdict on the step, where it has no exact oracle (`envs.base.StepResult`);
    None: unknown.
    """

    index: int
    observation_ids: tuple[int, ...] | None
    sampled_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    weight_version: int
    text: str
    action: str | None
    valid: bool
    error: str | None
    reward: float
    anchor: str | None
    remaining: int
    truncated: bool = False
    good: bool | None = None
    progress: float | None = None


@dataclasses.dataclass(frozen=True)
class Episode:
    """One finished rollout. `reward` is the outcome alone; step rewards stand in the turns.

    `success_turn` is the 1-based turn of success, None without. An episode whose `end_reason` is `infrastructure` is
    void: outside the loss, the group statistics and every estimate.
    """

    run_seed: int
    step: int
    task_id: str
    env: str
    group: int
    member: int
    max_budget: int
    told_budget: int | None
    enforced_budget: int
    turns: tuple[Turn, ...]
    reward: float
    success: bool
    success_turn: int | None
    end_reason: EndReason
    detail: str | None = None
    budget_unit: str = "turns"
    schema: int = SCHEMA

    @property
    def is_void(self) -> bool:
        """Ended by the infrastructure, not by the agent."""
        return self.end_reason == "infrastructure"

    def was_stepped(self, turn: Turn) -> bool:
        """Whether the environment saw a turn's reply: all but one that ended the episode at its token cap."""
        return not (self.end_reason == "turn_tokens" and turn.index == len(self.turns))

    def token_ids(self) -> list[int]:
        """The whole transcript as ids, in order: observation 1, reply 1, observation 2, ..."""
        ids: list[int] = []
        for turn in self.turns:
            if turn.observation_ids is None or turn.sampled_ids is None:
                raise ValueError(f"episode {self.task_id} member {self.member} has no token ids (a served policy?)")
            ids.extend(turn.observation_ids)
            ids.extend(turn.sampled_ids)
        return ids


def finished_episode(
    spec: EpisodeSpec, turns: Iterable[Turn], end_reason: EndReason, *, outcome: float = 0.0, detail: str | None = None
) -> Episode:
    """The record of an episode that ran as `spec` ordered; `outcome` is its reward, success its end reason."""
    turns = tuple(turns)
    success = end_reason == "success"
    return Episode(
        run_seed=spec.run_seed,
        step=spec.step,
        task_id=spec.task.id,
        env=spec.task.env,
        group=spec.group,
        member=spec.member,
        max_budget=spec.task.max_turns,
        told_budget=spec.told_budget,
        enforced_budget=spec.enforced_budget,
        turns=turns,
        reward=float(outcome),
        success=success,
        success_turn=len(turns) if success else None,
        end_reason=end_reason,
        detail=detail,
    )


def signal_fault(good: object, progress: object) -> str | None:
    """What is wrong with a step's `good` and `progress`; None where they are what `Turn` says."""
    if good is not None and not isinstance(good, bool):
        return f"good is {good!r}; it must be true, false or left out"
    if progress is None:
        return None
    if isinstance(progress, bool) or not isinstance(progress, int | float) or not 0.0 <= progress <= 1.0:
        return f"progress is {progress!r}; it must be a number in [0, 1] or left out"
    return None


def episode_to_json(episode: Episode) -> str:
    """One line of strict JSON (no NaN, no infinity)."""
    return json.dumps(dataclasses.asdict(episode), separators=(",", ":"), allow_nan=False)


def episode_from_json(line: str) -> Episode:
    """The inverse of `episode_to_json`; raises `UserError` that names the fault."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UserError(f"not a JSON episode: {error}") from None
    if not isinstance(fields, dict):
        raise UserError("not a JSON episode: expected an object")
    if fields.get("schema") != SCHEMA:
        raise UserError(f"episode schema {fields.get('schema')!r} is not supported; this version reads schema {SCHEMA}")
    try:
        turns = tuple(_turn_from_fields(turn) for turn in fields.pop("turns"))
        episode = Episode(turns=turns, **fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"not a valid episode: {error}") from None
    _check_episode(episode)
    return episode


def write_episodes(path: str | pathlib.Path, episodes: Iterable[Episode]) -> int:
    """Writes JSON lines, gzip-compressed where the name ends in `.gz`; returns the number written.

    The file appears whole or not at all: it is written under a temporary name and renamed.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = 0
    # mtime 0 keeps equal episodes byte-equal on disk.
    with open(partial, "wb") as raw:
        stream = gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) if path.suffix == ".gz" else raw
        for episode in episodes:
            stream.write(episode_to_json(episode).encode() + b"\n")
            count += 1
        if stream is not raw:
            stream.close()
    partial.replace(path)
    return count


def read_episodes(path: str | pathlib.Path) -> Iterator[Episode]:
    """Reads what `write_episodes` wrote; faults are `UserError`s with file and line."""
    path = pathlib.Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    yield episode_from_json(line)
                except UserError as error:
                    raise UserError(f"{path}, line {number}: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such episode file") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as episodes: {error}") from None


def _turn_from_fields(fields: dict[str, Any]) -> Turn:
    for name in ("observation_ids", "sampled_ids", "logprobs"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    return Turn(**fields)


def _check_episode(episode: Episode) -> None:
    if episode.end_reason not in END_REASONS:
        raise UserError(f"end_reason {episode.end_reason!r} is none of {', '.join(END_REASONS)}")
    if episode.budget_unit != "turns":
        raise UserError(f"budget_unit {episode.budget_unit!r} is not supported; only 'turns'")
    if not isinstance(episode.reward, int | float) or not math.isfinite(episode.reward):
        raise UserError(f"reward {episode.reward!r} is not a finite number")
    if episode.success != (episode.success_turn is not None):
        raise UserError(f"success is {episode.success} but success_turn is {episode.success_turn}")
    if episode.success_turn is not None and not 1 <= episode.success_turn <= episode.enforced_budget:
        raise UserError(f"success_turn {episode.success_turn} lies outside 1..{episode.enforced_budget}")
    if len(episode.turns) > episode.enforced_budget:
        raise UserError(f"{len(episode.turns)} turns exceed the enforced budget {episode.enforced_budget}")
    for turn in episode.turns:
        if fault := signal_fault(turn.good, turn.progress):
            raise UserError(f"turn {turn.index}: {fault}")
