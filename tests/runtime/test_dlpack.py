"""DLPack: arrays of libraries that speak nothing else, and who gives the memory back."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from normgen import arrays
from normgen.arrays import capsule
from tests.fakes.arrays import Exchange
from tests.fakes.driver import FakeDriver


class Shared:
    """NumPy's memory behind DLPack alone."""

    def __init__(self, array: np.ndarray[Any, Any], versions: bool = True) -> None:
        self.array, self.versions = array, versions

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, stream: Any = None, **more: Any) -> Any:
        if more and not self.versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**more)


@pytest.mark.parametrize("versions", [False, True])
def test_dlpack_of_another_library_s_making(versions: bool) -> None:
    if versions and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy knows no DLPack versions")
    base = np.arange(24, dtype=np.float16).reshape(4, 6)
    view = arrays.view(Shared(base[1:, ::2], versions))
    assert view[:5] == (base.ctypes.data + 12, "f16", (3, 3), (6, 2), False)
    assert (view.device, view.stream) == (("host", 0), None)
    assert type(arrays.allocate(view, (3,), "f16")) is np.ndarray
    if versions:
        base.flags.writeable = False
        assert arrays.view(Shared(base, versions)).readonly


class OnHost(Exchange):
    def __dlpack__(self, **_: Any) -> Any:
        return self.__dict__.pop("capsule")


def of_device(code: int, pointer: int = 0x1000, owner: Any = None) -> Any:
    """A capsule of ours that tells of two numbers in memory of another kind."""
    made = capsule.write(pointer, "f32", (2,), (1,), 0, owner)
    field = capsule._pointer_of(id(made), b"dltensor") + 8
    np.ctypeslib.ctypes.c_int32.from_address(field).value = code
    return made


def test_what_dlpack_tells_may_be_refused() -> None:
    with pytest.raises(TypeError, match=r"^it: .*kernels do not support int32"):
        arrays.view(Shared(np.zeros(2, np.int32)), "it")
    with pytest.raises(TypeError, match=r"^it: .*device type 7 is not supported"):
        arrays.view(Exchange(of_device(7), (7, 0)), "it")


def test_memory_behind_dlpack_is_given_back(driver: FakeDriver) -> None:
    class Owner:
        pass

    before, owner = len(capsule._out), Owner()
    count = sys.getrefcount(owner)
    view = arrays.view(Exchange(capsule.write(0x7F0000001000, "f32", (2,), (1,), 0, owner), (2, 0)))
    assert sys.getrefcount(owner) == count + 1 and view.keep is not None
    del view
    array = np.arange(2, dtype=np.float32)
    again = np.from_dlpack(OnHost(of_device(1, array.ctypes.data, owner), (1, 0)))
    assert again.ctypes.data == array.ctypes.data and (again == array).all()
    del again  # NumPy calls the deleter
    gc.collect()
    assert sys.getrefcount(owner) == count and len(capsule._out) == before
