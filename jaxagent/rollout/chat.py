"""Text to ids and back, append-only: what stands around each observation, and where a reply ends.

The ids that the sampler drew are kept as they are; text is only ever encoded once, when it is appended. A tokenizer
with a chat template speaks in its turns (`TemplateChat`), one without in lines (`LineChat`).
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
import warnings
from typing import Any, Protocol

from jaxagent.errors import UserError
from jaxagent.rollout.templates import REALISTIC, TemplatePieces, read_template

CACHED_TEXTS = 1 << 16
CACHED_CHARACTERS = 512  # longer texts are not worth remembering
TOOL_CALL_WORDS = {
    "none": "",
    "json": 'To call functions, write each call as <tool_call>{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}'
    "</tool_call>.",
    "python": "To call functions, reply with a list of calls and nothing else: "
    "[name(argument=value), other_name(argument=value)].",
}


class Chat(Protocol):
    """How an episode is written in ids."""

    stop_ids: tuple[int, ...]  # each of them ends a reply
    closing_ids: tuple[int, ...]  # what closes a reply that was cut at its cap

    def observation_ids(self, text: str, *, first: bool) -> tuple[int, ...]:
        """Ids to append for an observation (budget line included), after a reply that ended or from the start."""
        ...

    def ending_ids(self, text: str, *, first: bool) -> tuple[int, ...]:
        """The last ids of an observation whose text ends in `text`, up to the reply."""
        ...

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a scripted reply, as a policy would have sampled them, its end included."""
        ...

    def reply_text(self, ids: tuple[int, ...]) -> str:
        """The text of sampled ids, for the environment; undecodable bytes become replacement characters."""
        ...


