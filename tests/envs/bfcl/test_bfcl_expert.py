"""The scripted players: the careful ones solve everything, the mixture leaves room."""

import numpy as np
import pytest
from bfcl_worlds import GOLD, needs_package, probe_task, started

from jaxagent.envs import registry
from jaxagent.envs.bfcl import environment as bfcl
from jaxagent.envs.bfcl.calls import parse_reply
from jaxagent.envs.bfcl.expert import CLOSING, make_demonstrator, perfect_reply

pytestmark = needs_package


@pytest.mark.parametrize("tool_format", ["python", "tool_call"])
def test_replies_are_one_line_and_read_back(tool_format):
    environment = started(tool_format=tool_format)
    reply = perfect_reply(environment, batched=True)
    assert "\n" not in reply
    assert [[call.name, call.arguments] for call in parse_reply(reply)] == GOLD[0]
    environment.step(reply)
    assert perfect_reply(environment, batched=True) == CLOSING


def test_one_call_a_reply():
    environment = started()
    replies = []
    while True:
        replies.append(perfect_reply(environment, batched=False))
        if environment.step(replies[-1]).ended:
            break
    assert [len(parse_reply(reply)) for reply in replies] == [1, 1, 1, 0, 1, 1, 0]


def test_the_mixture_is_mixed_and_reproducible():
    environment = bfcl.make_environment({"docs": "names", "tool_format": "python"})
    source = registry.get("bfcl").make_tasks({}, "train", 200, 0)
    outcomes, invalid, batched, texts = [], 0, 0, []
    for number in range(200):
        replies, ended = [], None
        environment.reset(source.task(number), 0)
        player = make_demonstrator(environment, np.random.default_rng(number))
        while ended is None and len(replies) < 100:
            replies.append(player())
            result = environment.step(replies[-1])
            ended = result.ended
            invalid += not result.info["valid"]
        outcomes.append(ended == "success")
        batched += any(reply.count("(") > 1 and not reply.endswith("(") for reply in replies)
        texts.append(tuple(replies))
    assert 0.6 < np.mean(outcomes) < 0.95
    assert 0 < invalid < 200 and 30 < batched < 120
    environment.reset(source.task(7), 0)
    assert make_demonstrator(environment, np.random.default_rng(7))() == texts[7][0]


def test_players_never_look_at_a_budget():
    short, long = started(probe_task(max_turns=1)), started(probe_task(max_turns=99))
    players = [make_demonstrator(environment, np.random.default_rng(3)) for environment in (short, long)]
    for _ in range(4):
        first, second = players[0](), players[1]()
        assert first == second
        short.step(first)
        long.step(second)
