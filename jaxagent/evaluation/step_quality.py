"""How good single steps are, where they go wrong, and whether a policy recovers.

An episode is replayed in its environment, whose oracle judges every turn; where there is none, what the environment
said of each step when it was taken does (`Turn.good`, `Turn.progress`). Two notions of a good step are kept apart
because they can disagree: budget-free (the oracle asked without a horizon) and budget-aware (asked with the turns that
are left). The score of a policy is the probability that it puts on good actions, averaged per episode, then per task:
a policy that survives longer visits harder and later states, so averages over its own states are shown beside averages
over one frozen state set that is the same for all policies.

Everything here is host code over records and plain mappings; who computed the probabilities does not matter.
"""

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from jaxagent.envs.base import Environment, StepOracle, StepResult, step_signal
from jaxagent.episodes import Episode, EpisodeSpec, Task, Turn
from jaxagent.errors import UserError
from jaxagent.rollout.engine import environment_seed


@dataclasses.dataclass(frozen=True)
class Step:
    """One turn of an episode, judged.

    Attributes:
      index: the turn, from 1.
      turns_left: turns that the engine still allowed, this one included.
      action: as the environment parsed it; None where it could not.
      valid: whether it could.
      optimal: the optimal actions whatever the turns left; None where the environment has no oracle.
      optimal_in_budget: the optimal actions for `turns_left`; None likewise.
      distance: from the goal before the reply, in turns (without an oracle: see `judge_by_record`); None: unknown.
      distance_after: after it; 0 on success, infinite where the reply ended the episode without.
      error: the reply was invalid, was answered by an error, or led away from the goal.
      good: whether the environment called the reply good (without an oracle); None: it did not say.
    """

    index: int
    turns_left: int
    action: str | None
    valid: bool
    optimal: frozenset[str] | None
    optimal_in_budget: frozenset[str] | None
    distance: float | None
    distance_after: float | None
    error: bool
    good: bool | None = None


@dataclasses.dataclass(frozen=True)
class State:
    """A state that some policy reached: the transcript up to the reply, and the oracle's judgement there."""

    task_id: str
    context_ids: tuple[int, ...] | None
    step: Step


@dataclasses.dataclass(frozen=True, eq=False)
class TaskAverages:
    """One number a task, [M], aligned with `task_ids` (sorted); `mean` weighs tasks alike."""

    task_ids: tuple[str, ...]
    values: NDArray[np.float64]

    @property
    def mean(self) -> float | None:
        """The average over tasks; None without any."""
        return float(self.values.mean()) if len(self.values) else None


@dataclasses.dataclass(frozen=True, eq=False)
class TurnAverages:
    """Averages by turn: `survivors` [T] episodes have a value at the turn, `mean` [T] is theirs (NaN without any)."""

    survivors: NDArray[np.int64]
    mean: NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Recovery:
    """What became of errors within the next `horizon` turns.

    Attributes:
      horizon: h.
      errors: error events of all episodes.
      fatal: of them, those that ended the episode.
      eligible: those with at least h turns left after them, fatal ones included.
      recovered: eligible ones after which the episode came closer to the goal than it was before the error, within h.
      rate: recovered / eligible; None without any. Errors with fewer turns left are censored and left out, also where
        recovery came in time: counting only those would bias the rate upwards.
      kaplan_meier: the estimate of the same probability that uses censored errors up to their last turn; None without
        errors.
    """

    horizon: int
    errors: int
    fatal: int
    eligible: int
    recovered: int
    rate: float | None
    kaplan_meier: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class SuccessSplit:
    """Success at a budget by whether an error came before, one number a task, [M] each, over all of its episodes.

    `clean + recovered` is the success rate; `erred` is the share of episodes with at least one error.
    """

    task_ids: tuple[str, ...]
    clean: NDArray[np.float64]
    recovered: NDArray[np.float64]
    erred: NDArray[np.float64]

    @property
    def success_after_error(self) -> float | None:
        """P(success | at least one error), a ratio of averages over tasks; None where nobody erred."""
        return _ratio(self.recovered.mean(), self.erred.mean())

    @property
    def success_without_error(self) -> float | None:
        """P(success | no error), likewise."""
        return _ratio(self.clean.mean(), 1.0 - self.erred.mean())


# ---- judging ----


