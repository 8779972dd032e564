"""Injected errors and hybrid policies: scripted samplers show who wrote what, a real one that nothing else changes."""

import pathlib
import sys

import jax
import numpy as np
import pytest
from three_states import ThreeStates, make_task, play
from tiny_runs import tiny_setup

from jaxagent.envs.base import InfrastructureError
from jaxagent.envs.workers import ResetRequest, StepRequest
from jaxagent.episodes import EpisodeSpec
from jaxagent.errors import UserError
from jaxagent.evaluation.analysis import inject_errors
from jaxagent.evaluation.interventions import (
    DirectedSampler,
    Injection,
    WatchingPool,
    hand_over_at_error,
    injection_script,
    plan_injections,
    script,
)
from jaxagent.evaluation.likelihood import ModelPolicy, compare_policies, reply_log_probs
from jaxagent.evaluation.rollouts import Rollouts
from jaxagent.evaluation.step_quality import context_ids, replay
from jaxagent.models import decoder
from jaxagent.rollout.engine import EngineConfig, RolloutEngine
from jaxagent.rollout.setup import sampler_params_fn
from jaxagent.rollout.specs import told_specs

sys.path.append(str(pathlib.Path(__file__).parents[1] / "rollout"))
from fake_sampler import FakeSampler

STOP = 1
WORDS = {"go": 10, "back": 11, "leap": 12, "noop": 13, "step": 14, "firm": 15}


class WordChat:
    """A word is an id; a reply is its words and the stop id. Two words for the same action tell who wrote it."""

    stop_ids = (STOP,)

    def observation_ids(self, text, *, first):
        return (2,) * first + (20 + int(text.split()[0][1:]),)

    def reply_ids(self, text):
        return (WORDS[text], STOP)

    def reply_text(self, ids):
        names = {number: word for word, number in WORDS.items()}
        return {"step": "go", "firm": "go"}.get(names[ids[0]], names[ids[0]])


def make_sampler(word, **fields):
    """Always says the same word, padded to three tokens so that a reply takes several calls."""
    return FakeSampler(lambda ids, turn, key: (WORDS[word], WORDS[word], STOP), chunk=1, **fields)


def make_specs(count, *, budget=4, **data):
    return [EpisodeSpec(make_task("x", **data), 0, 0, 0, member, None, budget) for member in range(count)]


def run(samplers, specs, director):
    pool = WatchingPool(ThreeStates)
    engine = RolloutEngine(DirectedSampler(samplers, director(pool)), pool, WordChat(), EngineConfig(retries=0))
    episodes = sorted(engine.run_episodes(specs), key=lambda episode: episode.member)
    engine.close()
    return episodes


def writers(episode):
    return [turn.sampled_ids[0] for turn in episode.turns]


def test_forced_replies_come_first_and_the_sampler_goes_on():
    sampler = make_sampler("step", slots=2)
    forced = {(0, 0, 0, 0): [(10, STOP), (11, STOP)], (0, 0, 0, 2): [(13, 13, STOP)]}
    episodes = run([sampler], make_specs(3), lambda pool: script(forced))
    assert [writers(episode) for episode in episodes] == [[10, 11, 14, 14], [14, 14], [13, 14, 14]]
    assert [episode.success_turn for episode in episodes] == [4, 2, 3]
    assert episodes[0].turns[0].logprobs == (0.0, 0.0) and episodes[0].turns[2].logprobs == (-0.5, -0.5, -0.5)
    assert not episodes[2].turns[0].valid


def test_every_cache_holds_the_whole_transcript_whoever_wrote_it():
    samplers = [make_sampler("back", slots=1), make_sampler("firm", slots=1)]
    order = iter([1, (13, 13, 10, STOP), 0, 1])  # the forced reply is longer than what one call can draw
    (episode,) = run(samplers, make_specs(1), lambda pool: lambda slot, key: next(order))
    assert writers(episode) == [15, 13, 11, 15]
    for sampler in samplers:
        ids = episode.token_ids()
        # The last reply's end was not asked for any more; all before it is there, in order.
        assert sampler.cache[0] == ids[: len(sampler.cache[0])]
        assert len(sampler.cache[0]) >= len(ids) - 3


def test_hybrids_hand_over_on_the_turn_after_the_first_error():
    # Sampler 0 goes, then errs by an invalid word; sampler 1 finishes.

    def first(ids, turn, key):
        return (WORDS["go"] if turn == 1 else WORDS["noop"], STOP)

    samplers = [FakeSampler(first, slots=2, chunk=1), make_sampler("firm", slots=2)]
    episodes = run(samplers, make_specs(3), hand_over_at_error)
    assert [writers(episode) for episode in episodes] == [[10, 13, 15]] * 3  # also in a slot that is used again
    assert all(episode.success_turn == 3 for episode in episodes)


def test_budgets_and_lines_are_those_of_the_order():
    spec = EpisodeSpec(make_task("x"), 0, 0, 0, 0, 4, 3)
    (episode,) = run([make_sampler("noop")], [spec], lambda pool: script({(0, 0, 0, 0): [(11, STOP)]}))
    assert [turn.remaining for turn in episode.turns] == [3, 2, 1]
    assert (episode.end_reason, episode.told_budget) == ("budget", 4)


def test_forced_replies_must_fit():
    with pytest.raises(UserError, match="9 tokens"):
        run([make_sampler("go")], make_specs(1), lambda pool: script({(0, 0, 0, 0): [(10,) * 9]}))
    with pytest.raises(ValueError, match="equal shapes"):
        DirectedSampler([make_sampler("go", slots=1), make_sampler("go", slots=2)], lambda slot, key: 0)


