"""The fixed text that a chat template puts around messages, found once a model, and what it does that we do not follow.

Rendered are the contexts that a policy meets: a conversation of one, two and three observations, each up to the point
where the reply begins. A template is append-only where each of them begins with the one before, followed by the reply.
Then an episode is written with four pieces of text and never rendered again:

    head OBSERVATION first_tail REPLY between OBSERVATION tail REPLY between OBSERVATION tail ...

Two deviations are told and not followed, since what was sampled stays: dropping earlier reasoning (Qwen3) and trimming
white space around earlier replies (Llama 3). Anything else raises.
"""

import dataclasses
import functools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from jaxagent.errors import UserError

CPU_SECONDS = 10  # for the rendering itself
WALL_SECONDS = 600.0  # for the rendering process, its start on a busy machine included
MAX_TEMPLATE_CHARACTERS = 1 << 20
_SHOWN_CHARACTERS = 60
_SENTINELS = ("jxq observation one", "jxq reply one", "jxq observation two", "jxq reply two", "jxq observation three")
REALISTIC = (
    "You are on a lake.\n\n  P_O\n  __G\nReply with one word.\nTurns in total: 3.",
    "<answer>up</answer>",
    'You went up, to the edge.\n{"row": 0}\nTurns remaining, this one included: 2.',
    "right; café, 5 %",
    "You stand\n- at the goal\u2019s side.",
)
_KEPT = "episodes keep what was said"
_EDGES = " \n"
_REASONING, _AFTER_REASONING = "<think>\nfirst this, then that\n</think>\n\n", "up"
Writer = Callable[[Sequence[str]], str]
_TRIMS = {"": lambda text: text, "strip": str.strip, "lstrip": str.lstrip, "rstrip": str.rstrip}


@dataclasses.dataclass(frozen=True)
class TemplatePieces:
    """The text around messages."""

    head: str  # before the first observation
    first_tail: str  # after it, up to where the reply begins: the generation prompt
    between: str  # after a reply, up to where the next observation begins; holds the token that ends the reply
    tail: str  # after that observation, up to where the reply begins
    opening: str  # what the template writes at the start of a reply that the generation prompt lacks
    trim: str  # what it does to white space around observations: "", strip, lstrip or rstrip
    notes: tuple[str, ...]  # where re-rendering would alter what was sampled, in sentences

    def trimmed(self, observation: str) -> str:
        """An observation as the template would have written it."""
        return _TRIMS[self.trim](observation)

    def text(self, messages: Sequence[str]) -> str:
        """The transcript of observation, reply, observation, ..., up to the next reply; nothing is left out."""
        if len(messages) == 1:
            return self.head + messages[0] + self.first_tail
        tails = (self.first_tail + self.opening, self.tail + self.opening, self.tail)
        return _transcript(self.head, self.between, *tails, messages)


@functools.lru_cache(maxsize=16)
def read_template(source: str, *, variables: str = "{}", system: str = "", role: str = "user") -> TemplatePieces:
    """Finds the pieces of a template and checks that it is append-only.

    Args:
      source: the template, untrusted.
      variables: JSON of what the template may read (special tokens, `enable_thinking`, ...).
      system: the system prompt; empty: no such message, so the template's own default.
      role: of the observations after the first, `user` or `tool`.

    Raises:
      UserError: the template fails, takes too long, or is not append-only; names the difference.
    """
    user_edges = [_EDGES + text + _EDGES if place % 2 == 0 else text for place, text in enumerate(_SENTINELS)]
    reply_edges = [_EDGES + text + _EDGES if place % 2 else text for place, text in enumerate(_SENTINELS)]
    reasoned = [_REASONING + _AFTER_REASONING if place % 2 else text for place, text in enumerate(_SENTINELS)]
    talks = [_SENTINELS[:1], _SENTINELS[:3], _SENTINELS, REALISTIC, user_edges, reply_edges, reasoned]
    rendered = render(source, [_conversation(talk, system, role) for talk in talks], json.loads(variables))
    pieces, as_rendered = _pieces(*rendered[:3])
    if rendered[3] != as_rendered(REALISTIC):
        raise _not_append_only("the text of messages", as_rendered(REALISTIC), rendered[3])
    pieces = dataclasses.replace(pieces, trim=_trim_of(rendered[4], as_rendered, user_edges, places=(0, 2, 4)))
    trims_replies = _trim_of(rendered[5], as_rendered, reply_edges, places=(1, 3))
    notes = list(pieces.notes)
    if trims_replies:
        notes.append(f"it trims white space around earlier replies; {_KEPT}")
    if rendered[6] != as_rendered(reasoned):
        notes.append(f"it drops or rewrites the reasoning in earlier replies; {_KEPT}")
    if "strftime_now" in source and "date_string" not in json.loads(variables):
        notes.append("it writes today's date, so a run resumed another day is told another one; many read date_string")
    return dataclasses.replace(pieces, notes=tuple(notes))


