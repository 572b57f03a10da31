"""Arrays of every library: NumPy, numbers, our own, and streams."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen import arrays
from normgen.arrays.device_array import DeviceArray
from normgen.arrays.views import scalar_view
from normgen.dtypes import DTYPES
from tests.fakes.arrays import (
    Exchange,
)
from tests.fakes.driver import FakeDriver
from tests.fakes.machine import Machine

DTYPE_NAMES = tuple(DTYPES)


# NumPy and numbers


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_numpy_arrays_are_seen_in_place(name: str) -> None:
    array = np.zeros((3, 4), DTYPES[name].numpy)
    view = arrays.view(array)
    assert (view.pointer, view.dtype, view.shape, view.strides) == (array.ctypes.data, name, (3, 4), (4, 1))
    assert (view.device, view.library.name, view.readonly, view.stream) == (("host", 0), "numpy", False, None)
    assert view.owner is array


def test_numpy_views_keep_their_strides() -> None:
    base = np.zeros((6, 8), np.float16)
    cases = [base[::2, 1:5], base.T, base[:, ::-1], np.broadcast_to(base[0], (5, 8)), base[1], base[2, 3:4]]
    expected = [(16, 1), (1, 8), (8, -1), (0, 1), (1,), (1,)]
    assert [arrays.view(case).strides for case in cases] == expected
    assert arrays.view(cases[0]).pointer == base.ctypes.data + 2
    assert arrays.view(cases[3]).readonly
    frozen = base.copy()
    frozen.flags.writeable = False
    assert arrays.view(frozen).readonly
    assert arrays.view(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert arrays.view(np.zeros((), np.float32)).strides == ()


@pytest.mark.parametrize(
    ("number", "dtype", "value"),
    [
        (2, "f32", 2.0),
        (0.5, "f32", 0.5),
        (np.float64(0.5), "f32", 0.5),
        (np.int64(3), "f32", 3.0),
        (np.float32(0.5), "f32", 0.5),
        (np.float16(0.5), "f16", 0.5),
        (ml_dtypes.bfloat16(0.5), "bf16", 0.5),
        (ml_dtypes.float8_e5m2(0.5), "f8e5m2", 0.5),
    ],
)
def test_numbers_are_arrays_without_dimensions(number: Any, dtype: str, value: float) -> None:
    view = arrays.view(number)
    assert (view.dtype, view.shape, view.device) == (dtype, (), ("host", 0))
    assert float(view.owner) == value


REFUSED = [
    (np.zeros(3, np.int64), r"x: int64 .*cast it, for instance with \.astype\(numpy\.float32\)"),
    (np.zeros(3, np.complex64), r"x: complex64 .*\.astype"),
    (np.zeros(3, bool), r"x: bool .*\.astype"),
    (np.array(["a", "b"]), "x: its elements are strings: a norm takes arrays of numbers"),
    (np.array([b"a"]), "x: its elements are strings of bytes"),
    (np.array([None]), "x: its elements are Python objects"),
    (np.zeros(3, "M8[s]"), "x: its elements are dates"),
    (np.zeros(3, [("a", "f4")]), "x: its elements are records"),
    (np.zeros(3, ">f4"), r"x: .*byte order of another machine .*\.astype\('f4'\)"),
    (np.ma.zeros(3, dtype=np.float32), "x: masked"),
    (np.zeros(4, [("a", "f4"), ("b", "i1")])["a"], r"x: strides of \(5,\) bytes"),
    ([1.0, 2.0], "x: expected an array, got a list: .*numpy.asarray"),
    (None, "x: expected an array, got NoneType"),
    (True, "x: expected an array, got bool"),
    ("text", "x: expected an array, got str"),
]


@pytest.mark.parametrize(("thing", "message"), REFUSED, ids=[m[:24] for _, m in REFUSED])
def test_what_is_no_array_of_numbers_is_refused_by_name(thing: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        arrays.view(thing, "x")
    with pytest.raises(TypeError, match="^" + message.removeprefix("x: ")):
        arrays.view(thing)


def test_results_for_numpy_are_numpy() -> None:
    like = arrays.view(np.zeros(3, np.float32))
    for name in DTYPE_NAMES:
        made = arrays.allocate(like, (2, 3), name)
        assert type(made) is np.ndarray and made.dtype == DTYPES[name].numpy and made.shape == (2, 3)
        assert not arrays.zeros(like, (2, 3), name).view(np.uint8).any()
    pointer, owner = arrays.scratch(like.library, like.owner, like.device, 100)
    assert owner.nbytes >= 100 and pointer == owner.ctypes.data


# Our own arrays


def test_device_arrays_of_our_own(driver: FakeDriver) -> None:
    x = DeviceArray((2, 3), "bf16", ("cuda", 1))
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.strides, view.device) == (x.pointer, "bf16", (3, 1), ("cuda", 1))
    assert type(arrays.allocate(view, (2,), "f32")) is DeviceArray and arrays.stream_of(view) == 0
    interface = x.__cuda_array_interface__
    assert interface["data"] == (x.pointer, False) and interface["stream"] == 1 and interface["version"] == 3
    again = arrays.view(Exchange(x.__dlpack__(stream=1), x.__dlpack_device__()))
    assert again._replace(owner=0, keep=0, library=0, stream=0) == view._replace(
        owner=0, keep=0, library=0, stream=0
    )
    driver.primary(1).copy_in(x.pointer, np.arange(6).astype(ml_dtypes.bfloat16).view(np.uint8))
    assert (x.get().astype(np.float32) == np.arange(6).reshape(2, 3)).all() and x.get().dtype == x.dtype
    assert DeviceArray((0, 3), "f32", ("cuda", 0)).get().shape == (0, 3)
    count = len(driver.memory)
    del x, view, again
    gc.collect()
    assert len(driver.memory) == count - 1


def test_windows_of_our_own_arrays(driver: FakeDriver) -> None:
    base = np.arange(20, dtype=np.float16)
    x = DeviceArray.of(base, ("cuda", 1))
    assert (x.get() == base).all()
    rows = x.window(3, (3, 4), (5, 1))
    view = arrays.view(rows)
    assert (view.pointer, view.shape, view.strides) == (x.pointer + 6, (3, 4), (5, 1))
    assert rows.__cuda_array_interface__["strides"] == (10, 2)
    again = arrays.view(Exchange(rows.__dlpack__(stream=1), rows.__dlpack_device__()))
    assert (again.pointer, again.strides) == (view.pointer, view.strides)
    del x, again
    gc.collect()
    assert (rows.get() == base[3:18].reshape(3, 5)[:, :4]).all()  # a window keeps the memory
    assert rows.window(0, (0, 4), (5, 1)).get().shape == (0, 4)


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2", "bf16", "f16", "f32"])
def test_windows_of_every_element_type(driver: FakeDriver, dtype: str) -> None:
    base = np.arange(20).astype(DTYPES[dtype].numpy)
    rows = DeviceArray.of(base, ("cuda", 1)).window(3, (3, 4), (5, 1))
    found = rows.get().astype(np.float32)
    assert (found == base.astype(np.float32)[3:18].reshape(3, 5)[:, :4]).all()


def test_a_scalar_yet_to_be_made(driver: FakeDriver) -> None:
    like = arrays.view(DeviceArray((2,), "bf16", ("cuda", 1)))
    view = scalar_view(like, "f32")
    assert (view.pointer, view.dtype, view.shape, view.device) == (0, "f32", (), ("cuda", 1))


# Streams


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 0x10)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (1, 0),
        (2, 2),
        (0x10, 0x10),
        (Protocol(), 0x10),
        (types.SimpleNamespace(__cuda_stream__=(0, 0x11)), 0x11),
        (types.SimpleNamespace(cuda_stream=0x12), 0x12),
        (types.SimpleNamespace(ptr=0x13), 0x13),
        (types.SimpleNamespace(handle=0x14), 0x14),
    ],
)
def test_streams_are_given_in_many_ways(stream: Any, handle: int) -> None:
    assert arrays.stream_handle(stream) == handle


@pytest.mark.parametrize("stream", [None, "0", 1.5, True, object(), types.SimpleNamespace(ptr=None)])
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    with pytest.raises(TypeError, match="stream must be"):
        arrays.stream_handle(stream)
    with pytest.raises(ValueError, match="no stream handle"):
        arrays.stream_handle(-1)


# The whole


def test_no_library_is_imported_for_its_sake() -> None:
    code = """
