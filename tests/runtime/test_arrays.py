"""Arrays of every library: looked at in place, allocated alike, refused by name."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.dtypes import DTYPES
from normgen.runtime import arrays, cuda, dlpack
from normgen.runtime.device_array import DeviceArray
from tests.fakes.arrays import (
    CupyArray,
    Exchange,
    GpuArray,
    Interface,
    JaxArray,
    JaxTracer,
    Parameter,
    TorchDevice,
    TorchTensor,
    install,
)
from tests.fakes.driver import FakeDriver
from tests.fakes.machine import Machine

DTYPE_NAMES = tuple(DTYPES)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Iterator[dict[int, int]]:
    """Every library over the imaginary driver; at the end nothing was copied between host and device."""
    yield install(monkeypatch, driver)
    assert driver.copies == []


def tensor(
    *shape: int, dtype: str = "float32", device: TorchDevice | None = None, **more: Any
) -> TorchTensor:
    return TorchTensor(shape, getattr(sys.modules["torch"], dtype), device or TorchDevice("cuda", 1), **more)


# NumPy and numbers


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_numpy_arrays_are_seen_in_place(name: str) -> None:
    array = np.zeros((3, 4), DTYPES[name].numpy)
    view = arrays.view(array)
    assert (view.pointer, view.dtype, view.shape, view.strides) == (array.ctypes.data, name, (3, 4), (4, 1))
    assert (view.device, view.kind, view.readonly, view.stream) == (("host", 0), "numpy", False, None)
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
    pointer, owner = arrays.scratch(like, 100)
    assert owner.nbytes >= 100 and pointer == owner.ctypes.data


# torch


def test_torch_tensors_on_a_device(streams: dict[int, int], driver: FakeDriver) -> None:
    names = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64")
    for name, dtype in zip(names, ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f64"), strict=True):
        x = tensor(2, 3, dtype=name)
        view = arrays.view(x)
        assert (view.pointer, view.dtype, view.shape, view.strides) == (x.data_ptr(), dtype, (2, 3), (3, 1))
        assert (view.device, view.kind) == (("cuda", 1), "torch")
        made = arrays.allocate(view, (5,), dtype)
        assert type(made) is TorchTensor and made.dtype is x.dtype and made.device.index == 1
    assert arrays.view(tensor(4, 4, strides=(1, 4))).strides == (1, 4)
    assert arrays.view(Parameter((2,), sys.modules["torch"].float32, TorchDevice("cuda"))).device == (
        "cuda",
        0,
    )


def test_torch_s_current_stream_is_asked_for_each_time(streams: dict[int, int]) -> None:
    view = arrays.view(tensor(2))
    assert arrays.stream_of(view) == 0
    streams[1] = 0x5000
    assert arrays.stream_of(view) == 0x5000
    streams[1] = 1  # the default stream by its other name
    assert arrays.stream_of(view) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_torch_tensors_on_the_host_are_seen_in_place(streams: dict[int, int], dtype: str) -> None:
    x = tensor(2, 3, dtype=dtype, device=TorchDevice("cpu"))
    view = arrays.view(x)
    assert (view.pointer, view.device, view.kind) == (x.data_ptr(), ("host", 0), "torch")
    made = arrays.allocate(view, (4,), "f32")
    assert type(made) is TorchTensor and made.device.type == "cpu"
    memory = (ctypes.c_ubyte * 16).from_address(made.data_ptr())
    memory[3] = 7
    zeroed = arrays.zeros(view, (4,), "f32")
    assert bytes((ctypes.c_ubyte * 16).from_address(zeroed.data_ptr())) == bytes(16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int64"}, r"w: torch\.int64 .*\.float\(\)"),
        ({"layout": "sparse_coo"}, r"w: .*not strided: use \.to_dense"),
        ({"device": TorchDevice("meta")}, "w: a tensor on meta is neither"),
    ],
)
def test_torch_tensors_that_are_refused(
    streams: dict[int, int], options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match=message):
        arrays.view(tensor(2, **options), "w")


# CuPy


def test_cupy_arrays(streams: dict[int, int]) -> None:
    for name in ("f32", "f16", "bf16"):
        x = CupyArray((2, 3), DTYPES[name].numpy, 1)
        view = arrays.view(x)
        assert (view.pointer, view.dtype, view.strides) == (x.data.ptr, name, (3, 1))
        assert (view.device, view.kind) == (("cuda", 1), "cupy")
        made = arrays.allocate(view, (4,), name)
        assert type(made) is CupyArray and made.device.id == 1
    assert arrays.view(CupyArray((4, 4), np.float32, strides=(4, 16))).strides == (1, 4)
    assert type(arrays.allocate(view, (4,), "f8e4m3")) is DeviceArray  # which CuPy does not have
    streams[1] = 0x70
    assert arrays.stream_of(view) == 0x70
    with pytest.raises(TypeError, match=r"x: int64 .*\.astype\(cupy\.float32\)"):
        arrays.view(CupyArray((2,), np.int64), "x")


# PyCUDA


@pytest.mark.parametrize("own", [False, True])
def test_gpuarrays_are_in_pycuda_s_context_if_it_has_one(
    streams: dict[int, int], driver: FakeDriver, own: bool
) -> None:
    context = driver.make_current(1) if own else driver.primary(1)
    with context:
        x = GpuArray((2, 3), DTYPES["bf16"].numpy)
    driver.places[int(x.gpudata)] = 1
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.strides, view.kind) == (int(x.gpudata), "bf16", (3, 1), "pycuda")
    assert cuda.context_of(view.device) is context and view.device[1] == 1
    assert (view.device == ("cuda", 1)) is not own
    made = arrays.allocate(view, (7,), "f32")
    assert type(made) is GpuArray
    assert driver.stack == [] and arrays.stream_of(view) == 0
    empty = arrays.allocate(view, (0, 3), "f32")
    assert arrays.view(empty).pointer == 0
    zeroed = arrays.zeros(view, (4,), "bf16", stream=0x30)
    assert driver.fills == [(int(zeroed.gpudata), 8, 0x30)]


# JAX


def test_jax_arrays_are_read_and_results_handed_over(streams: dict[int, int], driver: FakeDriver) -> None:
    x = JaxArray((2, 3), DTYPES["bf16"].numpy, 1)
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.shape, view.strides) == (x.pointer, "bf16", (2, 3), (3, 1))
    assert (view.device, view.kind, view.readonly) == (("cuda", 1), "jax", True)
    assert x.asked == [1] and arrays.stream_of(view) == 0  # ordered before the default stream
    made = arrays.allocate(view, (4,), "bf16")
    assert type(made) is DeviceArray and made.device == ("cuda", 1)
    word, array, _ = arrays.deliver(view, made, 0x44)
    assert word == "jax array from" and array is made
    assert driver.waits == [(0x99, 0x44)]  # JAX's stream waits for ours


def test_jax_arrays_on_the_host(streams: dict[int, int]) -> None:
    x = JaxArray((2, 3), np.float32, None)
    view = arrays.view(x)
    assert (view.pointer, view.device, view.readonly) == (x.host.ctypes.data, ("host", 0), True)
    made = arrays.allocate(view, (4,), "f32")
    assert arrays.deliver(view, made) == ("jax array of", made)


def test_jax_values_without_memory_are_refused(streams: dict[int, int]) -> None:
    with pytest.raises(TypeError, match="x: a traced JAX value"):
        arrays.view(JaxTracer(), "x")


# The protocols


def test_the_cuda_array_interface(driver: FakeDriver) -> None:
    for typestr, name in (("<f4", "f32"), ("<f2", "f16"), ("<V2", "bf16"), ("<f8", "f64")):
        x = Interface(driver, (2, 3), typestr, index=1)
        view = arrays.view(x)
        assert (view.pointer, view.dtype, view.shape, view.strides) == (x.pointer, name, (2, 3), (3, 1))
        assert (view.device, view.kind, view.readonly, view.stream) == (("cuda", 1), "cuda", False, None)
    strided = Interface(driver, (2, 3), "<f4", strides=(4, 8), data=(driver.next_address, True), version=3)
    view = arrays.view(strided)
    assert view.strides == (1, 2) and view.readonly
    made = arrays.allocate(view, (5,), "bf16")
    assert type(made) is DeviceArray and arrays.view(made).device == view.device
    assert driver.copies == []


def test_element_types_that_the_interface_cannot_tell_apart(driver: FakeDriver) -> None:
    x = Interface(driver, (2,), "<V1")
    with pytest.raises(TypeError, match="x: V1 is no element type"):
        arrays.view(x, "x")
    x.dtype = DTYPES["f8e4m3"].numpy  # type: ignore[attr-defined]
    assert arrays.view(x).dtype == "f8e4m3"


@pytest.mark.parametrize(
    ("typestr", "fields", "message"),
    [
        ("<i4", {}, r"x: i4 is no element type .*cast"),
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
    x = Exchange(dlpack.write(0x7F0000001000, name, (2, 3), 1, None), (2, 1))
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.shape, view.strides) == (0x7F0000001000, name, (2, 3), (3, 1))
    assert (view.device, view.kind, view.readonly, view.stream) == (("cuda", 1), "dlpack", False, 0)
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


def test_dlpack_memory_is_given_back(driver: FakeDriver) -> None:
    class Owner:
        pass

    before, owner = len(dlpack._out), Owner()
    count = sys.getrefcount(owner)
    view = arrays.view(Exchange(dlpack.write(0x7F0000001000, "f32", (2,), 0, owner), (2, 0)))
    assert sys.getrefcount(owner) == count + 1 and len(dlpack._out) == before + 1
    assert view.keep is not None
    del view
    gc.collect()
    assert sys.getrefcount(owner) == count and len(dlpack._out) == before


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [((7, 0), np.float32, "neither the host's nor CUDA's"), ((1, 0), np.int32, "int32 is no element type")],
)
def test_dlpack_that_is_refused(device: tuple[int, int], dtype: Any, message: str) -> None:
    class Odd(Exchange):
        def __dlpack__(self, **_: Any) -> Any:
            if self.device[0] != 1:
                capsule = dlpack.write(0x1000, "f32", (2,), 0, None)
                pointer = dlpack._pointer_of(capsule, b"dltensor")
                dlpack._Managed.from_address(pointer).tensor.device_type = self.device[0]
                return capsule
            return np.zeros(2, dtype).__dlpack__()

    with pytest.raises(TypeError, match="x: .*" + message):
        arrays.view(Odd(None, device), "x")


def test_numpy_reads_what_is_written() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    capsule = dlpack.write(array.ctypes.data, "f32", (2, 3), 0, array)
    dlpack._Managed.from_address(dlpack._pointer_of(capsule, b"dltensor")).tensor.device_type = 1

    class Host(Exchange):
        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    before = len(dlpack._out)
    again = np.from_dlpack(Host(capsule, (1, 0)))
    assert again.ctypes.data == array.ctypes.data and (again == array).all()
    del again, capsule
    gc.collect()
    assert len(dlpack._out) == before - 1  # NumPy called the deleter


# Our own arrays


def test_device_arrays_of_our_own(driver: FakeDriver) -> None:
    x = DeviceArray((2, 3), "bf16", ("cuda", 1))
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.strides, view.device) == (x.pointer, "bf16", (3, 1), ("cuda", 1))
    assert type(arrays.allocate(view, (2,), "f32")) is DeviceArray and arrays.stream_of(view) == 0
    interface = x.__cuda_array_interface__
    assert interface["data"] == (x.pointer, False) and interface["stream"] == 1 and interface["version"] == 3
    again = arrays.view(Exchange(x.__dlpack__(stream=1), x.__dlpack_device__()))
    assert again._replace(owner=0, keep=0, kind="", stream=0) == view._replace(
        owner=0, keep=0, kind="", stream=0
    )
    driver.primary(1).copy_in(x.pointer, np.arange(6).astype(ml_dtypes.bfloat16).view(np.uint8))
    assert (x.get().astype(np.float32) == np.arange(6).reshape(2, 3)).all() and x.get().dtype == x.dtype
    assert DeviceArray((0, 3), "f32", ("cuda", 0)).get().shape == (0, 3)
    count = len(driver.memory)
    del x, view, again
    gc.collect()
    assert len(driver.memory) == count - 1


def test_a_scalar_yet_to_be_made(driver: FakeDriver) -> None:
    like = arrays.view(DeviceArray((2,), "bf16", ("cuda", 1)))
    view = arrays.scalar_view(like, "f32")
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
from normgen.runtime import arrays, cuda
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
    from normgen.runtime import arrays, cuda
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
    ours = arrays.scratch(there, 64)
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
