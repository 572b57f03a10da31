"""The NumPy meaning of programs, against NumPy written out."""

from __future__ import annotations

import numpy as np

from normgen.ir.primitives import PRIMITIVES
from normgen.ir.reference import evaluate, finite_differences

from .specs import written

RNG = np.random.default_rng(3)
X = RNG.normal(size=(2, 6, 3))


def test_order_of_memory() -> None:
    got = evaluate(written("input x[A, B]\noutput y[B, A] = 2 * x").program, {"x": X[0]}, {"A": 6, "B": 3})
    np.testing.assert_allclose(got["y"], 2 * X[0].T)


def test_windows() -> None:
    for low, high in ((-2, 1), (1, 3), (-9, -7), (-9, 9)):
        definition = written(f"input x[A, B]\noutput y[A, B] = sum[A: {low} .. {high}](x)")
        got = evaluate(definition.program, {"x": X[0]}, {"A": 6, "B": 3})["y"]
        for a in range(6):
            reach = [i for i in range(a + low, a + high + 1) if 0 <= i < 6]
            np.testing.assert_allclose(got[a], X[0][reach].sum(0), atol=1e-14)


def test_roundings() -> None:
    definition = written("input x[D]\noutput y[D] = f8e4m3(x) + cast(x, x)")
    x = np.array([1.06, 1000.0, np.nan, -0.3])
    exact = evaluate(definition.program, {"x": x}, {"D": 4})["y"]
    np.testing.assert_allclose(exact, 2 * x)
    rounded = evaluate(definition.program, {"x": x}, {"D": 4}, rounding=True, dtypes={"x": "bf16"})["y"]
    np.testing.assert_allclose(rounded, [1.0 + 1.0625, 448 + 1000, np.nan, -0.3125 - 0.30078125])


def test_defaults_and_scalars() -> None:
    definition = written("attr a = 3\ninput x[D]\nparam w[D] = 2\noutput y[D] = a * x * w")
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(evaluate(definition.program, {"x": x}, {"D": 2})["y"], 6 * x)
    np.testing.assert_allclose(evaluate(definition.program, {"x": x}, {"D": 2}, {"a": 1.0})["y"], 2 * x)


def test_primitives_at_the_edges() -> None:
    x = np.array([-np.inf, -1e4, 0.0, 1e4, np.inf, np.nan])
    for op, arguments, want in (
        ("sigmoid", (x,), [0, 0, 0.5, 1, 1, np.nan]),
        ("erf", (x,), [-1, -1, 0, 1, 1, np.nan]),
        ("max", (x, np.ones(6)), [1, 1, 1, 1e4, np.inf, np.nan]),
        ("min", (x, np.ones(6)), [-np.inf, -1e4, 0, 1, 1, np.nan]),
    ):
        np.testing.assert_allclose(PRIMITIVES[op].meaning(*arguments), want)


def test_differences_freeze_what_is_stopped() -> None:
    definition = written("input x[..., D]\noutput y[..., D] = x * stop(mean[D](x)) + bf16(x)")
    arrays = {"x": X[0], "dy": np.ones((6, 3))}
    got = finite_differences(definition, arrays, {"...": 6, "D": 3})["dx"]
    np.testing.assert_allclose(got, np.broadcast_to(X[0].mean(1, keepdims=True) + 1, (6, 3)), rtol=1e-9)
