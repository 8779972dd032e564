"""Environments written for `environment_factory` of TRL's trainers: a class with `reset(**row)` and methods as tools.

    env.name = "trl"
    env.options = {"factory": "my_package:CounterEnv", "dataset": "my_package:rows", "max_turns": 8}

The public methods of the class, less `reset` and `get_reward`, are the tools. A reply calls some, each as a JSON object
in `<tool_call>`, and reads what they return; a reply without a call ends the episode, which is then scored by
`get_reward()` or by a reward function of TRL's form. TRL itself need not be installed.
"""

import asyncio
import copy
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from jaxagent.envs import registry
from jaxagent.envs.adapters.conversations import (
    ToolCall,
    conversation_text,
    tool_calls,
    tool_response,
    tools_text,
    without_calls,
)
from jaxagent.envs.adapters.references import called, check_adapter_options, load, load_callable
from jaxagent.envs.adapters.rows import row_tasks
from jaxagent.envs.base import InfrastructureError, Observation, Split, StepResult
from jaxagent.envs.generated import parse_options
from jaxagent.envs.listed import ListedTasks
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = "trl"
_NO_TOOLS = ("reset", "get_reward")


@dataclasses.dataclass(frozen=True)
class TrlOptions:
    """Options of the environment and of its tasks.

    Attributes:
      factory: module:class or module:function, as `environment_factory` takes it.
      dataset: module:attribute, rows with a `prompt` (text or messages) and whatever `reset` takes: a list of
        dictionaries, a `datasets.Dataset`, or a function that returns one.
      reward: module:function, a reward function of TRL's form; empty: `get_reward()` alone. Both add up.
      max_turns: full budget of every task.
      success_reward: an episode that ends with at least this reward is a success.
    """

    factory: str = ""
    dataset: str = ""
    reward: str = ""
    max_turns: int = 10
    success_reward: float = 1.0

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        if not self.factory or not self.dataset:
            raise UserError("env.options of 'trl' need factory and dataset, each as module:attribute")
        check_adapter_options(self, keywords=None, least_turns=1)


class TrlEnvironment:
    """The environment: one instance of the class, reset for every episode."""

    def __init__(self, options: TrlOptions) -> None:
        """Raises `UserError` where the class is none that TRL would take."""
        self.options = options
        self._env = called("factory", options.factory)
        self._tools = tools_of(self._env)
        self._schemas = [_schema(tool) for tool in self._tools.values()]
        self._reward = load_callable("reward", options.reward) if options.reward else None
        if not callable(getattr(self._env, "reset", None)):
            raise UserError(
                f"env.options.factory {options.factory!r} makes a {type(self._env).__name__} without reset()"
            )
        if self._reward is None and not callable(getattr(self._env, "get_reward", None)):
            raise UserError("nothing scores an episode: give the class a get_reward() or set env.options.reward")

    def reset(self, task: Task, seed: int) -> Observation:
        """The row's prompt, what `reset` returns appended to it, and the tools. `seed` is not used: TRL has none."""
        del seed
        self._row = copy.deepcopy(task.data["row"])
        self._messages = _messages(self._row.get("prompt", ""))
        self._prompt = list(self._messages)
        extra = self._env.reset(**self._row)
        if extra is not None and not isinstance(extra, str):
            raise TypeError(f"reset returned a {type(extra).__name__}; text and None can be shown")
        text = conversation_text(self._messages) + (extra or "")
        if self._schemas:
            text = f"{tools_text(self._schemas)}\n\n{text}"
        return Observation(text, "start")

    def step(self, reply: str) -> StepResult:
        """Makes the calls of one reply, in order; without a call the episode ends and is scored."""
        calls = tool_calls(reply)
        self._messages.append({"role": "assistant", "content": without_calls(reply)})
        if not calls:
            reward = self._score()
            ended = "success" if reward >= self.options.success_reward else "failure"
            info = {"valid": True, "action": None, "error": None}
            return StepResult(Observation("", "end"), reward, ended, info)
        answers = [self._answer(call) for call in calls]
        self._messages += [{"role": "tool", "content": answer} for answer, _ in answers]
        text = "\n".join(tool_response(answer) for answer, _ in answers)
        errors = [error for _, error in answers if error]
        info = {
            "valid": not errors,
            "action": "; ".join(call.text for call in calls)[:500],
            "error": errors[0] if errors else None,
        }
        return StepResult(Observation(text, text), info=info)

    def close(self) -> None:
        """Nothing to free: a public `close` of the class would be a tool, as in TRL."""

    def _answer(self, call: ToolCall) -> tuple[str, str | None]:
        """(what a call returns, the kind of error); what a tool raises is an answer, as in TRL."""
        if call.error:
            return str({"error": call.error}), "format"
        if call.name not in self._tools:
            return str({"error": f"there is no tool {call.name[:40]!r}"}), "unknown_tool"
        try:
            return str(_finished(self._tools[call.name](**call.arguments))), None
        except Exception as error:
            return str({"error": f"{error!s:.500}"}), "tool"

    def _score(self) -> float:
        rewards = []
        try:
            if callable(getattr(self._env, "get_reward", None)):
                rewards.append(_finished(self._env.get_reward()))
            if self._reward is not None:
                completion = self._messages[len(self._prompt) :]
                columns = {name: [value] for name, value in self._row.items() if name != "prompt"}
                found = self._reward(
                    prompts=[self._prompt], completions=[completion], environments=[self._env], **columns
                )
                rewards += list(_finished(found))
            return float(sum(reward for reward in rewards if reward is not None))
        except Exception as error:  # what scores is no part of the agent's work
            raise InfrastructureError("verifier", f"{error!r:.500}") from error


def tools_of(environment: Any) -> dict[str, Callable[..., Any]]:
    """The methods that agents may call, by name: public functions of the class, less `reset` and `get_reward`."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    names = [name for name, _ in members if name not in _NO_TOOLS and not name.startswith("_")]
    return {name: getattr(environment, name) for name in names}


def make_environment(options: Mapping[str, Any]) -> TrlEnvironment:
    """A fresh environment; `UserError` on a bad option."""
    return TrlEnvironment(parse_options(TrlOptions, NAME, options))


def make_tasks(options: Mapping[str, Any], split: Split, size: int, seed: int) -> ListedTasks:
    """The rows of one split, in the order of the data set whatever the seed."""
    del seed
    parsed = parse_options(TrlOptions, NAME, options)
    rows = _rows(parsed.dataset)
    return row_tasks(NAME, rows, max_turns=lambda row: parsed.max_turns, split=split, size=size)


@functools.lru_cache(maxsize=4)
def _rows(reference: str) -> Any:
    found = load("dataset", reference)
    return called("dataset", reference) if callable(found) else found


def _messages(prompt: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _schema(tool: Callable[..., Any]) -> Mapping[str, Any]:
    # transformers announces on import that it found no PyTorch; a description of a function needs none.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers.utils import get_json_schema

    try:
        return get_json_schema(tool)["function"]
    except Exception as error:  # no docstring, no types: what TRL refuses too
        raise UserError(f"env.options.factory: the tool {tool.__name__}() cannot be described: {error}") from error


def _finished(value: Any) -> Any:
    """The value of a tool or reward that may be a coroutine."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


ENTRY = registry.EnvironmentEntry(NAME, make_environment, make_tasks, registry.no_bound, None, options=TrlOptions)
