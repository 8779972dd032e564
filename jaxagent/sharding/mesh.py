"""The one device mesh of a run, with axes (data, fsdp, tensor)."""

import math
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from jaxagent.errors import UserError

AXES = ("data", "fsdp", "tensor")


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over all of `devices` (default: every device of every host).

    Rows of a batch are split over `data` and `fsdp`, parameters over `fsdp` and `tensor` (`sharding.rules`). The axes
    are Auto: the compiler propagates shardings from those given to `jax.jit`.

    Args:
      data, fsdp, tensor: devices on each axis; at most one may be -1 and takes what is left.
      devices: the devices to use, all of them.

    Raises:
      UserError: an axis is 0 or negative, two are -1, or the product is not the number of devices.
    """
    devices = tuple(jax.devices() if devices is None else devices)
    sizes = dict(zip(AXES, (data, fsdp, tensor), strict=True))
    wanted = ", ".join(f"mesh.{name} = {size}" for name, size in sizes.items())
    for name, size in sizes.items():
        if size < 1 and size != -1:
            raise UserError(f"mesh.{name} must be a positive number or -1 (what is left), got {size}")
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise UserError(f"only one mesh axis may be -1, got {wanted}")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if len(devices) % fixed or (not free and fixed != len(devices)):
        raise UserError(f"{wanted} does not fit {len(devices)} devices: the product must be the number of devices")
    for name in free:
        sizes[name] = len(devices) // fixed
    return jax.make_mesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)
