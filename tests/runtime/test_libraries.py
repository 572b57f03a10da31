"""A new array library: one class, one line of the registry, and every norm takes its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen import arrays
from normgen.arrays import registry
from normgen.arrays.numpy import NUMPY
from normgen.arrays.views import Library, View
from normgen.launching.launch import DeviceKey
from normgen.launching.layout import Shape

pytestmark = pytest.mark.kernels


class Box:
    """An array of an imaginary library, which speaks no protocol that anyone knows."""

    def __init__(self, inside: np.ndarray[Any, Any]) -> None:
        self.inside = inside
        self.delivered = False


class Boxes(Library):
    name = "boxes"

    def knows(self, array: Any) -> bool:
        return isinstance(array, Box)

    def look(self, array: Any) -> View:
        return NUMPY.look(array.inside)._replace(library=self, owner=array)

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        made, address = NUMPY.empty(like, device, shape, dtype)
        return Box(made), address


class QuickBoxes(Boxes):
    """The same with all that a library may do."""

    def glance(self, array: Any) -> tuple[Any, Any]:
        pointer, key = NUMPY.glance(array.inside)
        return pointer, ("boxes", *key)

    def deliver(self, result: Any, stream: int) -> Any:
        result.delivered = True
        return result

    def cast(self, element: str) -> str:
        return f".of({element})"


@pytest.fixture(params=[Boxes, QuickBoxes])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    added: Library = request.param()
    monkeypatch.setattr(registry, "LIBRARIES", (*registry.LIBRARIES, added))
    for known in (arrays._by_type, arrays._glances):
        monkeypatch.delitem(known, Box, raising=False)
    return added


def test_a_norm_takes_arrays_of_a_new_library_and_makes_such(library: Library) -> None:
    norm = normgen.load("rmsnorm")
    x, dy = np.random.default_rng(0).standard_normal((2, 6, 64), np.float32)
    w = np.full(64, 2, np.float32)
    expected = norm.forward(x, w)
    gradients = norm.backward(dy, x, w, expected.rstd)
    for _ in range(3):  # the first call of its kind, and calls like one before
        made = norm.forward(Box(x), Box(w))
        back = norm.backward(Box(dy), Box(x), Box(w), made.rstd)
        for result, wanted in zip((*made, *back), (*expected, *gradients), strict=True):
            assert type(result) is Box
            assert result.delivered is (library.deliver is not None)
            np.testing.assert_array_equal(result.inside, wanted)
    out = Box(np.empty_like(x))
    assert norm.forward(Box(x), Box(w), out={"y": out}).y is out
    np.testing.assert_array_equal(out.inside, expected.y)
    with pytest.raises(TypeError, match="x: kernels do not support int64"):
        norm.forward(Box(np.zeros((6, 64), np.int64)), Box(w))
    cast = r"x\.of\(float32\)" if isinstance(library, QuickBoxes) else r"x\.astype\(numpy\.float32\)"
    with pytest.raises(TypeError, match=f"x is float64, .* cast it: {cast}"):
        norm.forward(Box(np.zeros((6, 64))), Box(w))
    # A plan takes those that can be seen in brief.
    if library.glance is None:
        with pytest.raises(TypeError, match="not a Box"):
            norm.plan("forward", Box(x), Box(w))
        return
    plan = norm.plan("forward", Box(x), Box(w))
    np.testing.assert_array_equal(plan(Box(x), Box(w)).y.inside, expected.y)
    with pytest.raises(TypeError, match="x was planned as an array of boxes but is an array of numpy"):
        plan(x, w)