def replay(environment: Environment, task: Task, episode: Episode) -> tuple[Step, ...]:
    """Plays the episode's replies again, from the same seed, and judges each turn.

    Without `oracle` the record speaks alone (`judge_by_record`) and the environment is not started.

    Raises:
      UserError: the episode is void or of another task, or the environment answers otherwise than on record (another
        version, or other options).
    """
    if episode.is_void:
        raise UserError(f"an episode of task {episode.task_id} is void; leave such episodes out")
    if not hasattr(environment, "oracle"):
        return judge_by_record(episode)
    observation = environment.reset(task, environment_seed(spec_of(episode, task)))
    steps = []
    for turn in episode.turns:
        if turn.anchor is not None and observation.anchor != turn.anchor:
            raise _does_not_replay(episode, turn)
        before, in_budget = environment.oracle(), environment.oracle(turn.remaining)
        result = None
        if episode.was_stepped(turn):
            result = environment.step(turn.text)
            observation = result.observation
            if (result.info.get("action"), bool(result.info.get("valid", True))) != (turn.action, turn.valid):
                raise _does_not_replay(episode, turn)
        after = before.distance if result is None else distance_after(environment, result, before.distance)
        steps.append(_judged(turn, before, in_budget, after, result))
    return tuple(steps)


def judge_by_record(episode: Episode) -> tuple[Step, ...]:
    """Judges turns where no exact oracle exists, from the record alone.

    The distance is 1 less the nearness to the goal. That is the environment's `progress` where it is on record; else
    the good steps so far, over one more than the budget; else the best step reward so far (the share of tests passed,
    or the overlap of a result). An error is an invalid reply, one that the environment answered with an error, one
    after which the progress is lower, or one that ended the episode without success. `optimal` is None: `good_steps`
    still says which turns helped.
    """
    steps, before = [], 0.0
    for turn, after in zip(episode.turns, _nearness(episode), strict=True):
        stepped = episode.was_stepped(turn)
        ended = turn is episode.turns[-1] and episode.end_reason in ("failure", "gave_up")
        distance, then = 1.0 - before, math.inf if ended else 1.0 - after
        bad = not turn.valid or turn.error is not None or not stepped or then > distance
        valid = turn.valid and stepped
        steps.append(Step(turn.index, turn.remaining, turn.action, valid, None, None, distance, then, bad, turn.good))
        before = after
    return tuple(steps)


def distance_after(environment: Environment, result: StepResult, before: float | None) -> float | None:
    """The distance after a step: 0 on success, infinite where the episode ended without, else the oracle's.

    Without an oracle it is 1 less the step's `progress`, and `before` where the environment does not tell it.
    """
    if result.ended:
        return 0.0 if result.ended == "success" else math.inf
    if hasattr(environment, "oracle"):
        return environment.oracle().distance
    progress = step_signal(result.info)["progress"]
    return before if progress is None else 1.0 - progress


def start_distance(environment: Environment) -> float | None:
    """The distance of the state that `reset` left: the oracle's, 1 without one."""
    return environment.oracle().distance if hasattr(environment, "oracle") else 1.0


def is_error(before: float | None, after: float | None, result: StepResult) -> bool:
    """An invalid reply, one that the environment answered with an error, or one after which the goal is farther.

    With a slippery floor this counts bad luck too: what matters is the state from which to recover.
    """
    if not result.info.get("valid", True) or result.info.get("error") is not None:
        return True
    return before is not None and after is not None and after > before


def spec_of(episode: Episode, task: Task) -> EpisodeSpec:
    """The order that an episode came from."""
    if episode.task_id != task.id:
        raise UserError(f"an episode of task {episode.task_id} was given with task {task.id}")
    return EpisodeSpec(
        task=task,
        run_seed=episode.run_seed,
        step=episode.step,
        group=episode.group,
        member=episode.member,
        told_budget=episode.told_budget,
        enforced_budget=episode.enforced_budget,
    )


# ---- quality of steps ----


def optimal_mass(
    steps: Sequence[Step], probabilities: Sequence[Mapping[str, float]] | None = None, *, in_budget: bool = False
) -> list[float]:
    """The policy's probability of an optimal action at each judged step.

    Args:
      steps: of an episode, or of a state set; all with an oracle.
      probabilities: of the actions at each of them, by name; actions left out have probability 0. None: the action on
        record, which gives the share of optimal actions with its sampling noise.
      in_budget: judge by the turns left instead of budget-free.
    """
    masses = []
    for index, step in enumerate(steps):
        optimal = step.optimal_in_budget if in_budget else step.optimal
        if optimal is None:
            raise UserError("these steps were judged without an oracle; use `good_steps` for them")
        if probabilities is None:
            masses.append(float(step.action in optimal))
        else:
            masses.append(float(sum(probabilities[index].get(action, 0.0) for action in optimal)))
    return masses


