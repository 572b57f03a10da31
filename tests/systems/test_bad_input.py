"""Input that is wrong, or at the edge of what is right: refused with a reason, or the values that IEEE
arithmetic gives it, and nothing in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from tests.sampling import paired

from .compare import Array, bf16, f8e4m3, f32, loaded, normal, wide

pytestmark = pytest.mark.kernels

NAN, INF = np.nan, np.inf


# ---- refused


@pytest.mark.parametrize(
    ("spec", "attrs", "arrays", "message"),
    [
        ("groupnorm", {"groups": 4}, {"x": normal(2, 10, 3)}, r"10.*(divi|G)"),
        ("qk_norm", {"head_dim": 8}, {"q": normal(2, 12), "k": normal(2, 8)}, r"12.*(divi|D)"),
        ("rmsnorm_quantized_group", {}, {"x": normal(2, 100)}, r"100.*(divi|E)"),
        ("groupnorm", {"groups": 2}, {"x": normal(2, 0, 3)}, "is 0"),
        ("softmax", {}, {"x": normal(2, 0)}, "is 0"),
        ("batchnorm", {}, {"x": normal(2, 3, 4), "running_mean": normal(4)}, "but 4 in running_mean"),
    ],
)
def test_lengths_that_do_not_fit(
    spec: str, attrs: dict[str, object], arrays: dict[str, Array], message: str
) -> None:
    """Groups that do not divide, and rows of nothing: channels that are not there have no mean."""
    with pytest.raises(ValueError, match=message):
        loaded(spec, **attrs).forward(**arrays)


def test_no_groups_and_windows_of_nothing() -> None:
    for spec, attr in (("groupnorm", "groups"), ("local_response_norm", "n")):
        with pytest.raises(normgen.SpecError, match=f"`{attr}` is 0, which is outside its range"):
            normgen.load(spec, **{attr: 0})


def test_running_statistics_may_lie_apart() -> None:
    apart, together = np.full(6, 7, f32), np.full(3, 7, f32)
    for mean in (apart[::2], together):
        loaded("batchnorm").forward(normal(2, 3, 4), running_mean=mean, running_var=np.ones(3, f32))
    np.testing.assert_array_equal(apart[::2], together)
    np.testing.assert_array_equal(apart[1::2], 7)


# ---- scales that are no scales


SCALES = [0.0, -0.0, -2.0, NAN, INF, -INF, 1e-40, 3e38]


@pytest.mark.parametrize(("scale", "e5m2"), paired(SCALES, (False, True)))
def test_a_given_scale(scale: float, e5m2: bool) -> None:
    """Multiplied by as it is: 0 gives zeros, infinity saturates, NaN gives NaN; 1 / scale likewise."""
    norm = loaded("rmsnorm_quantized_static", e5m2=e5m2)
    x = normal(4, 32)
    result = norm.forward(x, f32(scale))
    y = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6)
    largest = 57344.0 if e5m2 else 448.0
    q = wide(result.q)
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


@pytest.mark.parametrize(
    ("spec", "each"), [("row", True), ("group", True), ("tensor", False), ("static", False)]
)
def test_an_amax_keeps_nan(spec: str, each: bool) -> None:
    """A maximum of magnitudes that dropped NaN would give an innocent scale to a row that holds one."""
    x = normal(4, 128)
    x[0], x[2, 5] = 0, NAN
    given = (f32(1),) if spec == "static" else ()
    result = loaded(f"rmsnorm_quantized_{spec}").forward(x, *given)
    amax, q = result.amax if given else result.scale, wide(result.q)
    assert amax.size == (4 if each else 1)
    assert list(np.isnan(amax).flat) == ([False, False, True, False] if each else [True])
    lost = np.array([not each and not given] * 4)
    lost[2] = True
    assert (np.isnan(q).all(1) == lost).all() and not np.isnan(q[~lost]).any()
    if each:  # a row of zeros has a scale too
        assert amax.flat[0] > 0 and not q[0].any()


# ---- nothing at all


EMPTY: list[tuple[str, dict[str, object], dict[str, tuple[int, ...]]]] = [
    ("groupnorm", {"groups": 2}, {"x": (2, 4, 0), "w": (4,)}),
    ("batchnorm", {}, {"x": (0, 4, 3), "w": (4,)}),
    ("softmax2d", {}, {"x": (2, 4, 0, 3)}),
    ("local_response_norm_within", {}, {"x": (0, 4, 2, 2)}),
    ("add_layernorm", {}, {"x": (0, 4), "residual": (0, 4), "w": (4,)}),
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
