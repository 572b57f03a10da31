"""Centring: data with a mean of a million is as accurate as any.

Elsewhere: that no other value changes (tests/verify), that kernels have no further exchange (digests).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normgen.ir.centre import centre
from normgen.ir.expr import Call, Reduce, walk
from normgen.ir.grad import backward
from normgen.ir.program import Program
from normgen.ir.reference import evaluate
from normgen.ir.show import show

from .specs import bundled, draw, extents, written


def in_f32(name: str, mean: float, corrected: bool) -> dict[str, float]:
    """The largest error of each output and gradient, relative to the largest value."""
    definition = bundled(name)
    derived = backward(definition)
    sizes = {**extents(definition), "D": 512, "C": 64, "...": 16}
    arrays = draw(definition, derived, sizes)
    arrays["x"] = arrays["x"] + mean
    arrays = {k: np.asarray(v, np.float32).astype(float) for k, v in arrays.items()}
    truth = evaluate(definition.program, arrays, sizes)
    want = {**truth, **evaluate(derived, {**truth, **arrays}, sizes)}
    forward, back = definition.program, derived
    if corrected:
        forward, back = centre(forward), centre(back)
    got = evaluate(forward, arrays, sizes, dtype=np.float32)
    got |= evaluate(back, {**got, **arrays}, sizes, dtype=np.float32)
    return {k: float(np.abs(got[k] - want[k]).max() / np.abs(want[k]).max()) for k in want}


@pytest.mark.parametrize(
    "name", ["layernorm", "groupnorm_silu", "batchnorm", "weight_standardization-scaled"]
)
def test_a_large_mean(name: str) -> None:
    worst = in_f32(name, 1e6, corrected=True)
    assert max(worst.values()) < 2e-6, worst
    # Without the correction it shows: this is what is being tested.
    assert in_f32(name, 1e6, corrected=False)["y"] > 1e-3


def test_a_constant_row() -> None:
    """Rounding may not take the variance below zero."""
    definition = written(
        "attr eps = 1e-12\ninput x[..., D]\nsave mu[...] = mean[D](x)\n"
        "save rstd[...] = rsqrt(mean[D]((x - mu)^2) + eps)\noutput y[..., D] = (x - mu) * rstd"
    )
    values = np.array([[0.0], [1.0], [1e6 + 0.3], [-3e7]], np.float32).astype(float)
    for width in (3, 7, 100, 1000):
        arrays = {"x": np.repeat(values, width, 1)}
        got = evaluate(centre(definition.program), arrays, {"...": 4, "D": width}, dtype=np.float32)
        assert np.isfinite(got["rstd"]).all() and (got["rstd"] > 0).all()


def minuses(program: Program) -> int:
    return sum(isinstance(n, Call) and n.op == "minus" for n in walk(*(r.expr for r in program.results)))


@pytest.mark.parametrize(
    ("text", "forward", "back"),
    [
        # whatever the names; a sign and a factor change nothing
        ("input u[..., D]\nlet avg = sum[D](u) / size[D]\noutput y[..., D] = (avg - u)^2", 1, 1),
        ("input x[..., D]\nlet m = mean[D](2 * x)\noutput y[..., D] = (2 * x - m)^2", 1, 1),
        # of a value that is computed
        ("input x[..., D]\ninput r[..., D]\nlet h = x + r\noutput y[..., D] = (h - mean[D](h))^3", 1, 1),
        # two of them
        ("input x[..., D]\ninput r[..., D]\noutput y[..., D] = (x - mean[D](x)) * (r - mean[D](r))", 2, 2),
        # a mean that is weighted, or of something else, is not taken for one
        ("input x[..., D]\ninput r[..., D]\noutput y[..., D] = (x - mean[D](r))^2", 0, 0),
        ("input x[..., D]\noutput y[..., D] = (x - 0.9 * mean[D](x))^2", 0, 0),
        ("input x[..., D]\noutput y[..., D] = (x - sum[D](x))^2", 0, 0),
    ],
)
def test_what_is_recognised(text: str, forward: int, back: int) -> None:
    definition = written(text)
    assert minuses(centre(definition.program)) == forward
    assert minuses(centre(backward(definition))) == back


def test_sums_of_products_and_powers() -> None:
    """S[f (c - d)], S[f (c - d)^2], S[(c - d)(e - f)] and S[(c - d)^3], the last as it stands."""
    text = (
        "input x[..., D]\ninput f[..., D]\nlet c = x - mean[D](x)\nlet e = f - mean[D](f)\n"
        "output a[...] = sum[D](f * c)\noutput b[...] = sum[D](f * c^2)\n"
        "output p[...] = sum[D](c * e)\noutput q[...] = sum[D](c^3)\noutput v[...] = sum[D](c^2)"
    )
    definition = written(text)
    sizes = {"...": 3, "D": 100}
    arrays: dict[str, Any] = draw(definition, None, sizes)
    want = evaluate(definition.program, arrays, sizes)
    corrected = centre(definition.program)
    got = evaluate(corrected, arrays, sizes)
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-9, atol=1e-9)
    assert "minus" in show(corrected.results[0].expr)


@pytest.mark.parametrize("mask", ["{} if f > 0 else 0", "0 if f > 0 else {}"])
def test_sums_of_which_some_values_are_masked(mask: str) -> None:
    """What the mean misses stands under no sum."""
    text = (
        "input x[..., D]\ninput f[..., D]\nlet c = x - mean[D](x)\n"
        f"output a[...] = sum[D]({mask.format('f * c')})\noutput b[...] = sum[D]({mask.format('c^2')})"
    )
    definition = written(text)
    sizes = {"...": 3, "D": 100}
    arrays: dict[str, Any] = draw(definition, None, sizes)
    program = centre(definition.program)
    got = evaluate(program, arrays, sizes)
    for name, want in evaluate(definition.program, arrays, sizes).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-9, atol=1e-9)
    within = [n for n in walk(*(r.expr for r in program.results)) if isinstance(n, Reduce)]
    depths = [sum(isinstance(m, Reduce) for m in walk(n.arg)) for n in within]
    assert max(depths) == 1  # the mean itself, in `minus`
