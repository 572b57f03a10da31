"""More groups, batches, channels and pixels than the second or third dimension of a grid takes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from normgen import bundled
from normgen.launching.machine import USUAL_MACHINE
from normgen.package.direction import directions
from normgen.runtime.calls.binding import bind
from normgen.runtime.calls.sizes import stand_ins
from normgen.runtime.planning.choose import plan_launches
from tests.kinds import of_all

from .compare import loaded, normal, wide

pytestmark = pytest.mark.kernels

MANY = 65537


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spec", "attrs", "shape", "axes"),
    [
        ("groupnorm", {"groups": 1}, (MANY, 2, 2), (1, 2)),
        ("instancenorm", {}, (1, MANY, 3), (2,)),
        ("batchnorm", {}, (MANY, 2, 1), (0, 2)),
    ],
)
def test_more_than_a_grid_is_high(
    spec: str, attrs: dict[str, object], shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """65535 is the most blocks in the second and third dimension of a grid."""
    x = normal(*shape)
    result = loaded(spec, **attrs).forward(x)
    centred = wide(x) - wide(x).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(result.y, centred * inverse, atol=2e-5 * inverse.max(), rtol=1e-5)


@pytest.mark.parametrize("name", of_all(bundled.names()))
def test_grids(name: str) -> None:
    """Whichever axis is long, only the first dimension of a grid grows with it."""
    source = bundled.read(name)
    assert source is not None
    norm = loaded(name, **{a: 2 for a in ("groups", "head_dim") if f"{a}: int" in source.text})
    open_axes = [axis.name for axis in norm.package.axes if axis.extent is None]
    for long, direction in product(open_axes, directions(norm.package)):
        assert direction is not None
        sizes = {axis: 70001 if axis == long else 3 for axis in open_axes}
        lengths = {a: (n,) if a == "..." else n for a, n in sizes.items()}
        views = stand_ins(direction, lengths, "f16", 16, ("cuda", 0))
        bound = bind(direction, views, {}, tuple(direction.results))
        plan = plan_launches(direction.record, bound.binding, USUAL_MACHINE)
        assert plan.launches
        for launch in plan.launches:
            assert launch.grid[0] < 2**31 and max(launch.grid[1:]) <= 65535, (long, launch.entry)