import sys, numpy as np
from normgen import arrays
from normgen.devices.cuda import executor as cuda
arrays.view(np.zeros(3, np.float32))
try: arrays.view(object())
except TypeError: pass
print(sorted({"torch", "cupy", "jax", "pycuda", "lark", "jinja2"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_pycuda_s_own_arrays(machine: Machine) -> None:
    code = """
    import ml_dtypes, numpy as np
    import pycuda.driver as api, pycuda.gpuarray as gpuarray
    from normgen import arrays
    from normgen.devices.cuda import executor as cuda
    context = cuda.default_driver().primary(0)
    with context:
        x = gpuarray.GPUArray((2, 3), np.dtype(ml_dtypes.float8_e5m2))
    before = open(FAKE).read().count("copy")
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.strides) == (int(x.gpudata), "f8e5m2", (3, 1)), view
    assert view.device == ("cuda", 0)
    made = arrays.allocate(view, (4,), "bf16")
    assert type(made) is gpuarray.GPUArray and made.dtype == ml_dtypes.bfloat16
    arrays.zeros(view, (4,), "bf16")
    import pycuda.autoinit
    other = gpuarray.to_gpu(np.arange(5, dtype=np.float32))
    there = arrays.view(other)
    assert there.device != ("cuda", 0) and cuda.context_of(there.device) is cuda.default_driver().current()
    again = arrays.allocate(there, (5,), "f32")
    assert (other.get() == np.arange(5)).all()
    ours = arrays.scratch(there.library, there.owner, there.device, 64)
    """.replace("FAKE", repr(str(machine.root / "log")))
    machine.check(code)
    assert [line for line in machine.log if line.startswith("copy")] == ["copy in 20", "copy out 20"]
    assert [line for line in machine.log if line.startswith("allocate")] == [
        "allocate 6 in primary0",
        "allocate 8 in primary0",
        "allocate 8 in primary0",
        "allocate 20 in own0",
        "allocate 20 in own0",
        "allocate 64 in own0",
    ]


def test_a_module_that_another_thread_is_importing_is_not_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("torch", "cupy", "jax", "pycuda.gpuarray"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    class Foreign:
        """An array of nobody's."""

    with pytest.raises(TypeError, match="expected an array, got Foreign"):
        arrays.view(Foreign())


def test_what_is_ours_is_known_by_its_type_not_by_its_module() -> None:
    other = type("Other", (), {"__module__": DeviceArray.__module__})
    with pytest.raises(TypeError, match="expected an array, got Other"):
        arrays.view(other())
