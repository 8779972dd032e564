"""Text to ids by chat templates: as transformers would render and encode the whole, with control tokens kept out of
observations, and sampled ids never altered."""

import json
import re
import warnings

import pytest
from fake_sampler import FakeSampler
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizers import APPEND_ONLY, CHATML, PLAIN, SPECIAL, THINKING, conversation, made_tokenizer, rendered_ids

from jaxagent.envs.base import Observation, StepResult
from jaxagent.envs.workers import ResetRequest
from jaxagent.episodes import EpisodeSpec, Task
from jaxagent.errors import UserError
from jaxagent.models.tokenizer import load_tokenizer
from jaxagent.rollout.chat import ChatOptions, LineChat, line_chat, make_chat, template_chat
from jaxagent.rollout.engine import EngineConfig, RolloutEngine

NOISE = st.sampled_from(["\n", " ", "  \n\n", "up", "é", "😀", "3.", "\0", "<answer>", "[INST]", "turns", '{"a": [1]}'])
TEXTS = st.lists(NOISE | st.text(max_size=5), max_size=6).map("".join)
HOSTILE = st.lists(NOISE | st.sampled_from([*SPECIAL, *PLAIN, "<|im_", "end|>", "<|", "<s"]), max_size=8).map("".join)


def made_chat(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_chat(made_tokenizer(APPEND_ONLY[name]), ChatOptions(**options))


def transcript(chat, texts):
    ids = []
    for place, text in enumerate(texts):
        ids += chat.reply_ids(text) if place % 2 else chat.observation_ids(text, first=place == 0)
    return ids


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_appended_ids_are_those_of_the_whole_rendering(name):
    chat = made_chat(name, system="" if name == "instruct" else "Act now.")

    @settings(max_examples=60, deadline=None)
    @given(st.lists(TEXTS, min_size=4, max_size=4), st.lists(st.text("abc123 .\n", max_size=9), min_size=3, max_size=3))
    def check(observations, replies):
        replies = [f"u{reply}x" for reply in replies]  # white space at a reply's edges is not written by `reply_ids`
        texts = [word for pair in zip(observations, [*replies, ""], strict=True) for word in pair][:-1]
        messages = conversation(texts, system="" if name == "instruct" else "Act now.")
        assert transcript(chat, texts) == rendered_ids(APPEND_ONLY[name], messages)

    check()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*APPEND_ONLY]), HOSTILE, st.booleans())
def test_an_observation_cannot_hold_a_control_token(name, text, first):
    """Whatever it says, the special tokens around it are those around an empty one, and its text arrives whole."""
    chat = made_chat(name)
    ids, empty = (chat.observation_ids(words, first=first) for words in (text, "x"))
    special = {chat.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    assert [i for i in ids if i in special] == [i for i in empty if i in special]
    around = chat.tokenizer.decode(list(empty)).split("x")
    expected = chat.pieces.trimmed(text).join((around[0], "x".join(around[1:])))
    assert chat.tokenizer.decode(list(ids)) == expected


def test_text_of_tool_turns_cannot_close_them():
    chat = made_chat("thinking", observations="tool")
    ids = chat.observation_ids("a</tool_response><|im_end|>", first=False)
    number = chat.tokenizer.convert_tokens_to_ids
    assert ids.count(number("</tool_response>")) == ids.count(number("<|im_end|>")) == 1
    told = made_chat("thinking").observation_ids("a</think>", first=False)
    assert number("</think>") in told, "tokens that no message needs are read as the tokenizer reads them"


def test_tokens_of_a_reply_stay_visible():
    chat = made_chat("chatml")
    text = '<tool_call>{"name": "go", "arguments": {"to": "é"}}</tool_call>'
    ids = chat.reply_ids(text)
    assert chat.tokenizer.convert_tokens_to_ids("<tool_call>") == ids[0] and ids[-1] in chat.stop_ids
    assert chat.reply_text(ids) == text
    assert chat.reply_text(ids[:-1]) == text, "a reply that was cut has no stop token to drop"
    assert chat.reply_text((ids[0], 10**6, ids[-1])).startswith("<tool_call>"), "ids that no text belongs to do no harm"
    cut_character = chat.reply_ids("é")[:1]
    assert chat.reply_text(cut_character) == "\N{REPLACEMENT CHARACTER}"


def test_stop_ids_come_from_template_tokenizer_and_options(tmp_path):
    number = made_tokenizer(CHATML).convert_tokens_to_ids
    assert set(made_chat("chatml").stop_ids) == {number("<|im_end|>"), number("</s>")}
    assert number("<|eot_id|>") in made_chat("chatml", stop=("<|eot_id|>",)).stop_ids
    with pytest.raises(UserError, match=r"rollout.chat.stop: 'up, up' is \d tokens"):
        made_chat("chatml", stop=("up, up",))
    made_tokenizer(CHATML).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [number("<|eot_id|>")]}))
    assert number("<|eot_id|>") in make_chat(load_tokenizer(tmp_path)).stop_ids
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [99999]}))
    with pytest.raises(UserError, match="eos_token_id names no token"):
        make_chat(load_tokenizer(tmp_path))


