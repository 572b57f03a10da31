"""The tape on device arrays, over the imaginary driver.

No kernel runs here. PyCUDA's arithmetic is imitated on the driver's memory, so gradients of it have values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normgen
from examples.autograd import Tensor, apply
from normgen.arrays.device_array import DeviceArray
from normgen.runtime.norm import Norm
from tests.autograd.drawing import draw
from tests.fakes.arrays import GpuArray, install
from tests.fakes.driver import FakeDriver

f32 = np.float32
SPEC = """norm rms
input  x[..., D]
param  w[D] = 1
save   rstd[...] = rsqrt(mean[D](x^2) + 1e-6)
output y[..., D] = x * rstd * w
"""


class Gpu(GpuArray):
    """PyCUDA's array with its operators, which walk memory in order."""

    @classmethod
    def of(cls, values: Any) -> Gpu:
        array = np.asarray(values)
        made = cls(array.shape, array.dtype)
        made._memory()[: array.nbytes] = array.tobytes()
        return made

    def _memory(self) -> memoryview:
        content, start = self.driver.find(int(self.gpudata), 1)
        return memoryview(content)[start:]

    def get(self) -> Any:
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        return np.frombuffer(bytes(self._memory()[:size]), self.dtype).reshape(self.shape)

    def fill(self, value: Any) -> Gpu:
        self._memory()[: self.get().nbytes] = np.full(self.shape, value, self.dtype).tobytes()
        return self

    def copy(self) -> Gpu:
        return Gpu.of(self.get())

    def reshape(self, shape: tuple[int, ...]) -> Gpu:
        view = Gpu.__new__(Gpu)
        view.__dict__.update(self.__dict__)
        view.shape = shape
        view.strides = np.empty(shape, self.dtype).strides
        return view

    def _combine(self, other: Any, operator: Callable[[Any, Any], Any]) -> Any:
        if not isinstance(other, GpuArray) and not np.isscalar(other):
            return NotImplemented
        made = np.asarray(operator(self.get(), other.get() if isinstance(other, Gpu) else other))
        # As PyCUDA does it: a double for a number that is not a float32 would have crept in here.
        assert made.dtype == self.dtype
        return Gpu.of(made)

    def __add__(self, other: Any) -> Any:
        return self._combine(other, np.add)

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, np.subtract)

    def __mul__(self, other: Any) -> Any:
        return self._combine(other, np.multiply)

    def __iadd__(self, other: Gpu) -> Gpu:
        self._memory()[: self.get().nbytes] = (self.get() + other.get()).tobytes()
        return self


