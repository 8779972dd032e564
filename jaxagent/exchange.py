"""Models in and out of this project, as the command line asks for them: `jaxagent import` and `jaxagent export`."""

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from jaxagent.config_files import load_config
from jaxagent.errors import UserError

EXPORTS = ("hf", "peft")

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


def export_run(run: str | pathlib.Path, target: str, *, kind: str, dtype: str) -> None:
    """Writes the best checkpoint (else the newest) of a run as a new folder.

    Args:
      run: its folder.
      target: the folder to make.
      kind: `hf` for whole weights, LoRA adapters merged; `peft` for the adapters alone.
      dtype: of whole weights: float32, bfloat16 or float16.

    Raises:
      UserError: no such run or kind, a target that exists, or adapters whose base is no published checkpoint.
    """
    from jaxagent.models.weights import export
    from jaxagent.models.weights.folders import check_free
    from jaxagent.models.weights.write import DTYPES
    from jaxagent.training import checkpoints

    if kind not in EXPORTS:
        raise UserError(f"--to must be one of {', '.join(EXPORTS)}, got {kind!r}")
    if dtype not in DTYPES:
        raise UserError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    check_free(target)
    run = pathlib.Path(run)
    where, record = checkpoints.find_checkpoint(run)
    config = load_config(str(run / "config.json"))
    if kind == "peft":
        if config.model.init_from or not config.model.pretrained:
            raise UserError(f"{run}: its adapters belong to weights of this project's own; export it with --to=hf")
        adapters, model = checkpoints.load_adapters(run)
        export.export_adapters(target, model, adapters, base=config.model.pretrained)
        return
    model = checkpoints.saved_model(where, record)
    params = checkpoints.load_plain(run, model)
    positions = int(config.rollout.max_context)
    described = _description(run, config.model)
    export.export_checkpoint(target, model, params, described_by=described, max_positions=positions, dtype=dtype)


def _description(run: pathlib.Path, section: ConfigDict) -> pathlib.Path:
    """The folder with the tokenizer of a run, and the configuration of a pretrained model."""
    from jaxagent.models.tokenizer import TINY, TINY_FOLDER
    from jaxagent.rollout.setup import MODEL_FOLDER

    kept = run / MODEL_FOLDER
    if kept.is_dir():
        return kept
    return TINY_FOLDER if section.tokenizer == TINY else pathlib.Path(section.tokenizer)
