"""Rollouts in which somebody else writes some of the replies: injected errors and hybrid policies.

The natural recovery rate is confounded: two policies err in different places. Here both are handed the very same
transcript, with one wrong reply forced at its end, under the same budget; or one policy acts until the first error and
another from there on. The engine runs these episodes like all others, with its budget and turn rules; what is put in
its place is the sampler, which asks a director before each reply who writes it, and the pool, which watches for errors.
"""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxagent.envs.base import Environment, InfrastructureError, Observation, StepResult
from jaxagent.envs.workers import ResetRequest, StepRequest
from jaxagent.episodes import Episode, EpisodeSpec, Task
from jaxagent.errors import UserError
from jaxagent.evaluation.step_quality import Step, distance_after, is_error, spec_of, start_distance
from jaxagent.rollout.chat import Chat
from jaxagent.rollout.engine import environment_seed
from jaxagent.rollout.sampler import Request, Sampled, Sampler, SamplerConfig

Key = tuple[int, ...]  # run seed, step, group, member, turn: the words that key a reply's noise
# director(slot, key) -> the number of the sampler that writes the reply, or the reply's ids where it is forced.
Director = Callable[[int, Key], int | tuple[int, ...]]
INVALID_REPLY = "noop"
FRESH_NOISE = 1 << 20  # added to the step of a reply's key, which panels leave free above their own
MAX_CANDIDATES = 32  # replies tried at one state; each costs a replay of its prefix


@dataclasses.dataclass(frozen=True)
class Injection:
    """One state with a wrong reply to force there.

    Attributes:
      spec: the episode that it comes from; task, keys and both budgets stay.
      prefix: the ids of the replies before, as they were sampled.
      wrong: the text of the wrong reply, for turn `len(prefix) + 1`.
    """

    spec: EpisodeSpec
    prefix: tuple[tuple[int, ...], ...]
    wrong: str


class DirectedSampler:
    """Stands in for a `Sampler` where several samplers, or a script, take turns at writing replies.

    Every sampler keeps the whole transcript in its cache, whoever wrote it, so any of them can go on at any turn. A
    forced reply has log-probability 0: its distribution is certain.
    """

    def __init__(self, samplers: Sequence[Sampler], director: Director, *, fresh_noise: bool = False) -> None:
        """The samplers must have equal shapes (`SamplerConfig`) and their own weights set.

        With `fresh_noise` replies are drawn with other noise than a plain rollout of the same orders draws them with.
        """
        if any(sampler.config != samplers[0].config for sampler in samplers):
            raise ValueError("the samplers of a directed rollout must have equal shapes")
        self._samplers = tuple(samplers)
        self._director = director
        self._shift = np.array([0, FRESH_NOISE if fresh_noise else 0, 0, 0, 0], np.uint32)
        slots = self.config.slots
        self._authors: list[int | None] = [None] * slots  # of the reply being written
        # Tokens of each slot that another has written and this sampler's cache lacks.
        self._owed: list[list[list[int]]] = [[[] for _ in range(slots)] for _ in samplers]

    @property
    def config(self) -> SamplerConfig:
        """The common shape."""
        return self._samplers[0].config

    def bucket(self, pending: int) -> int:
        """As the samplers'."""
        return self._samplers[0].bucket(pending)

    def __call__(self, request: Request, temperature: float) -> Sampled:
        """One call of the engine: who is to write each reply writes it, all others only read along."""
        forced = self._choose(request)
        results = []
        for number, sampler in enumerate(self._samplers):
            self._catch_up(number, request, temperature)
            mine = np.array([author == number for author in self._authors], bool)
            shifted = dataclasses.replace(request, sample=request.sample & mine, keys=request.keys + self._shift)
            results.append(sampler(shifted, temperature))
        merged = _merge(results, forced, self._authors)
        self._book(merged, forced)
        return merged

    def _choose(self, request: Request) -> dict[int, tuple[int, ...]]:
        """Asks the director about every reply that begins; returns the forced ones by slot."""
        forced = {}
        for slot in np.flatnonzero(request.sample):
            if request.position[slot] == 0:
                answer = self._director(int(slot), tuple(int(word) for word in request.keys[slot]))
                self._authors[slot] = answer if isinstance(answer, int) else None
                if not isinstance(answer, int):
                    self._check_forced(answer)
                    forced[int(slot)] = tuple(answer)
        return forced

    def _check_forced(self, ids: tuple[int, ...]) -> None:
        if not 0 < len(ids) <= self.config.max_turn_tokens:
            raise UserError(
                f"a forced reply has {len(ids)} tokens; rollout.max_turn_tokens allows {self.config.max_turn_tokens}"
            )

    def _catch_up(self, number: int, request: Request, temperature: float) -> None:
        """Appends what others wrote to one sampler's cache; a slot that starts anew owes nothing."""
        owed = self._owed[number]
        for slot in np.flatnonzero(request.reset):
            owed[slot] = []
        live = [slot for slot in range(self.config.slots) if request.counts[slot] and owed[slot]]
        while live:
            width = self.bucket(max(len(owed[slot]) for slot in live))
            extra = _nothing(request, width)
            for slot in live:
                count = min(len(owed[slot]), width)
                extra.tokens[slot, :count] = owed[slot][:count]
                extra.counts[slot] = count
                del owed[slot][:count]
            self._samplers[number](extra, temperature)
            live = [slot for slot in live if owed[slot]]

    def _book(self, sampled: Sampled, forced: Mapping[int, tuple[int, ...]]) -> None:
        """What was written now goes to the others' caches later; its last token comes back with the next request."""
        for slot in np.flatnonzero(sampled.counts):
            tokens = sampled.tokens[slot, : sampled.counts[slot] - 1].tolist()
            for number, owed in enumerate(self._owed):
                if int(slot) in forced or number != self._authors[slot]:
                    owed[slot] += tokens


