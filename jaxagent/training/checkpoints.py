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
from jaxagent.models import lora
from jaxagent.models.decoder import DecoderConfig, Lora, RopeScaling
from jaxagent.sharding import rules
from jaxagent.sharding.mesh import make_mesh
from jaxagent.training.state import TrainState, policy_shardings

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

    The adapters of a run with LoRA are merged into its weights.

    Args:
      run: a run folder.
      model: the shape that the weights must have; another shape raises `UserError` naming the differing fields.
      shardings: where each parameter goes, in the structure of the parameters.
    """
    where, record = find_checkpoint(run)
    saved = saved_model(where, record)
    _check_model(where, record, dataclasses.replace(model, lora=saved.lora))
    with _reading(where):
        return _restore_policy(where / "state", saved, shardings), record


def find_checkpoint(run: str | pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
    """The folder of a run's best checkpoint (else of its newest), and its record."""
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
        manager.close()
        return folder / str(step), record
    raise UserError(f"{run}: the run holds no checkpoint")


def saved_model(where: pathlib.Path, record: dict[str, Any]) -> DecoderConfig:
    """The shape that a checkpoint's record describes; fields that it lacks are younger than it and have their defaults.

    Raises `UserError` for a record that describes none.
    """
    known = {field.name for field in dataclasses.fields(DecoderConfig)}
    try:
        stored = {name: value for name, value in record["model"].items() if name in known}
        if stored.get("lora"):
            stored["lora"] = Lora(**stored["lora"] | {"targets": tuple(stored["lora"]["targets"])})
        if stored.get("rope_scaling"):
            stored["rope_scaling"] = RopeScaling(**stored["rope_scaling"])
        return DecoderConfig(**stored)
    except (KeyError, TypeError, AttributeError, UserError) as error:
        raise UserError(f"{where}: its record describes no model ({type(error).__name__}: {error})") from None


def load_plain(run: str | pathlib.Path, model: DecoderConfig) -> dict:
    """The plain weights of a run, spread over all devices of this process."""
    plain = dataclasses.replace(model, lora=None)
    mesh = make_mesh(data=1, fsdp=-1)
    return load_params(run, plain, policy_shardings(plain, mesh))[0]


def load_adapters(run: str | pathlib.Path) -> tuple[dict, DecoderConfig]:
    """The adapters of a run with LoRA on one device, and its model; `UserError` for a run without."""
    where, record = find_checkpoint(run)
    model = saved_model(where, record)
    if model.lora is None:
        raise UserError(f"{where}: holds no LoRA adapters: the run trained all weights")
    shardings = rules.param_shardings(
        make_mesh(devices=jax.devices()[:1]),
        lora.adapter_axes(model),
        jax.eval_shape(lambda: lora.init_adapters(model, jax.random.key(0))),
    )
    with _reading(where):
        return _restore(where / "state", {"params": shardings})["params"], model


def _restore_policy(folder: pathlib.Path, saved: DecoderConfig, shardings: dict) -> dict:
    """The plain weights out of a saved TrainState; moments stay on disk."""
    if saved.lora is None:
        return _restore(folder, {"params": shardings})["params"]
    mesh = jax.tree.leaves(shardings)[0].mesh
    shapes = jax.eval_shape(lambda: lora.init_adapters(saved, jax.random.key(0)))
    adapters = rules.param_shardings(mesh, lora.adapter_axes(saved), shapes)
    restored = _restore(folder, {"params": adapters, "base": shardings})

    def merge(base: dict, adapters: dict) -> dict:
        return lora.merge(saved, lora.combine(base, adapters))

    return jax.jit(merge, out_shardings=shardings, donate_argnums=0)(restored["base"], restored["params"])


def _restore(folder: pathlib.Path, shardings: dict) -> dict:
    """Reads the named parts of a saved TrainState, placed as their shardings say."""
    checkpointer = ocp.PyTreeCheckpointer()
    restore_args = jax.tree.map(lambda s: ocp.ArrayRestoreArgs(sharding=s), shardings)
    item = jax.tree.map(lambda _: 0, shardings)
    return checkpointer.restore(
        folder, args=ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
    )


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
    saved, wanted = dataclasses.asdict(saved_model(where, record)), dataclasses.asdict(model)
    # What changes neither names nor shapes of the weights may differ.
    free = {"compute_dtype", "remat", "attention", "embedding_std"}
    differing = [
        f"{name} (checkpoint {saved.get(name)}, config {value})"
        for name, value in wanted.items()
        if name not in free and saved.get(name) != value
    ]
    if differing:
        raise UserError(f"{where}: the checkpoint does not fit the model: {'; '.join(differing)}")
