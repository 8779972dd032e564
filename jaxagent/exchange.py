"""Models in and out of this project, as the command line asks for them: `jaxagent import` and `jaxagent export`."""

import pathlib
from collections.abc import Sequence

from jaxagent.errors import UserError

IMPORT_USAGE = "smollm2, hf PATH_OR_NAME or gguf FILE"


def import_model(words: Sequence[str], name: str | None) -> pathlib.Path:
    """Imports what the words name into the models' home; the folder's name is what `model.pretrained` takes.

    Args:
      words: `smollm2`, `hf PATH_OR_NAME` or `gguf FILE`.
      name: of the imported model; by default that of what is imported.
    """
    from jaxagent.models.weights import importing

    kind, *rest = words or ("",)
    if kind == importing.SMOLLM2 and not rest:
        return importing.import_smollm2(name or importing.SMOLLM2)
    if kind not in ("hf", "gguf") or len(rest) != 1:
        raise UserError(f"import: expected {IMPORT_USAGE}, got {' '.join(words) or 'nothing'!r}")
    if kind == "gguf":
        return importing.import_gguf(rest[0], name or pathlib.Path(rest[0]).stem)
    if pathlib.Path(rest[0]).is_dir():
        return importing.import_folder(rest[0], name)
    if rest[0].count("/") == 1 and not rest[0].startswith((".", "/", "~")):
        return importing.import_hub(rest[0], name)
    raise UserError(f"import hf: {rest[0]} is neither a folder nor a name of the hub (ORGANISATION/MODEL)")
