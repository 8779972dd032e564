"""Environments written for `verifiers`, its classic kind: `load_environment()` returns an environment with a rubric.

    env.name = "verifiers"
    env.options = {"id": "wordle", "args": {"num_train_examples": 500}}

The environment's own rollout runs unchanged; where it asks its client for a completion it waits for the next reply. So
single-turn, multi-turn and tool environments all work, as long as a conversation only grows. Several rollouts wait side
by side on one event loop; no thread and no server is involved.
"""

import asyncio
import contextlib
import copy
import dataclasses
import functools
import json
import logging
import signal
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any

from jaxagent.envs import registry
from jaxagent.envs.adapters.conversations import conversation_text, tool_calls, tools_text, without_calls
from jaxagent.envs.adapters.references import called, check_adapter_options
from jaxagent.envs.adapters.rows import row_tasks
from jaxagent.envs.base import InfrastructureError, InfrastructureKind, Observation, Split, StepResult
from jaxagent.envs.generated import parse_options
from jaxagent.envs.listed import ListedTasks
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = "verifiers"
_UNNAMED = ("example_id", "task", "env_id")  # columns that number rows or name the environment


@dataclasses.dataclass(frozen=True)
class VerifiersOptions:
    """Options of the environment and of its tasks.

    Attributes:
      id: of an installed environment, as `verifiers.load_environment` takes it.
      make: module:function that returns the environment, instead of `id`.
      args: keyword arguments of either.
      max_turns: full budget of every task; 0: the environment's own `max_turns`, 10 where it has no limit.
      success_reward: an episode whose rubric gives at least this is a success.
    """

    id: str = ""
    make: str = ""
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_turns: int = 0
    success_reward: float = 1.0

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        if bool(self.id) == bool(self.make):
            raise UserError("env.options of 'verifiers' need id (an installed environment) or make (module:function)")
        check_adapter_options(self, keywords="args", least_turns=0)


class VerifiersEnvironment:
    """One rollout at a time of an environment that all slots of a process share, as `verifiers` means it."""

    def __init__(self, options: VerifiersOptions) -> None:
        """Raises `UserError` where the environment cannot be loaded, or scores whole groups only."""
        self.options = options
        self._env = _environment(options.id, options.make, json.dumps(dict(options.args), sort_keys=True))
        if getattr(self._env, "requires_group_rollouts", False):
            raise UserError("this environment's rubric scores whole groups of rollouts; only single ones are supported")
        self._rollout: asyncio.Task | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts a rollout and waits for its first question. `seed` is not used: these environments take none."""
        del seed
        self.close()
        self._client = _client_class()()
        self._history: list[Mapping[str, Any]] = []
        row = {"example_id": 0, **copy.deepcopy(task.data["row"])}
        self._rollout = _loop().create_task(self._env.rollout(row, self._client, "policy", {}))
        ended = self._advance()
        if ended is not None:
            raise InfrastructureError("worker", "the rollout ended before it asked for anything")
        return self._observation()

    def step(self, reply: str) -> StepResult:
        """Gives the reply to the waiting rollout; where that was its last question, the rubric scores it."""
        calls = tool_calls(reply) if self._client.tools else []
        broken = [call.error for call in calls if call.error]
        made = [(call.name or "invalid", json.dumps(call.arguments) if not call.error else call.text) for call in calls]
        self._client.answer(without_calls(reply) if made else reply, made)
        info = {"valid": not broken, "action": None, "error": "format" if broken else None}
        state = self._advance()
        if state is None:
            return StepResult(self._observation(), info=info)
        self._rollout = None
        reward = self._score(state)
        ended = "success" if reward >= self.options.success_reward else "failure"
        last = [_plain(message) for message in _as_list(state.get("final_env_response"))]
        return StepResult(Observation(conversation_text(last), "end"), reward, ended, info)

    def close(self) -> None:
        """Ends a rollout that still waits, with the environment's own clean-up."""
        rollout, self._rollout = self._rollout, None
        if rollout is not None and not rollout.done():
            rollout.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                _loop().run_until_complete(rollout)

    def _advance(self) -> Mapping[str, Any] | None:
        """Runs until the rollout asks again (None), or ends (its state)."""
        _loop().run_until_complete(_first_of(self._rollout, self._client.asked.wait()))
        if not self._rollout.done():
            return None
        state = self._rollout.result()
        if state.get("timed_out"):
            raise InfrastructureError("timeout", "the environment's own limit of time")
        if (error := state.get("error")) is not None:
            raise InfrastructureError(_kind(error), f"{error!r:.500}")
        return state

    def _observation(self) -> Observation:
        """What has been said since the last reply."""
        self._client.asked.clear()
        messages = [_plain(message) for message in self._client.prompt]
        known = len(self._history)
        if messages[:known] != self._history or (known and messages[known].get("role") != "assistant"):
            raise InfrastructureError("worker", "the environment rewrites its conversation; it may only grow")
        new = messages[known + 1 :] if known else messages
        self._history = messages
        text = conversation_text(new)
        if not known and self._client.tools:
            text = f"{tools_text([_plain(tool) for tool in self._client.tools])}\n\n{text}"
        return Observation(text, text if known else "start")

    def _score(self, state: Mapping[str, Any]) -> float:
        try:
            _loop().run_until_complete(self._env.rubric.score_rollout(state))
            return float(state["reward"])
        except Exception as error:  # what scores is no part of the agent's work
            raise InfrastructureError("verifier", f"{error!r:.500}") from error


