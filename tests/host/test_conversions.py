"""The shim's element types convert as ml_dtypes (and CUDA) do: every code, midpoint and neighbour."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.dtypes import DTYPES, round_to
from tests.host.harness import read, run, write

TYPES = ["f16", "bf16", "f8e4m3", "f8e5m2"]

KERNELS = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
using T = @T@;
extern "C" __global__ void round_all(const float* x, T* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = T(x[i]);
}
extern "C" __global__ void widen_all(const T* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = float(x[i]);
}
"""


def text(name: str) -> str:
    return KERNELS.replace("@T@", DTYPES[name].c_type)


def codes(name: str) -> np.ndarray:
    """Every value of a type of 8 or 16 bits, by its code."""
    width = DTYPES[name].bytes
    return np.arange(1 << 8 * width, dtype=f"u{width}").view(DTYPES[name].numpy)


def rounded(name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty(x.shape, DTYPES[name].numpy)
    run(HostExecutor(), text(name), "round_all", 8, 32, read(x), write(y), x.size)
    return y


@pytest.mark.parametrize("name", TYPES)
def test_every_code_widens(name: str) -> None:
    x = codes(name)
    y = np.empty(x.shape, np.float32)
    run(HostExecutor(), text(name), "widen_all", 8, 32, read(x), write(y), x.size)
    expected = x.astype(np.float32)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(y), ~finite)
    np.testing.assert_array_equal(y[finite].view(np.uint32), expected[finite].view(np.uint32))
    # and goes back to the same code, or to the largest value if the type never rounds to infinity
    same = finite & (np.isfinite(expected) | (not DTYPES[name].saturates))
    bits = f"u{x.itemsize}"
    np.testing.assert_array_equal(rounded(name, y)[same].view(bits), x[same].view(bits))


@pytest.mark.parametrize("name", TYPES)
def test_midpoints_and_their_neighbours_round_to_even(name: str) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        values = codes(name).astype(np.float32)
        values = np.unique(values[np.isfinite(values)])
        middles = ((values[:-1].astype(np.float64) + values[1:]) / 2).astype(np.float32)
        beyond = (DTYPES[name].largest * (1 + np.arange(-8, 80) / 64)).astype(np.float32)
    random = np.random.default_rng(1).integers(0, 1 << 32, 50_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([values, middles, beyond, -beyond, random[~np.isnan(random)], np.float32([np.inf])])
    x = np.concatenate([x, -x, *(np.nextafter(x, np.float32(to)) for to in (np.inf, -np.inf))])
    expected = round_to(x, name)
    bits = f"u{expected.itemsize}"
    np.testing.assert_array_equal(rounded(name, x).view(bits), expected.view(bits))
    x = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert set(rounded(name, x).view(bits)) == {0x7FFF if bits == "u2" else 0x7F}, "the canonical NaN"


VECTORS = """
#include <cuda_fp8.h>
extern "C" __global__ void vectors(const float* x, unsigned char* y, float* z) {
  const float4 v = make_float4(x[0], x[1], x[2], x[3]);
  const __nv_fp8x4_e4m3 a(v);
  const __nv_fp8x2_e5m2 b(make_float2(v.x, v.y));
  *reinterpret_cast<unsigned*>(y) = a.__x;
  *reinterpret_cast<unsigned short*>(y + 4) = b.__x;
  const float4 back = float4(a);
  const float2 h = __half22float2(__floats2half2_rn(x[0], x[1]));
  const float2 g = __bfloat1622float2(__floats2bfloat162_rn(x[0], x[1]));
  z[0] = back.x; z[1] = back.y; z[2] = back.z; z[3] = back.w; z[4] = h.x; z[5] = h.y; z[6] = g.x; z[7] = g.y;
}
"""


def test_vectors_of_narrow_types() -> None:
    x = np.float32([1.3, -2.7, 0.001, 1e6])
    y, z = np.empty(6, np.uint8), np.empty(8, np.float32)
    run(HostExecutor(True), VECTORS, "vectors", 1, 1, read(x), write(y), write(z))
    e4m3, e5m2 = round_to(x, "f8e4m3"), round_to(x, "f8e5m2")
    assert list(y) == [*e4m3.view(np.uint8), *e5m2[:2].view(np.uint8)]
    narrow = [round_to(x[:2], name).astype(np.float32) for name in ("f16", "bf16")]
    np.testing.assert_array_equal(z, np.concatenate([e4m3.astype(np.float32), *narrow]))


EXTREMES = """
template <class T> struct Value { static constexpr bool IS = true; };
template <class T> struct Value<T&> { static constexpr bool IS = false; };
extern "C" __global__ void extremes(const @A@* a, const @B@* b, long long* least, long long* most, int n) {
  static_assert(Value<decltype(min(a[0], b[0]))>::IS && Value<decltype(max(a[0], b[0]))>::IS, "a reference");
  const int i = threadIdx.x;
  if (i < n) least[i] = min(a[i], b[i]), most[i] = max(a[i], b[i]);
}
"""
INTEGERS = {"signed char": np.int8, "int": np.int32, "unsigned": np.uint32, "long long": np.int64}


@pytest.mark.parametrize("pair", list(itertools.product(INTEGERS, repeat=2)), ids=" and ".join)
def test_extremes_of_integers_are_values_of_the_common_type(pair: tuple[str, str]) -> None:
    """As `?:` has it: of an int and an unsigned, both are unsigned."""
    a, b = (np.array([1, -1, 7, 0, -5]).astype(INTEGERS[name]) for name in pair)
    b = b[::-1].copy()
    common = (
        np.uint32 if {*pair} in ({"unsigned"}, {"int", "unsigned"}, {"signed char", "unsigned"}) else np.int64
    )
    least, most = np.empty(5, np.int64), np.empty(5, np.int64)
    text = EXTREMES.replace("@A@", pair[0]).replace("@B@", pair[1])
    run(HostExecutor(), text, "extremes", 1, 32, read(a), read(b), write(least), write(most), 5)
    np.testing.assert_array_equal(least, np.minimum(a.astype(common), b.astype(common)))
    np.testing.assert_array_equal(most, np.maximum(a.astype(common), b.astype(common)))
