"""COAT's FP8 RMSNorm: group-scaled FP8 in, per-tensor FP8 out and its transpose, bf16 gradients of the
dequantised value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .compare import Array, bf16, close, f8e4m3, f8e5m2, f32, loaded, normal, rounded, wide

pytestmark = pytest.mark.kernels

EPS = 1e-6
TYPES = [pytest.param(False, id="e4m3"), pytest.param(True, id="e5m2")]
LARGEST = {False: 448.0, True: 57344.0}
# How far a bf16 of Y over the bf16 scale may reach: past the largest finite value, and still rounded to it.
REACH = {False: 450.97, True: 57724.0}


def quantised(values: Array, e5m2: bool, group: int) -> tuple[Array, Array]:
    """Groups of the last dimension by s = bf16(amax / fp8_max) and q = fp8(x / s)."""
    kind = f8e5m2 if e5m2 else f8e4m3
    grouped = values.reshape(*values.shape[:-1], -1, group)
    scale = rounded(np.abs(grouped).max(-1) / LARGEST[e5m2], bf16)
    safe = np.where(scale == 0, 1, scale)[..., None]
    return rounded(grouped / safe, kind).astype(kind).reshape(values.shape), scale.astype(bf16)


def dequantised(xq: Array, xs: Array, group: int) -> Array:
    return (wide(xq).reshape(*xs.shape, group) * wide(xs)[..., None]).reshape(xq.shape)


def normalised(x: Array, w: Array) -> tuple[Array, Array]:
    """Y before it is rounded, and rstd."""
    rstd = 1 / np.sqrt((x**2).mean(-1) + EPS)
    return x * rstd[..., None] * wide(w), rstd


def check(xq: Array, xs: Array, w: Array, result: Any, e5m2: bool, group: int) -> None:
    """All outputs against float64; of values that lie near the middle of two, either will do."""
    y, rstd = normalised(dequantised(xq, xs, group), w)
    room = 4e-7 * np.abs(y)
    np.testing.assert_allclose(result.rstd, rstd, rtol=1e-6)
    largest = [rounded((np.abs(y).max() * f + 1e-10) / LARGEST[e5m2], bf16) for f in (1 - 4e-7, 1 + 4e-7)]
    scale = float(wide(result.scale))
    assert result.scale.dtype == bf16 and result.scale.shape == () and largest[0] <= scale <= largest[1]
    low, high = (rounded(rounded(v, bf16) / scale, result.q.dtype) for v in (y - room, y + room))
    q = wide(result.q)
    assert ((low <= q) & (q <= high)).all()
    assert np.abs(rounded(y, bf16)).max() / scale <= REACH[e5m2] and np.abs(q).max() <= LARGEST[e5m2]
    rows = result.q.reshape(-1, xq.shape[-1])
    assert result.qt.shape == (xq.shape[-1], *xq.shape[:-1])
    assert result.qt.reshape(xq.shape[-1], -1).tobytes() == np.ascontiguousarray(rows.T).tobytes()


@pytest.mark.parametrize("e5m2", TYPES)
@pytest.mark.parametrize(("shape", "group"), [((33, 96), 32), ((2, 5, 48), 16), ((1, 16), 16)])
def test_forward(shape: tuple[int, ...], group: int, e5m2: bool) -> None:
    norm = loaded("rmsnorm_fp8", e5m2=e5m2, group=group)
    xq, xs = quantised(3 * wide(normal(*shape)), e5m2, group)
    w = normal(shape[-1], seed=2, dtype=bf16)
    check(xq, xs, w, norm.forward(xq, xs, w, eps=EPS), e5m2, group)


@pytest.mark.parametrize("e5m2", TYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_scale_leaves_no_value_outside(scale: float, e5m2: bool) -> None:
    """A bf16 scale may be too small by half its last place; what exceeds the range by that saturates."""
    norm = loaded("rmsnorm_fp8", e5m2=e5m2)
    for seed in range(4):
        xq, xs = quantised(scale * wide(normal(4, 64, seed=seed)), e5m2, 16)
        w = normal(64, seed=seed + 9, dtype=bf16)
        result = norm.forward(xq, xs, w)
        check(xq, xs, w, result, e5m2, 16)
        assert (
            np.isfinite(wide(result.q)).all() and np.abs(wide(result.q)).max() > LARGEST[e5m2] / 1.01 / 1.13
        )


@pytest.mark.parametrize("e5m2", TYPES)
def test_rows_of_zeros(e5m2: bool) -> None:
    norm = loaded("rmsnorm_fp8", e5m2=e5m2)
    values = wide(normal(4, 64))
    values[1] = 0
    xq, xs = quantised(values, e5m2, 16)
    w = normal(64, seed=2, dtype=bf16)
    result = norm.forward(xq, xs, w)
    check(xq, xs, w, result, e5m2, 16)
    assert not wide(result.q)[1].any()
    zeros = norm.forward(np.zeros_like(xq), np.zeros_like(xs), w)
    assert not wide(zeros.q).any() and not wide(zeros.qt).any()
    assert float(zeros.scale) == rounded(1e-10 / LARGEST[e5m2], bf16)


@pytest.mark.parametrize("e5m2", TYPES)
@pytest.mark.parametrize("shape", [(33, 96), (2, 5, 48)])
def test_backward(shape: tuple[int, ...], e5m2: bool) -> None:
    """Gradients in bf16 of the value that the FP8 input stands for; the quantisers let them through."""
    norm = loaded("rmsnorm_fp8", e5m2=e5m2)
    assert norm.backward_args == ("dy", "xq", "xs", "w", "rstd")
    xq, xs = quantised(wide(normal(*shape)), e5m2, 16)
    w, dy = normal(shape[-1], seed=2, dtype=bf16), normal(*shape, seed=1, dtype=bf16)
    x = dequantised(xq, xs, 16)
    _, rstd = normalised(x, w)
    dx, dw = norm.backward(dy=dy, xq=xq, xs=xs, w=w, rstd=rstd.astype(f32))
    assert dx.dtype == dw.dtype == bf16 and dx.shape == shape
    g, xhat = wide(dy) * wide(w), x * rstd[..., None]
    close(dx, rstd[..., None] * (g - xhat * (g * xhat).mean(-1, keepdims=True)), 2e-6, 2e-6)
    close(dw, (wide(dy) * xhat).sum(tuple(range(len(shape) - 1))), 1e-5, 1e-5)


def test_no_rows() -> None:
    norm = loaded("rmsnorm_fp8")
    xq, xs, w = np.zeros((0, 64), f8e4m3), np.zeros((0, 4), bf16), normal(64, dtype=bf16)
    result = norm.forward(xq, xs, w)
    assert result.q.shape == (0, 64) and result.qt.shape == (64, 0)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"xq": np.zeros((8, 60), f8e4m3)}, ValueError, "60"),
        ({"xs": np.zeros((8, 5), bf16)}, ValueError, r"\(G E\) is 64 in xq.* but G = 5 and E = 16 in xs"),
        ({"xs": np.zeros((8, 4), f32)}, TypeError, "xs.*must be bf16"),
        ({"xq": np.zeros((8, 64), f8e5m2)}, TypeError, "xq.*must be f8e4m3"),
    ],
)
def test_what_is_refused(wrong: dict[str, Array], error: type[Exception], message: str) -> None:
    good = {"xq": np.zeros((8, 64), f8e4m3), "xs": np.zeros((8, 4), bf16), "w": np.zeros(64, bf16)}
    with pytest.raises(error, match=message):
        loaded("rmsnorm_fp8").forward(**{**good, **wrong})
