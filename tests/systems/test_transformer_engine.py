"""Transformer Engine's table of types: RMSNorm whose results are of another type than its input.

Results are compared with float64 under the tolerances of float32 whatever they are stored in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen.runtime.norm import Norm

from .compare import Array, bf16, close, f8e4m3, f8e5m2, f16, f32, loaded, normal, wide

pytestmark = pytest.mark.kernels

EPS = 1e-5


def root(x: Array) -> Array:
    return 1 / np.sqrt((x**2).mean(-1) + EPS)


def gradients(x: Array, w: Array, dz: Array, rsigma: Array) -> tuple[Array, Array]:
    xhat = x * rsigma[:, None]
    dx = rsigma[:, None] * (dz * w - xhat * (dz * w * xhat).mean(-1, keepdims=True))
    return dx, (dz * xhat).sum(0)


def to_another(dtype: str) -> Norm:
    """RMSNorm with results of another type than its input: a word in the spec."""
    source = normgen.bundled.read("rmsnorm")
    assert source is not None
    return loaded(source.text.replace("output y[..., D] =", f"output y[..., D]: {dtype} ="))


@pytest.mark.parametrize(("name", "dtype"), [("f16", f16), ("bf16", bf16)])
def test_float32_in_and_16_bits_out(name: str, dtype: Any) -> None:
    norm = to_another(name)
    x, dz, w = normal(29, 541), normal(29, 541, seed=1, dtype=dtype), normal(541, seed=2)
    z, rsigma = norm.forward(x, w, eps=EPS)
    assert z.dtype == dtype
    want = root(wide(x))
    close(z, wide(x) * want[:, None] * w, 5e-7, 5e-6)
    dx, dw = norm.backward(dy=dz, x=x, w=w, rstd=rsigma)
    assert dx.dtype == dw.dtype == f32
    for got, expected in zip((dx, dw), gradients(wide(x), wide(w), wide(dz), want), strict=True):
        close(got, expected, 5e-5, 1e-5)


@pytest.mark.parametrize("e5m2", [False, True], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=["f32", "f16", "bf16"])
def test_fp8_out(dtype: Any, e5m2: bool) -> None:
    """z8 = cast(z * scale); amax is of z before it is scaled; scale_inv is 1 / scale."""
    norm = loaded("rmsnorm_quantized_static", e5m2=e5m2)
    x, w = normal(29, 541, dtype=dtype), normal(541, seed=2, dtype=dtype)
    scale = f32(13.5)
    result = norm.forward(x, scale, w, eps=EPS)
    assert (
        result.q.dtype == (f8e5m2 if e5m2 else f8e4m3) and result.amax.shape == result.scale_inv.shape == ()
    )
    z = wide(x) * root(wide(x))[:, None] * wide(w)
    close(result.q, z * float(scale), 0, 1e-6)
    np.testing.assert_allclose(result.amax, np.abs(z).max(), rtol=1e-6)
    np.testing.assert_allclose(result.scale_inv, 1 / float(scale), rtol=1e-7)
    np.testing.assert_allclose(result.rstd, root(wide(x)), rtol=5e-5)
