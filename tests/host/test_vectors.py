"""Vectors of fp8 in kernel text: what they hold is what each element alone would be, whatever their width."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.dtypes import DTYPES, round_to
from tests.host.harness import read, run, write

KERNEL = """
using T = @T@;
constexpr int N = @N@;
extern "C" __global__ void convert(const float* x, T* y, const T* codes, float* z, int count) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first >= count) return;
    float values[N];
    for (int i = 0; i < N; ++i) values[i] = x[first + i];
    store_vector(y + first, pack<T>(values));
    if (first >= 256) return;
    unpack(load_vector<N>(codes + first), values);
    for (int i = 0; i < N; ++i) z[first + i] = values[i];
}
"""


def samples() -> np.ndarray:
    """Every bf16 value, halves between fp8 values and their neighbours, and any f32."""
    every = np.arange(1 << 16, dtype=np.uint16).view(DTYPES["bf16"].numpy).astype(np.float32)
    codes = np.arange(256, dtype=np.uint8)
    fp8 = np.concatenate([codes.view(DTYPES[n].numpy).astype(np.float64) for n in ("f8e4m3", "f8e5m2")])
    values = np.unique(fp8[np.isfinite(fp8)])
    halves = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    around = [np.nextafter(halves, np.float32(to)) for to in (-np.inf, np.inf)]
    bits = np.random.default_rng(3).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    found = np.concatenate([every, halves, *around, bits.view(np.float32)])
    return np.resize(found, -(-found.size // 16) * 16)


@pytest.mark.parametrize(
    ("name", "width"), [("f8e4m3", 1), ("f8e5m2", 2), ("f8e4m3", 4), ("f8e5m2", 4), ("f8e4m3", 16)]
)
def test_stores_round_to_even_saturate_and_keep_nan_and_loads_are_exact(name: str, width: int) -> None:
    x, codes = samples(), np.arange(256, dtype=np.uint8).view(DTYPES[name].numpy)
    y, z = np.empty(x.shape, codes.dtype), np.empty(256, np.float32)
    text = KERNEL.replace("@T@", DTYPES[name].c_type).replace("@N@", str(width))
    blocks = -(-x.size // (width * 128))
    run(HostExecutor(), text, "convert", blocks, 128, read(x), write(y), read(codes), write(z), x.size)
    undefined = np.isnan(x)
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)), undefined)
    expected = round_to(x[~undefined], name)
    np.testing.assert_array_equal(y[~undefined].view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(z, codes.astype(np.float32))
