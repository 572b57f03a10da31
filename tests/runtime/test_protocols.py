"""Arrays by their protocols: the CUDA array interface and DLPack."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import numpy as np
import pytest

from normgen import arrays
from normgen.arrays import capsule as capsules
from normgen.arrays.device_array import DeviceArray
from normgen.dtypes import DTYPES
from tests.fakes.arrays import (
    Exchange,
    Interface,
)
from tests.fakes.driver import FakeDriver

DTYPE_NAMES = tuple(DTYPES)


def test_the_cuda_array_interface(driver: FakeDriver) -> None:
    for typestr, name in (("<f4", "f32"), ("<f2", "f16"), ("<V2", "bf16"), ("<f8", "f64")):
        x = Interface(driver, (2, 3), typestr, index=1)
        view = arrays.view(x)
        assert (view.pointer, view.dtype, view.shape, view.strides) == (x.pointer, name, (2, 3), (3, 1))
        assert (view.device, view.library.name, view.readonly, view.stream) == (
            ("cuda", 1),
            "cuda",
            False,
            None,
        )
    strided = Interface(driver, (2, 3), "<f4", strides=(4, 8), data=(driver.next_address, True), version=3)
    view = arrays.view(strided)
    assert view.strides == (1, 2) and view.readonly
    made = arrays.allocate(view, (5,), "bf16")
    assert type(made) is DeviceArray and arrays.view(made).device == view.device
    assert driver.copies == []


def test_element_types_that_the_interface_cannot_tell_apart(driver: FakeDriver) -> None:
    x = Interface(driver, (2,), "<V1")
    with pytest.raises(TypeError, match="x: void8 is no element type"):
        arrays.view(x, "x")
    x.dtype = DTYPES["f8e4m3"].numpy  # type: ignore[attr-defined]
    assert arrays.view(x).dtype == "f8e4m3"


@pytest.mark.parametrize(
    ("typestr", "fields", "message"),
    [
        ("<i4", {}, r"x: int32 is no element type .*cast"),
        (">f4", {}, "x: .*byte order of another machine"),
        ("<f4", {"mask": object()}, "x: masked"),
        ("<f4", {"stream": 0, "version": 3}, "x: .*stream 0"),
        ("<f4", {"strides": (6,)}, r"x: strides of \(6,\) bytes"),
    ],
)
def test_interfaces_that_are_refused(
    driver: FakeDriver, typestr: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        arrays.view(Interface(driver, (2,), typestr, **fields), "x")


def test_a_producer_s_stream_is_the_one_to_go_on_with(driver: FakeDriver) -> None:
    queued = arrays.view(Interface(driver, (2,), "<f4", stream=0x60, version=3))
    legacy = arrays.view(Interface(driver, (2,), "<f4", stream=1, version=3))
    thread = arrays.view(Interface(driver, (2,), "<f4", stream=2, version=3))
    done = arrays.view(Interface(driver, (2,), "<f4", stream=None, version=3))
    assert [arrays.stream_of(view) for view in (queued, legacy, thread, done)] == [0x60, 0, 2, 0]
    arrays.order(0x60, [queued, done])
    assert driver.waits == []
    arrays.order(0x60, [queued, legacy, legacy, thread, done])
    assert sorted(driver.waits) == [(0x60, 0), (0x60, 2)]
    assert driver.synchronized == 0


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_dlpack_carries_every_element_type(driver: FakeDriver, name: str) -> None:
    x = Exchange(capsules.write(0x7F0000001000, name, (2, 3), (3, 1), 1, None), (2, 1))
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.shape, view.strides) == (0x7F0000001000, name, (2, 3), (3, 1))
    assert (view.device, view.library.name, view.readonly, view.stream) == (("cuda", 1), "dlpack", False, 0)
    assert x.stream == 1
    assert type(arrays.allocate(view, (3,), name)) is DeviceArray


class Shared:
    """NumPy's memory behind DLPack alone."""

    def __init__(self, array: np.ndarray[Any, Any], versions: bool) -> None:
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
    assert (view.pointer, view.dtype, view.shape, view.strides) == (
        base.ctypes.data + 12,
        "f16",
        (3, 3),
        (6, 2),
    )
    assert (view.device, view.readonly, view.stream) == (("host", 0), False, None)
    assert type(arrays.allocate(view, (3,), "f16")) is np.ndarray
    if versions:
        base.flags.writeable = False
        assert arrays.view(Shared(base, versions)).readonly


def set_device_type(capsule: Any, code: int) -> None:
    """Let a capsule of ours tell of memory of another kind."""
    ctypes.c_int32.from_address(capsules._pointer_of(id(capsule), b"dltensor") + 8).value = code


def test_dlpack_memory_is_given_back(driver: FakeDriver) -> None:
    class Owner:
        pass

    before, owner = len(capsules._out), Owner()
    count = sys.getrefcount(owner)
    view = arrays.view(Exchange(capsules.write(0x7F0000001000, "f32", (2,), (1,), 0, owner), (2, 0)))
    assert sys.getrefcount(owner) == count + 1 and len(capsules._out) == before + 1
    assert view.keep is not None
    del view
    gc.collect()
    assert sys.getrefcount(owner) == count and len(capsules._out) == before


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [((7, 0), np.float32, "neither the host's nor CUDA's"), ((1, 0), np.int32, "int32 is no element type")],
)
def test_dlpack_that_is_refused(device: tuple[int, int], dtype: Any, message: str) -> None:
    class Odd(Exchange):
        def __dlpack__(self, **_: Any) -> Any:
            if self.device[0] != 1:
                capsule = capsules.write(0x1000, "f32", (2,), (1,), 0, None)
                set_device_type(capsule, self.device[0])
                return capsule
            return np.zeros(2, dtype).__dlpack__()

    with pytest.raises(TypeError, match="x: .*" + message):
        arrays.view(Odd(None, device), "x")


def test_numpy_reads_what_is_written() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    capsule = capsules.write(array.ctypes.data, "f32", (2, 3), (3, 1), 0, array)
    set_device_type(capsule, 1)

    class Host(Exchange):
        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    before = len(capsules._out)
    again = np.from_dlpack(Host(capsule, (1, 0)))
    assert again.ctypes.data == array.ctypes.data and (again == array).all()
    del again, capsule
    gc.collect()
    assert len(capsules._out) == before - 1  # NumPy called the deleter