def test_infrastructure_failures_do_not_pass_for_anything_else():
    class Broken(ThreeStates):
        def step(self, reply):
            raise {"go": InfrastructureError("verifier"), "back": ValueError("a bug")}[reply]

    pool = WatchingPool(Broken)
    pool.run([ResetRequest(0, make_task(), 0), ResetRequest(1, make_task(), 0)])
    kinds = [result.kind for result in pool.run([StepRequest(0, "go"), StepRequest(1, "back")])]
    assert kinds == ["verifier", "worker"] and not pool.erred(0)


def plan(episodes, **fields):
    tasks = {"x": make_task("x"), "y": make_task("y")}
    steps = [replay(ThreeStates(), tasks[episode.task_id], episode) for episode in episodes]
    defaults = {"count": 10}
    return plan_injections(ThreeStates(), tasks, episodes, steps, **(defaults | fields))


def test_injected_replies_lead_away_and_leave_room():
    episodes = [play(["go", "back", "go", "go"], member=i) for i in range(40)]
    injections = plan(episodes, count=30)
    assert len(injections) == 30 and plan(episodes[::-1], count=30) == injections
    places = {len(injection.prefix) for injection in injections}
    # Turn 3 (state 0): no valid action leads away and a lost turn leaves 1 of the 2 that are needed. Turn 4: the last.
    assert places == {0, 1}
    for injection in injections:
        state = len(injection.prefix)
        # From state 1 `back` leads away; from state 0 it only costs its turn, which is worse than being invalid.
        assert injection.wrong == "back"
        assert injection.prefix == ((12, STOP),) * state


def test_invalid_replies_serve_where_no_action_is_wrong():
    (injection,) = plan([play(["go", "go"], budget=3, member=0)], count=1)
    assert injection.wrong == "noop"
    assert plan([play(["go", "go"], budget=2)]) == ()  # a lost turn could not be made up for
    assert plan([play(["leap"])]) != ()


def test_injected_errors_meet_everybody_in_the_same_state():
    episodes = [play(["go", "back", "go", "go"], member=i) for i in range(4)]
    injections = plan(episodes)
    chat = WordChat()
    specs = [injection.spec for injection in injections]
    injections = tuple(  # the records were not made with this chat's ids
        Injection(i.spec, tuple((WORDS["go"], STOP) for _ in i.prefix), i.wrong) for i in injections
    )
    outcome = {}
    for word in ("firm", "noop"):
        for inject in (True, False):
            outcome[word, inject] = run(
                [make_sampler(word)], specs, lambda pool, i=inject: injection_script(injections, chat, inject=i)
            )
    for index, injection in enumerate(injections):
        forced = [WORDS["go"]] * len(injection.prefix) + [WORDS[injection.wrong]]
        assert writers(outcome["firm", True][index])[: len(forced)] == forced
        assert writers(outcome["noop", True][index])[: len(forced)] == forced
        extra = outcome["firm", True][index].success_turn - outcome["firm", False][index].success_turn
        assert extra == (2 if injection.prefix else 1)  # a step back costs two turns, a lost one costs one
        assert not outcome["noop", False][index].success


def test_a_real_policy_continues_its_own_prefixes_to_the_same_episodes():
    setup = tiny_setup("rollout.slots=8")
    tasks = [setup.tasks("panel", 4).task(i) for i in range(4)]
    policy = ModelPolicy(setup.model, decoder.init_params(setup.model, jax.random.key(0)), 1.0)
    engine = setup.make_engine()
    engine.set_params(sampler_params_fn(setup.model, setup.mesh)(policy.params), version=0)
    specs = told_specs(tasks, percent=100, samples=3, run_seed=5)
    plain = sorted(engine.run_episodes(specs), key=lambda e: (e.group, e.member))
    engine.close()
    # One policy in both halves of a hybrid is that policy.
    rollouts = Rollouts(setup)
    twice = rollouts.run("twice", [policy, policy], specs, hand_over_at_error)
    assert [e.token_ids() for e in twice] == [e.token_ids() for e in plain]
    long = [e for e in plain if len(e.turns) > 1]
    injections = [
        Injection(spec, tuple(turn.sampled_ids for turn in e.turns[: len(e.turns) // 2]), "noop")
        for e in long
        for spec in specs
        if (spec.task.id, spec.member) == (e.task_id, e.member)
    ]
    assert injections
    again = inject_errors(setup, rollouts, "again", policy, injections, inject=False, fresh_noise=False)
    assert [e.token_ids() for e in again] == [e.token_ids() for e in long]
    # With noise of its own only the prefixes are the same.
    fresh = inject_errors(setup, rollouts, "fresh", policy, injections, inject=False)
    assert [e.token_ids() for e in fresh] != [e.token_ids() for e in long]
    for e, f, injection in zip(long, fresh, injections, strict=True):
        kept = len(injection.prefix)
        assert [turn.sampled_ids for turn in f.turns[:kept]] == [turn.sampled_ids for turn in e.turns[:kept]]
    # What the sampler drew with is what the scorer gives: the behaviour log-probs are the policy's.
    other = ModelPolicy(setup.model, decoder.init_params(setup.model, jax.random.key(1)), 1.0)
    table = compare_policies(policy, other, plain)
    drawn = [sum(turn.logprobs) for e in plain for turn in e.turns]
    replies = [turn.sampled_ids for e in plain for turn in e.turns]
    contexts = [context_ids(e, turn.index) for e in plain for turn in e.turns]
    scored = reply_log_probs(policy, contexts, replies) - reply_log_probs(other, contexts, replies)
    np.testing.assert_allclose(table.log_ratio[table.mask], scored, atol=1e-4)
    np.testing.assert_allclose(reply_log_probs(policy, contexts, replies), drawn, atol=1e-4)
