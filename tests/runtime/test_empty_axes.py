"""An axis of length 0 leaves alone the results that lack it; what is summed over it is zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.ir.reference import evaluate
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from tests.ir.specs import written

HOST = HostExecutor(checked=True)
# By what is empty: a spec, shapes of its operands, the results that are there all the same.
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], str]] = {
    "one of two rows": (
        """
        input q[B, D]
        input k[S, E]
        save r[B] = rsqrt(mean[D](q^2) + 1)
        output y[B, D] = q * r
        output z[S, E] = k * rsqrt(mean[E](k^2) + 1)
        """,
        {"q": (3, 8), "k": (0, 5)},
        "y r",
    ),
    "rows of several kernels": (
        """
        input x[B, C, S]
        input p[G, C]
        save m[C] = mean[B, S](x)
        output y[B, C, S] = x - m
        output z[G, C] = p * m
        """,
        {"x": (3, 4, 6), "p": (0, 4)},
        "y m",
    ),
}


def arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", CASES)
def test_results_without_an_empty_axis_are_computed(name: str) -> None:
    text, shapes, alive = CASES[name]
    norm, given = normgen.load(f"norm partly_empty{text}"), arrays(shapes)
    definition = written(text.strip())
    extents = {
        axis: length
        for tensor in definition.program.operands
        for axis, length in zip(tensor.order, shapes[tensor.name], strict=True)
    }
    expected = evaluate(definition.program, given, extents)
    for strategy in norm.package.forward.strategies:
        made = Norm(
            norm.package,
            planner=lambda record, binding, device, only=strategy.name: plan_launches(
                record, binding, device, only
            ),
        ).on(HOST)
        out = {
            r.tensor.name: np.full(_shape(r, extents), np.nan, np.float32) for r in definition.program.results
        }
        made.forward(**given, out=out)
        for result, array in out.items():
            want = expected[result] if result in alive.split() else np.zeros_like(array)
            np.testing.assert_allclose(
                array, want, rtol=1e-5, atol=1e-6, err_msg=f"{result}, {strategy.name}"
            )


def _shape(result: Any, extents: dict[str, int]) -> tuple[int, ...]:
    return tuple(extents[axis] for axis in result.tensor.order)


def test_gradients_of_what_lacks_an_empty_axis_are_there() -> None:
    norm = normgen.load("qk_norm", head_dim=4).on(HOST)
    given = {**arrays({"q": (3, 8), "dqn": (3, 8)}), "k": np.zeros((3, 0), np.float32)}
    made = norm.forward(given["q"], given["k"])
    saves = {"rq": made.rq, "rk": made.rk}
    back = norm.backward(given["dqn"], np.zeros((3, 0), np.float32), given["q"], given["k"], **saves)
    full = {**given, "k": given["q"], "dkn": given["dqn"]}
    other = norm.forward(full["q"], full["k"])
    expected = norm.backward(full["dqn"], full["dkn"], full["q"], full["k"], rq=other.rq, rk=other.rk)
    np.testing.assert_array_equal(made.qn, other.qn)
    np.testing.assert_array_equal(back.dq, expected.dq)
    assert back.dk.shape == (3, 0)
