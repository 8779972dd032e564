"""Published weights onto the devices: checked by name and shape first, then one tensor at a time.

The stacked parameters are made on the devices and filled in place, so the host holds one tensor and never the model.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxagent.errors import UserError
from jaxagent.models import decoder
from jaxagent.models.decoder import DecoderConfig
from jaxagent.models.weights.names import EMBEDDING, HEAD, IGNORED_SUFFIXES, TensorSpec, tensor_specs
from jaxagent.models.weights.sources import TensorSource

_NAMED = 3  # tensors that a message names before it counts


def load_params(source: TensorSource, model: DecoderConfig, shardings: dict) -> dict:
    """The parameters of a published checkpoint, float32, placed on the mesh.

    Args:
      source: its tensors, in any floating dtype.
      model: the shape that the checkpoint must have.
      shardings: a NamedSharding for every parameter, in the structure of `decoder.init_params`.

    Raises:
      UserError: names the tensors that are missing, surplus or of a wrong shape, or a head that should be tied.
    """
    if model.num_layers > len(source.shapes):
        raise UserError(
            f"{source.where}: config.json says {model.num_layers} layers, but {len(source.shapes)} tensors are there"
        )
    shapes = decoder.param_shapes(model)
    specs = tensor_specs(model, shapes)
    check_tensors(source, model, specs)
    params: dict = {"blocks": {}}
    for spec in specs:
        sharding = functools.reduce(lambda node, name: node[name], spec.path, shardings)
        if spec.layer is None:
            params[spec.path[0]] = _place(source, spec, sharding)
            continue
        name = spec.path[1]
        if name not in params["blocks"]:
            params["blocks"][name] = _zeros(shapes["blocks"][name].shape, sharding)
        tensor = _place(source, spec, _without_layers(sharding))
        params["blocks"][name] = _fill(sharding)(params["blocks"][name], tensor, np.int32(spec.layer))
        # Without waiting, tensors that are not yet copied would pile up.
        params["blocks"][name].block_until_ready()
    return params


def check_tensors(source: TensorSource, model: DecoderConfig, specs: list[TensorSpec]) -> None:
    """Raises `UserError` unless the source holds exactly these tensors; a tied head may be there a second time."""
    wanted = {spec.name: spec for spec in specs}
    missing = [name for name in wanted if name not in source.shapes]
    if missing == [HEAD]:
        raise UserError(f"{source.where}: {HEAD} is missing, and config.json says tie_word_embeddings=false")
    if missing:
        raise UserError(f"{source.where}: lacks {_listed(missing)} of the {len(wanted)} tensors of this architecture")
    for name, spec in wanted.items():
        if source.shapes[name] != spec.shape:
            raise UserError(f"{source.where}: {name} has shape {source.shapes[name]}, expected {spec.shape}")
    allowed = {HEAD} if model.tie_embeddings else set()
    surplus = [n for n in source.shapes if n not in wanted and n not in allowed and not n.endswith(IGNORED_SUFFIXES)]
    if surplus:
        raise UserError(f"{source.where}: holds {_listed(sorted(surplus))}, which this architecture does not have")
    if model.tie_embeddings and HEAD in source.shapes:
        head = source.read(HEAD)
        if not np.array_equal(head, source.read(EMBEDDING)):
            raise UserError(f"{source.where}: {HEAD} differs from {EMBEDDING}, but tie_word_embeddings=true")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _place(source: TensorSource, spec: TensorSpec, sharding: NamedSharding) -> jax.Array:
    array = spec.to_own(source.read(spec.name))
    return jax.make_array_from_callback(
        spec.own_shape, sharding, lambda index: np.ascontiguousarray(array[index], dtype=np.float32)
    )


def _without_layers(sharding: NamedSharding) -> NamedSharding:
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))


def _zeros(shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
    return jax.jit(lambda: jnp.zeros(shape, jnp.float32), out_shardings=sharding)()


@functools.lru_cache(maxsize=32)
def _fill(sharding: NamedSharding) -> Callable[[jax.Array, jax.Array, np.int32], jax.Array]:
    """(stacked [L, ...], tensor [...], layer) -> stacked with the tensor in its place; the stack is donated."""

    def fill(stacked: jax.Array, tensor: jax.Array, layer: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(stacked, tensor, layer, 0)

    return jax.jit(fill, donate_argnums=0, out_shardings=sharding)
