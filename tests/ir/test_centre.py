"""Centring: data with a mean of a million is as accurate as any, and costs no further exchange."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normgen.ir.centre import centre
from normgen.ir.expr import Call, Expr, Reduce, walk
from normgen.ir.grad import backward
from normgen.ir.nodes import children
from normgen.ir.program import Program
from normgen.ir.reference import evaluate
from normgen.ir.show import show

from .specs import NAMES, bundled, draw, extents, written

# The backward of an activation needs the corrected difference itself, before anything is summed.
ONE_MORE = {"groupnorm_silu", "groupnorm_silu_channels_last"}


def levels(program: Program, over: frozenset[str] | None = None) -> list[set[str]]:
    """The sums over these axes (or all), by how many of them depend on one another."""
    depth: dict[Expr, int] = {}
    found: list[set[str]] = []
    for node in walk(*(r.expr for r in program.results)):
        below = max((depth[c] for c in children(node)), default=0)
        if isinstance(node, Reduce) and (over is None or node.over == over):
            found += [set() for _ in range(below + 1 - len(found))]
            found[below].add(show(node))
            below += 1
        depth[node] = below
    return found


def test_levels_of_layernorm() -> None:
    definition = bundled("layernorm")
    row = frozenset({"D"})
    c = "minus(x, sum[D](x) / size[D])"
    assert levels(centre(definition.program), row) == [{"sum[D](x)"}, {f"sum[D]({c})", f"sum[D]({c}^2)"}]
    derived = centre(backward(definition))
    assert levels(derived, row) == [
        {"sum[D](w * dy)", "sum[D](w * dy * minus(x, mu))", "sum[D](minus(x, mu))"}
    ]


@pytest.mark.parametrize("name", NAMES)
def test_no_further_level(name: str) -> None:
    """Row sums depend on one another as often as before; what corrects a mean joins what is summed anyway."""
    definition = bundled(name)
    for program in (definition.program, backward(definition)):
        means = {over for _, _, over in program.saved_means} if name in ONE_MORE else set()
        for over in {n.over for r in program.results for n in walk(r.expr) if isinstance(n, Reduce)}:
            grown = len(levels(centre(program), over)) - len(levels(program, over))
            assert grown == (over in means)


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
    assert len(levels(corrected)) == 3  # only the cube waits for what its mean misses
    assert "minus" in show(corrected.results[0].expr)
