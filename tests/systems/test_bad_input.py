"""Input that is wrong, or at the edge of what is right: refused with a reason, or the values that IEEE
arithmetic gives it, and nothing in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen

from .compare import Array, bf16, f8e4m3, f8e5m2, f16, f32, loaded, normal, wide

pytestmark = pytest.mark.kernels

NAN, INF = np.nan, np.inf


# ---- refused


GROUPED: list[tuple[str, dict[str, object], dict[str, Array], str]] = [
    ("groupnorm", {"groups": 4}, {"x": normal(2, 10, 3)}, r"10.*(divi|G)"),
    ("groupnorm_silu", {"groups": 3}, {"x": normal(2, 8, 3)}, r"8.*(divi|G)"),
    ("groupnorm_channels_last", {"groups": 4}, {"x": normal(2, 3, 10)}, r"10.*(divi|G)"),
    (
        "adagn",
        {"groups": 4},
        {"x": normal(2, 10, 3), "shift": normal(2, 10), "scale": normal(2, 10)},
        r"10.*(divi|G)",
    ),
    ("qk_norm", {"head_dim": 8}, {"q": normal(2, 12), "k": normal(2, 8)}, r"12.*(divi|D)"),
    ("rmsnorm_quantized_group", {}, {"x": normal(2, 100)}, r"100.*(divi|E)"),
]


@pytest.mark.parametrize(("spec", "attrs", "arrays", "message"), GROUPED)
def test_groups_that_do_not_divide(
    spec: str, attrs: dict[str, object], arrays: dict[str, Array], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        loaded(spec, **attrs).forward(**arrays)


LEAST = [
    *((spec, "groups", 0) for spec in ("groupnorm", "groupnorm_silu", "adagn", "gated_rmsnorm_grouped")),
    ("local_response_norm", "n", 0),
    ("local_response_norm_recomputed", "n", -1),
    ("local_response_norm_within", "n", 0),
]


@pytest.mark.parametrize(("spec", "attr", "value"), LEAST)
def test_no_groups_and_windows_of_nothing(spec: str, attr: str, value: int) -> None:
    with pytest.raises(normgen.SpecError, match=f"`{attr}` is {value}, which is out of its range"):
        normgen.load(spec, **{attr: value})


def read_only(*shape: int) -> Array:
    array = np.ones(shape, f32)
    array.flags.writeable = False
    return array


STATES: list[tuple[dict[str, Array], type[Exception], str]] = [
    ({"running_mean": normal(4)}, ValueError, "but 4 in running_mean"),
    ({"running_var": read_only(3)}, ValueError, "running_var is read-only"),
    ({"running_mean": np.zeros(3, f16)}, TypeError, "running_mean.*must be f32"),
    ({"running_mean": np.zeros(3, f32)[::-1]}, ValueError, "running_mean is updated in place"),
]


@pytest.mark.parametrize(("states", "error", "message"), STATES)
def test_running_statistics(states: dict[str, Array], error: type[Exception], message: str) -> None:
    """Refused before anything is written."""
    good = {"running_mean": np.full(3, 7, f32), "running_var": np.full(3, 7, f32)}
    with pytest.raises(error, match=message):
        loaded("batchnorm").forward(normal(2, 3, 4), **{**good, **states})
    assert all((state == 7).all() for name, state in good.items() if name not in states)


def test_running_statistics_may_lie_apart() -> None:
    apart, together = np.full(6, 7, f32), np.full(3, 7, f32)
    for mean in (apart[::2], together):
        loaded("batchnorm").forward(normal(2, 3, 4), running_mean=mean, running_var=np.ones(3, f32))
    np.testing.assert_array_equal(apart[::2], together)
    np.testing.assert_array_equal(apart[1::2], 7)


# ---- windows wider than what they run over


@pytest.mark.parametrize("size", [8, 101])
def test_a_window_wider_than_the_axis(size: int) -> None:
    """Clipped at both ends; what is divided by stays the size."""
    x = normal(2, 7, 5)
    result = loaded("local_response_norm", n=size).forward(x, alpha=2.0, k=1.0, beta=0.5)
    square, low, high = wide(x) ** 2, size // 2, (size - 1) // 2
    sums = np.stack([square[:, max(0, c - low) : c + high + 1].sum(1) for c in range(7)], 1)
    denom = 1 + 2 / size * sums
    np.testing.assert_allclose(result.y, x / np.sqrt(denom), rtol=1e-5)


@pytest.mark.parametrize("size", [9, 31])
def test_a_box_wider_than_the_picture(size: int) -> None:
    x = normal(2, 2, 3, 4)
    result = loaded("local_response_norm_within", n=size).forward(x, alpha=2.0, k=1.0, beta=0.5)
    total = (wide(x) ** 2).sum((2, 3), keepdims=True)
    np.testing.assert_allclose(result.y, x / np.sqrt(1 + 2 / size**2 * total), rtol=1e-5)


# ---- scales that are no scales


SCALES = [0.0, -0.0, -2.0, NAN, INF, -INF, 1e-40, 3e38]


@pytest.mark.parametrize("e5m2", [False, True], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("scale", SCALES)
def test_a_given_scale(scale: float, e5m2: bool) -> None:
    """Multiplied by as it is: 0 gives zeros, infinity saturates, NaN gives NaN; 1 / scale likewise."""
    norm = loaded("rmsnorm_quantized_static", e5m2=e5m2)
    x = normal(4, 32)
    result = norm.forward(x, f32(scale))
    y = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6)
    largest = 57344.0 if e5m2 else 448.0
    q = wide(result.q)
    assert result.q.dtype == (f8e5m2 if e5m2 else f8e4m3)
    if np.isnan(scale):
        assert np.isnan(q).all()
    elif np.isinf(scale) or scale == 3e38:
        np.testing.assert_array_equal(q, np.sign(y) * np.sign(scale) * largest)
    else:
        np.testing.assert_allclose(q, np.clip(y * scale, -largest, largest), rtol=0.15, atol=2e-3)
        assert np.abs(q).max() <= largest
    with np.errstate(divide="ignore", over="ignore"):
        np.testing.assert_allclose(result.scale_inv, f32(1) / f32(scale), rtol=1e-6)
    np.testing.assert_allclose(result.amax, np.abs(y).max(), rtol=1e-5)


@pytest.mark.parametrize("scale", [0.0, -0.5, NAN, INF])
def test_the_scale_of_a_group(scale: float) -> None:
    """A group's value is q * scale whatever the scale; one that is not finite makes its whole row NaN, and
    the amax over all rows with it.
    """
    norm = loaded("rmsnorm_fp8")
    xq = normal(4, 64).astype(f8e4m3)
    xs = np.full((4, 4), 0.25, bf16)
    xs[1, 2] = scale
    w = np.ones(64, bf16)
    result = norm.forward(xq, xs, w)
    x = wide(xq).reshape(4, 4, 16) * wide(xs)[..., None]
    square = (x.reshape(4, 64) ** 2).mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(result.rstd, 1 / np.sqrt(square + 1e-6), rtol=1e-5)
    if np.isfinite(scale):
        assert np.isfinite(wide(result.q)).all() and np.isfinite(float(result.scale))
        block = wide(result.q)[1, 32:48]
        np.testing.assert_array_equal(np.sign(block) * (block != 0), np.sign(x[1, 2]) * (block != 0))
    else:
        assert np.isnan(float(result.scale))
        assert np.isnan(wide(result.q)).all() and np.isnan(wide(result.qt)).all()


@pytest.mark.parametrize(("spec", "shape"), [("row", (4,)), ("tensor", ()), ("group", (4, 1))])
def test_an_amax_keeps_nan(spec: str, shape: tuple[int, ...]) -> None:
    """A maximum of magnitudes that dropped NaN would give an innocent scale to a row that holds one."""
    x = normal(4, 128)
    x[2, 5] = NAN
    result = loaded(f"rmsnorm_quantized_{spec}").forward(x)
    assert result.scale.shape == shape
    lost = (
        np.isnan(np.broadcast_to(result.scale.reshape(-1, 1), (4, 1))[:, 0])
        if shape
        else np.isnan(result.scale)
    )
    assert (lost == np.array([False, False, True, False])).all() if shape else lost
    q = np.isnan(wide(result.q))
    assert q[2].all() and (q.all() if not shape else not q[[0, 1, 3]].any())


def test_an_amax_of_everything_keeps_nan() -> None:
    x = normal(4, 32)
    x[3, 0] = NAN
    result = loaded("rmsnorm_quantized_static").forward(x, f32(1))
    assert (
        np.isnan(result.amax) and np.isnan(wide(result.q)[3]).all() and not np.isnan(wide(result.q)[:3]).any()
    )


@pytest.mark.parametrize("spec", ["row", "tensor", "group"])
def test_rows_of_zeros_have_a_scale(spec: str) -> None:
    x = normal(4, 128)
    x[1] = 0
    result = loaded(f"rmsnorm_quantized_{spec}").forward(x)
    assert (result.scale > 0).all() and np.isfinite(wide(result.q)).all() and not wide(result.q)[1].any()


# ---- one of everything


def test_one_element_in_training() -> None:
    """The variance is 0, so y is the bias; the running variance counts 1 and not 0 elements."""
    x, w, b = normal(1, 3, 1), normal(3, seed=1), normal(3, seed=2)
    mean, var = np.zeros(3, f32), np.ones(3, f32)
    result = loaded("batchnorm").forward(x, w, b, mean, var)
    np.testing.assert_array_equal(result.y, b[None, :, None])
    np.testing.assert_allclose(mean, 0.1 * x[0, :, 0], rtol=1e-6)
    np.testing.assert_allclose(var, np.full(3, 0.9), rtol=1e-6)
    got = loaded("batchnorm").backward(dy=x, x=x, w=w, mu=result.mu, rstd=result.rstd)
    assert not got.dx.any() and not got.dw.any()
    np.testing.assert_array_equal(got.db, x[0, :, 0])


# ---- nothing at all


EMPTY: list[tuple[str, dict[str, object], dict[str, tuple[int, ...]]]] = [
    ("groupnorm", {"groups": 2}, {"x": (0, 4, 3), "w": (4,)}),
    ("groupnorm", {"groups": 2}, {"x": (2, 4, 0), "w": (4,)}),
    ("groupnorm_channels_last", {"groups": 2}, {"x": (0, 3, 4), "w": (4,)}),
    ("instancenorm", {}, {"x": (2, 4, 0), "w": (4,)}),
    ("batchnorm", {}, {"x": (0, 4, 3), "w": (4,)}),
    ("batchnorm_channels_last", {}, {"x": (0, 4), "w": (4,)}),
    ("layernorm2d", {}, {"x": (2, 4, 0), "w": (4,)}),
    ("softmax2d", {}, {"x": (2, 4, 0, 3)}),
    ("local_response_norm", {}, {"x": (2, 4, 0)}),
    ("local_response_norm_within", {}, {"x": (0, 4, 2, 2)}),
    ("add_layernorm", {}, {"x": (0, 4), "residual": (0, 4), "w": (4,)}),
    (
        "adaln_zero",
        {},
        {"x": (2, 0, 4), "residual": (2, 0, 4), "gate": (2, 4), "shift": (2, 4), "scale": (2, 4)},
    ),
    ("rmsnorm_quantized_row", {}, {"x": (0, 4), "w": (4,)}),
]


@pytest.mark.parametrize(("spec", "attrs", "shapes"), EMPTY)
def test_empty_arrays(spec: str, attrs: dict[str, object], shapes: dict[str, tuple[int, ...]]) -> None:
    """Empty results, and zeros for gradients that are not empty themselves."""
    norm = loaded(spec, **attrs)
    arrays: dict[str, Any] = {name: normal(*shape) for name, shape in shapes.items()}
    result = norm.forward(**arrays)
    assert all(not wide(array).any() for array in result)
    assert result.y.shape == shapes["x"]
    operands = arrays | {name: getattr(result, name) for name in result._fields}
    given = {name: operands[name] for name in norm.backward_args if name in operands}
    gradients = norm.backward(
        **given, **{name: result.y for name in norm.backward_args if name in ("dy", "dh")}
    )
    assert gradients.dx.shape == shapes["x"]
    assert all(g is None or not g.any() for g in gradients)


@pytest.mark.parametrize(
    ("spec", "attrs", "shape"),
    [
        ("groupnorm", {"groups": 2}, (2, 0, 3)),
        ("layernorm2d", {}, (2, 0, 3)),
        ("softmax2d", {}, (2, 0, 3, 3)),
        ("softmax", {}, (2, 0)),
        ("rmsnorm_quantized_row", {}, (2, 0)),
    ],
)
def test_rows_of_nothing(spec: str, attrs: dict[str, object], shape: tuple[int, ...]) -> None:
    """Channels that are not there have no mean."""
    with pytest.raises(ValueError, match="is 0"):
        loaded(spec, **attrs).forward(np.zeros(shape, f32))