def good_steps(steps: Sequence[Step]) -> list[float]:
    """1 at good steps, else 0: what the environment called good, else a step closer to the goal without an error.

    Needs no oracle; for the steps that optimal play calls for, see `optimal_mass`.
    """
    return [float(_is_good(step)) for step in steps]


def invalid(steps: Sequence[Step]) -> list[float]:
    """1 where the reply could not be parsed, else 0."""
    return [float(not step.valid) for step in steps]


def errors(steps: Sequence[Step]) -> list[float]:
    """1 at error events, else 0."""
    return [float(step.error) for step in steps]


def average(task_ids: Sequence[str], values: Sequence[Sequence[float]]) -> TaskAverages:
    """Averages over the turns of each episode, then over the episodes of each task; empty episodes do not count.

    Args:
      task_ids: of each episode.
      values: of each episode, one number a turn.
    """
    by_task: dict[str, list[float]] = {}
    for task_id, row in zip(task_ids, values, strict=True):
        if len(row):
            by_task.setdefault(task_id, []).append(float(np.mean(row)))
    names = tuple(sorted(by_task))
    return TaskAverages(names, np.array([np.mean(by_task[name]) for name in names]))


def average_by_turn(values: Sequence[Sequence[float]]) -> TurnAverages:
    """Averages turn by turn over the episodes that got there: the denominator shrinks."""
    width = max((len(row) for row in values), default=0)
    columns = [[row[turn] for row in values if len(row) > turn] for turn in range(width)]
    survivors = np.array([len(column) for column in columns], dtype=np.int64)
    return TurnAverages(survivors, np.array([np.mean(column) for column in columns]))


def freeze_states(
    episodes: Sequence[Episode], steps: Sequence[Sequence[Step]], *, count: int, seed: int = 0
) -> tuple[State, ...]:
    """At most `count` states of a policy's episodes, drawn uniformly without replacement by a hash of (seed, place).

    The draw depends on the seed and on the episodes' keys, not on their order. Score every policy of a comparison on
    the states that one of them (the base) reached.
    """
    places = []
    for number, (episode, judged) in enumerate(zip(episodes, steps, strict=True)):
        name = (episode.task_id, episode.told_budget, episode.run_seed, episode.step, episode.group, episode.member)
        places += [(_hash(seed, *name, turn), number, turn) for turn in range(len(judged))]
    states = []
    for _, number, turn in sorted(places)[:count]:
        episode = episodes[number]
        states.append(State(episode.task_id, context_ids(episode, turn + 1), steps[number][turn]))
    return tuple(states)


def states_hash(states: Sequence[State]) -> str:
    """A hash of a state set's contexts, to show that two policies met the same one."""
    return _hash(*((state.task_id, state.context_ids, state.step.index) for state in states))[:16]


def context_ids(episode: Episode, turn: int) -> tuple[int, ...] | None:
    """The transcript up to the reply of `turn` (from 1), its observation included; None for served policies."""
    ids: list[int] = []
    for past in episode.turns[:turn]:
        if past.observation_ids is None or past.sampled_ids is None:
            return None
        ids.extend(past.observation_ids)
        if past.index < turn:
            ids.extend(past.sampled_ids)
    return tuple(ids)


# ---- errors and recovery ----


def recovery(steps: Sequence[Sequence[Step]], horizon: int) -> Recovery:
    """Recovery from the errors of many episodes, pooled; `Recovery` defines it.

    An error that ends the episode is never recovered from; neither is one after which it ended early in another way of
    the policy's own doing (it gave up, or ran out of context). For the Kaplan-Meier estimate such an error stays at
    risk for the turns that the budget would have left: the budget alone censors, and its cut-off is known, so fatal
    errors must not be watched for longer than others.
    """
    if horizon < 1:
        raise UserError(f"a recovery horizon must be at least one turn, got {horizon}")
    times: list[int] = []  # turns until recovery
    censored: list[int] = []  # turns that were left where there was none
    fatal = eligible = recovered = 0
    for judged in steps:
        for place, step in enumerate(judged):
            if not step.error:
                continue
            left, time = step.turns_left - 1, _recovery_time(judged, place)
            if left >= horizon:
                eligible += 1
                recovered += time is not None and time <= horizon
            fatal += step.distance_after == math.inf
            if time is None:
                censored.append(left)
            else:
                times.append(time)
    return Recovery(
        horizon=horizon,
        errors=len(times) + len(censored),
        fatal=fatal,
        eligible=eligible,
        recovered=recovered,
        rate=_ratio(recovered, eligible),
        kaplan_meier=_kaplan_meier(times, censored, horizon),
    )


