"""Chat templates: the pieces around messages, what is told and not followed, and what is refused with a reason."""

import pytest
from made_tokenizers import APPEND_ONLY, CHATML, HEADERS, INSTRUCT, THINKING

from jaxagent.errors import UserError
from jaxagent.rollout.templates import read_template, render

TOKENS = '{"bos_token": "<s>", "eos_token": "</s>"}'


def test_the_pieces_of_a_plain_template():
    pieces = read_template(CHATML, system="Act.")
    assert pieces.head == "<|im_start|>system\nAct.<|im_end|>\n<|im_start|>user\n"
    assert pieces.first_tail == pieces.tail == "<|im_end|>\n<|im_start|>assistant\n"
    assert pieces.between == "<|im_end|>\n<|im_start|>user\n"
    assert (pieces.opening, pieces.trim, pieces.notes) == ("", "", ())
    assert "Be kind." in read_template(CHATML).head, "without a system prompt the template's own default stands"


def test_trimmed_messages_are_trimmed_by_us_too_but_replies_stay():
    pieces = read_template(HEADERS, variables=TOKENS)
    assert pieces.head == "<s><|start_header_id|>user<|end_header_id|>\n\n" and pieces.trim == "strip"
    assert pieces.trimmed(" \na b\n") == "a b"
    assert len(pieces.notes) == 1 and "trims white space around earlier replies" in pieces.notes[0]


def test_a_reply_may_open_with_text_that_the_generation_prompt_lacks():
    pieces = read_template(INSTRUCT, variables=TOKENS)
    assert (pieces.tail, pieces.opening, pieces.between) == (" [/INST]", " ", "</s>[INST] ")
    assert pieces.text(["a", "b", "c"]) == "<s>[INST] a [/INST] b</s>[INST] c [/INST]"


@pytest.mark.parametrize("thinking", ["true", "false"])
def test_dropped_reasoning_is_a_note(thinking):
    pieces = read_template(THINKING, variables=f'{{"enable_thinking": {thinking}}}')
    off = thinking == "false"
    assert pieces.tail.endswith("</think>\n\n") == off
    assert any("reasoning" in note for note in pieces.notes) and len(pieces.notes) == 1 + off
    assert pieces.text(["a", "b", "c"]).count("<think>") == 2 * off, "what was in front of a reply stays there"


def test_observations_as_tool_turns():
    pieces = read_template(THINKING, role="tool")
    assert pieces.between.endswith("user\n<tool_response>\n") and pieces.tail.startswith("\n</tool_response>")
    assert pieces.first_tail.startswith("<|im_end|>"), "the first observation is the user's"


REFUSED = {
    "reordered": ("{% for m in messages[::-1] %}{{ m.content }};{% endfor %}", "another order"),
    "last message alone": ("{{ messages[-1].content }};", "one stands 0 times"),
    "first reply hidden": (
        CHATML.replace("message.content +", "(message.content if not loop.index == 2 else '') +"),
        "one stands 0 times",
    ),
    "upper case": (CHATML.replace("message.content", "message.content | upper"), "one stands 0 times"),
    "told twice": ("{% for m in messages %}{{ m.content + m.content }};{% endfor %}", "one stands 2 times"),
    "counted": ("{{ messages | length }} messages: " + CHATML, "'2 messages: .*'4 messages: "),
    "system prompt at the end": (
        "{% for m in messages %}{% if m.role != 'system' %}{% if loop.last and messages[0].role == 'system' %}"
        "{{ messages[0].content }} {% endif %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}",
        "append-only: the text before the first observation changes",
    ),
    "shortened": (CHATML.replace("message.content", "message.content | replace('\n', ' ')"), "the text of messages"),
    "white space doubled": (CHATML.replace("message.content", "message.content | replace(' \n', '  ')"), "white space"),
    "an older turn compressed": (
        CHATML.replace("'<|im_start|>' + message.role", "('' if loop.revindex > 3 else '<|im_start|>') + message.role"),
        "append-only",
    ),
    "raises": ("{{ raise_exception('roles must alternate') }}", "cannot be rendered: TemplateError: roles must alter"),
    "syntax": ("{% for %}", "cannot be rendered: TemplateSyntaxError"),
    "undefined": ("{{ nothing.at.all }}", "cannot be rendered: UndefinedError"),
    "deep": ("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}", "the chat template (cannot|ended)"),
    "escape": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "long source": ("a" * (2 << 20), "2097152 characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_append_only_is_refused_with_the_difference(name):
    source, reason = REFUSED[name]
    with pytest.raises(UserError, match=reason) as caught:
        read_template(source, variables=TOKENS, system="Act.")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HUGE = {
    "memory": ("{{ 'a' * 10 ** 10 }}", "MiB"),
    "text": ("{% for i in range(90000) %}some more text for every message{% endfor %}", "characters"),
    "doubling": (
        "{% set ns = namespace(t='aaaa') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
        "M",
    ),
}


def test_time_is_bounded():
    with pytest.raises(UserError, match="stopped: it runs for too long"):
        render(ENDLESS, [[{"role": "user", "content": "a"}]], {}, cpu_seconds=1)


@pytest.mark.parametrize("name", HUGE)
def test_size_is_bounded(name):
    source, reason = HUGE[name]
    with pytest.raises(UserError, match=reason):
        render(source, [[{"role": "user", "content": "a"}]], {})


def test_a_template_cannot_read_files_or_the_environment(tmp_path):
    (tmp_path / "secret").write_text("secret")
    for source in (f"{{% include '{tmp_path}/secret' %}}", f"{{% import '{tmp_path}/secret' as s %}}", "{{ environ }}"):
        try:
            (text,) = render(source, [[{"role": "user", "content": "a"}]], {})
        except UserError as error:
            text = str(error)
        assert "secret" not in text.replace(str(tmp_path / "secret"), "")


def test_a_date_in_the_prompt_is_a_note():
    dated = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }} " + CHATML
    assert "date" in read_template(dated).notes[0]
    assert read_template(dated, variables='{"date_string": "1 Jan 2026"}').notes == ()


def test_every_made_template_can_be_read():
    for source in APPEND_ONLY.values():
        assert read_template(source, variables=TOKENS).between