def render(
    source: str, conversations: list[list[dict]], variables: dict, *, cpu_seconds: int = CPU_SECONDS
) -> list[str]:
    """Renders conversations up to the generation prompt, in a process with bounds of time and memory.

    Raises:
      UserError: the template is broken, refuses the messages, or exceeds the bounds.
    """
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise UserError(f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are read")
    request = {"template": source, "conversations": conversations, "variables": variables, "cpu_seconds": cpu_seconds}
    command = [sys.executable, "-P", "-m", "jaxagent.rollout.render_templates"]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=WALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"the chat template was not rendered within {WALL_SECONDS:.0f} s") from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise UserError("the chat template was stopped: it runs for too long (an endless loop?)")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit status {done.returncode}")
        raise UserError(f"the chat template ended its process without an answer: {last[:200]}") from None
    if "error" in answer:
        raise UserError(f"the chat template cannot be rendered: {answer['error']}")
    return answer["rendered"]


def _conversation(messages: Sequence[str], system: str, role: str) -> list[dict[str, str]]:
    roles = ["user", *["assistant", role] * (len(messages) // 2)]
    opening = [{"role": "system", "content": system}] if system else []
    return opening + [{"role": who, "content": text} for who, text in zip(roles, messages, strict=True)]


def _pieces(one: str, two: str, three: str) -> tuple[TemplatePieces, Writer]:
    """(the pieces, how the template itself writes a conversation) from three renderings."""
    head, first_tail = _cut(one, _SENTINELS[:1])
    two_head, first_kept, two_between, two_tail = _cut(two, _SENTINELS[:3])
    three_head, three_first_kept, between, kept, last_between, tail = _cut(three, _SENTINELS)
    for where, ours, theirs in (
        ("the text before the first observation", head, two_head),
        ("the text before the first observation", head, three_head),
        ("the text between the first observation and its reply", first_kept, three_first_kept),
        ("the text between a reply and the next observation", two_between, between),
        ("the text between a reply and the next observation", between, last_between),
        ("the text after an observation", two_tail, tail),
    ):
        if ours != theirs:
            raise _not_append_only(where, ours, theirs)
    first_dropped, first_opening = _seam(first_tail, first_kept)
    dropped, opening = _seam(tail, kept)
    if opening != first_opening:
        raise _not_append_only("the start of a reply", first_opening, opening)
    notes = ()
    if first_dropped or dropped:
        notes = (f"it drops {first_dropped or dropped!r} in front of earlier replies; {_KEPT}",)
    pieces = TemplatePieces(head, first_tail, between, tail, opening, "", notes)
    return pieces, functools.partial(_transcript, head, between, first_kept, kept, tail)


def _transcript(head: str, between: str, first_tail: str, tail: str, last_tail: str, messages: Sequence[str]) -> str:
    """Three messages or more, with the text between them: each tail stands in front of a reply, the last of none."""
    parts = [head, messages[0], first_tail]
    for reply, observation in zip(messages[1::2], messages[2::2], strict=True):
        parts += [reply, between, observation, tail]
    return "".join([*parts[:-1], last_tail])


def _cut(text: str, words: Sequence[str]) -> list[str]:
    """The pieces between `words`, each of which must stand in `text` once, in this order."""
    parts, rest = [], text
    for word in words:
        count = text.count(word)
        if count != 1:
            raise UserError(
                f"the chat template is not append-only: in a conversation of {len(words)} messages one stands {count} "
                "times"
            )
        before, found, rest = rest.partition(word)
        if not found:
            raise UserError("the chat template is not append-only: it puts messages into another order")
        parts.append(before)
    return [*parts, rest]


def _seam(tail: str, kept: str) -> tuple[str, str]:
    """(what history drops of the generation prompt `tail`, what it adds) where `kept` stands in front of a reply."""
    if tail.startswith(kept):
        return tail[len(kept) :], ""
    if kept.startswith(tail):
        return "", kept[len(tail) :]
    raise _not_append_only("the text in front of a reply", tail, kept)


def _trim_of(rendered: str, as_rendered: Writer, messages: Sequence[str], places: Sequence[int]) -> str:
    """Which trimming of the messages at `places` explains a rendering."""
    for name, trim in _TRIMS.items():
        if rendered == as_rendered([trim(text) if i in places else text for i, text in enumerate(messages)]):
            return name
    raise _not_append_only("white space around messages", as_rendered(messages), rendered)


def _not_append_only(where: str, ours: str, theirs: str) -> UserError:
    """The error that names the first difference."""
    length = min(len(ours), len(theirs))
    place = next((i for i in range(length) if ours[i] != theirs[i]), length)
    start = max(place - _SHOWN_CHARACTERS // 3, 0)
    shown = [repr(text[start : start + _SHOWN_CHARACTERS]) for text in (ours, theirs)]
    return UserError(
        f"the chat template is not append-only: {where} changes as the conversation grows, from {shown[0]} to "
        f"{shown[1]}"
    )