def make_environment(options: Mapping[str, Any]) -> VerifiersEnvironment:
    """A fresh environment; `UserError` on a bad option."""
    return VerifiersEnvironment(parse_options(VerifiersOptions, NAME, options))


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> ListedTasks:
    """The rows of the environment's training data that fall into one split, whatever the seed."""
    del seed
    parsed = parse_options(VerifiersOptions, NAME, options)
    environment = _environment(parsed.id, parsed.make, json.dumps(dict(parsed.args), sort_keys=True))
    own = int(getattr(environment, "max_turns", 0) or 0)
    full = parsed.max_turns or (own if own > 0 else 10)
    rows = environment.get_dataset()
    return row_tasks(NAME, rows, max_turns=lambda row: full, split=split, size=size, unnamed=_UNNAMED)


@functools.lru_cache(maxsize=4)
def _environment(name: str, make: str, args: str) -> Any:
    """One environment a process: its data set is read once, and its rollouts share nothing but it."""
    package = _package()
    kwargs = json.loads(args)
    with _signals_kept():
        if make:
            return called("make", make, kwargs)
        try:
            return package.load_environment(name, **kwargs)
        except Exception as error:  # a foreign module, its data, its arguments: the user's to read
            raise UserError(f"env.options.id {name!r} cannot be loaded: {error!r}") from error


def _package() -> Any:
    try:
        import verifiers
        import verifiers.clients
    except ImportError as error:
        raise UserError(
            f"env.name=verifiers needs the package verifiers with its classic environments: pip install "
            f"'verifiers>=0.1.10,<0.4' ({error})"
        ) from None
    return verifiers


@functools.cache
def _client_class() -> type:
    """A client of `verifiers` whose completions are given by hand: `asked` is set when it waits for `answer`."""
    _package()
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    class RepliesByHand(Client):
        def __init__(self) -> None:
            self._config = self._client = None
            self.logger = logging.getLogger(__name__)
            self.asked, self.count = asyncio.Event(), 0
            self.prompt: list[Any] = []
            self.tools: list[Any] = []

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
            self.prompt, self.tools = list(prompt), list(tools or ())
            self.reply = asyncio.get_running_loop().create_future()
            self.asked.set()
            return await self.reply

        def answer(self, text: str, calls: Sequence[tuple[str, str]]) -> None:
            self.count += 1
            made = [ToolCall(id=f"{self.count}_{i}", name=n, arguments=a) for i, (n, a) in enumerate(calls)]
            reason = "tool_calls" if made else "stop"
            message = ResponseMessage(content=text, tool_calls=made or None, finish_reason=reason, is_truncated=False)
            self.reply.set_result(Response(id=str(self.count), created=0, model="policy", message=message))

    RepliesByHand.__abstractmethods__ = frozenset()  # the rest of a client is for talking to a server
    return RepliesByHand


async def _first_of(rollout: asyncio.Task, question: Coroutine[Any, Any, Any]) -> None:
    waiting = asyncio.ensure_future(question)
    await asyncio.wait({rollout, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop on which all rollouts of this process wait."""
    return asyncio.new_event_loop()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keeps the process's handlers: these environments put their own over SIGINT and SIGTERM when made."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            with contextlib.suppress(ValueError):  # outside of the main thread nobody can have changed them
                signal.signal(number, handler)


def _kind(error: Exception) -> InfrastructureKind:
    return "sandbox" if "Sandbox" in type(error).__name__ else "worker"


def _plain(message: Any) -> dict[str, Any]:
    return message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else dict(message)


def _as_list(messages: Any) -> list[Any]:
    if messages is None:
        return []
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


ENTRY = registry.EnvironmentEntry(NAME, make_environment, make_tasks, registry.no_bound, None, options=VerifiersOptions)
