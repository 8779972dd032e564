"""The hostile and cheating programs of `sandbox_attacks.txt`, and those that plain text cannot hold."""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Attack:
    name: str
    form: str  # script | calls | check
    source: str
    kinds: tuple[str, ...]  # outcomes that are right; empty: any


CHARACTERS = (
    Attack("right-to-left override", "script", "print('\u202e24')", ("ok",)),
    Attack("byte order mark", "script", "\ufeffprint(0)", ()),
    Attack("NUL in the source", "script", "print(1)\x00print(42)", ("syntax",)),
    Attack("form feed", "script", "\x0cprint(0)", ("ok",)),
    Attack("identifier look-alike", "script", "\u0440rint = print\n\u0440rint(0)", ("ok",)),
    Attack("lone surrogate in the source", "script", "print('\ud800')", ("syntax",)),
    Attack("lone surrogate printed", "script", "print('\\ud800')", ("ok", "exit")),
)


def attacks(places: dict[str, str]) -> list[Attack]:
    """All of them; `places` fills in the names between @ signs."""
    text = (pathlib.Path(__file__).parent / "sandbox_attacks.txt").read_text(encoding="utf-8")
    for name, value in places.items():
        text = text.replace(f"@{name}@", value)
    found = []
    for entry in text.split("\n==== ")[1:]:
        head, _, source = entry.partition("\n")
        form, name, kinds = (part.strip() for part in head.split("|"))
        found.append(Attack(name, form, source, tuple(kinds.split())))
    return [*found, *CHARACTERS]