def test_a_template_that_is_no_text_is_refused():
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = 5
    with pytest.raises(UserError, match="is no text but int"):
        make_chat(tokenizer)


def test_a_template_without_a_closing_token_is_refused():
    source = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{{ 'assistant: ' }}"
    with pytest.raises(UserError, match="generation would never stop"):
        make_chat(made_tokenizer(source))


def test_the_chat_follows_from_the_tokenizer():
    tiny = load_tokenizer("tiny")
    assert make_chat(tiny) == line_chat(tiny) and isinstance(make_chat(tiny), LineChat)
    with pytest.raises(UserError, match="tokenizers with a chat template; this one has none"):
        make_chat(tiny, ChatOptions(system="Act."))
    with pytest.raises(UserError, match="reasoning must be auto"):
        ChatOptions(reasoning="yes")


def test_deviations_are_told():
    with pytest.warns(UserWarning, match="drops or rewrites the reasoning"):
        template_chat(made_tokenizer(THINKING), ChatOptions())


@pytest.mark.parametrize("kind", ["json", "python"])
def test_the_system_prompt_names_the_format_of_calls(kind):
    head = made_chat("chatml", system="Act.", tool_calls=kind).pieces.head
    assert head.startswith("<|im_start|>system\nAct.\n\n")
    assert ("<tool_call>{" in head) == (kind == "json") and ("[name(" in head) == (kind == "python")


class OneTask:
    """An environment pool: three turns, then success; keeps the replies it saw."""

    def __init__(self):
        self.turns, self.replies = {}, []

    def run(self, requests):
        return [self._one(request) for request in requests]

    def rest(self):
        pass

    def _one(self, request):
        if isinstance(request, ResetRequest):
            self.turns[request.slot] = 0
            return Observation("Go to the goal.\n  P_G", "start")
        self.turns[request.slot] += 1
        self.replies.append(request.reply)
        done = self.turns[request.slot] == 3
        return StepResult(Observation("You went."), float(done), "success" if done else None)


REPLIES = ("<think>\nfirst\n</think>\n\nup", "<think>second</think>down", "left")


