"""Where imported models live, and which folder a name means.

`$JAXAGENT_HOME/models`, else `~/.cache/jaxagent/models`, holds one folder for each imported model.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from jaxagent.envs import datasets
from jaxagent.errors import UserError
from jaxagent.models.architectures import CONFIG_FILE

# What belongs to a model besides its weights. Never code: no .py is copied, fetched or run.
DESCRIPTION_FILES = (
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def models_home() -> pathlib.Path:
    """The folder of imported models; it need not exist."""
    return datasets.home() / "models"


def imported_folder(name: str) -> pathlib.Path:
    """Where the model `name` lives once it is imported; `org/name` becomes `org--name`."""
    plain = name.strip("/").replace("/", "--")
    printable = plain.isprintable() and plain == plain.strip()
    if not plain or not printable or plain.startswith(".") or pathlib.PurePath(plain).name != plain:
        raise UserError(f"{name!r} is no name for a model")
    return models_home() / plain


def find_pretrained(name: str) -> pathlib.Path:
    """The checkpoint folder that `model.pretrained` means: a folder, an imported model, or a model of the hub.

    A hub name that was not imported is fetched, safetensors and tokenizer files alone.

    Raises:
      UserError: nothing of that name, or the hub cannot be reached.
    """
    folder = pathlib.Path(name)
    if folder.is_dir():
        return _with_config(folder)
    imported = imported_folder(name)
    if imported.is_dir():
        return _with_config(imported)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        from jaxagent.models.weights.importing import import_hub

        return import_hub(name)
    known = sorted(path.name for path in models_home().glob("*") if path.is_dir() and not path.name.startswith("."))
    raise UserError(
        f"model.pretrained: {name} is neither a folder nor an imported model (imported: {', '.join(known) or 'none'}; "
        "`jaxagent import smollm2` or `jaxagent import hf PATH_OR_NAME` imports one)"
    )


def check_description(folder: pathlib.Path) -> None:
    """Raises `UserError` where one of `DESCRIPTION_FILES` is no plain file of this checkpoint.

    A link could carry a private file of this machine into copies and exports, a pipe or device would be read for ever.
    Links inside the folder are fine, and those of the hub's cache (`snapshots/REVISION/FILE` to `blobs/HASH`).
    """
    resolved = folder.resolve()
    allowed = [resolved]
    if resolved.parent.name == "snapshots":
        allowed.append(resolved.parent.parent / "blobs")
    for name in DESCRIPTION_FILES:
        path = folder / name
        if not (path.is_symlink() or path.exists()):
            continue
        if not path.is_file():
            raise UserError(f"{path}: is no plain file")
        if not any(path.resolve().is_relative_to(place) for place in allowed):
            raise UserError(f"{path}: is a link to {path.resolve()}, outside the checkpoint; put the file itself there")


def check_free(target: str | pathlib.Path) -> None:
    """Raises `UserError` where the folder to be made is there already: before work is done for it."""
    if os.path.lexists(target):
        raise UserError(f"{target}: exists; remove the folder, or choose another name")


def copy_description(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies what belongs to a model besides its weights into the folder `target`, which exists."""
    for name in DESCRIPTION_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


@contextlib.contextmanager
def new_folder(target: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """A hidden folder beside `target` that becomes it when the block ends well; `UserError` where it exists."""
    target = pathlib.Path(target)
    check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as scratch:
        folder = pathlib.Path(scratch, "model")
        folder.mkdir()
        yield folder
        folder.rename(target)


def _with_config(folder: pathlib.Path) -> pathlib.Path:
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"model.pretrained: {folder} holds no {CONFIG_FILE}: not a checkpoint folder")
    check_description(folder)
    return folder
