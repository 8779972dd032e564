"""The host loop: budgets counted, cut and told per slot; transcripts append-only; every end reason; voids and
retries."""

import collections
import dataclasses

import pytest
from fake_sampler import FakeSampler

from jaxagent.envs.base import InfrastructureError, Observation, StepResult
from jaxagent.envs.workers import ResetRequest
from jaxagent.episodes import EpisodeSpec, Task
from jaxagent.rollout.engine import LOSSES_PER_RETRY, EngineConfig, RolloutEngine, environment_seed, sorted_by_work

STOP, BOS = 1, 2


class CharacterChat:
    """Ids are code points (plus 10), a newline stops: every character of an observation is a token."""

    stop_ids = (STOP,)

    def observation_ids(self, text, *, first):
        return ((BOS,) if first else ()) + tuple(ord(c) + 10 for c in text)

    def reply_text(self, ids):
        return "".join("\n" if i == STOP else chr(i - 10) for i in ids)

    def text(self, ids):
        return "".join("^" if i == BOS else "\n" if i == STOP else chr(i - 10) for i in ids)


CHAT = CharacterChat()


def reply_ids(text):
    return tuple(STOP if c == "\n" else ord(c) + 10 for c in text)


class ScriptedPool:
    """An environment pool whose steps come from a function of (task, seed, turn, reply)."""

    def __init__(self, step, reset=lambda task, seed: Observation("o", "start")):
        self._step, self._reset = step, reset
        self._live = {}
        self.seeds = []

    def run(self, requests):
        results = []
        for request in requests:
            try:
                if isinstance(request, ResetRequest):
                    self.seeds.append(request.seed)
                    self._live[request.slot] = [request.task, request.seed, 0]
                    results.append(self._reset(request.task, request.seed))
                else:
                    live = self._live[request.slot]
                    live[2] += 1
                    results.append(self._step(*live, request.reply))
            except InfrastructureError as error:
                results.append(error)
        return results

    def rest(self):
        pass

    def close(self):
        pass


def go_on(task, seed, turn, reply):
    return StepResult(Observation("o", f"s{turn}"), info={"valid": True, "action": reply.strip()})


def spec(budget=3, told="same", task="t", group=0, member=0, max_turns=8):
    told = budget if told == "same" else told
    return EpisodeSpec(Task("test", task, {}, max_turns), 7, 0, group, member, told, budget)


def make_engine(step=go_on, reply=lambda *_: reply_ids("a\n"), reset=None, config=None, **sampler):
    pool = ScriptedPool(step, reset) if reset else ScriptedPool(step)
    fake = FakeSampler(reply, **sampler)
    config = config or EngineConfig(announce="total_and_remaining", wording="words")
    return RolloutEngine(fake, pool, CHAT, config), fake, pool


def test_the_line_is_right_at_first_last_and_refilled_turns():
    """Nine episodes with budgets of their own through two slots: each prompt shows its own count, as token ids."""
    engine, _, _ = make_engine(slots=2, max_context=400)
    specs = [spec(budget, group=i, task=f"t{i}") for i, budget in enumerate([3, 1, 2, 5, 1, 4, 2, 3, 1])]
    finished = list(engine.run_episodes(specs))
    assert len(finished) == 9
    for episode in finished:
        budget = episode.enforced_budget
        assert [t.remaining for t in episode.turns] == list(range(budget, 0, -1))
        for turn in episode.turns:
            text = CHAT.text(turn.observation_ids)
            opening = "^" if turn.index == 1 else ""
            assert text == f"{opening}o total_{budget} remaining_{budget - turn.index + 1}"
        assert episode.end_reason == "budget" and episode.reward == 0 and not episode.success


def test_untold_and_partly_told_budgets():
    engine, _, _ = make_engine(max_context=400)
    untold, blind_cap = list(engine.run_episodes([spec(2, told=None), spec(2, told=5, group=1)]))
    assert all("total" not in CHAT.text(t.observation_ids) for t in untold.turns)
    assert [CHAT.text(t.observation_ids).split("remaining_")[1] for t in blind_cap.turns] == ["5", "4"]
    assert (blind_cap.told_budget, blind_cap.enforced_budget) == (5, 2)


