"""Values that look like what a pass recognises, and are not: results say so, not texts."""

from __future__ import annotations

import numpy as np
import pytest

import normgen
from normgen.dtypes import round_to
from tests.sampling import paired
from tests.verify.subjects import CHECKED, Source, case_of, numbers, prove, subject_of

# Exponentials of distances, of which the maximum is one of something else.
NEARLY_SOFTMAX = (
    "sum[D](exp(x * w - max[D](x)))",
    "sum[D](exp(x - max[D](x * w)))",
    "sum[D](exp(tanh(x) - max[D](x)))",
    "sum[D](exp(max[D](x) - x))",
    "sum[D](exp(x - min[D](x)))",
    "sum[D](exp(2 * x - max[D](x)))",
    "sum[D](w * exp(x - max[D](x)))",
)


@pytest.mark.parametrize(("total", "width"), paired(NEARLY_SOFTMAX, [40, 5000]))
def test_a_maximum_of_something_else(total: str, width: int) -> None:
    text = f"norm near\ninput x[..., D]\nparam w[D] = 1\noutput y[..., D] = x + log({total})"
    subject = subject_of(Source("near.norm", text))
    prove(subject, case_of(subject, 3, width), CHECKED, directions=("forward",))


@pytest.mark.parametrize(
    "value", ["x", "abs(x)", "x^2", "relu(x)", "sum[D](x^2)", "max[D](abs(x))", "sqrt(abs(x))"]
)
def test_a_value_over_itself_is_nan_where_it_is_zero(value: str) -> None:
    """Also behind a root, and as a power."""
    x = np.array([[0, 1.5, 2, 0], [0, 0, 0, 0]], np.float32)
    zero = np.broadcast_to((x if "[D]" not in value else x.any(axis=1, keepdims=True)) == 0, x.shape)
    for quotient in (
        f"({value}) / ({value})",
        f"sqrt({value}) * rsqrt({value})",
        f"({value})^2 / ({value})^2",
    ):
        norm = normgen.load(f"norm same\ninput x[B, D]\noutput y[B, D] = x + {quotient} - x").on(CHECKED)
        y = norm.forward(x).y
        np.testing.assert_array_equal(np.isnan(y), zero, err_msg=quotient)


@pytest.mark.parametrize("to", ["bf16", "f16"])
def test_what_is_rounded_after_it_was_kept_is_rounded_in_the_gradient(to: str) -> None:
    text = f"""norm kept
input x[B, D]
input r[B, D]
param w[D] = 1
save output h[B, D]: f32 = x + r
output y[B, D] = {to}(h) * w
"""
    norm = normgen.load(text).on(CHECKED)
    x, r, dy, w = numbers(0, 6, 40), numbers(1, 6, 40), numbers(2, 6, 40), numbers(3, 40)
    made = norm.forward(x, r, w)
    arrays = {"dy": dy, "dh": None, "x": x, "r": r, "w": w, "h": made.h}
    back = norm.backward(**{name: arrays[name] for name in norm.backward_args})
    rounded = np.asarray(round_to(made.h, to)).astype(np.float64)
    np.testing.assert_allclose(back.dw, (dy * rounded).sum(0), rtol=2e-5, atol=1e-5)


def test_results_have_the_order_of_the_spec() -> None:
    text = """norm ordered
input x[B, D]
save z[B] = sum[D](x)
output y[B, D] = x * z
save a[B] = max[D](x)
save output h[B, D] = x + a
save m[B] = min[D](x)
output c[B, D] = h * m
"""
    norm = normgen.load(text).on(CHECKED)
    x = numbers(0, 4, 9)
    made = norm.forward(x)
    outputs, saves = ("y", "h", "c"), ("z", "a", "m")
    assert made._fields == (*outputs, *saves)
    sums, most, least = x.sum(1), x.max(1), x.min(1)
    h = x + most[:, None]
    expected = (x * sums[:, None], h, h * least[:, None], sums, most, least)
    for name, got, want in zip(made._fields, made, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
    kept = [name for name in norm.backward_args if name in (*saves, "h")]
    assert kept == [name for name in ("z", "a", "h", "m") if name in kept]
