"""Where published tensors come from: the safetensors files of a checkpoint folder, read one tensor at a time.

Nothing here unpickles. A file is mapped while one of its tensors is read and no longer, so that no more than that
tensor counts as memory in use.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Protocol

import ml_dtypes
import numpy as np
import safetensors

from jaxagent.errors import UserError
from jaxagent.models.architectures import read_json

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}


class TensorSource(Protocol):
    """Named tensors with known shapes, read one by one."""

    where: str  # for messages
    shapes: Mapping[str, tuple[int, ...]]

    def read(self, name: str) -> np.ndarray:
        """The tensor as published, in the dtype that the source stores."""
        ...


class SafetensorsFolder:
    """The tensors of a checkpoint folder with one or several safetensors files."""

    def __init__(self, folder: str | pathlib.Path) -> None:
        """Reads names, shapes and dtypes of all files; `UserError` names a file that is missing or damaged."""
        self._folder = pathlib.Path(folder)
        self.where = str(folder)
        self._files: dict[str, pathlib.Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        expected = self._weight_map()
        for path in sorted(set(expected.values())):
            self._read_header(path)
        self._check_places(expected)

    def read(self, name: str) -> np.ndarray:
        """The tensor in the dtype of the file."""
        with _opened(self._files[name]) as file:
            return file.get_tensor(name)

    def _weight_map(self) -> dict[str, pathlib.Path]:
        """Tensor -> file by the index; without one, every tensor is in the single file (returned under "")."""
        index = self._folder / INDEX_FILE
        if index.is_file():
            named = read_json(index).get("weight_map")
            if not isinstance(named, dict) or not named:
                raise UserError(f"{index}: has no weight_map")
            return {name: self._member(index, file) for name, file in named.items()}
        single = self._folder / SINGLE_FILE
        if single.is_file():
            return {"": single}
        pickles = [path.name for path in self._folder.iterdir() if path.suffix in _PICKLE_SUFFIXES]
        if pickles:
            raise UserError(
                f"{self._folder}: holds weights as pickle alone ({sorted(pickles)[0]}), which can run code when read; "
                "only safetensors are read: convert them with save_pretrained(..., safe_serialization=True)"
            )
        raise UserError(f"{self._folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")

    def _member(self, index: pathlib.Path, file: object) -> pathlib.Path:
        if not isinstance(file, str) or pathlib.PurePath(file).name != file or not file.endswith(".safetensors"):
            raise UserError(f"{index}: {file!r} is no plain name of a safetensors file")
        path = self._folder / file
        if not path.is_file():
            raise UserError(f"{self._folder}: the file {file} is missing; {INDEX_FILE} names it")
        return path

    def _read_header(self, path: pathlib.Path) -> None:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                view = file.get_slice(name)
                if view.get_dtype() not in _DTYPES:
                    raise UserError(f"{path}: {name} is {view.get_dtype()}; known are {', '.join(_DTYPES)}")
                if name in self._files:
                    raise UserError(f"{self._folder}: {name} is both in {self._files[name].name} and in {path.name}")
                self._files[name] = path
                self.shapes[name] = tuple(view.get_shape())

    def _check_places(self, expected: dict[str, pathlib.Path]) -> None:
        for name, path in expected.items():
            if name and self._files.get(name) != path:
                raise UserError(f"{path}: lacks the tensor {name} that {INDEX_FILE} places there")


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[safetensors.safe_open]:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: is no whole safetensors file ({reason}); fetch it again") from None
