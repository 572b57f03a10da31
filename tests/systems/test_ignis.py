"""Ignis: LayerNorm, RMSNorm and softmax of the last dimension, their nullable statistics, and gradients of
which those of data are overwritten and those of parameters added up.
"""

from __future__ import annotations

import numpy as np
import pytest

from .compare import Array, close, f32, loaded, normal, wide

SHAPES = [(1, 1), (1, 7), (5, 32), (33, 100), (2, 3, 64), (4, 1025)]


def stats(x: Array, eps: float) -> tuple[Array, Array]:
    """Mean and reciprocal deviation, biased, of each row."""
    mean = x.mean(-1, keepdims=True)
    return mean, 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)


def layer_norm_gradients(x: Array, w: Array, dy: Array, eps: float) -> tuple[Array, Array, Array]:
    mean, r = stats(x, eps)
    xhat, n = (x - mean) * r, x.shape[-1]
    a = (dy * w).sum(-1, keepdims=True)
    b = (dy * w * xhat).sum(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return r * (dy * w - (a + xhat * b) / n), (dy * xhat).sum(rows), dy.sum(rows)


def rms_norm_gradients(x: Array, w: Array, dy: Array, eps: float) -> tuple[Array, Array]:
    r = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    s = (dy * w * x * r).sum(-1, keepdims=True)
    return r * (dy * w - x * r * s / x.shape[-1]), (dy * x * r).sum(tuple(range(x.ndim - 1)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape: tuple[int, ...]) -> None:
    norm = loaded("layernorm")
    x, dy = normal(*shape), normal(*shape, seed=1)
    w, b = normal(shape[-1], seed=2), normal(shape[-1], seed=3)
    result = norm.forward(x, w, b, eps=1e-5)
    mean, r = stats(wide(x), 1e-5)
    close(result.y, (wide(x) - mean) * r * w + wide(b), 2e-6, 2e-6)
    close(result.mu, mean[..., 0], 1e-6)
    close(result.rstd, r[..., 0], 0, 2e-6)
    gradients = norm.backward(dy=dy, x=x, w=w, mu=result.mu, rstd=result.rstd, b=b)
    want = layer_norm_gradients(wide(x), wide(w), wide(dy), 1e-5)
    scale = max(1.0, float(r.max()))
    for got, expected in zip(gradients, want, strict=True):
        close(got, expected, 1e-5 * scale, 1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, ...]) -> None:
    norm = loaded("rmsnorm")
    x, dy, w = normal(*shape), normal(*shape, seed=1), normal(shape[-1], seed=2)
    result = norm.forward(x, w, eps=1e-5)
    r = 1 / np.sqrt((wide(x) ** 2).mean(-1) + 1e-5)
    close(result.y, x * r[..., None] * w, 1e-6, 2e-6)
    close(result.rstd, r, 0, 1e-6)
    gradients = norm.backward(dy=dy, x=x, w=w, rstd=result.rstd)
    want = rms_norm_gradients(wide(x), wide(w), wide(dy), 1e-5)
    for got, expected in zip(gradients, want, strict=True):
        close(got, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_keeps_its_output(shape: tuple[int, ...]) -> None:
    norm = loaded("softmax")
    assert norm.backward_args == ("dy", "y")
    x, dy = 3 * normal(*shape), normal(*shape, seed=1)
    (y,) = norm.forward(x)
    e = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True)
    close(y, want, 1e-7, 2e-6)
    (dx,) = norm.backward(dy, y)
    close(dx, want * (dy - (dy * want).sum(-1, keepdims=True)), 1e-6)


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_statistics_may_be_left_out(name: str) -> None:
    """As null `mean_out` and `rstd_out` are: nothing else changes, and one of them may be asked for."""
    norm = loaded(name)
    x, w = normal(5, 32), normal(32, seed=2)
    full, bare = norm.forward(x, w), norm.forward(x, w, save=False)
    assert (full.y == bare.y).all()
    assert all(getattr(bare, stat) is None for stat in full._fields[1:])
    rstd = np.empty(5, f32)
    one = norm.forward(x, w, save=False, out={"rstd": rstd})
    assert one.rstd is rstd and (rstd == full.rstd).all()


def test_gradients_of_data_are_overwritten_and_those_of_parameters_added() -> None:
    norm = loaded("layernorm")
    x, dy, w = normal(33, 100), normal(33, 100, seed=1), normal(100, seed=2)
    _, mu, rstd = norm.forward(x, w, normal(100, seed=3))
    plain = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
    out = {"dx": np.full_like(x, np.nan), "dw": np.zeros(100, f32), "db": np.zeros(100, f32)}
    for times in (1, 2):
        norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd, out=out, accumulate=True)
        assert (out["dx"] == plain.dx).all()
        np.testing.assert_allclose(out["dw"], times * wide(plain.dw), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(out["db"], times * wide(plain.db), rtol=1e-6, atol=1e-6)
    again = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
    assert all((one == two).all() for one, two in zip(plain, again, strict=True)), "the same bits each time"


def test_no_rows_and_rows_of_nothing() -> None:
    """Where Ignis cannot launch, or divides by zero."""
    norm = loaded("rmsnorm")
    empty, w = np.zeros((0, 32), f32), normal(32)
    y, rstd = norm.forward(empty, w)
    assert y.shape == (0, 32) and rstd.shape == (0,)
    dx, dw = norm.backward(dy=empty, x=empty, w=w, rstd=rstd)
    assert dx.shape == (0, 32) and dw.shape == (32,) and not dw.any()
    with pytest.raises(ValueError, match="D is 0"):
        norm.forward(np.zeros((3, 0), f32), np.zeros(0, f32))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"w": normal(31)}, r"D is 32 in x\[\.\.\., D\] but 31 in w\[D\]"),
        ({"b": normal(33)}, r"D is 32 in x\[\.\.\., D\] but 33 in b\[D\]"),
        ({"w": normal(1, 32)}, "w"),
    ],
)
def test_what_ignis_does_not_check(arrays: dict[str, Array], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loaded("layernorm").forward(**{"x": normal(5, 32), **arrays})
