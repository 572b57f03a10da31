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

from .compare import loaded, normal, wide

pytestmark = pytest.mark.kernels

MANY = 65537
TALL: list[tuple[str, dict[str, object], tuple[int, ...], tuple[int, ...]]] = [
    # (spec, attrs, shape of x, axes that a mean runs over)
    ("groupnorm", {"groups": 1}, (MANY, 2, 2), (1, 2)),
    ("instancenorm", {}, (1, MANY, 3), (2,)),
    ("batchnorm", {}, (MANY, 2, 1), (0, 2)),
    ("layernorm", {}, (MANY, 4), (1,)),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("spec", "attrs", "shape", "axes"), TALL)
def test_more_than_a_grid_is_high(
    spec: str, attrs: dict[str, object], shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """65535 is the most blocks in the second and third dimension of a grid."""
    norm, x, dy = loaded(spec, **attrs), normal(*shape), normal(*shape, seed=1)
    result = norm.forward(x)
    centred = wide(x) - wide(x).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(result.y, centred * inverse, atol=2e-5 * inverse.max(), rtol=1e-5)
    kept = {name: getattr(result, name) for name in ("mu", "rstd")}
    (dx, *_) = norm.backward(dy=dy, x=x, **kept)
    xhat = centred * inverse
    want = inverse * (dy - dy.mean(axes, keepdims=True) - xhat * (dy * xhat).mean(axes, keepdims=True))
    scale = inverse.max(axes, keepdims=True)
    assert (np.abs(dx - want) < 1e-4 * scale).all()


@pytest.mark.thorough
def test_very_many_pixels_and_planes() -> None:
    x = normal(MANY, 2, 1, 1)
    (y,) = loaded("softmax2d").forward(x)
    e = np.exp(wide(x))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    x = normal(MANY, 3, 1)
    result = loaded("local_response_norm", n=3).forward(x, alpha=1.0)
    square = wide(x)[:, :, 0] ** 2
    sums = np.stack([square[:, max(0, c - 1) : c + 2].sum(1) for c in range(3)], 1)
    np.testing.assert_allclose(result.y[:, :, 0], x[:, :, 0] / (1 + sums / 3) ** 0.75, rtol=1e-5)


@pytest.mark.parametrize("name", bundled.names())
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
