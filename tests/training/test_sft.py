"""Demonstrations: what is cloned is what the environment took, whatever the chat."""

import copy
import types

import pytest
from tiny_runs import SilentLog

from jaxagent.config import default_config
from jaxagent.config_files import load_config
from jaxagent.envs.base import Observation, StepResult
from jaxagent.envs.replies import last_program
from jaxagent.episodes import Task
from jaxagent.errors import UserError
from jaxagent.models.tokenizer import load_tokenizer
from jaxagent.rollout.chat import make_chat
from jaxagent.training import sft

TEMPLATE = (
    "{% for m in messages %}<|open|>{{ m['role'] }}\n{{ m['content'] }}<|close|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|open|>assistant\n{% endif %}"
)
PROGRAM = "```python\nfor i in range(3):\n    print(i)\n```"
TASK = Task("programs", "programs-1", {}, 3)


class Programs:
    """Takes a program of several lines."""

    fault: str | None = None

    def reset(self, task, seed):
        if self.fault == "reset":
            raise KeyError("no board")
        return Observation(42 if self.fault == "text" else "write")

    def step(self, reply):
        if self.fault == "step":
            raise ZeroDivisionError
        valid = last_program(reply) is not None
        info = {"valid": valid, "action": "program" if valid else None, "error": None if valid else "no_program"}
        return StepResult(Observation("done"), 1.0 if valid else 0.0, "success" if valid else None, info)


def tokenizer(template):
    made = copy.deepcopy(load_tokenizer("tiny"))
    if template:
        made.add_special_tokens({"additional_special_tokens": ["<|open|>", "<|close|>"], "eos_token": "<|close|>"})
        made.chat_template = template
    return made


def setup(template, reply=PROGRAM):
    config = default_config()
    config.env.name, config.sft.line_share = "programs", 0.0
    entry = types.SimpleNamespace(make_demonstrator=lambda environment, random: lambda: reply)
    return types.SimpleNamespace(config=config, chat=make_chat(tokenizer(template)), entry=entry)


def test_a_program_of_several_lines_survives_a_chat_template():
    episode = sft._demonstration(setup(TEMPLATE), Programs(), TASK, 0, 0)
    (turn,) = episode.turns
    assert episode.success and turn.valid and turn.text == PROGRAM


def test_a_chat_of_lines_refuses_it_in_a_line():
    with pytest.raises(UserError, match=r"env.name=programs .* replies of several lines.*model\.tokenizer"):
        sft._demonstration(setup(None), Programs(), TASK, 0, 0)
    wrong = sft._demonstration(setup(None, "let me think"), Programs(), TASK, 0, 0)  # an invalid line is no such case
    assert not wrong.success and [turn.valid for turn in wrong.turns] == [False] * 3


@pytest.mark.parametrize(
    ("fault", "said"), [("reset", r"KeyError\('no board'\)"), ("step", "ZeroDivisionError"), ("text", "TypeError")]
)
def test_a_broken_environment_is_named(fault, said):
    environment = Programs()
    environment.fault = fault
    with pytest.raises(UserError, match=f"env.name=programs: the demonstration of task programs-1 failed: {said}"):
        sft._demonstration(setup(None), environment, TASK, 0, 0)


@pytest.mark.parametrize("fitting", [0, 1, 2, 3])
def test_a_demonstration_ends_where_its_context_is_full(fitting):
    """As the engine has it: room for the longest reply allowed, and for the one that comes."""
    made = setup(None, "let me think")
    whole = sft._demonstration(made, Programs(), TASK, 0, 0)
    lengths = [len(turn.observation_ids) + len(turn.sampled_ids) for turn in whole.turns]
    rollout, reply = made.config.rollout, len(whole.turns[0].sampled_ids)
    rollout.max_turn_tokens = reply
    rollout.max_context = sum(lengths[:fitting]) + (lengths[fitting] - 1 if fitting < 3 else 0)
    episode = sft._demonstration(made, Programs(), TASK, 0, 0)
    assert len(episode.turns) == fitting and len(episode.token_ids()) <= rollout.max_context
    assert episode.end_reason == ("budget" if fitting == 3 else "context") and not episode.success
    rollout.max_turn_tokens, rollout.max_context = reply + 1, sum(lengths[:fitting])
    assert len(sft._demonstration(made, Programs(), TASK, 0, 0).turns) == max(0, fitting - 1)


def test_cloning_without_a_demonstration_that_fits_says_so(tmp_path):
    config = load_config("lookup_tiny:base,runlocal")
    config.rollout.max_context = config.rollout.max_turn_tokens + 2
    with pytest.raises(UserError, match=r"of \d+ demonstrations not one has room .* rollout\.max_context=.*raise that"):
        sft.run(config, tmp_path / "run", resume=False, log=SilentLog())
