"""Transformer Engine's rmsnorm.h: its shapes and tolerances, its table of types, its query of scratch memory.

The widths are those of its own tests; rows beyond a few repeat what the first ones show, so there are fewer.
Results are compared with float64 under the tolerances of float32 whatever they are stored in, where TE allows
16 bits a relative 1e-2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.runtime.norm import Norm

from .compare import Array, bf16, close, f8e4m3, f8e5m2, f16, f32, loaded, normal, wide

SHAPES = [(71, 229), (29, 541), (12, 6144), (4, 12288), (2, 65536), (229, 541), (64, 2304)]
EPS = 1e-5


def root(x: Array) -> Array:
    return 1 / np.sqrt((x**2).mean(-1) + EPS)


def gradients(x: Array, w: Array, dz: Array, rsigma: Array) -> tuple[Array, Array]:
    xhat = x * rsigma[:, None]
    dx = rsigma[:, None] * (dz * w - xhat * (dz * w * xhat).mean(-1, keepdims=True))
    return dx, (dz * xhat).sum(0)


# Every width in float32, the small ones in each element type, and with gamma + 1 for the gain.
CASES = [(shape, f32, False) for shape in SHAPES]
CASES += [(shape, dtype, False) for shape in SHAPES[:2] for dtype in (f16, bf16)]
CASES += [(shape, dtype, True) for shape in SHAPES[:2] for dtype in (f32, f16, bf16)]


@pytest.mark.parametrize(("shape", "dtype", "zero_centred"), CASES)
def test_rmsnorm(shape: tuple[int, int], dtype: Any, zero_centred: bool) -> None:
    norm = loaded("rmsnorm_zero_centred" if zero_centred else "rmsnorm")
    x, dz = (normal(*shape, seed=seed, dtype=dtype) for seed in (0, 1))
    w = normal(shape[1], seed=2, dtype=dtype)
    gain = wide(w) + zero_centred
    z, rsigma = norm.forward(x, w, eps=EPS)
    assert z.dtype == dtype and rsigma.dtype == f32 and rsigma.shape == shape[:1]
    want = root(wide(x))
    np.testing.assert_allclose(rsigma, want, rtol=5e-5)
    close(z, wide(x) * want[:, None] * gain, 5e-7, 5e-6)
    got = norm.backward(dy=dz, x=x, w=w, rstd=rsigma, eps=EPS)
    for gradient, expected in zip(got, gradients(wide(x), gain, wide(dz), want), strict=True):
        assert gradient.dtype == dtype
        close(gradient, expected, 5e-6, 1e-4)


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


@pytest.mark.parametrize("alignment", [16, 2])
def test_the_query_is_what_the_run_takes(alignment: int) -> None:
    """The answer needs no pointers and knows alignment: the run takes arrays of just those shapes."""
    norm = loaded("rmsnorm")
    rows, width = 71, 232
    block = np.zeros(rows * width + 8, f16)
    start = (-block.ctypes.data % 16) // 2 + (alignment < 16)
    x = block[start : start + rows * width].reshape(rows, width)
    x[:] = normal(rows, width, dtype=f16)
    w, dz = normal(width, seed=2, dtype=f16), normal(rows, width, seed=1, dtype=f16)
    rsigma = norm.forward(x, w).rstd
    sizes = {"...": (rows,), "D": width}
    assert norm.workspace("forward", sizes, "f16", alignment=alignment) == {}
    query = norm.workspace("backward", sizes, "f16", device=HostExecutor().device, alignment=alignment)
    ((name, (shape, dtype)),) = query.items()
    assert shape[-1] == width and dtype == "f32", "one row of partial sums for each block"
    plain = norm.backward(dz, x, w, rsigma)
    given = norm.backward(dz, x, w, rsigma, workspace={name: np.empty(shape, f32)})
    assert all(one.tobytes() == two.tobytes() for one, two in zip(plain, given, strict=True))
    for wrong in (np.empty((shape[0], width + 1), f32), np.empty(shape, f16)):
        with pytest.raises((TypeError, ValueError), match=name):
            norm.backward(dz, x, w, rsigma, workspace={name: wrong})


ERRORS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("gamma of another length", {"w": normal(228)}, ValueError, r"D is 229 in x\[\.\.\., D\] but 228 in w"),
    ("eps not finite", {"eps": float("nan")}, ValueError, "eps"),
    ("z of another shape", {"out": {"y": normal(71, 228)}}, ValueError, "228"),
    ("rsigma of another shape", {"out": {"rstd": normal(70)}}, ValueError, "70"),
    ("rsigma not float32", {"out": {"rstd": normal(71, dtype=f16)}}, TypeError, "f32"),
    ("an element type it has not", {"w": np.zeros(229)}, TypeError, "float64|f64"),
    ("integers", {"w": np.zeros(229, np.int32)}, TypeError, "int32"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "message"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS]
)
def test_what_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        loaded("rmsnorm").forward(normal(71, 229), **{"w": normal(229, seed=2), **arguments})


def test_an_rsigma_that_the_backward_cannot_read() -> None:
    norm, x, w = loaded("rmsnorm"), normal(71, 229), normal(229, seed=2)
    for rsigma, error in ((normal(70), ValueError), (normal(71, dtype=f16), TypeError)):
        with pytest.raises(error, match="rstd"):
            norm.backward(dy=x, x=x, w=w, rstd=rsigma)
