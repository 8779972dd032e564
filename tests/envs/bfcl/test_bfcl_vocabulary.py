"""The tokenizer for tiny policies: exact, with the budget words whole, and much shorter than bytes."""

import pytest
from bfcl_worlds import needs_package, started

from jaxagent.budgets import budget_line
from jaxagent.envs.bfcl import vocabulary
from jaxagent.envs.bfcl.expert import perfect_reply
from jaxagent.models.tokenizer import load_tokenizer
from jaxagent.rollout.chat import line_chat

pytestmark = needs_package


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXAGENT_HOME", str(tmp_path_factory.mktemp("home")))
        return load_tokenizer(vocabulary.build())


def test_it_reads_back_and_is_short(tokenizer):
    assert len(tokenizer) == vocabulary.VOCABULARY
    environment = started()
    reply = f" {perfect_reply(environment, batched=True)}\n"
    for text in (reply, "ünïcödé \U0001f980 <bos>", environment.step(reply).observation.text):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        assert not set(ids) & set(tokenizer.all_special_ids)
    call = " [lockDoors(unlock=True, door=['driver', 'passenger', 'rear_left', 'rear_right'])]\n"
    assert len(tokenizer.encode(call, add_special_tokens=False)) < len(call) / 2.5


def test_a_budget_line_is_two_tokens_and_a_reply_ends_at_its_newline(tokenizer):
    for total in (1, 20, vocabulary.LARGEST_BUDGET):
        line = budget_line(total, 1, wording="words")
        assert len(tokenizer.encode(f"x{line}", add_special_tokens=False)) == 3
    chat = line_chat(tokenizer)
    ids = chat.reply_ids("[ls()]")
    assert ids[-1] in chat.stop_ids and not set(ids[:-1]) & set(chat.stop_ids)