def recovery_by_task(
    task_ids: Sequence[str], steps: Sequence[Sequence[Step]], horizon: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Recovered and eligible errors of each task, [M] each, as `recovery` counts them: for an interval over tasks."""
    by_task: dict[str, list[Sequence[Step]]] = {}
    for task_id, judged in zip(task_ids, steps, strict=True):
        by_task.setdefault(task_id, []).append(judged)
    found = [recovery(by_task[task_id], horizon) for task_id in sorted(by_task)]
    return np.array([each.recovered for each in found]), np.array([each.eligible for each in found])


def split_success(episodes: Sequence[Episode], steps: Sequence[Sequence[Step]]) -> SuccessSplit:
    """Success of each task, split by whether the episode erred on the way."""
    erred = [any(step.error for step in judged) for judged in steps]
    ids = [episode.task_id for episode in episodes]

    def share(flags: list[bool]) -> TaskAverages:
        return average(ids, [[float(flag)] for flag in flags])

    won = [episode.success for episode in episodes]
    clean = share([success and not bad for success, bad in zip(won, erred, strict=True)])
    recovered = share([success and bad for success, bad in zip(won, erred, strict=True)])
    return SuccessSplit(clean.task_ids, clean.values, recovered.values, share(erred).values)


def gain_split(policy: SuccessSplit, reference: SuccessSplit) -> dict[str, float | None]:
    """The gain in success of `policy` over `reference`, as the change in clean plus the change in recovered success.

    `recovered_share` is the part of the gain that came from episodes with an error, None where there is no gain.
    """
    if policy.task_ids != reference.task_ids:
        raise UserError("the policies of a comparison must meet the same panel; their task ids differ")
    clean = float((policy.clean - reference.clean).mean())
    recovered = float((policy.recovered - reference.recovered).mean())
    gain = clean + recovered
    return {"gain": gain, "clean": clean, "recovered": recovered, "recovered_share": recovered / gain if gain else None}


def _judged(
    turn: Turn, before: StepOracle, in_budget: StepOracle, after: float | None, result: StepResult | None
) -> Step:
    """The judgement of a turn; `result` None where the environment never saw its reply."""
    return Step(
        index=turn.index,
        turns_left=turn.remaining,
        action=turn.action,
        valid=turn.valid and result is not None,
        optimal=frozenset(before.optimal_actions),
        optimal_in_budget=frozenset(in_budget.optimal_actions),
        distance=before.distance,
        distance_after=after,
        error=result is None or is_error(before.distance, after, result),
    )


def _does_not_replay(episode: Episode, turn: Turn) -> UserError:
    return UserError(
        f"turn {turn.index} of an episode of task {episode.task_id} does not replay: the environment answers otherwise "
        "than on record; use the options and the version that the episode was made with"
    )


def _nearness(episode: Episode) -> list[float]:
    """How near to the goal each turn left the episode, in [0, 1]; 1 on success alone is certain."""
    levels, level, good = [], 0.0, 0
    told = any(turn.progress is not None for turn in episode.turns)
    judged = any(turn.good is not None for turn in episode.turns)
    for turn in episode.turns:
        good += bool(turn.good)
        if told:
            level = level if turn.progress is None else turn.progress
        elif judged:
            level = good / (episode.enforced_budget + 1)
        else:
            level = max(level, turn.reward)
        levels.append(1.0 if episode.success_turn == turn.index else level)
    return levels


def _is_good(step: Step) -> bool:
    if step.good is not None:
        return step.good
    return not step.error and _closer(step.distance_after, step.distance)


def _closer(distance: float | None, than: float | None) -> bool:
    return distance is not None and than is not None and distance < than


def _recovery_time(judged: Sequence[Step], place: int) -> int | None:
    """Turns after the error until the goal is closer than before it; None where that never happened."""
    before = judged[place].distance
    for time, step in enumerate(judged[place + 1 :], start=1):
        if _closer(step.distance_after, before):
            return time
    return None


def _kaplan_meier(times: list[int], censored: list[int], horizon: int) -> float | None:
    """1 - S(horizon) of the Kaplan-Meier estimate; what was watched for no turn at all says nothing."""
    watched = [left for left in censored if left > 0]
    if not times:
        return 0.0 if watched else None
    curve = stats.ecdf(stats.CensoredData(uncensored=times, right=watched))
    return float(curve.cdf.evaluate(horizon))


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def _hash(*key: object) -> str:
    return hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()