@pytest.mark.parametrize("chunk", [1, 3])
def test_history_is_append_only(chunk):
    """The cache of every slot is the transcript of its episode, token by token (F1, F2), but for the last sampled
    one."""
    engine, fake, _ = make_engine(
        slots=2,
        chunk=chunk,
        max_context=400,
        max_turn_tokens=9,
        reply=lambda ids, turn, key: reply_ids("ab" * turn + "\n"),
    )
    finished = list(engine.run_episodes([spec(3, group=i) for i in range(4)]))
    caches = collections.Counter(tuple(past) for past in [*fake.pasts, *fake.cache] if past)
    expected = collections.Counter(tuple(episode.token_ids()[:-1]) for episode in finished)
    assert caches == expected
    for episode in finished:
        assert [t.text for t in episode.turns] == ["ab\n", "abab\n", "ababab\n"]
        assert all(len(t.logprobs) == len(t.sampled_ids) for t in episode.turns)


def test_success_on_the_last_turn_counts_and_one_later_does_not():
    def solve_on_3(task, seed, turn, reply):
        return (
            StepResult(Observation("o"), 1.0, "success" if turn == 3 else None) if turn == 3 else go_on(0, 0, turn, "")
        )

    engine, _, _ = make_engine(solve_on_3)
    by_budget = {e.enforced_budget: e for e in engine.run_episodes([spec(2), spec(3, group=1), spec(4, group=2)])}
    assert by_budget[2].end_reason == "budget" and by_budget[2].reward == 0 and len(by_budget[2].turns) == 2
    for budget in (3, 4):
        assert by_budget[budget].success and by_budget[budget].success_turn == 3 and by_budget[budget].reward == 1.0


def test_outcome_and_step_rewards_are_kept_apart():
    def paid(task, seed, turn, reply):
        if turn == 3:
            return StepResult(Observation("o"), 0.7, "failure", {"step_reward": 0.05})
        return StepResult(Observation("o"), 0.1 * turn)

    engine, _, _ = make_engine(paid)
    (ended,) = engine.run_episodes([spec(8)])
    assert ended.reward == 0.7 and [t.reward for t in ended.turns] == [0.1, 0.2, 0.05]
    (cut,) = engine.run_episodes([spec(2)])
    assert cut.reward == 0 and [t.reward for t in cut.turns] == [0.1, 0.2], "step rewards already earned stay"


def test_a_reply_at_its_cap_ends_the_episode():
    """F4: the length stop of the last generation is not lost, and not counted as an invalid action (F5)."""
    stepped = []

    def step(task, seed, turn, reply):
        stepped.append(reply)
        return go_on(task, seed, turn, reply)

    engine, _, _ = make_engine(
        step, reply=lambda ids, turn, key: reply_ids("a\n" if turn == 1 else "abcdefgh"), max_turn_tokens=4
    )
    (episode,) = engine.run_episodes([spec(5)])
    assert episode.end_reason == "turn_tokens" and episode.reward == 0 and not episode.success
    last = episode.turns[-1]
    assert last.truncated and last.valid and len(last.sampled_ids) == 4 and last.text == "abcd"
    assert not episode.turns[0].truncated
    assert stepped == ["a\n"], "the environment never sees a cut reply"


def test_a_stop_token_at_the_cap_is_a_complete_reply():
    engine, _, _ = make_engine(reply=lambda *_: reply_ids("abc\n"), max_turn_tokens=4)
    (episode,) = engine.run_episodes([spec(2)])
    assert episode.end_reason == "budget" and not any(t.truncated for t in episode.turns)


def test_context_ends_before_sampling_and_keeps_earlier_turns():
    """F5: limit 100, prompt 95, 10 tokens a reply: ends before sampling; a finished episode is never an overflow."""
    config = EngineConfig(announce="none")
    engine, fake, _ = make_engine(reset=lambda t, s: Observation("x" * 94), max_turn_tokens=10, config=config)
    (episode,) = engine.run_episodes([spec(3, told=None)])
    assert episode.end_reason == "context" and episode.turns == () and episode.reward == 0
    assert not any(fake.cache), "nothing was sampled"

    def long_after_one(task, seed, turn, reply):
        return StepResult(Observation("y" * 80)) if turn == 1 else StepResult(Observation("z" * 500), 1.0, "success")

    engine, _, _ = make_engine(long_after_one, reset=lambda t, s: Observation("x" * 20), config=config)
    (episode,) = engine.run_episodes([spec(3, told=None)])
    assert episode.end_reason == "context" and len(episode.turns) == 1

    engine, _, _ = make_engine(
        lambda task, seed, turn, reply: StepResult(Observation("z" * 500), 1.0, "success"), config=config
    )
    (episode,) = engine.run_episodes([spec(3, told=None)])
    assert episode.success and episode.reward == 1.0, "the observation after the end needs no room"


