"""Arrays of every library: seen in place, allocated alike, refused by name."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen import arrays
from normgen.arrays import capsule
from normgen.arrays.device_array import DeviceArray
from normgen.arrays.views import scalar_view
from normgen.devices.cuda import executor as cuda
from normgen.dtypes import DTYPES
from tests.fakes.arrays import (
    CupyArray,
    Exchange,
    GpuArray,
    Interface,
    JaxArray,
    JaxTracer,
    TorchDevice,
    TorchTensor,
)
from tests.fakes.driver import FakeDriver
from tests.fakes.machine import Machine
from tests.runtime.calling import tensor

HOST, CUDA = ("host", 0), ("cuda", 1)
ADDRESS = 0x7F0000001000


# What is there


def torch_dtype(name: str) -> Any:
    plain = {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
    return getattr(sys.modules["torch"], plain.get(name) or DTYPES[name].numpy.name)


def torch(name: str, *device: Any) -> TorchTensor:
    return TorchTensor((2, 3), torch_dtype(name), TorchDevice(*device))


TYPESTR = {"f32": "<f4", "f16": "<f2", "bf16": "<V2", "f64": "<f8"}
# Arrays of shape (2, 3).
KINDS: dict[str, Callable[[FakeDriver, str], Any]] = {
    "numpy": lambda _, name: np.zeros((2, 3), DTYPES[name].numpy),
    "torch": lambda _, name: torch(name, "cuda", 1),
    "torch on the host": lambda _, name: torch(name, "cpu"),
    "cupy": lambda _, name: CupyArray((2, 3), DTYPES[name].numpy, 1),
    "jax": lambda _, name: JaxArray((2, 3), DTYPES[name].numpy, 1),
    "device": lambda _, name: DeviceArray((2, 3), name, CUDA),
    "cuda": lambda driver, name: Interface(driver, (2, 3), TYPESTR[name], index=1),
    "dlpack": lambda *_: Exchange(capsule.write(ADDRESS, "bf16", (2, 3), (3, 1), 1, None), (2, 1)),
}
RESULTS = {"numpy": np.ndarray, "torch": TorchTensor, "cupy": CupyArray}
SPOKEN = {"cupy": ("f32", "f16", "bf16"), "cuda": tuple(TYPESTR), "dlpack": ("bf16",)}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_seen_in_place_and_results_are_alike(
    kind: str, driver: FakeDriver, streams: dict[int, int]
) -> None:
    library, device = kind.split()[0], HOST if kind in ("numpy", "torch on the host") else CUDA
    for name in SPOKEN.get(kind, DTYPES):
        x = KINDS[kind](driver, name)
        view = arrays.view(x)
        pointer = x.ctypes.data if kind == "numpy" else getattr(x, "pointer", ADDRESS)
        assert (view.pointer, view.dtype, view.shape, view.strides) == (pointer, name, (2, 3), (3, 1))
        assert (view.device, view.library.name) == (device, library) and view.owner is x
        assert view.readonly is (kind == "jax") and arrays.stream_of(view) == 0
        assert view.stream == (0 if kind in ("jax", "dlpack") else None)
        made = arrays.allocate(view, (4,), name)
        assert type(made) is RESULTS.get(library, DeviceArray)
        seen = arrays.view(made)
        assert (seen.dtype, seen.shape, seen.device, seen.readonly) == (name, (4,), device, False)


def test_views_keep_their_strides(driver: FakeDriver, streams: dict[int, int]) -> None:
    base = np.zeros((6, 8), np.float16)
    cases = [base[::2, 1:5], base.T, base[:, ::-1], np.broadcast_to(base[0], (5, 8)), base[1], base[2, 3:4]]
    expected = [(16, 1), (1, 8), (8, -1), (0, 1), (1,), (1,)]
    assert [arrays.view(case).strides for case in cases] == expected
    assert arrays.view(cases[0]).pointer == base.ctypes.data + 2
    assert arrays.view(cases[3]).readonly
    base.flags.writeable = False
    assert arrays.view(base).readonly
    assert arrays.view(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert arrays.view(np.zeros((), np.float32)).strides == ()
    assert arrays.view(tensor(4, 4, strides=(1, 4))).strides == (1, 4)
    assert arrays.view(CupyArray((4, 4), np.float32, strides=(4, 16))).strides == (1, 4)
    strided = Interface(driver, (2, 3), "<f4", strides=(4, 8), data=(driver.next_address, True), version=3)
    assert arrays.view(strided).strides == (1, 2) and arrays.view(strided).readonly


def test_new_memory_is_zero_where_it_must_be(driver: FakeDriver, streams: dict[int, int]) -> None:
    for like in (np.zeros(3, np.float32), TorchTensor((3,), torch_dtype("f32"), TorchDevice("cpu"))):
        view = arrays.view(like)
        made = arrays.view(arrays.zeros(view, (2, 3), "bf16"))
        assert bytes((np.ctypeslib.ctypes.c_ubyte * 12).from_address(made.pointer)) == bytes(12)
    yet_to_be_made = scalar_view(arrays.view(DeviceArray((2,), "bf16", CUDA)), "f32")
    assert yet_to_be_made[:3] == (0, "f32", ()) and yet_to_be_made.device == CUDA


@pytest.mark.parametrize("own", [False, True])
def test_gpuarrays_are_in_pycuda_s_context_if_it_has_one(
    streams: dict[int, int], driver: FakeDriver, own: bool
) -> None:
    context = driver.make_current(1) if own else driver.primary(1)
    with context:
        x = GpuArray((2, 3), DTYPES["bf16"].numpy)
    driver.places[int(x.gpudata)] = 1
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.strides) == (int(x.gpudata), "bf16", (3, 1))
    assert view.library.name == "pycuda" and arrays.stream_of(view) == 0
    assert cuda.context_of(view.device) is context and view.device[1] == 1
    assert (view.device == CUDA) is not own
    assert type(arrays.allocate(view, (7,), "f32")) is GpuArray
    assert arrays.view(arrays.allocate(view, (0, 3), "f32")).pointer == 0
    zeroed = arrays.zeros(view, (4,), "bf16", stream=0x30)
    assert driver.fills == [(int(zeroed.gpudata), 8, 0x30)]


def test_jax_arrays_are_read_and_results_handed_over(streams: dict[int, int], driver: FakeDriver) -> None:
    x = JaxArray((2, 3), np.float32, 1)
    view = arrays.view(x)
    assert x.asked == [1]  # to be ordered before the default stream
    word, array, _ = view.library.deliver(made := arrays.allocate(view, (4,), "bf16"), 0x44)
    assert word == "jax array from" and array is made
    assert driver.waits == [(0x99, 0x44)]  # JAX's stream waits for ours
    host = arrays.view(JaxArray((2, 3), np.float32, None))
    assert (host.device, host.readonly) == (HOST, True)
    made = arrays.allocate(host, (4,), "f32")
    assert host.library.deliver(made, 0) == ("jax array of", made)


def test_what_a_library_lacks_is_ours(streams: dict[int, int], driver: FakeDriver) -> None:
    view = arrays.view(CupyArray((2, 3), np.float32, 1))
    assert type(arrays.allocate(view, (4,), "f8e4m3")) is DeviceArray
    x = Interface(driver, (2,), "<V1")  # which tells element types of one byte apart by its dtype
    x.dtype = DTYPES["f8e4m3"].numpy  # type: ignore[attr-defined]
    assert arrays.view(x).dtype == "f8e4m3"


def test_numbers_are_arrays_without_dimensions() -> None:
    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8e5m2": ml_dtypes.float8_e5m2}
    numbers = [(2, "f32"), (0.5, "f32"), (np.float64(0.5), "f32"), (np.int64(3), "f32")]
    for number, dtype in [*numbers, *((kind(0.5), name) for name, kind in kinds.items())]:
        view = arrays.view(number)
        assert (view.dtype, view.shape, view.device) == (dtype, (), HOST)
        assert float(view.owner) == float(number)


# What is refused


FOREIGN: list[tuple[Callable[[FakeDriver], Any], str]] = [
    (lambda _: tensor(2, dtype="int64"), r"kernels do not support torch\.int64: .*\.to\(torch\.float32\)"),
    (lambda _: tensor(2, layout="sparse_coo"), r"tensors of layout .* pass \.to_dense"),
    (lambda _: torch("f32", "meta"), "it is on meta: move it"),
    (lambda _: CupyArray((2,), np.int64), r"kernels do not support int64: .*\.astype\(cupy\.float32\)"),
    (lambda _: JaxTracer(), "a traced JAX value"),
    (lambda driver: Interface(driver, (2,), "<i4"), r"kernels do not support int32: cast"),
    (lambda driver: Interface(driver, (2,), "<V1"), "kernels do not support void8"),
    (lambda driver: Interface(driver, (2,), ">f4"), "its byte order .*cast it"),
    (lambda driver: Interface(driver, (2,), "<f4", mask=object()), "masked"),
    (lambda driver: Interface(driver, (2,), "<f4", stream=0, version=3), ".*stream 0"),
    (lambda driver: Interface(driver, (2,), "<f4", strides=(6,)), r"its strides, \(6,\) bytes"),
]


def test_arrays_of_libraries_that_are_refused(driver: FakeDriver, streams: dict[int, int]) -> None:
    for make, message in FOREIGN:
        with pytest.raises(TypeError, match="^x: .*" + message):
            arrays.view(make(driver), "x")


REFUSED = [
    (
        np.zeros(3, np.int64),
        r"kernels do not support int64: cast it, for instance with \.astype\(numpy\.float32\)",
    ),
    (np.array(["a", "b"]), "its elements are strings: a norm takes arrays of numbers"),
    (np.array([b"a"]), "its elements are strings of bytes"),
    (np.array([None]), "its elements are Python objects"),
    (np.zeros(3, "M8[s]"), "its elements are dates"),
    (np.zeros(3, [("a", "f4")]), "its elements are records"),
    (np.zeros(3, ">f4"), r"its byte order .*\.astype\('f4'\)"),
    (np.ma.zeros(3, dtype=np.float32), "masked"),
    (np.zeros(4, [("a", "f4"), ("b", "i1")])["a"], r"its strides, \(5,\) bytes"),
    ([1.0, 2.0], "expected an array, got a list: .*numpy.asarray"),
    (True, "expected an array, got bool"),
    ("text", "expected an array, got str"),
    (type("Other", (), {"__module__": DeviceArray.__module__})(), "expected an array, got Other"),
]


def test_what_is_no_array_of_numbers_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "cupy", "jax", "pycuda.gpuarray"):  # as another thread is importing them
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for thing, message in REFUSED:
        with pytest.raises(TypeError, match=f"^x: {message}"):
            arrays.view(thing, "x")
        with pytest.raises(TypeError, match=f"^{message}"):
            arrays.view(thing)


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


# Our own arrays, and the protocols


def test_device_arrays_of_our_own(driver: FakeDriver) -> None:
    x = DeviceArray((2, 3), "bf16", CUDA)
    view = arrays.view(x)
    interface = x.__cuda_array_interface__
    assert interface["data"] == (x.pointer, False) and interface["stream"] == 1 and interface["version"] == 3
    again = arrays.view(Exchange(x.__dlpack__(stream=1), x.__dlpack_device__()))
    assert again[:6] == view[:6]
    driver.primary(1).copy_in(x.pointer, np.arange(6).astype(ml_dtypes.bfloat16).view(np.uint8))
    assert (x.get().astype(np.float32) == np.arange(6).reshape(2, 3)).all() and x.get().dtype == x.dtype
    assert DeviceArray((0, 3), "f32", ("cuda", 0)).get().shape == (0, 3)
    count = len(driver.memory)
    del x, view, again
    gc.collect()
    assert len(driver.memory) == count - 1


def test_windows_of_our_own_arrays(driver: FakeDriver) -> None:
    base = np.arange(20).astype(ml_dtypes.bfloat16)
    x = DeviceArray.of(base, CUDA)
    rows = x.window(3, (3, 4), (5, 1))
    view = arrays.view(rows)
    assert (view.pointer, view.shape, view.strides) == (x.pointer + 6, (3, 4), (5, 1))
    again = arrays.view(Exchange(rows.__dlpack__(stream=1), rows.__dlpack_device__()))
    assert (again.pointer, again.strides) == (view.pointer, view.strides)
    del x, again
    gc.collect()
    found = rows.get().astype(np.float32)  # a window keeps the memory
    assert (found == base.astype(np.float32)[3:18].reshape(3, 5)[:, :4]).all()
    assert rows.window(0, (0, 4), (5, 1)).get().shape == (0, 4)


def test_pycuda_s_own_arrays(pycuda_machine: Machine) -> None:
    code = """
    import ml_dtypes, numpy as np
    import pycuda.driver as api, pycuda.gpuarray as gpuarray
    from normgen import arrays
    from normgen.devices.cuda import executor as cuda
    context = cuda.default_driver().primary(0)
    with context:
        x = gpuarray.GPUArray((2, 3), np.dtype(ml_dtypes.float8_e5m2))
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
    ours = arrays.allocate(there, (16,), "f32")
    """
    pycuda_machine.check(code)
    assert [line for line in pycuda_machine.log if line.startswith("copy")] == ["copy in 20", "copy out 20"]
    sizes = [(6, "primary0"), (8, "primary0"), (8, "primary0"), (20, "own0"), (20, "own0"), (64, "own0")]
    allocated = [line for line in pycuda_machine.log if line.startswith("allocate")]
    assert allocated == [f"allocate {size} in {context}" for size, context in sizes]
