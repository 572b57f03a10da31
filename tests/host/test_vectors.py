"""Vectors of fp8 in kernel text: what they hold is what each element alone would be, whatever their width."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.dtypes import DTYPES, round_to
from tests.host.harness import called, read, run, write

FP8 = ("f8e4m3", "f8e5m2")
WIDTHS = (1, 2, 4, 8, 16)

KERNELS = """
using T = @T@;
constexpr int N = @N@;
extern "C" __global__ void pack_all(const float* x, T* y, int count) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first >= count) return;
    float values[N];
    for (int i = 0; i < N; ++i) values[i] = x[first + i];
    store_vector(y + first, pack<T>(values));
}
extern "C" __global__ void unpack_all(const T* x, float* y, int count) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first >= count) return;
    float values[N];
    unpack(load_vector<N>(x + first), values);
    for (int i = 0; i < N; ++i) y[first + i] = values[i];
}
"""


def call(name: str, width: int, entry: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    kernels = KERNELS.replace("@T@", DTYPES[name].c_type).replace("@N@", str(width))
    blocks = -(-x.size // (width * 128))
    run(HostExecutor(), called(kernels), entry, blocks, 128, read(x), write(y), x.size)
    return y


def samples() -> np.ndarray:
    """Every f16 and bf16 value, halves between fp8 values, their neighbours, and any f32."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore", over="ignore"):
        every = [codes.view(DTYPES[name].numpy).astype(np.float32) for name in ("f16", "bf16")]
        fp8 = [np.arange(256, dtype=np.uint8).view(DTYPES[name].numpy).astype(np.float64) for name in FP8]
        values = np.unique(np.concatenate([v[np.isfinite(v)] for v in fp8]))
        halves = ((values[:-1] + values[1:]) / 2).astype(np.float32)
        around = [np.nextafter(halves, np.float32(to)) for to in (-np.inf, np.inf)]
    bits = np.random.default_rng(3).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    found = np.concatenate([*every, halves, *around, bits.view(np.float32)])
    return np.resize(found, -(-found.size // 16) * 16)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FP8)
def test_stores_round_to_even_and_saturate_and_keep_nan(name: str, width: int) -> None:
    x = samples()
    y = call(name, width, "pack_all", x, np.empty(x.shape, DTYPES[name].numpy))
    undefined = np.isnan(x)
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)), undefined)
    expected = round_to(x[~undefined], name)
    np.testing.assert_array_equal(y[~undefined].view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FP8)
def test_loads_are_exact(name: str, width: int) -> None:
    x = np.arange(256, dtype=np.uint8).view(DTYPES[name].numpy)
    y = call(name, width, "unpack_all", x, np.empty(256, np.float32))
    expected = x.astype(np.float32)
    undefined = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(y), undefined)
    np.testing.assert_array_equal(y[~undefined].view(np.uint32), expected[~undefined].view(np.uint32))