@dataclasses.dataclass(frozen=True)
class ChatOptions:
    """The section `rollout.chat` of a config, for tokenizers with a chat template.

    Attributes:
      system: the system prompt; empty: the template's own default.
      reasoning: `auto` (the template's default), `on` or `off` (its variable `enable_thinking`).
      stop: texts of further tokens that end a reply.
      observations: the role in which observations after the first are told, `user` or `tool`.
      tool_calls: the format of function calls that the system prompt asks for: `none`, `json` or `python`.
      variables: further variables of the template, such as `date_string`.
    """

    system: str = ""
    reasoning: str = "auto"
    stop: tuple[str, ...] = ()
    observations: str = "user"
    tool_calls: str = "none"
    variables: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        for name, allowed in (
            ("reasoning", ("auto", "on", "off")),
            ("observations", ("user", "tool")),
            ("tool_calls", tuple(TOOL_CALL_WORDS)),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(f"rollout.chat.{name} must be {' | '.join(allowed)}, got {getattr(self, name)!r}")

    @property
    def system_prompt(self) -> str:
        """The system prompt with the words about function calls."""
        return "\n\n".join(filter(None, (self.system, TOOL_CALL_WORDS[self.tool_calls])))


def make_chat(tokenizer: Any, options: ChatOptions | None = None) -> "Chat":
    """The chat of a tokenizer: by its chat template where it has one, else by lines.

    Raises:
      UserError: the template cannot be used (it is not append-only, broken, or never ends); options of a chat template
        without one.
    """
    options = options or ChatOptions()
    if tokenizer.chat_template:
        return template_chat(tokenizer, options)
    if options != ChatOptions():
        raise UserError("rollout.chat is for tokenizers with a chat template; this one has none")
    return line_chat(tokenizer)


@dataclasses.dataclass(frozen=True)
class LineChat:
    """Turns as lines: an observation, then the reply on the same line, which its newline ends.

    Nothing stands between the observation's last token and the reply: a tiny model reads the budget line from the very
    position that predicts its answer. A reply stops at any token whose text ends in a newline.
    """

    tokenizer: Any  # a `transformers` tokenizer
    stop_ids: tuple[int, ...]

    @property
    def closing_ids(self) -> tuple[int, ...]:
        """A newline."""
        return _encode(self.tokenizer, "\n")

    def observation_ids(self, text: str, *, first: bool) -> tuple[int, ...]:
        """The text; the first also opens the transcript."""
        ids = _encode(self.tokenizer, text)
        opens = first and self.tokenizer.bos_token_id is not None
        return (self.tokenizer.bos_token_id, *ids) if opens else ids

    def ending_ids(self, text: str, *, first: bool) -> tuple[int, ...]:
        """The text's own ids."""
        return _encode(self.tokenizer, text)

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """One line, its newline included."""
        return _encode(self.tokenizer, f" {' '.join(text.split())}\n")

    def reply_text(self, ids: tuple[int, ...]) -> str:
        """The line as it was sampled."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def line_chat(tokenizer: Any) -> LineChat:
    """The line chat of a tokenizer: finds every id whose text ends in a newline."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], clean_up_tokenization_spaces=False)
    stop_ids = tuple(i for i, text in enumerate(texts) if text.endswith("\n"))
    return LineChat(tokenizer=tokenizer, stop_ids=stop_ids)


@dataclasses.dataclass(frozen=True)
class TemplateChat:
    """Turns as a chat template writes them; the template itself is read once, at the start.

    What stands around a message is encoded together with it, as rendering the whole conversation would. Control tokens
    in a message's own text (special ones, and those that open or close messages) are broken into plain text: what an
    environment says can never end a turn. The tokens of a reply, tool calls and reasoning among them, stay as sampled.
    """

    tokenizer: Any
    pieces: TemplatePieces
    closing: str  # the beginning of `pieces.between` that ends a reply
    closing_ids: tuple[int, ...]  # the last one is the stop token that the template itself writes
    stop_ids: tuple[int, ...]
    control: re.Pattern[str]

    def observation_ids(self, text: str, *, first: bool) -> tuple[int, ...]:
        """A message, from behind the stop token of the reply before it up to the generation prompt."""
        text = self.pieces.trimmed(text)
        if first:
            return self._encode(self.pieces.head, text, self.pieces.first_tail)
        ids = self._encode(self.pieces.between, text, self.pieces.tail)
        return ids[len(self.closing_ids) :]

    def ending_ids(self, text: str, *, first: bool) -> tuple[int, ...]:
        """The text with the generation prompt behind it."""
        tail = self.pieces.first_tail if first else self.pieces.tail
        return self._encode("", text, tail)

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """The text with the token that ends a reply; white space around it goes."""
        context = self._encode("", "", self.pieces.tail)
        opening = self.pieces.opening
        # Behind the generation prompt, where some tokenizers put no space that they would put at a text's start.
        ids = self._encode(self.pieces.tail + opening, text.strip(), self.closing)
        if ids[: len(context)] == context:
            return ids[len(context) :]
        return self._encode(opening, text.strip(), self.closing)

    def reply_text(self, ids: tuple[int, ...]) -> str:
        """The reply without its stop token; tokens such as `<tool_call>` stay visible."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _encode(self, before: str, message: str, after: str) -> tuple[int, ...]:
        """Ids of trusted text around an untrusted message."""
        encode = _encode_marked_cached if len(message) <= CACHED_CHARACTERS else _encode_marked
        return encode(self.tokenizer, self.control, before, message, after)


def template_chat(tokenizer: Any, options: ChatOptions) -> TemplateChat:
    """Reads a tokenizer's chat template, checks that it is append-only in text and in ids, and warns once of what is
    not followed.

    Raises:
      UserError: names what is wrong with the template.
    """
    pieces = read_template(
        _template_source(tokenizer),
        variables=json.dumps(_variables(tokenizer, options), sort_keys=True),
        system=options.system_prompt,
        role=options.observations,
    )
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    closing, closing_ids = _closing(tokenizer, pieces, added)
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    around = [pieces.between, *(_up_to_special(tail, special) for tail in (pieces.first_tail, pieces.tail))]
    control = special | {text for text in added if any(text in fixed for fixed in around)}
    pattern = "|".join(map(re.escape, sorted(control, key=len, reverse=True)))
    chat = TemplateChat(
        tokenizer=tokenizer,
        pieces=pieces,
        closing=closing,
        closing_ids=closing_ids,
        stop_ids=_stop_ids(tokenizer, options, closing_ids[-1]),
        control=re.compile(pattern or "(?!)"),
    )
    _check_ids(chat)
    for note in pieces.notes:
        warnings.warn(f"chat template: {note}", stacklevel=2)
    return chat


def _template_source(tokenizer: Any) -> str:
    try:
        source = tokenizer.get_chat_template()
    except ValueError as error:
        raise UserError(f"the tokenizer's chat template: {str(error).splitlines()[0]}") from None
    if not isinstance(source, str):
        raise UserError(f"the tokenizer's chat template is no text but {type(source).__name__}")
    return source


def _variables(tokenizer: Any, options: ChatOptions) -> dict[str, Any]:
    """What the template may read, as transformers hands it over."""
    special = {name: value for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    reasoning = {} if options.reasoning == "auto" else {"enable_thinking": options.reasoning == "on"}
    return special | reasoning | dict(options.variables)


def _closing(tokenizer: Any, pieces: TemplatePieces, added: dict[str, int]) -> tuple[str, tuple[int, ...]]:
    """The text and the ids that close a reply: up to the first added token behind it."""
    ids = tuple(tokenizer.encode(pieces.between, add_special_tokens=False, split_special_tokens=False))
    numbers = {number: text for text, number in added.items()}
    place = next((place for place, token in enumerate(ids) if token in numbers), None)
    if place is None:
        raise UserError(
            f"the chat template ends a reply with {pieces.between!r}, which holds no token of its own: "
            "generation would never stop"
        )
    text = numbers[ids[place]]
    return pieces.between[: pieces.between.index(text) + len(text)], ids[: place + 1]


def _up_to_special(text: str, special: set[str]) -> str:
    """`text` up to its first special token, that included; all of it without one."""
    places = [text.index(token) + len(token) for token in special if token in text]
    return text[: min(places)] if places else text


def _stop_ids(tokenizer: Any, options: ChatOptions, closing_id: int) -> tuple[int, ...]:
    """The template's own stop token, the end-of-sequence tokens of tokenizer and generation config, and the
    options'."""
    found = {closing_id, *_generation_config_ids(tokenizer)}
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    for text in options.stop:
        ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        if len(ids) != 1:
            raise UserError(f"rollout.chat.stop: {text!r} is {len(ids)} tokens; a reply can end at a single one only")
        found.add(ids[0])
    return tuple(sorted(found))


def _generation_config_ids(tokenizer: Any) -> tuple[int, ...]:
    path = pathlib.Path(str(tokenizer.name_or_path)) / "generation_config.json"
    if not path.is_file():
        return ()
    try:
        ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a generation config: {error}") from None
    ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(isinstance(number, int) and 0 <= number < len(tokenizer) for number in ids):
        raise UserError(f"{path}: eos_token_id names no token of this tokenizer: {ids}")
    return tuple(ids)


def _check_ids(chat: TemplateChat) -> None:
    """Three turns, appended piece by piece and encoded as a whole, must be the same ids."""
    appended: tuple[int, ...] = ()
    for place, text in enumerate(REALISTIC):
        appended += chat.reply_ids(text) if place % 2 else chat.observation_ids(text, first=place == 0)
    whole = chat.pieces.text([chat.pieces.trimmed(text) if i % 2 == 0 else text for i, text in enumerate(REALISTIC)])
    ids = tuple(chat.tokenizer.encode(whole, add_special_tokens=False, split_special_tokens=False))
    if ids != appended:
        place = next((i for i, pair in enumerate(zip(ids, appended, strict=False)) if pair[0] != pair[1]), -1)
        shown = [
            chat.tokenizer.convert_ids_to_tokens(list(row[max(place - 1, 0) : place + 4])) for row in (appended, ids)
        ]
        raise UserError(
            f"the chat template is not append-only for this tokenizer: written turn by turn token {place} begins "
            f"{shown[0]}, as a whole {shown[1]}"
        )


def _encode_marked(tokenizer: Any, control: re.Pattern[str], before: str, message: str, after: str) -> tuple[int, ...]:
    """Encodes `before + message + after` with control tokens in `before` and `after` alone.

    A control token's text in `message` is cut behind its first character, and the parts are encoded apart. The search
    goes on from the cut, so no part holds one either.
    """
    cuts = []
    found = control.search(message)
    while found:
        cuts.append(found.start() + 1)
        found = control.search(message, found.start() + 1)
    edges = [0, *cuts, len(message)]
    parts = [message[start:end] for start, end in itertools.pairwise(edges)]
    parts[0] = before + parts[0]
    parts[-1] += after
    ids: list[int] = []
    for part in parts:
        ids += tokenizer.encode(part, add_special_tokens=False, split_special_tokens=False)
    return tuple(ids)


_encode_marked_cached = functools.lru_cache(maxsize=CACHED_TEXTS)(_encode_marked)


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    if len(text) <= CACHED_CHARACTERS:
        return _encode_cached(tokenizer, text)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


@functools.lru_cache(maxsize=CACHED_TEXTS)
def _encode_cached(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))
