"""Checkpoints, the only module that knows Orbax.

A run folder holds `checkpoints/latest/STEP` (the last few, for resuming) and `checkpoints/best/STEP` (one, by held-out
Pass@1). Each holds the training state and a JSON record (model shape, step, score), so that a wrong checkpoint is named
before a tensor is read. The label, the state's counter and the optimizer's counter are one number.
"""

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from jaxagent.errors import UserError
from jaxagent.models.decoder import DecoderConfig
from jaxagent.training.state import TrainState

SPARE_BYTES = 1 << 20  # for records and indices beside the arrays of a checkpoint


def _write_whole_shards() -> None:
    """Lets one replica write each shard. Orbax's default splits shards among replicas by freshly compiled slices, and a
    run compiles nothing after its warm-up."""
    handler = ocp.type_handlers.ArrayHandler(use_replica_parallel=False)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it warns that the default is replaced: that is the intention
    ocp.type_handlers.register_type_handler(jax.Array, handler, override=True)
    logging.set_verbosity(verbosity)


_write_whole_shards()


class Checkpoints:
    """The checkpoints of one run folder: saved in the background, restored onto any mesh."""

    def __init__(self, workdir: str | pathlib.Path, model: DecoderConfig, *, kind: str, keep: int = 2) -> None:
        """`kind` ("sft" or "train") is recorded: one cannot go on from the other's optimizer."""
        folder = _folder(workdir)
        self._model = model
        self._kind = kind
        self._latest = _manager(folder / "latest", keep)
        self._best = _manager(folder / "best", 1)

    def save(self, state: TrainState, record: dict[str, Any]) -> None:
        """Saves the state under its own step counter; returns before the write is durable, donation is safe."""
        self._save(self._latest, state, record)

    def save_best(self, state: TrainState, record: dict[str, Any]) -> None:
        """Replaces the best checkpoint."""
        self._save(self._best, state, record)

    def latest_step(self) -> int | None:
        """The newest complete checkpoint, None without one."""
        return self._latest.latest_step()

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The newest state and its record, placed as `abstract` (ShapeDtypeStructs with shardings) says."""
        step = self._latest.latest_step()
        if step is None:
            raise UserError(f"{self._latest.directory}: there is no checkpoint to resume from")
        record = _read_record(self._latest, step)
        where = self._latest.directory / str(step)
        if record.get("kind") != self._kind:
            raise UserError(
                f"{where}: is a checkpoint of `{record.get('kind')}`, `{self._kind}` cannot go on from it; choose "
                "another --workdir (model.init_from takes its weights)"
            )
        _check_model(where, record, self._model)
        wanted = ocp.args.StandardRestore(_present(abstract))
        with _reading(where):
            restored = self._latest.restore(step, args=ocp.args.Composite(state=wanted))
        return TrainState(**restored["state"]), record

    def drop_best_after(self, step: int) -> None:
        """Forgets a best checkpoint that a resumed run has not reached yet."""
        best = self._best.latest_step()
        if best is not None and best > step:
            self._best.delete(best)

    def close(self) -> None:
        """Waits until everything is on disk."""
        for manager in (self._latest, self._best):
            with _writing(manager):
                manager.wait_until_finished()
            manager.close()

    def _save(self, manager: ocp.CheckpointManager, state: TrainState, record: dict[str, Any]) -> None:
        step = int(state.step)
        if step in manager.all_steps():
            return
        record = record | {"kind": self._kind, "step": step, "model": dataclasses.asdict(self._model)}
        parts = {"state": ocp.args.StandardSave(_present(state)), "record": ocp.args.JsonSave(record)}
        _check_space(pathlib.Path(str(manager.directory)), state)
        with _writing(manager):
            manager.save(step, args=ocp.args.Composite(**parts))


def load_params(run: str | pathlib.Path, model: DecoderConfig, shardings: dict) -> tuple[dict, dict[str, Any]]:
    """The weights of a run's best checkpoint (else its newest), and the checkpoint's record.

    Args:
      run: a run folder.
      model: the shape that the weights must have; another shape raises `UserError` naming the differing fields.
      shardings: where each parameter goes, in the structure of the parameters.
    """
    run = pathlib.Path(run)
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder")
    for name in ("best", "latest"):
        folder = _folder(run) / name
        if not folder.is_dir():
            continue
        manager = _manager(folder, None, read_only=True)
        step = manager.latest_step()
        if step is None:
            continue
        record = _read_record(manager, step)
        _check_model(folder / str(step), record, model)
        with _reading(folder / str(step)):
            params = _restore_params(folder / str(step) / "state", shardings)
        manager.close()
        return params, record
    raise UserError(f"{run}: the run holds no checkpoint")


def _restore_params(folder: pathlib.Path, shardings: dict) -> dict:
    """Reads `params` alone out of a saved TrainState; moments stay on disk."""
    checkpointer = ocp.PyTreeCheckpointer()
    restore_args = {"params": jax.tree.map(lambda s: ocp.ArrayRestoreArgs(sharding=s), shardings)}
    item = {"params": jax.tree.map(lambda _: 0, shardings)}
    restored = checkpointer.restore(
        folder, args=ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
    )
    return restored["params"]


def _present(state: TrainState) -> dict[str, Any]:
    """The fields that a state has: a run without reference and critic leaves no trace of them on disk."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: value for name, value in fields.items() if value is not None}


def _folder(workdir: str | pathlib.Path) -> pathlib.Path:
    return pathlib.Path(workdir).absolute() / "checkpoints"


def _manager(folder: pathlib.Path, keep: int | None, *, read_only: bool = False) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        folder, options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=not read_only, read_only=read_only)
    )


def _read_record(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    where = pathlib.Path(str(manager.directory)) / str(step)
    with _reading(where):
        record = manager.restore(step, args=ocp.args.Composite(record=ocp.args.JsonRestore()))["record"]
    if not isinstance(record, dict):
        raise UserError(f"{where}: not a checkpoint of jaxagent: its record is no object")
    return record


def _check_space(folder: pathlib.Path, state: TrainState) -> None:
    """Refuses to begin a checkpoint that the disk has no room for: Orbax's threads would fail one after the other."""
    needed = SPARE_BYTES + sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder}: no room for a checkpoint: {needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free; free "
            "space, then go on with --resume"
        )


@contextlib.contextmanager
def _reading(where: pathlib.Path) -> Iterator[None]:
    """Orbax and TensorStore answer a damaged checkpoint with exceptions of many types; the user needs one line."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"{where}: the checkpoint cannot be read ({_first_line(error)}); delete this folder to use an older one"
        ) from error


@contextlib.contextmanager
def _writing(manager: ocp.CheckpointManager) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UserError(
            f"{manager.directory}: the checkpoint cannot be written ({_first_line(error)}); free space or mend the "
            "folder, then go on with --resume"
        ) from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _check_model(where: pathlib.Path, record: dict[str, Any], model: DecoderConfig) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(model)}
    saved, wanted = defaults | record.get("model", {}), dataclasses.asdict(model)
    # What changes neither names nor shapes of the weights may differ.
    free = {"compute_dtype", "remat", "attention", "embedding_std"}
    differing = [
        f"{name} (checkpoint {saved.get(name)}, config {value})"
        for name, value in wanted.items()
        if name not in free and saved.get(name) != value
    ]
    if differing:
        raise UserError(f"{where}: the checkpoint does not fit the model: {'; '.join(differing)}")