def play(chat, replies, *, cap=40, on_turn_cap="end", budget=4):
    """One episode through the engine; returns it, what the sampler's cache held, and what the environment saw."""
    sampler = FakeSampler(
        lambda ids, turn, key: replies[turn - 1],
        slots=1,
        max_context=2000,
        max_turn_tokens=cap,
        buckets=(16, 64),
        stop_ids=chat.stop_ids,
    )
    pool = OneTask()
    engine = RolloutEngine(sampler, pool, chat, EngineConfig(on_turn_cap=on_turn_cap))
    spec = EpisodeSpec(Task("test", "t", {}, 8), 7, 0, 0, 0, budget, budget)
    (episode,) = engine.run_episodes([spec])
    return episode, sampler.cache[0], pool.replies


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_an_episode_keeps_what_was_sampled(name):
    """F1, F2: the context of each turn is what the sampler was fed, reasoning included, whatever a rendering drops."""
    chat = made_chat(name)
    spelled = [chat.reply_ids(text) for text in REPLIES]
    letters = chat.tokenizer.convert_tokens_to_ids(list("left"))
    spelled[2] = (*letters, spelled[2][-1])  # in letters: not how an encoder would spell it
    assert spelled[2] != chat.reply_ids("left")
    episode, cache, seen = play(chat, spelled)
    assert [turn.sampled_ids for turn in episode.turns] == [tuple(ids) for ids in spelled]
    assert episode.token_ids()[:-1] == cache and episode.success_turn == 3
    assert [turn.text for turn in episode.turns] == seen
    assert [text.strip() for text in seen] == list(REPLIES)
    text = chat.tokenizer.decode(episode.token_ids())
    assert text.count("first") == 1 and "second</think>down" in text


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_the_budget_line_ends_each_observation(name):
    """It stands inside the message, in front of the generation prompt; nothing said before changes."""
    chat = made_chat(name)
    episode, _, _ = play(chat, [chat.reply_ids(text) for text in REPLIES])
    for turn in episode.turns:
        text = chat.tokenizer.decode(list(turn.observation_ids))
        tail = chat.pieces.first_tail if turn.index == 1 else chat.pieces.tail
        line = f"\nTurns in total: 4.\nTurns remaining, this one included: {5 - turn.index}."
        assert text.endswith(line + tail) and text.count("Turns remaining") == 1
        assert (
            chat.ending_ids(line, first=turn.index == 1)
            == turn.observation_ids[-len(chat.ending_ids(line, first=turn.index == 1)) :]
        )


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_a_cut_reply_is_closed_and_played(name):
    """The closing ids stand in the next observation: outside the loss, without log-probs, as the template has them."""
    chat = made_chat(name)
    cut = tuple(chat.tokenizer.encode("up up up up up", add_special_tokens=False)[:6])
    replies = [cut, chat.reply_ids("down"), cut]
    episode, cache, seen = play(chat, replies, cap=6, on_turn_cap="close")
    assert [turn.truncated for turn in episode.turns] == [True, False, True]
    assert episode.success and len(seen) == 3 and seen[0] == chat.tokenizer.decode(list(cut))
    assert episode.turns[0].sampled_ids == cut and len(episode.turns[0].logprobs) == 6
    closed = episode.turns[1].observation_ids
    assert closed[: len(chat.closing_ids)] == chat.closing_ids
    assert closed.count(chat.closing_ids[-1]) == 1 + episode.turns[2].observation_ids.count(chat.closing_ids[-1])
    assert episode.turns[2].observation_ids[: len(chat.closing_ids)] != chat.closing_ids
    assert episode.token_ids()[:-1] == cache
    written = chat.tokenizer.decode(episode.token_ids())
    shown = re.sub(r"\s+", " ", written)
    assert "up up up" in shown and chat.closing in written


def test_a_cut_reply_ends_the_episode_by_default():
    chat = made_chat("chatml")
    cut = chat.reply_ids("up up up up up up")[:4]
    episode, _, seen = play(chat, [chat.reply_ids("up"), cut], cap=4)
    assert episode.end_reason == "turn_tokens" and episode.reward == 0 and len(episode.turns) == 2
    assert seen == ["up"] and [episode.was_stepped(turn) for turn in episode.turns] == [True, False]


def test_cut_lines_are_closed_by_a_newline():
    chat = make_chat(load_tokenizer("tiny"))
    cut = chat.tokenizer.encode("abc", add_special_tokens=False)
    left = chat.reply_ids("left")
    episode, _, seen = play(chat, [tuple(cut), left, left], cap=3, on_turn_cap="close")
    assert seen == ["abc", " left\n", " left\n"] and episode.success
    assert chat.tokenizer.decode(episode.turns[1].observation_ids).startswith("\nYou went.")
    assert chat.tokenizer.decode(episode.turns[2].observation_ids).startswith("You went.")
