"""The host loop: episodes over slots, environments stepped between generations, budgets counted and enforced.

    free slot <- spec -> reset -> [observation ids + budget line] -> sampler -> reply text -> step -> ...

The engine owns the budget: it counts turns, writes the line into each observation, cuts the episode off and records
why it ended. Which slot, append width or batch is used depends on the list of specs alone, never on timing.
"""

import collections
import dataclasses
import hashlib
import time
from collections.abc import Iterable, Iterator
from typing import get_args

from jaxagent import budgets
from jaxagent.envs.base import InfrastructureError, InfrastructureKind, Observation, StepResult, step_signal
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import EndReason, Episode, EpisodeSpec, Turn, finished_episode
from jaxagent.rollout.chat import Chat
from jaxagent.rollout.sampler import Request, Sampled, Sampler, idle_request

LOSSES_PER_RETRY = 8  # restarts an episode has, for each retry, when it was lost with a worker that another one broke


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """What the engine says and how often it retries."""

    announce: str = "total_and_remaining"
    wording: str = "sentence"
    temperature: float = 1.0
    retries: int = 2
    on_turn_cap: str = "end"  # end | close: what happens to a reply at its token cap


@dataclasses.dataclass
class RolloutStats:
    """Counters of one or several `run_episodes`, in events and seconds."""

    episodes: int = 0
    void_episodes: int = 0
    retries: int = 0
    failures: collections.Counter[InfrastructureKind] = dataclasses.field(default_factory=collections.Counter)
    turns: int = 0
    policy_tokens: int = 0
    live_steps: int = 0
    slot_steps: int = 0
    generate_seconds: float = 0.0
    env_seconds: float = 0.0
    total_seconds: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Rates and shares for the log."""
        seconds = max(self.total_seconds, 1e-9)
        return {
            "rollout/episodes": self.episodes,
            "rollout/void_episodes": self.void_episodes,
            "rollout/retries": self.retries,
            "rollout/turns": self.turns,
            "rollout/policy_tokens": self.policy_tokens,
            "rollout/turns_per_second": self.turns / seconds,
            "rollout/policy_tokens_per_second": self.policy_tokens / seconds,
            "rollout/occupancy": self.live_steps / max(self.slot_steps, 1),
            "time/generate": self.generate_seconds,
            "time/env": self.env_seconds,
            "time/rollout_host": self.total_seconds - self.generate_seconds - self.env_seconds,
            **{f"rollout/failures_{kind}": self.failures[kind] for kind in get_args(InfrastructureKind)},
        }


@dataclasses.dataclass
class _Slot:
    """The episode that a slot holds, between calls."""

    spec: EpisodeSpec
    attempt: int = 0
    losses: int = 0  # restarts because another episode broke the worker
    turns: list[Turn] = dataclasses.field(default_factory=list)
    length: int = 0  # tokens of the transcript, pending ones included
    pending: list[int] = dataclasses.field(default_factory=list)  # not yet in the KV cache
    fresh: bool = True  # the slot's cache still holds the episode before
    observation_ids: tuple[int, ...] = ()
    anchor: str | None = None
    sampled: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)

    @property
    def turn(self) -> int:
        """The turn being taken, from 1."""
        return len(self.turns) + 1


class RolloutEngine:
    """Runs episode specs through a sampler and an environment pool."""

    def __init__(self, sampler: Sampler, pool: EnvironmentPool, chat: Chat, config: EngineConfig) -> None:
        self._sampler = sampler
        self._pool = pool
        self._chat = chat
        self._config = config
        self._stop_ids = frozenset(chat.stop_ids)
        self.weight_version = 0
        self.stats = RolloutStats()

    def set_params(self, params: dict, *, version: int) -> None:
        """Takes new weights; `version` is recorded with every turn that they write."""
        self._sampler.set_params(params)
        self.weight_version = version

    def warm_up(self) -> None:
        """Compiles the sampler's declared shapes."""
        self._sampler.warm_up(self._config.temperature)

    def run_episodes(self, specs: Iterable[EpisodeSpec]) -> Iterator[Episode]:
        """Yields each spec's episode as it finishes. Void episodes (infrastructure) are yielded too, after the
        retries."""
        queue = collections.deque(specs)
        slots: list[_Slot | None] = [None] * self._sampler.config.slots
        begun = time.perf_counter()
        while queue or any(slots):
            yield from self._timed(begun, self._refill(slots, queue))
            begun = time.perf_counter()
            if any(slots):
                stopped = self._generate(slots)
                yield from self._timed(begun, self._step_environments(slots, stopped))
                begun = time.perf_counter()
        self._pool.rest()
        self.stats.total_seconds += time.perf_counter() - begun

    def take_stats(self) -> RolloutStats:
        """The counters since the last call."""
        stats, self.stats = self.stats, RolloutStats()
        return stats

    def close(self) -> None:
        """Stops the environments."""
        self._pool.close()

    def _timed(self, begun: float, finished: list[Episode]) -> list[Episode]:
        """Books the time up to now; what the consumer does with the episodes is not the engine's."""
        self.stats.total_seconds += time.perf_counter() - begun
        return finished

    def _refill(self, slots: list[_Slot | None], queue: collections.deque[EpisodeSpec]) -> list[Episode]:
        """Starts queued episodes in free slots until none is free or the queue is empty."""
        finished = []
        while queue and None in slots:
            started = []
            for number, slot in enumerate(slots):
                if slot is None and queue:
                    slots[number] = _Slot(queue.popleft())
                    started.append(number)
            finished += self._reset(slots, started)
        return finished

    def _reset(self, slots: list[_Slot | None], numbers: list[int]) -> list[Episode]:
        finished = []
        while numbers:
            requests = [ResetRequest(n, slots[n].spec.task, environment_seed(slots[n].spec)) for n in numbers]
            again = []
            for number, result in zip(numbers, self._run_pool(requests), strict=True):
                slot = slots[number]
                if isinstance(result, InfrastructureError):
                    if self._retry(slots, number, result):
                        again.append(number)
                    else:
                        finished.append(self._finish(slots, number, "infrastructure", detail=str(result)))
                elif not self._observe(slot, result):
                    finished.append(self._finish(slots, number, "context"))
            numbers = again
        return finished

    def _retry(self, slots: list[_Slot | None], number: int, failure: InfrastructureError) -> bool:
        """Puts a voided episode back to its start; False when its retries are used up.

        An episode that another one took down with the worker is not charged, but its restarts are bounded too.
        """
        slot = slots[number]
        attempt, losses = slot.attempt + (not failure.lost), slot.losses + failure.lost
        if attempt > self._config.retries or losses > LOSSES_PER_RETRY * self._config.retries:
            return False
        self.stats.retries += 1
        slots[number] = _Slot(slot.spec, attempt=attempt, losses=losses)
        return True

    def _observe(self, slot: _Slot, observation: Observation) -> bool:
        """Makes an observation and its budget line pending; False where the next reply might not fit the context."""
        line = budgets.budget_line(
            slot.spec.told_budget, slot.turn, announce=self._config.announce, wording=self._config.wording
        )
        ids = self._chat.observation_ids(observation.text + line, first=slot.turn == 1)
        if slot.turns and slot.turns[-1].truncated:
            # Nobody sampled the end of that reply: it is appended like an observation, without log-probs or loss.
            ids = self._chat.closing_ids + ids
        slot.anchor = observation.anchor
        slot.observation_ids = ids
        slot.length += len(ids)
        slot.pending.extend(ids)
        config = self._sampler.config
        return slot.length + config.max_turn_tokens <= config.max_context

    def _generate(self, slots: list[_Slot | None]) -> list[int]:
        """One call of the sampler; returns the slots whose reply is complete."""
        config = self._sampler.config
        width = self._sampler.bucket(max(len(slot.pending) for slot in slots if slot))
        request = idle_request(config.slots, width)
        for number, slot in enumerate(slots):
            if slot:
                _fill_request(request, number, slot, width)
        begun = time.perf_counter()
        sampled = self._sampler(request, self._config.temperature)
        self.stats.generate_seconds += time.perf_counter() - begun
        self.stats.live_steps += int(sampled.live_steps)
        self.stats.slot_steps += config.slots * (1 + int(sampled.decode_steps))
        for number, slot in enumerate(slots):
            if slot:
                self._take(slot, number, request, sampled)
        return [number for number, slot in enumerate(slots) if slot and sampled.stopped[number]]

    def _take(self, slot: _Slot, number: int, request: Request, sampled: Sampled) -> None:
        del slot.pending[: int(request.counts[number])]
        slot.fresh = False
        count = int(sampled.counts[number])
        if count:
            tokens = sampled.tokens[number, :count].tolist()
            slot.sampled += tokens
            slot.logprobs += sampled.logprobs[number, :count].tolist()
            slot.pending.append(tokens[-1])
            slot.length += count
            self.stats.policy_tokens += count

    def _step_environments(self, slots: list[_Slot | None], stopped: list[int]) -> list[Episode]:
        finished, requests = [], []
        for number in stopped:
            slot = slots[number]
            if self._is_complete(slot) or self._config.on_turn_cap == "close":
                requests.append(StepRequest(number, self._chat.reply_text(tuple(slot.sampled))))
                continue
            # The environment never sees this reply, and it is not an invalid action either.
            self._record_turn(slot, self._chat.reply_text(tuple(slot.sampled)), None)
            finished.append(self._finish(slots, number, "turn_tokens"))
        retried = []
        for request, result in zip(requests, self._run_pool(requests), strict=True):
            if not isinstance(result, InfrastructureError):
                finished += self._advance(slots, request, result)
            elif self._retry(slots, request.slot, result):
                retried.append(request.slot)
            else:
                finished.append(self._finish(slots, request.slot, "infrastructure", detail=str(result)))
        return finished + self._reset(slots, retried)

    def _is_complete(self, slot: _Slot) -> bool:
        """Whether the reply ended by itself, not at its cap."""
        return slot.sampled[-1] in self._stop_ids

    def _advance(self, slots: list[_Slot | None], request: StepRequest, result: StepResult) -> list[Episode]:
        slot = slots[request.slot]
        self._record_turn(slot, request.reply, result)
        if result.ended:
            return [self._finish(slots, request.slot, result.ended, outcome=result.reward)]
        if len(slot.turns) >= slot.spec.enforced_budget:
            return [self._finish(slots, request.slot, "budget")]
        if not self._observe(slot, result.observation):
            return [self._finish(slots, request.slot, "context")]
        return []

    def _record_turn(self, slot: _Slot, text: str, result: StepResult | None) -> None:
        info = result.info if result else {}
        step_reward = 0.0 if result is None else info.get("step_reward", 0.0) if result.ended else result.reward
        slot.turns.append(
            Turn(
                index=slot.turn,
                observation_ids=slot.observation_ids,
                sampled_ids=tuple(slot.sampled),
                logprobs=tuple(slot.logprobs),
                weight_version=self.weight_version,
                text=text,
                action=info.get("action"),
                valid=bool(info.get("valid", True)),
                error=info.get("error"),
                reward=float(step_reward),
                anchor=slot.anchor,
                remaining=budgets.remaining_turns(slot.spec.enforced_budget, slot.turn),
                **step_signal(info),
                truncated=not self._is_complete(slot),
            )
        )
        slot.sampled, slot.logprobs = [], []
        self.stats.turns += 1

    def _finish(
        self,
        slots: list[_Slot | None],
        number: int,
        reason: EndReason,
        *,
        outcome: float = 0.0,
        detail: str | None = None,
    ) -> Episode:
        slot = slots[number]
        slots[number] = None
        self.stats.episodes += 1
        self.stats.void_episodes += reason == "infrastructure"
        return finished_episode(slot.spec, slot.turns, reason, outcome=outcome, detail=detail)

    def _run_pool(
        self, requests: list[ResetRequest | StepRequest]
    ) -> list[Observation | StepResult | InfrastructureError]:
        if not requests:
            return []
        begun = time.perf_counter()
        results = self._pool.run(requests)
        self.stats.env_seconds += time.perf_counter() - begun
        self.stats.failures.update(result.kind for result in results if isinstance(result, InfrastructureError))
        return results


def environment_seed(spec: EpisodeSpec) -> int:
    """The seed of an episode's environment noise: keyed, and distinct across the members of a group."""
    key = repr(("environment", spec.run_seed, spec.step, spec.group, spec.member, spec.task.id))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def _fill_request(request: Request, number: int, slot: _Slot, width: int) -> None:
    count = min(len(slot.pending), width)
    request.tokens[number, :count] = slot.pending[:count]
    request.counts[number] = count
    request.reset[number] = slot.fresh
    request.sample[number] = count == len(slot.pending)
    spec = slot.spec
    request.keys[number] = (spec.run_seed, spec.step, spec.group, spec.member, slot.turn)
    request.position[number] = len(slot.sampled)


def sorted_by_work(specs: Iterable[EpisodeSpec]) -> list[EpisodeSpec]:
    """Longest budgets first, so that no long episode starts when the others have drained; ties keep their order."""
    return sorted(specs, key=lambda spec: -spec.enforced_budget)