class WatchingPool:
    """Environments in this process, one a slot, that keep track of errors as `step_quality.is_error` defines them."""

    def __init__(self, make_environment: Callable[[], Environment]) -> None:
        """`make_environment` gives a fresh environment at each call."""
        self._make = make_environment
        self._live: dict[int, Environment] = {}
        self._distance: dict[int, float | None] = {}
        self._erred: set[int] = set()

    def erred(self, slot: int) -> bool:
        """Whether the episode in the slot has had an error so far."""
        return slot in self._erred

    def run(
        self, requests: Sequence[ResetRequest | StepRequest]
    ) -> list[Observation | StepResult | InfrastructureError]:
        """Answers requests in their order, as `EnvironmentPool.run` does."""
        return [self._answer(request) for request in requests]

    def rest(self) -> None:
        """Nothing to do: `EnvironmentPool.rest` replaces processes, and there are none here."""

    def close(self) -> None:
        """Closes all environments."""
        for environment in self._live.values():
            environment.close()
        self._live.clear()

    def _answer(self, request: ResetRequest | StepRequest) -> Observation | StepResult | InfrastructureError:
        slot = request.slot
        try:
            if isinstance(request, ResetRequest):
                self._erred.discard(slot)
                if slot not in self._live:
                    self._live[slot] = self._make()
                observation = self._live[slot].reset(request.task, request.seed)
                self._distance[slot] = start_distance(self._live[slot])
                return observation
            return self._step(self._live[slot], slot, request.reply)
        except InfrastructureError as error:
            return error
        except Exception as error:  # as the pool of workers does: an environment's bug voids its episode alone
            return InfrastructureError("worker", f"{error!r:.500}")

    def _step(self, environment: Environment, slot: int, reply: str) -> StepResult:
        before = self._distance[slot]
        result = environment.step(reply)
        self._distance[slot] = distance_after(environment, result, before)
        if is_error(before, self._distance[slot], result):
            self._erred.add(slot)
        return result


def hand_over_at_error(pool: WatchingPool) -> Director:
    """Sampler 0 until the episode's first error, sampler 1 from the turn after it."""
    return lambda slot, key: int(pool.erred(slot))


def script(replies: Mapping[Key, Sequence[tuple[int, ...]]]) -> Director:
    """Forces the given replies (ids, from turn 1 on) of episodes named by (run seed, step, group, member); sampler 0
    writes all others."""

    def direct(slot: int, key: Key) -> int | tuple[int, ...]:
        given = replies.get(key[:-1], ())
        turn = key[-1]
        return given[turn - 1] if turn <= len(given) else 0

    return direct


def injection_script(injections: Iterable[Injection], chat: Chat, *, inject: bool = True) -> Director:
    """The script of an injected-error test; without `inject` its control: the same prefixes, no forced error."""
    replies = {}
    for injection in injections:
        spec = injection.spec
        wrong = (chat.reply_ids(injection.wrong),) if inject else ()
        replies[spec.run_seed, spec.step, spec.group, spec.member] = (*injection.prefix, *wrong)
    return script(replies)


def plan_injections(
    environment: Environment,
    tasks: Mapping[str, Task],
    episodes: Sequence[Episode],
    steps: Sequence[Sequence[Step]],
    *,
    count: int,
    seed: int = 0,
) -> tuple[Injection, ...]:
    """Picks at most `count` states of a policy's episodes, one an episode, and a wrong reply for each.

    Wrong is what raises the distance to the goal without ending the episode and leaves enough turns to make up for
    it; where no action does, one that is not optimal (without an oracle: not `good`) and only costs its turn; else a
    reply that is no action. Tried are the actions that the episodes hold, so no list of an environment's actions is
    needed; without an oracle, where an action may be any text, the replies of the same task; of either at most 32 at a
    state. States from which the goal cannot be reached afterwards, and last turns, are passed over.

    Args:
      environment: a fresh one, in which prefixes are played.
      tasks: by id.
      episodes: of the policy whose prefixes serve all others; void ones are passed over.
      steps: their judgement.
      count: of injections.
      seed: of the draw; the order of the episodes does not matter.
    """
    candidates = _candidates(episodes, steps)
    order = sorted(zip(episodes, steps, strict=True), key=lambda pair: (pair[0].member, pair[0].task_id, pair[0].group))
    injections: list[Injection] = []
    for episode, judged in order:
        if len(injections) == count:
            break
        if episode.is_void or len(judged) == 0 or episode.turns[0].sampled_ids is None:
            continue
        spec = spec_of(episode, tasks[episode.task_id])
        generator = random.Random(repr((seed, spec.task.id, spec.run_seed, spec.step, spec.group, spec.member)))
        places = [place for place, step in enumerate(judged) if step.turns_left > 1]
        generator.shuffle(places)
        for place in places:
            replies = candidates[None if judged[place].optimal is not None else spec.task.id]
            wrong = _wrong_reply(environment, spec, episode, judged[place], replies, generator)
            if wrong is not None:
                prefix = tuple(turn.sampled_ids for turn in episode.turns[:place])
                injections.append(Injection(spec, prefix, wrong))
                break
    return tuple(injections)


