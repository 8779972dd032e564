"""Environments written for `verifiers`: a stand-in of the package's surface, and (slow) the package itself."""

import signal
import sys

import pytest

from jaxagent.envs import registry
from jaxagent.envs.adapters import verifiers_rollouts
from jaxagent.envs.base import InfrastructureError
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
from jaxagent.errors import UserError

OPTIONS = {"id": "guessing_game"}
CACHES = (verifiers_rollouts._environment, verifiers_rollouts._client_class)


@pytest.fixture
def stand_in(monkeypatch, request):
    """The stand-in instead of the package, whether or not that is installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(request.path.parent / "stand_ins"))
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "verifiers"]:
        del sys.modules[name]


def task_of(answer):
    prompt = [{"role": "system", "content": "A game."}, {"role": "user", "content": "Guess."}]
    return Task("verifiers", f"t{answer}", {"row": {"prompt": prompt, "answer": answer}}, 5)


def test_an_episode(stand_in):
    environment = verifiers_rollouts.make_environment(OPTIONS)
    assert environment.reset(task_of("7"), 0).text == "A game.\n\nGuess."
    result = environment.step("3")
    assert (result.observation.text, result.ended, result.reward) == ("no 0: 3", None, 0.0)
    assert environment.step("4").observation.text == "no 1: 4", "what was said before is not said again"
    result = environment.step("7")
    assert (result.observation.text, result.ended, result.reward) == ("Right!", "success", 1.0)
    environment.reset(task_of("7"), 0)
    results = [environment.step("no") for _ in range(5)]
    assert [result.ended for result in results] == [None] * 4 + ["failure"] and results[-1].reward == 0.5


def test_rollouts_wait_side_by_side_and_end_cleanly(stand_in):
    environments = [verifiers_rollouts.make_environment(OPTIONS) for _ in range(8)]
    game = environments[0]._env
    for number, environment in enumerate(environments):
        environment.reset(task_of(str(number)), 0)
    for turn in range(3):
        assert [e.step("x").observation.text for e in reversed(environments)] == [f"no {turn}: x"] * 8
    assert [e.step("5").ended for e in environments] == [None] * 5 + ["success"] + [None] * 2
    assert game.cleaned == 1
    environments[0].reset(task_of("0"), 0)
    for environment in environments:
        environment.close()
        environment.close()
    assert game.cleaned == 9, "the environment's clean-up ran for every rollout, cut off or not"


def test_failures_of_the_environment_are_infrastructure(stand_in):
    for words, kind in (("sandbox", "sandbox"), ("slow", "timeout")):
        environment = verifiers_rollouts.make_environment(OPTIONS)
        environment.reset(task_of("7"), 0)
        with pytest.raises(InfrastructureError) as caught:
            environment.step(words)
        assert caught.value.kind == kind
    environment.reset(task_of("7"), 0)
    with pytest.raises(KeyError, match="a bug"):
        environment.step("crash")
    environment.reset(task_of("ill"), 0)
    with pytest.raises(InfrastructureError, match=r"verifier.*fell ill"):
        environment.step("ill")
    environment = verifiers_rollouts.make_environment(OPTIONS | {"args": {"rewrites": True}})
    environment.reset(task_of("7"), 0)
    with pytest.raises(InfrastructureError, match="rewrites its conversation"):
        environment.step("3")


def test_tools(stand_in):
    environment = verifiers_rollouts.make_environment(OPTIONS | {"args": {"tools": True}})
    text = environment.reset(task_of("7"), 0).text
    assert '{"name": "guess", "parameters": {}}' in text and text.endswith("A game.\n\nGuess.")
    result = environment.step('so <tool_call>{"name": "guess", "arguments": {"n": 3}}</tool_call>')
    assert result.observation.text == '<tool_response>\nno 0: {"n": 3}\n</tool_response>' and result.info["valid"]
    result = environment.step("<tool_call>{</tool_call>")
    assert result.observation.text == "<tool_response>\nno 1: {\n</tool_response>" and result.info["error"] == "format"


def test_tasks_and_workers(stand_in):
    handler = signal.getsignal(signal.SIGINT)
    source = verifiers_rollouts.make_tasks(OPTIONS, "train", 1000, 0)
    assert signal.getsignal(signal.SIGINT) is handler, "the environment takes the process's signals"
    assert 60 < len(source) < 100 and source.task(0).max_turns == 5
    assert verifiers_rollouts.make_tasks(OPTIONS | {"max_turns": 9}, "panel", 3, 0).task(0).max_turns == 9
    with EnvironmentPool("verifiers", OPTIONS, num_workers=1, step_timeout=60.0) as pool:
        chosen = [source.task(index) for index in range(3)]
        pool.run([ResetRequest(slot, task, 0) for slot, task in enumerate(chosen)])
        answer = chosen[1].data["row"]["answer"]
        assert [r.ended for r in pool.run([StepRequest(slot, answer) for slot in range(3)])] == [None, "success", None]


def test_bad_options_are_refused(stand_in):
    for options, message in [
        ({}, "need id"),
        ({"id": "no_such_game"}, "'no_such_game' cannot be loaded"),
        ({"id": "guessing_game", "args": {"groups": True}}, "scores whole groups"),
        ({"id": "guessing_game", "max_turns": -1}, r"env\.options\.max_turns"),
        ({"make": "guessing_game:Rubricks"}, r"env\.options\.make"),
    ]:
        with pytest.raises(UserError, match=message):
            registry.get("verifiers").make_environment(options)


def test_without_the_package(stand_in, monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(UserError, match="pip install"):
        registry.get("verifiers").make_environment(OPTIONS)


# The package itself.


def load_single_turn():
    vf, datasets = pytest.importorskip("verifiers.envs.singleturn_env"), pytest.importorskip("datasets")
    from verifiers.rubrics.rubric import Rubric

    async def right(completion, answer):
        return 1.0 if completion[-1].content == answer else 0.0

    rows = [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(60)]
    return vf.SingleTurnEnv(
        dataset=datasets.Dataset.from_list(rows), system_prompt="Add.", rubric=Rubric(funcs=[right])
    )


def load_multi_turn():
    vf, datasets = pytest.importorskip("verifiers.envs.multiturn_env"), pytest.importorskip("datasets")
    from verifiers.rubrics.rubric import Rubric

    class Guess(vf.MultiTurnEnv):
        async def setup_state(self, state):
            state["tries"] = 0
            return state

        async def env_response(self, messages, state, **kwargs):
            state["tries"] += 1
            if messages[-1].content == state["answer"]:
                state["final_env_response"] = [{"role": "user", "content": "Right!"}]
                return state["final_env_response"]
            return [{"role": "user", "content": f"No, try {state['tries']}."}]

    async def right(completion, answer, state):
        return float(any(message.role == "assistant" and message.content == answer for message in completion))

    rows = [{"question": "Guess.", "answer": str(i)} for i in range(60)]
    return Guess(dataset=datasets.Dataset.from_list(rows), rubric=Rubric(funcs=[right]), max_turns=4)


def load_tools():
    vf, datasets = pytest.importorskip("verifiers.envs.tool_env"), pytest.importorskip("datasets")
    from verifiers.rubrics.rubric import Rubric

    async def double(number: int) -> int:
        """Doubles a number.

        Args:
            number: What to double.
        """
        return 2 * number

    async def right(completion, answer):
        return 1.0 if completion[-1].content == answer else 0.0

    rows = [{"question": f"Double {i}.", "answer": str(2 * i)} for i in range(60)]
    return vf.ToolEnv(
        tools=[double], dataset=datasets.Dataset.from_list(rows), rubric=Rubric(funcs=[right]), max_turns=5
    )


@pytest.fixture
def real(monkeypatch, request):
    pytest.importorskip("verifiers.clients")
    monkeypatch.syspath_prepend(str(request.path.parent))
    for cache in CACHES:
        cache.cache_clear()


def real_environment(loader):
    options = {"make": f"{__name__}:{loader}"}
    source = verifiers_rollouts.make_tasks(options, "train", 1000, 0)
    return verifiers_rollouts.make_environment(options), source


@pytest.mark.slow
def test_a_real_single_turn_environment(real):
    environment, source = real_environment("load_single_turn")
    task = source.task(2)
    assert task.max_turns == 1 and len(source) > 30
    for reply, ended in ((task.data["row"]["answer"], "success"), ("0", "failure")):
        assert environment.reset(task, 0).text == f"Add.\n\n{task.data['row']['question']}"
        assert environment.step(reply).ended == ended


@pytest.mark.slow
def test_a_real_multi_turn_environment_as_its_own_rollout_has_it(real):
    """The same replies through the package's own loop: the same conversation and reward."""
    environment, source = real_environment("load_multi_turn")
    task = source.task(3)
    answer = task.data["row"]["answer"]
    for replies in (["x", "y", answer], ["a", "b", "c", "d"]):
        texts = [environment.reset(task, 0).text]
        results = [environment.step(reply) for reply in replies]
        texts += [result.observation.text for result in results]
        state = own_rollout(environment._env, task.data["row"], replies)
        heard = [m.content for m in [*state["prompt"], *state["completion"]] if m.role != "assistant"]
        assert [text for text in texts if text] == heard
        assert results[-1].reward == state["reward"] and results[-1].ended == (
            "success" if answer in replies else "failure"
        )
        assert [result.ended for result in results[:-1]] == [None] * (len(replies) - 1)


