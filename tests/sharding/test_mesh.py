"""The mesh: its axes, what is left for -1, and what does not fit."""

import jax
import pytest
from jax.sharding import AxisType

from jaxagent.errors import UserError
from jaxagent.sharding.mesh import make_mesh


def test_axes_and_the_free_axis():
    mesh = make_mesh()
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert dict(mesh.shape) == {"data": 8, "fsdp": 1, "tensor": 1}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert dict(make_mesh(2, -1, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert dict(make_mesh(devices=jax.devices()[:1]).shape) == {"data": 1, "fsdp": 1, "tensor": 1}
    assert set(make_mesh(2, 2, 2).devices.flat) == set(jax.devices())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((3, 1, 1), "8 devices"), ((-1, 3, 1), "8 devices"), ((-1, -1, 1), "only one"), ((0, 1, 1), "mesh.data"),
     ((1, -2, 1), "mesh.fsdp"), ((2, 2, 1), "8 devices"), ((-1, 16, 1), "8 devices")],
)  # fmt: skip
def test_what_does_not_fit_is_named(sizes, message):
    with pytest.raises(UserError, match=message):
        make_mesh(*sizes)