def plan_hash(injections: Sequence[Injection]) -> str:
    """A hash of the states and of the wrong replies: equal plans put policies into equal places."""
    key = [(i.spec.task.id, i.spec.step, i.spec.group, i.spec.member, i.prefix, i.wrong) for i in injections]
    return hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()


def _candidates(episodes: Sequence[Episode], steps: Sequence[Sequence[Step]]) -> dict[str | None, list[str]]:
    """What might be a wrong reply: under None the actions of all episodes, under a task's id its whole replies."""
    found: dict[str | None, set[str]] = {None: set()}
    for episode, judged in zip(episodes, steps, strict=True):
        found[None] |= {step.action for step in judged if step.action is not None}
        found.setdefault(episode.task_id, set()).update(turn.text for turn in episode.turns if not turn.truncated)
    return {name: sorted(replies) for name, replies in found.items()}


def _wrong_reply(
    environment: Environment,
    spec: EpisodeSpec,
    episode: Episode,
    step: Step,
    candidates: Sequence[str],
    generator: random.Random,
) -> str | None:
    """The worst kind of wrong reply that can still be made up for, ties at random; None where there is none."""
    kinds: list[list[str]] = [[], [], []]
    tried = candidates if len(candidates) <= MAX_CANDIDATES else generator.sample(candidates, MAX_CANDIDATES)
    for reply in (*tried, INVALID_REPLY):
        kind = _kind_of_error(environment, spec, episode, step, reply)
        if kind is not None:
            kinds[kind].append(reply)
    return next((generator.choice(replies) for replies in kinds if replies), None)


def _kind_of_error(environment: Environment, spec: EpisodeSpec, episode: Episode, step: Step, reply: str) -> int | None:
    """0: leads away, 1: wasted, 2: invalid; None: right, or nothing to recover from."""
    environment.reset(spec.task, environment_seed(spec))
    for turn in episode.turns[: step.index - 1]:
        environment.step(turn.text)
    result = environment.step(reply)
    if result.ended:
        return None
    after = distance_after(environment, result, step.distance)
    if step.optimal is not None and after is not None and after > step.turns_left - 1:
        return None  # in turns, as only an oracle counts
    if not result.info.get("valid", True):
        return 2
    if is_error(step.distance, after, result):
        return 0
    useless = result.info.get("good") is False if step.optimal is None else reply not in step.optimal
    return 1 if useless and after == step.distance else None


def _nothing(request: Request, width: int) -> Request:
    """A request of another width that appends nothing, samples nothing and resets what `request` does not keep."""
    slots = len(request.counts)
    return Request(
        tokens=np.zeros((slots, width), np.int32),
        counts=np.zeros(slots, np.int32),
        reset=np.zeros(slots, bool),
        sample=np.zeros(slots, bool),
        keys=request.keys,
        position=np.zeros(slots, np.int32),
    )


def _merge(results: Sequence[Sampled], forced: Mapping[int, tuple[int, ...]], authors: Sequence[int | None]) -> Sampled:
    """Each slot's row from its author, or the forced reply; steps are summed, for each sampler took its own."""
    slots, columns = results[0].tokens.shape
    columns = max([columns, *(len(ids) for ids in forced.values())])
    tokens, logprobs = np.zeros((slots, columns), np.int32), np.zeros((slots, columns), np.float32)
    counts, stopped = np.zeros(slots, np.int32), np.zeros(slots, bool)
    for slot in range(slots):
        author = authors[slot]
        if slot in forced:
            counts[slot], stopped[slot] = len(forced[slot]), True
            tokens[slot, : counts[slot]] = forced[slot]
        elif author is not None:
            row = results[author]
            counts[slot], stopped[slot] = row.counts[slot], row.stopped[slot]
            tokens[slot, : row.tokens.shape[1]] = row.tokens[slot]
            logprobs[slot, : row.tokens.shape[1]] = row.logprobs[slot]
    return Sampled(
        tokens,
        logprobs,
        counts,
        stopped,
        np.int32(sum(int(result.decode_steps) for result in results)),
        np.int32(sum(int(result.live_steps) for result in results)),
    )
