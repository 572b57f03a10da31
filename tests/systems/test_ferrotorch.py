"""ferrotorch-gpu: its own test vectors, 1e-4 from float64 forward and 1e-3 backward, and its conventions.

GroupNorm, Softmax over channels, BatchNorm with statistics written for the caller, and local response
normalization that keeps its denominators. A cell is (batch, channels, space); `k` counts elements in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .compare import Array, f32, loaded, normal, wide

FORWARD, BACKWARD = 1e-4, 1e-3


def counted(*shape: int) -> Array:
    """The index of each element in memory."""
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


def near(got: Array, want: Array, tolerance: float) -> None:
    """The largest difference, which is how ferrotorch compares."""
    assert got.dtype == f32 and got.shape == np.shape(want)
    assert np.abs(wide(got) - want).max(initial=0) < tolerance


def per_channel(v: Array) -> Array:
    return np.asarray(v)[:, None]


# ---- group normalization


def group_cells(x: Array, groups: int, eps: float) -> tuple[Array, Array]:
    """xhat in the shape of x, and the reciprocal deviation of each element's cell."""
    cells = x.reshape(x.shape[0], groups, -1)
    centred = cells - cells.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return (centred * inverse).reshape(x.shape), np.broadcast_to(inverse, cells.shape).reshape(x.shape)


