"""Reading an action out of a reply: any text at all, in time linear in its length, without ever raising."""

import re

MAX_ACTION_CHARS = 64  # a longer action text is no action
MAX_SHOWN_CHARS = 40  # of a bad reply that an observation repeats
_PYTHON_FENCES = ("", "python", "py", "python3")
_SHOWN_CHARS = re.compile(r"[^a-zA-Z0-9 ,.!?'_-]")


def action_text(reply: str) -> str | None:
    """The lower-case text of the action in `reply`, None where there is none that could be an action.

    Text inside `<think>...</think>` is ignored, also where the opening tag stood in the prompt or the closing one is
    missing. The last complete `<answer>...</answer>` or triple-backtick block is the action; without one the whole rest
    is. Surrounding white space, quotes and full stops do not count. Text that is not ASCII is no action: look-alike
    letters must not pass for words.
    """
    text = _last_block(without_thoughts(reply)).strip(" \t\r\n\f\v.!\"'`*")
    if not text or len(text) > MAX_ACTION_CHARS or not text.isascii():
        return None
    return text.lower()


def last_program(reply: str) -> str | None:
    """The inside of the last complete triple-backtick block of `reply` that is marked as Python or not marked at all.

    Fences stand at the start of a line, so backticks inside a program do not end it. Text inside `<think>...</think>`
    is ignored. None where there is no such block or it is empty.
    """
    found, opened, lines = None, None, []
    for line in without_thoughts(reply).split("\n"):
        stripped = line.strip()
        if opened is None:
            if stripped.startswith("```") and "`" not in stripped[3:]:
                opened, lines = stripped[3:].strip().lower(), []
        elif stripped == "```":
            if opened in _PYTHON_FENCES and any(map(str.strip, lines)):
                found = "\n".join(lines) + "\n"
            opened = None
        else:
            lines.append(line.removesuffix("\r"))
    return found


def block_text(reply: str) -> str:
    """The text of the last complete answer or triple-backtick block of `reply`, less its thoughts; else all that is
    left. Nothing else is changed: for actions that are code."""
    return _last_block(without_thoughts(reply)).strip()


def shown(text: str | None) -> str:
    """What an observation may repeat of a bad action: one short line of plain characters (no NUL, surrogate or tag)."""
    cleaned = _SHOWN_CHARS.sub("", (text or "")[: 4 * MAX_SHOWN_CHARS])
    return cleaned if len(cleaned) <= MAX_SHOWN_CHARS else cleaned[:MAX_SHOWN_CHARS] + "..."


def without_thoughts(text: str) -> str:
    """`text` less its thoughts; an unopened `</think>` makes all before it one, an unclosed `<think>` all after it."""
    kept: list[str] = []
    position, thinking = 0, False
    for tag in re.finditer(r"<(/?)think>", text, re.IGNORECASE):
        closes = bool(tag[1])
        if closes and not thinking:
            kept.clear()
        elif not closes and not thinking:
            kept.append(text[position : tag.start()])
        thinking = not closes
        position = tag.end()
    if not thinking:
        kept.append(text[position:])
    return " ".join(kept)


def _last_block(text: str) -> str:
    """The inside of the last complete answer or triple-backtick block, else `text`."""
    answer, fence = _last_answer(text), _last_fence(text)
    if answer is None and fence is None:
        return text
    if fence is None or (answer is not None and answer[1] > fence[1]):
        inside = text[slice(*answer)]
        fence = _last_fence(inside)
        return inside if fence is None else _fenced(inside[slice(*fence)])
    return _fenced(text[slice(*fence)])


def _last_answer(text: str) -> tuple[int, int] | None:
    opened, last = None, None
    for tag in re.finditer(r"<(/?)answer>", text, re.IGNORECASE):
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            last, opened = (opened, tag.start()), None
    return last


def _last_fence(text: str) -> tuple[int, int] | None:
    marks = [mark.start() for mark in re.finditer("```", text)]
    pairs = len(marks) // 2
    return (marks[2 * pairs - 2] + 3, marks[2 * pairs - 1]) if pairs else None


def _fenced(inside: str) -> str:
    """The content of a fence, less the language name that may stand on its first line."""
    first, _, rest = inside.partition("\n")
    return rest if rest.strip() and len(first.split()) <= 1 else inside
