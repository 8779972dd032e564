"""Safetensors out: tensors fetched one by one, a file at a time, so that the host holds one file's worth."""

import json
import pathlib
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from jaxagent.errors import UserError
from jaxagent.models.weights.sources import INDEX_FILE, SINGLE_FILE

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
MAX_FILE_BYTES = 2 << 30
METADATA = {"format": "pt"}  # what transformers asks for: [out, in] matrices


def write_tensors(
    folder: pathlib.Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], np.ndarray],
    *,
    dtype: str = "float32",
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Writes named tensors as one safetensors file, or as several with an index where they exceed `max_file_bytes`.

    Args:
      folder: exists.
      shapes: the tensors in their order.
      read: name -> array; called once each.
      dtype: one of `DTYPES`.
      max_file_bytes: of one file; a larger tensor gets a file of its own.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    sizes = {name: int(np.prod(shape)) * DTYPES[dtype].itemsize for name, shape in shapes.items()}
    files = _split(sizes, max_file_bytes)
    weight_map = {}
    for number, names in enumerate(files, start=1):
        file = SINGLE_FILE if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file({name: _converted(read(name), dtype) for name in names}, folder / file, metadata=METADATA)
        weight_map |= dict.fromkeys(names, file)
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        write_json(folder / INDEX_FILE, index)


def write_json(path: pathlib.Path, value: object) -> None:
    """Indented JSON, as published checkpoints have it."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _split(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Consecutive names in groups whose sizes sum to at most `limit`."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room -= size
    return groups


def _converted(array: np.ndarray, dtype: str) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=DTYPES[dtype])