@pytest.fixture(autouse=True)
def arithmetic(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyCUDA's sum, in a context of PyCUDA's own."""
    install(monkeypatch, driver)
    total = lambda array: Gpu.of(np.asarray(array.get().sum(dtype=f32)))  # noqa: E731
    monkeypatch.setattr(sys.modules["pycuda.gpuarray"], "sum", total, raising=False)
    driver.make_current(0)


@pytest.fixture(scope="module")
def norm() -> Norm:
    return normgen.load(SPEC)


def test_a_norm_runs_both_ways_on_the_device(driver: FakeDriver, norm: Norm) -> None:
    x, w = Tensor(Gpu.of(draw(600, 64)), requires_grad=True), Tensor(Gpu.of(draw(64)), requires_grad=True)
    gradients = []
    for _ in range(2):
        y = apply(norm, x, w).y
        assert type(y.data) is Gpu and y.requires_grad
        before = len(driver.launches)
        (y * Gpu.of(draw(600, 64))).sum().backward()
        assert type(x.grad) is Gpu and x.grad.shape == (600, 64) and type(w.grad) is Gpu
        assert len(driver.launches) - before >= 2
        gradients.append(w.grad)
    assert gradients[0] is gradients[1]  # the kernels added to it
    assert not driver.copies and not driver.synchronized  # nothing went through the host


FORMULAS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda a, b: ((a * b - a) * 2.0 + 0.5 - b + (1.0 - a * -b) * a).sum() * 0.25,
    "reshaped": lambda a, b: (a.reshape(4, 3) * b.reshape(-1, 3)).reshape(12).sum(),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_arithmetic_is_that_of_numpy(driver: FakeDriver, name: str) -> None:
    made = []
    for kind in (np.asarray, Gpu.of):
        leaves = [Tensor(kind(draw(3, 4, seed=i)), requires_grad=True) for i in range(2)]
        loss = FORMULAS[name](*leaves)
        assert loss.shape == () and type(loss.data) is type(leaves[0].data)
        for _ in range(2):
            loss.backward(retain_graph=True)
        made.append([loss.item(), *(each.grad for each in leaves)])
    (item, *gradients), (device_item, *device_gradients) = made
    assert item == device_item
    for host, device in zip(gradients, device_gradients, strict=True):
        np.testing.assert_array_equal(device.get(), host)


def test_gradients_of_other_libraries_arrays_meet_in_params_only(driver: FakeDriver, norm: Norm) -> None:
    """Kernels add the gradients of params for arrays of any library and type; nothing else adds them up."""
    device = ("cuda", 0)
    x = Tensor(DeviceArray.of(draw(600, 64), device), requires_grad=True)
    w = Tensor(DeviceArray.of(draw(64).astype(np.float16), device), requires_grad=True)
    seed = DeviceArray.of(draw(600, 64), device)
    for _ in range(2):
        apply(norm, x.detach(), w).y.backward(seed)
    assert type(w.grad) is DeviceArray and w.grad.dtype == np.float16
    apply(norm, x, w.detach()).y.backward(seed)
    with pytest.raises(TypeError, match="a value used twice supports NumPy and PyCUDA arrays, not Dev"):
        apply(norm, x, w.detach()).y.backward(seed)
    x.zero_grad()
    assert type(x.grad) is DeviceArray and x.grad.shape == (600, 64) and not x.grad.get().any()


HALF = np.ones((2, 2), np.float16)


@pytest.mark.parametrize(
    ("make", "fault", "words"),
    [
        (lambda: _gpu(2, 2) @ _gpu(2, 2), TypeError, "@ supports NumPy arrays, not Gpu"),
        (lambda: _gpu(2, 2) + draw(2, 2), TypeError, "move both to one device"),
        (lambda: _gpu(2, 2) + _gpu(2), ValueError, "needs equal shapes"),
        (lambda: Tensor(Gpu.of(HALF)) * 2, TypeError, "supports float32, not float16"),
        (lambda: _gpu(2, 2, strides=(4, 8)) + 1, TypeError, "on a strided GPUArray"),
        (lambda: _device(2, 2) + 1, TypeError, r"\+ supports NumPy and PyCUDA arrays, not Device"),
        (lambda: _device(1).backward(), TypeError, r"backward\(\) without grad supports"),
        (lambda: _gpu(2, 2).backward(draw(2, 2)), ValueError, "grad and the tensor are on different devices"),
    ],
)
def test_refusals(driver: FakeDriver, make: Callable[[], Any], fault: type[Exception], words: str) -> None:
    with pytest.raises(fault, match=words):
        make()


def test_what_pycuda_cannot_add_says_so(driver: FakeDriver) -> None:
    x = Tensor(Gpu.of(HALF), requires_grad=True)
    x.backward(Gpu.of(HALF))
    with pytest.raises(TypeError, match="PyCUDA cannot add float16 arrays"):
        x.backward(Gpu.of(HALF))


def _gpu(*shape: int, strides: Any = None) -> Tensor:
    array = Gpu.of(draw(*shape))
    array.strides = strides or array.strides
    return Tensor(array, requires_grad=True)


def _device(*shape: int) -> Tensor:
    return Tensor(DeviceArray.of(draw(*shape), ("cuda", 0)), requires_grad=True)
