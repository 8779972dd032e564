"""Files that appear whole or not at all."""

import pathlib


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes `text` as UTF-8 beside `path` and then moves it there; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