def own_rollout(env, row, replies):
    """The package's own `rollout` and scoring with a scripted client."""
    import asyncio

    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage

    left = list(replies)

    class Scripted(Client):
        def __init__(self):
            pass

        async def get_response(self, **kwargs):
            message = ResponseMessage(content=left.pop(0), finish_reason="stop", is_truncated=False)
            return Response(id="r", created=0, model="m", message=message)

    Scripted.__abstractmethods__ = frozenset()

    async def run():
        state = await env.rollout({"example_id": 0, **row}, Scripted(), "m", {})
        await env.rubric.score_rollout(state)
        return state

    return asyncio.new_event_loop().run_until_complete(run())


@pytest.mark.slow
def test_a_real_tool_environment(real):
    environment, source = real_environment("load_tools")
    task = source.task(1)
    text = environment.reset(task, 0).text
    assert '"name": "double"' in text and task.data["row"]["question"] in text
    number = task.data["row"]["question"].removeprefix("Double ").rstrip(".")
    result = environment.step(f'<tool_call>{{"name": "double", "arguments": {{"number": {number}}}}}</tool_call>')
    assert result.observation.text == f"<tool_response>\n{task.data['row']['answer']}\n</tool_response>"
    result = environment.step('<tool_call>{"name": "triple", "arguments": {}}</tool_call> <tool_call>{</tool_call>')
    assert result.ended is None and result.observation.text.count("<tool_response>") == 2
    assert environment.step(task.data["row"]["answer"]).ended == "success"


@pytest.mark.slow
def test_real_environments_in_workers(real):
    options = {"make": f"{__name__}:load_multi_turn"}
    source = verifiers_rollouts.make_tasks(options, "train", 1000, 0)
    with EnvironmentPool("verifiers", options, num_workers=2, step_timeout=120.0) as pool:
        chosen = [source.task(index) for index in range(8)]
        pool.run([ResetRequest(slot, task, 0) for slot, task in enumerate(chosen)])
        pool.run([StepRequest(slot, "x") for slot in range(8)])
        answer = chosen[6].data["row"]["answer"]
        ended = [result.ended for result in pool.run([StepRequest(slot, answer) for slot in range(8)])]
        assert ended == [None] * 6 + ["success", None]