K13 = (counted(2, 16, 5) % 13) * 0.1 - 0.6
GROUPS = {
    "b2 c16 G4 hw5": (K13, 1 + 0.05 * counted(16), -0.1 + 0.02 * counted(16), 4, 1e-6),
    "b1 c128 G32 hw16": (
        np.sin(0.001 * counted(1, 128, 16)),
        0.9 + 0.1 * (counted(128) % 7) / 7,
        0.05 * (counted(128) % 3) - 0.05,
        32,
        1e-5,
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_group_norm(name: str) -> None:
    x, w, b, groups, eps = GROUPS[name]
    norm = loaded("groupnorm", groups=groups)
    arrays = [v.astype(f32) for v in (x, w, b)]
    result = norm.forward(*arrays, eps=eps)
    xhat, inverse = group_cells(x, groups, eps)
    near(result.y, xhat * per_channel(w) + per_channel(b), FORWARD)
    dy = normal(*x.shape, seed=1)
    got = norm.backward(dy=dy, x=arrays[0], w=arrays[1], mu=result.mu, rstd=result.rstd)
    g = wide(dy) * per_channel(w)
    cells = (x.shape[0], groups, -1)

    def mean(v: Array) -> Array:
        each = v.reshape(cells).mean(-1, keepdims=True)
        return np.broadcast_to(each, v.reshape(cells).shape).reshape(v.shape)

    near(got.dx, inverse * (g - mean(g) - xhat * mean(g * xhat)), BACKWARD * inverse.max())
    near(got.dw, (dy * xhat).sum((0, 2)), BACKWARD)
    near(got.db, wide(dy).sum((0, 2)), BACKWARD)


def test_groups_that_do_not_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="10"):
        loaded("groupnorm", groups=3).forward(normal(1, 10, 4), normal(10), normal(10))


# ---- softmax over channels


@pytest.mark.parametrize(
    "x",
    [(counted(2, 5, 12) % 11) * 0.3 - 1.4, 3 * np.cos(0.05 * counted(1, 8, 4))],
    ids=["n2 c5 hw12", "n1 c8 hw4"],
)
def test_softmax2d(x: Array) -> None:
    norm = loaded("softmax2d")
    shape = (*x.shape[:2], 2, x.shape[2] // 2)
    (y,) = norm.forward(x.astype(f32).reshape(shape))
    e = np.exp(x - x.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    near(y.reshape(x.shape), want, FORWARD)
    np.testing.assert_allclose(wide(y).sum(1), 1, atol=1e-6)
    dy = normal(*x.shape, seed=1)
    (dx,) = norm.backward(dy.reshape(shape), y)
    near(dx.reshape(x.shape), want * (dy - (dy * want).sum(1, keepdims=True)), BACKWARD)


# ---- batch normalization


BATCH = (
    (counted(4, 8, 9) % 17) * 0.13 - 0.9,
    1 + 0.07 * counted(8),
    -0.2 + 0.03 * counted(8),
)


def batch_xhat(x: Array, mean: Array, var: Array, eps: float) -> Array:
    return (x - per_channel(mean)) / np.sqrt(per_channel(var) + eps)


def test_batch_norm_writes_the_statistics_of_the_batch() -> None:
    """What is blended stands with the caller: a momentum of 1 and no correction leave the batch's own."""
    norm = loaded("batchnorm")
    x, w, b = BATCH
    mean, var = np.zeros(8, f32), np.ones(8, f32)
    result = norm.forward(*(v.astype(f32) for v in BATCH), mean, var, eps=1e-5, momentum=1.0, correction=0.0)
    near(mean, x.mean((0, 2)), FORWARD)
    near(var, x.var((0, 2)), FORWARD)
    xhat = batch_xhat(x, x.mean((0, 2)), x.var((0, 2)), 1e-5)
    near(result.y, xhat * per_channel(w) + per_channel(b), FORWARD)


@pytest.mark.parametrize(("correction", "ddof"), [(1.0, 1), (0.0, 0)], ids=["PyTorch", "cuDNN"])
def test_batch_norm_blends_running_statistics(correction: float, ddof: int) -> None:
    norm = loaded("batchnorm")
    mean, var = np.full(8, 0.5, f32), np.full(8, 2.0, f32)
    norm.forward(*(v.astype(f32) for v in BATCH), mean, var, momentum=0.25, correction=correction)
    near(mean, 0.75 * 0.5 + 0.25 * BATCH[0].mean((0, 2)), 1e-6)
    near(var, 0.75 * 2.0 + 0.25 * BATCH[0].var((0, 2), ddof=ddof), 1e-6)


def test_batch_norm_without_running_statistics() -> None:
    """States left out: only the statistics of the batch are used, and saved for the backward."""
    norm = loaded("batchnorm")
    x, w, b = BATCH
    result = norm.forward(*(v.astype(f32) for v in BATCH))
    near(result.mu, x.mean((0, 2)), 1e-6)
    near(result.rstd, 1 / np.sqrt(x.var((0, 2)) + 1e-5), 1e-5)
    near(
        result.y,
        batch_xhat(x, x.mean((0, 2)), x.var((0, 2)), 1e-5) * per_channel(w) + per_channel(b),
        FORWARD,
    )
    plain = norm.forward(x.astype(f32))
    near(plain.y, batch_xhat(x, x.mean((0, 2)), x.var((0, 2)), 1e-5), FORWARD)


EVAL = (
    np.sin(0.05 * counted(2, 5, 4)),
    0.5 + 0.2 * counted(5),
    0.1 * counted(5),
    0.05 * counted(5) - 0.1,
    0.8 + 0.1 * counted(5),
)


def test_batch_norm_by_running_statistics() -> None:
    norm = loaded("batchnorm", training=False)
    arrays = [v.astype(f32) for v in EVAL]
    kept = [a.copy() for a in arrays[3:]]
    x, w, b, mean, var = EVAL
    result = norm.forward(*arrays, eps=1e-5)
    near(result.y, batch_xhat(x, mean, var, 1e-5) * per_channel(w) + per_channel(b), FORWARD)
    assert all((now == then).all() for now, then in zip(arrays[3:], kept, strict=True)), "unchanged"
    with pytest.raises((TypeError, ValueError), match="running_mean"):
        norm.forward(*arrays[:3])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_backward(training: bool) -> None:
    norm = loaded("batchnorm", training=training)
    x, w, _ = BATCH
    running = 0.05 * counted(8) - 0.1, 0.8 + 0.1 * counted(8)
    states = [v.astype(f32) for v in running]
    result = norm.forward(*(v.astype(f32) for v in BATCH), *states, eps=1e-5)
    dy = normal(*x.shape, seed=1)
    got = norm.backward(dy=dy, x=x.astype(f32), w=w.astype(f32), mu=result.mu, rstd=result.rstd)
    mean, var = (x.mean((0, 2)), x.var((0, 2))) if training else running
    inverse, count = 1 / np.sqrt(var + 1e-5), x.shape[0] * x.shape[2]
    centred = x - per_channel(mean)
    gs, dp = wide(dy).sum((0, 2)), (centred * dy).sum((0, 2))
    dx = dy * per_channel(inverse * w)
    if training:
        proj = dp / count * inverse**2
        dx = (dy - centred * per_channel(proj) - per_channel(gs) / count) * per_channel(inverse * w)
    near(got.dx, dx, BACKWARD)
    near(got.dw, dp * inverse, BACKWARD)
    near(got.db, gs, BACKWARD)


# ---- instance normalization: batch normalization of B * C channels


def test_instance_norm() -> None:
    norm = loaded("instancenorm")
    x, w, b = BATCH
    result = norm.forward(*(v.astype(f32) for v in BATCH), eps=1e-5)
    mean = x.mean(2, keepdims=True)
    inverse = 1 / np.sqrt(x.var(2, keepdims=True) + 1e-5)
    xhat = (x - mean) * inverse
    near(result.y, xhat * per_channel(w) + per_channel(b), FORWARD)
    dy = normal(*x.shape, seed=1)
    got = norm.backward(dy=dy, x=x.astype(f32), w=w.astype(f32), mu=result.mu, rstd=result.rstd)
    g = dy * per_channel(w)
    dx = inverse * (g - g.mean(2, keepdims=True) - xhat * (g * xhat).mean(2, keepdims=True))
    near(got.dx, dx, BACKWARD)
    near(got.dw, (dy * xhat).sum((0, 2)), BACKWARD)
    near(got.db, wide(dy).sum((0, 2)), BACKWARD)


# ---- local response normalization


def neighbours(values: Array, size: int, transposed: bool = False) -> Array:
    """Sums over channels [c - size // 2, c + size - size // 2), or over those that c is a neighbour of."""
    half, channels = size // 2, values.shape[1]
    up = size - half
    sums = np.zeros_like(values)
    for c in range(channels):
        low, high = (c + 1 - up, c + half + 1) if transposed else (c - half, c + up)
        sums[:, c] = values[:, max(0, low) : max(0, min(channels, high))].sum(1)
    return sums


@pytest.mark.parametrize("spec", ["local_response_norm", "local_response_norm_recomputed"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 9])
def test_local_response_norm(size: int, spec: str) -> None:
    """The last size is wider than the axis: clipped at both ends, and still divided by."""
    norm = loaded(spec, n=size)
    x, dy = normal(2, 7, 6), normal(2, 7, 6, seed=1)
    alpha, beta, k = 0.5, 0.75, 2.0
    numbers: dict[str, Any] = {"alpha": alpha, "beta": beta, "k": k}
    result = norm.forward(x, **numbers)
    denom = k + alpha / size * neighbours(wide(x) ** 2, size)
    near(result.y, x / denom**beta, FORWARD)
    kept = {} if "recomputed" in spec else {"d": result.d}
    for d in kept.values():
        near(d, denom, FORWARD)
    got = norm.backward(dy=dy, x=x, **kept, **numbers)
    inner = neighbours(dy * x * denom ** (-beta - 1), size, transposed=True)
    near(got.dx, denom**-beta * dy - 2 * beta * alpha / size * x * inner, BACKWARD)


# ---- nothing to compute


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 4, 0)], ids=["no batch", "no space"])
@pytest.mark.parametrize("name", ["groupnorm", "batchnorm", "instancenorm", "local_response_norm"])
def test_empty_arrays(name: str, shape: tuple[int, int, int]) -> None:
    """Results are empty and what there is of statistics is 0; running statistics stay as they are."""
    norm = loaded(name, **({"groups": 2} if name == "groupnorm" else {}))
    x = np.zeros(shape, f32)
    states = {}
    if name == "batchnorm":
        states = {"running_mean": np.full(4, 3, f32), "running_var": np.full(4, 5, f32)}
    result = norm.forward(x, **states)
    assert result.y.shape == shape and not any(array.any() for array in result)
    assert all((state == value).all() for state, value in zip(states.values(), (3, 5), strict=False))


SOFTMAX = {"x": normal(2, 3, 2, 2)}
BATCHES = {"x": normal(2, 3, 4), "w": normal(3), "b": normal(3)}
ERRORS: list[tuple[str, dict[str, Array], dict[str, Array], str]] = [
    ("softmax2d", SOFTMAX, {"x": normal(10)}, r"x\[B, C, H, W\]"),
    ("batchnorm", BATCHES, {"x": normal(10)}, r"x\[B, C, \.\.\.\]"),
    ("batchnorm", BATCHES, {"w": normal(4)}, "C is 3 in x.* but 4 in w"),
    ("batchnorm", BATCHES, {"b": normal(4)}, "C is 3 in x.* but 4 in b"),
    ("batchnorm", BATCHES, {"running_mean": normal(2)}, "C is 3 in x.* but 2 in running_mean"),
]


@pytest.mark.parametrize(("spec", "good", "bad", "message"), ERRORS)
def test_what_is_refused(spec: str, good: dict[str, Array], bad: dict[str, Array], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loaded(spec).forward(**{**good, **bad})
