"""From logical axes to shardings: one table, read by everything that places an array on the mesh."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Logical axis -> mesh axes. The width of a parameter is split by fsdp and gathered at use; heads, MLP and vocabulary
# are split by tensor and stay split.
RULES: Mapping[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "layers": (),
    "vocab": ("tensor",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "head_dim": (),
    "mlp": ("tensor",),
    "rank": (),
}
_SAMPLER_RULES = {name: tuple(axis for axis in axes if axis == "tensor") for name, axes in RULES.items()}


def param_shardings(mesh: Mesh, axes_tree: Any, params_or_shapes: Any) -> Any:
    """The sharding of every parameter in training.

    A dimension stays replicated where the size of its mesh axis does not divide it, or where an earlier dimension of
    the same array took that mesh axis; no mesh axis is ever used twice.

    Args:
      mesh: from `make_mesh`.
      axes_tree: tuples of logical axis names (`decoder.logical_axes`).
      params_or_shapes: arrays or `jax.ShapeDtypeStruct`s, in the structure of `axes_tree`.

    Returns:
      `NamedSharding`s in that structure.

    Raises:
      ValueError: a logical axis is not in `RULES`, or an array has another number of dimensions than names.
    """
    return _shardings(mesh, RULES, axes_tree, params_or_shapes)


def sampler_param_shardings(mesh: Mesh, axes_tree: Any, params_or_shapes: Any) -> Any:
    """As `param_shardings` for the sampler's copy: split over the tensor axis only, replicated over data and fsdp.

    `axes_tree` is `cache.decoding_axes` for unstacked parameters.
    """
    return _shardings(mesh, _SAMPLER_RULES, axes_tree, params_or_shapes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For [rows, ...]: rows over data and fsdp. The number of rows must be a multiple of their product."""
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))


def replicated(mesh: Mesh) -> NamedSharding:
    """A full copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def _shardings(mesh: Mesh, rules: Mapping[str, tuple[str, ...]], axes_tree: Any, params_or_shapes: Any) -> Any:
    def place(names: tuple[str, ...], array: Any) -> NamedSharding:
        return NamedSharding(mesh, _partition_spec(mesh, rules, names, tuple(array.shape)))

    return jax.tree.map(place, axes_tree, params_or_shapes, is_leaf=_is_axis_names)


def _partition_spec(
    mesh: Mesh, rules: Mapping[str, tuple[str, ...]], names: tuple[str, ...], shape: tuple[int, ...]
) -> PartitionSpec:
    if len(names) != len(shape):
        raise ValueError(f"logical axes {names} do not fit an array of shape {shape}")
    used: set[str] = set()
    entries = []
    for name, size in zip(names, shape, strict=True):
        if name not in rules:
            raise ValueError(f"logical axis {name!r} has no rule; known are {', '.join(rules)}")
        taken = _usable_axes(mesh, rules[name], size, used)
        used.update(taken)
        entries.append(taken if len(taken) > 1 else taken[0] if taken else None)
    return PartitionSpec(*entries)


def _usable_axes(mesh: Mesh, axes: tuple[str, ...], size: int, used: set[str]) -> tuple[str, ...]:
    """The mesh axes of one dimension: unused ones whose combined size still divides it."""
    taken: tuple[str, ...] = ()
    for axis in axes:
        if axis not in used and size % mesh.shape[axis] == 0:
            taken = (*taken, axis)
            size //= mesh.shape[axis]
    return taken


def _is_axis_names(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(name, str) for name in node)
