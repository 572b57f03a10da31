"""What a pass of sums finds besides: the largest of a thread."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.ir.expr import Expr, add, call, load, mul, power, reduce, rewrite
from normgen.kernel.linear import largest_of
from normgen.kernel.share import share_products
from normgen.package.kernels import RowsRecord
from normgen.verify.cases import DTYPE_SETS, DtypeSet
from tests.codegen import test_parts
from tests.codegen.norms import package_of, source_of
from tests.sampling import paired
from tests.verify.subjects import PLAIN

ROW = frozenset("GE")
X, W, S, RSTD = (
    load(name, frozenset(axes)) for name, axes in {"x": "GE", "w": "GE", "s": "G", "rstd": ""}.items()
)
SUM = reduce("sum", ROW, power(X, 2))
SUMS = frozenset([SUM])


def size(value: Expr) -> Expr:
    return call("abs", value)


@pytest.mark.parametrize(
    ("value", "pair"),
    [
        (size(mul(SUM, X, W)), (size(SUM), size(mul(X, W)))),
        (size(mul(-2, power(SUM, 2), X)), (size(mul(-2, power(SUM, 2))), size(X))),
        (size(mul(SUM, RSTD, X)), None),  # infinite where the caller says so: 0 times that is NaN
        (mul(SUM, X), None),  # the largest of another sign
        (size(mul(X, add(W, SUM))), None),
        (size(add(X, W)), None),
        (size(mul(SUM, RSTD)), None),
    ],
)
def test_a_magnitude_is_the_largest_up_to_a_factor(value: Expr, pair: tuple[Expr, Expr] | None) -> None:
    assert largest_of(value, ROW, SUMS) == (() if pair is None else (pair,))


def test_products_and_squares_of_products_are_shared() -> None:
    roots = [mul(power(X, 2), power(S, 2)), mul(X, S, W), mul(power(X, 2), S)]
    definitions, left = share_products(roots)
    ((leaf, product),) = definitions.items()
    assert product is mul(X, S)
    assert left == [power(leaf, 2), mul(leaf, W), roots[2]]
    assert [rewrite(root, {leaf: product}) for root in left] == roots


# ------------------------------------------------------------------------------------------------ kernels

PEAK = """norm peak "The largest magnitude of normalized rows, which a scale is made of."
attr   eps >= 0 = 0.01
input  x[..., D]
param  w[D] = 1
save   rstd[...] = rsqrt(mean[D](x^2) + eps)
let    y[..., D] = x * rstd * w
output peak[]: f32 = max[..., D](abs(y))
grad   y wrt x, w
"""
SCALED = """norm scaled "The same times a scale of each row, which the caller gives."
attr   eps >= 0 = 0.01
input  x[..., D]
input  s[...]
save   rstd[...] = rsqrt(mean[D](x^2) + eps)
let    y[..., D] = x * rstd * s
output peak[]: f32 = max[..., D](abs(y))
grad   y wrt x
"""
_STORED = "output q[..., (G E)]: f8e5m2 = y\noutput h[..., (G E)] = y"
GROUPED = test_parts.SCALED.replace(_STORED, "output peak[]: f32 = max[..., G, E](abs(y))")


@pytest.mark.parametrize("text", [PEAK, GROUPED], ids=["peak", "grouped"])
def test_a_row_whose_largest_is_found_with_its_sums_is_visited_once(text: str) -> None:
    (kernel,) = package_of(text).forward.strategies[0].kernels
    assert isinstance(kernel, RowsRecord)
    texts = {form.form: source_of(form) for form in kernel.forms}
    for form in ("pipeline", "multipass"):
        assert texts[form].count("float x[VEC];") + texts[form].count("float xq[VEC];") == 1, form
        assert re.search(r"peak_max\[0\] = maximum\(peak_max\[0\], with_factor\(rstd, \w+\)\);", texts[form])


@pytest.mark.parametrize(("dtypes", "sizes"), paired(test_parts.MIXTURES, [(5, 16), (40, 257), (2, 3001)]))
def test_the_largest_of_rows(sizes: tuple[int, int], dtypes: DtypeSet) -> None:
    test_parts.run(PEAK, {"...": sizes[0], "D": sizes[1]}, dtypes)


@pytest.mark.parametrize(
    ("dtypes", "sizes"), paired(test_parts.MIXTURES, [(16, 9), (8, 40), (12, 20), (1, 24), (32, 128)])
)
def test_the_largest_of_rows_in_groups(sizes: tuple[int, int], dtypes: DtypeSet) -> None:
    group, groups = sizes
    test_parts.run(GROUPED, {"...": 7, "G": groups}, dtypes, group=group)


def test_the_largest_of_rows_that_stream() -> None:
    test_parts.run(PEAK, {"...": 2, "D": 300_000}, DTYPE_SETS[0], PLAIN)


def peak_of(x: np.ndarray, w: np.ndarray, eps: float) -> np.float32:
    """Element by element, as IEEE has it."""
    with np.errstate(all="ignore"):
        rstd = np.float32(1) / np.sqrt(np.mean(np.square(x), axis=-1, dtype=np.float32) + np.float32(eps))
        return np.max(np.abs(x * rstd[:, None] * w))


# One element of a row, the others of that row where they are not as elsewhere, and eps: a square that
# overflows; a row of zeros; squares that vanish, and a zero.
SPECIAL = [(np.nan, None, 0.01), (np.inf, None, 0.01), (1e30, None, 0.01), (0.0, 0.0, 0.0), (0.0, 1e-30, 0.0)]


@pytest.mark.kernels
@pytest.mark.parametrize("columns", [12, 3001])
def test_what_is_not_finite_goes_through(columns: int) -> None:
    w, norm = np.full(columns, 0.5, np.float32), normgen.load(PEAK)
    for value, others, eps in SPECIAL:
        x = np.random.default_rng(0).standard_normal((9, columns)).astype(np.float32)
        x[4, :] = x[4, :] if others is None else others
        x[4, columns // 2] = value
        np.testing.assert_allclose(norm.forward(x, w, eps=eps).peak, peak_of(x, w, eps), rtol=1e-6)


@pytest.mark.kernels
def test_a_scale_that_is_not_finite_makes_its_row_nan() -> None:
    """Where a group has a 0, that times infinity is NaN, which no sum of the group's own squares shows."""
    xq = np.ones((3, 128), ml_dtypes.float8_e4m3fn)
    xq[:, ::7] = 0
    xs = np.ones((3, 8), np.float32)
    for scale in (np.nan, np.inf):
        xs[1, 2] = scale
        found = normgen.load(GROUPED).forward(xq, xs)
        assert np.isnan(found.rstd).tolist() == [False, True, False]
        assert np.isnan(found.peak)


@pytest.mark.kernels
@pytest.mark.parametrize("zero", [False, True])
def test_a_scale_of_a_row_that_is_not_finite_is_what_its_elements_say(zero: bool) -> None:
    x = np.random.default_rng(0).standard_normal((9, 100)).astype(np.float32)
    x[4, 7] = 0 if zero else x[4, 7]
    s = np.ones(9, np.float32)
    for scale in (np.nan, np.inf, -np.inf):
        s[4] = scale
        peak = normgen.load(SCALED).forward(x, s).peak
        np.testing.assert_equal(peak, np.float32(np.nan if zero or np.isnan(scale) else np.inf))