def test_long_observations_are_appended_in_pieces():
    engine, fake, _ = make_engine(reset=lambda t, s: Observation("x" * 50), buckets=(4, 16), max_context=200)
    (episode,) = engine.run_episodes([spec(2, told=None)])
    assert fake.cache[0] == episode.token_ids()[:-1]
    assert len(episode.turns) == 2


class Flaky:
    """Fails its first `failures` calls, then goes on."""

    def __init__(self, failures, kind="sandbox"):
        self.left, self.kind = failures, kind

    def __call__(self, task, seed, turn, reply=None):
        if self.left > 0:
            self.left -= 1
            raise InfrastructureError(self.kind, "broken")
        return go_on(task, seed, turn, reply or "")


@pytest.mark.parametrize("failures", [1, 2])
def test_infrastructure_failures_are_retried(failures):
    engine, _, pool = make_engine(Flaky(failures), max_context=400, config=EngineConfig(retries=2))
    (episode,) = engine.run_episodes([spec(2)])
    assert episode.end_reason == "budget" and len(episode.turns) == 2 and not episode.is_void
    assert engine.stats.retries == failures and engine.stats.void_episodes == 0
    assert len(set(pool.seeds)) == 1, "a retry meets the same environment noise"


def test_an_episode_is_void_after_its_retries():
    engine, _, _ = make_engine(Flaky(99, "timeout"), config=EngineConfig(retries=2))
    (episode,) = engine.run_episodes([spec(2)])
    assert episode.is_void and "timeout" in episode.detail and episode.reward == 0
    assert engine.stats.void_episodes == 1 and engine.stats.retries == 2


def test_an_episode_that_another_took_down_is_not_charged():
    def lose(left):
        def step(task, seed, turn, reply):
            if left:
                left.pop()
                raise InfrastructureError("worker", "its worker was lost", lost=True)
            return go_on(task, seed, turn, reply)

        return step

    engine, _, _ = make_engine(lose([None] * 7), max_context=400, config=EngineConfig(retries=1))
    (episode,) = engine.run_episodes([spec(2)])
    assert episode.end_reason == "budget" and engine.stats.failures == {"worker": 7}
    assert engine.stats.metrics()["rollout/failures_worker"] == 7
    engine, _, _ = make_engine(lose([None] * 99), max_context=400, config=EngineConfig(retries=1))
    (episode,) = engine.run_episodes([spec(2)])
    assert episode.is_void and engine.stats.retries == LOSSES_PER_RETRY, "but not for ever"


def test_a_failing_reset_is_void_too():
    def reset(task, seed):
        raise InfrastructureError("worker", "no start")

    engine, _, _ = make_engine(reset=reset, slots=1, config=EngineConfig(retries=1))
    finished = list(engine.run_episodes([spec(2, group=i) for i in range(3)]))
    assert [e.is_void for e in finished] == [True] * 3 and engine.stats.retries == 3


def test_records_carry_version_anchor_and_validity():
    def step(task, seed, turn, reply):
        return StepResult(Observation("o", f"s{turn}"), info={"valid": False, "action": None, "error": "format"})

    engine, _, _ = make_engine(step)
    engine.set_params({}, version=41)
    (episode,) = engine.run_episodes([spec(3)])
    assert [t.anchor for t in episode.turns] == ["start", "s1", "s2"], "the state in which the turn was taken"
    assert all(not t.valid and t.error == "format" and t.weight_version == 41 for t in episode.turns)
    assert len(episode.turns) == 3, "an invalid reply is a turn too"


def test_sampling_keys_name_the_place_and_environment_seeds_differ():
    keys = []

    def reply(ids, turn, key):
        keys.append(tuple(int(word) for word in key))
        return reply_ids("a\n")

    engine, _, pool = make_engine(reply=reply, slots=3)
    specs = [dataclasses.replace(spec(2, group=g, member=m), step=5) for g in range(2) for m in range(3)]
    list(engine.run_episodes(specs))
    assert sorted(keys) == [(7, 5, g, m, t) for g in range(2) for m in range(3) for t in (1, 2)]
    assert sorted(pool.seeds) == sorted(environment_seed(s) for s in specs) and len(set(pool.seeds)) == 6


def test_work_is_sorted_longest_first_and_stably():
    specs = [spec(b, group=g) for g, b in enumerate([2, 5, 5, 1])]
    assert [(s.enforced_budget, s.group) for s in sorted_by_work(specs)] == [(5, 1), (5, 2), (2, 0), (1, 3)]
