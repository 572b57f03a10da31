"""An axis of length 0 leaves alone the results that lack it; what is summed over it is zero."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

import normgen
from normgen.codegen.compilation import Compilation
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.reference import evaluate
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from tests.axis_specs import axis_specs
from tests.ir.specs import written
from tests.strategies import COMPILED

EXAMPLES = int(os.environ.get("EXAMPLES", "20"))
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


def _reference(program: Any, arrays: Any, lengths: Any) -> dict[str, Any] | None:
    """None where something of no elements has no value."""
    try:
        with np.errstate(all="ignore"):
            made = evaluate(program, arrays, lengths)
    except ValueError:  # a maximum of nothing
        return None
    made = {r.tensor.name: made[r.tensor.name] for r in program.results}
    return made if all(np.isfinite(each).all() for each in made.values()) else None


def _same(made: Any, expected: dict[str, Any], before: dict[str, float] | None = None) -> None:
    for name, array in made._asdict().items():
        want = np.asarray(expected[name]).reshape(array.shape) + (before or {}).get(name, 0)
        np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-4, err_msg=name)


@seed(3)
@settings(COMPILED, max_examples=EXAMPLES)
@given(axis_specs(2), st.data())
def test_what_is_not_empty_is_computed_and_what_is_given_is_added_to(text: str, data: Any) -> None:
    """Forward and backward of specs that are drawn, of lengths of which some are 0: what the mathematics
    gives, or a refusal."""
    lengths = {axis: data.draw(st.sampled_from((0, 0, 2, 3))) for axis in "BSD"}
    assume(0 in lengths.values())
    made = Compilation(load_definition(Source("drawn.norm", text)))
    norm, program, derived = Norm(made.package).on(HOST), made.definition.program, made.derived
    assert derived is not None
    shapes = {
        t.name: tuple(lengths[axis] for axis in t.order) for t in (*program.operands, *derived.operands)
    }
    drawn = arrays(shapes)
    operands = {tensor.name: drawn[tensor.name] for tensor in program.operands}
    forward = _reference(program, operands, lengths)
    if forward is None:
        return
    try:
        results = norm.forward(**operands)
    except ValueError as refusal:
        assert "but the norm reduces over" in str(refusal)
        return
    _same(results, forward)
    drawn |= {name: each for name, each in results._asdict().items() if name in drawn}
    taken = {tensor.name: drawn[tensor.name] for tensor in derived.operands}
    backward = _reference(derived, taken, lengths)
    if backward is None:
        return
    direction = norm.dispatcher("backward").direction
    for accumulate in (False, True):
        added = {name: 7.0 for name in backward if accumulate and direction.accumulates(name)}
        out = {r.tensor.name: np.full(_shape(r, lengths), 7, np.float32) for r in derived.results}
        try:
            _same(norm.backward(**taken, out=out, accumulate=accumulate), backward, added)
        except ValueError as refusal:
            assert "no kernel computes" in str(refusal)
            wrong = re.search(r"no kernel computes (\w+) from (\w+), which is not empty", str(refusal))
            assert wrong is not None and backward[wrong[1]].any() and drawn[wrong[2]].size


def test_gradients_that_are_more_than_an_empty_sum_are_refused() -> None:
    text = """norm refused
    input x[B, S]
    param z[B]
    output y[B, S] = x * z
    output v[B] = z^2
    """
    norm, given = normgen.load(text).on(HOST), arrays({"x": (3, 0), "dy": (3, 0), "z": (3,), "dv": (3,)})
    x, z, dy, dv = (given[name] for name in ("x", "z", "dy", "dv"))
    with pytest.raises(
        ValueError, match=r"^S is 0, and no kernel computes dz from dv.*pass None for dv, or leave dz out$"
    ):
        norm.backward(dy=dy, dv=dv, x=x, z=z)
    assert norm.backward(dy=dy, dv=None, x=x, z=z).dz.tolist() == [0, 0, 0]
    assert norm.backward(dy=dy, dv=dv, x=x, z=z, wrt="x").dx.shape == (3, 0)
