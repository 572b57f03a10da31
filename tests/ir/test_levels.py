"""Derivatives of derivatives: right at every order, and named without collisions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from normgen.ir.adjoint import guarded_by
from normgen.ir.grad import backward
from normgen.ir.levels import Level, differentiated
from normgen.ir.nodes import walk
from normgen.ir.program import Definition, dims_of
from normgen.ir.reference import check_gradient, evaluate
from normgen.ir.show import show, show_program
from tests.strategies import distinct_arrays, well_typed_specs

from .specs import NAMES, bundled, draw, extents, written

TOLERANCE = 1e-6
EXAMPLES = int(os.environ.get("EXAMPLES", "0"))  # more than usual, drawn anew
OF_LETS = [name for name in NAMES if bundled(name).opened is not None]


def above(definition: Definition) -> Level:
    level = differentiated(definition)
    assert level is not None
    return level


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_of_bundled_specs(name: str) -> None:
    assert_right(above(bundled(name)).definition)


@pytest.mark.parametrize("name", NAMES)
def test_third_derivatives_of_bundled_specs(name: str) -> None:
    assert_right(above(above(bundled(name)).definition).definition)


def assert_right(definition: Definition) -> None:
    """The backward of a level agrees with differences of its forward."""
    derived, sizes = backward(definition), extents(definition)
    assert derived.results and {r.tensor.name for r in derived.results} == {f"d{n}" for n in definition.wrt}
    errors = check_gradient(definition, derived, draw(definition, derived, sizes), sizes)
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("name", NAMES)
def test_a_level_computes_what_the_backward_below_does(name: str) -> None:
    definition = bundled(name)
    derived, level = backward(definition), above(definition)
    sizes = extents(definition)
    arrays = draw(definition, derived, sizes)
    saved = evaluate(definition.program, arrays, sizes) | arrays
    want = evaluate(derived, saved, sizes)
    got = evaluate(level.definition.program, saved | renamed(level, arrays), sizes)
    assert set(level.gradients) == set(level.definition.of)
    zero = set(want) - set(level.gradients.values())
    assert all(not want[name].any() for name in zero)
    for own, name in level.gradients.items():
        np.testing.assert_allclose(got[own], want[name], rtol=1e-9, atol=1e-12)


def renamed(level: Level, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {own: arrays[name] for own, name in level.cotangents.items()}


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(OF_LETS)))
def test_the_derivative_is_whole(name: str) -> None:
    """Through saves, and with what arrives at kept outputs sent on through the first backward, the second
    backward gives the slope of the first one along any direction."""
    definition = bundled(name)
    first, level = backward(definition), above(definition)
    second, sizes = backward(level.definition), extents(definition)
    arrays, rng = draw(definition, first, sizes), np.random.default_rng(1)
    weights = {r.tensor.name: rng.normal(size=shape(r.tensor.dims, sizes)) for r in first.results}
    wanted = {f"d{own}": weights[name] for own, name in level.gradients.items()}
    operands = evaluate(definition.program, arrays, sizes) | arrays
    sent = evaluate(second, operands | renamed(level, arrays) | wanted, sizes)
    arrived = {
        f"d{o}": sent.get(f"d{o}", np.zeros(shape(dims_of(definition.program, o), sizes)))
        for o in definition.of
    }
    through = evaluate(first, operands | arrived, sizes)
    slopes = {name: sent.get(f"d{name}", 0) + through[f"d{name}"] for name in definition.wrt}
    slopes |= {name: sent[f"d{own}"] for own, name in level.cotangents.items() if f"d{own}" in sent}
    direction = {name: rng.normal(size=np.shape(slope)) for name, slope in slopes.items()}

    def weighed(step: float) -> float:
        """All gradients, each by its weights, a step along the direction."""
        moved = arrays | {name: arrays[name] + step * by for name, by in direction.items()}
        found = evaluate(first, evaluate(definition.program, moved, sizes) | moved, sizes)
        return sum(float(np.sum(weights[name] * found[name])) for name in level.gradients.values())

    step = 1e-3
    quotients = [c * weighed(k * step) for k, c in ((-2, 1), (-1, -8), (1, 8), (2, -1))]
    parts = [float(np.sum(direction[name] * slope)) for name, slope in slopes.items()]
    error = abs(sum(parts) - sum(quotients) / (12 * step))
    assert error < TOLERANCE * sum(map(abs, parts))


def shape(dims: tuple[tuple[str, ...], ...], sizes: Mapping[str, int]) -> list[int]:
    return [sizes[axis] for dim in dims for axis in dim]


def test_slopes_where_a_cotangent_is_zero() -> None:
    """Cotangents with many parts are guarded against 0 * inf; what guards them is no kink."""
    text = """
    input x[..., D]
    let c = tanh(x) if x > 0.5 else -x
    let e = max(c, 0.1) + min(c, 2) + abs(c) + max(c, 0.7) * x + min(c, 0.2) * x
    output y[..., D] = tanh(e) * e
    """
    level = above(written(text)).definition
    derived, sizes = backward(level), {"...": 3, "D": 5}
    guarded = [n for r in level.program.results for n in walk(r.expr) if guarded_by(n) is not None]
    assert any("grad_y" in show(node) for node in guarded)
    arrays = draw(level, derived, sizes)
    arrays["grad_y"][1] = 0
    assert max(check_gradient(level, derived, arrays, sizes).values()) < TOLERANCE


@settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(well_typed_specs())
def test_second_derivatives_of_drawn_specs(text: str) -> None:
    level = differentiated(written(text))
    assert level is not None
    definition = level.definition
    derived = backward(definition)
    sizes = {axis.name: 4 if axis.name == "D" else 2 for axis in definition.program.axes}
    tensors = {t.name: t for t in (*definition.program.operands, *derived.operands) if t.role != "saved"}
    arrays = distinct_arrays(tuple(tensors.values()), sizes, seed=1)
    errors = check_gradient(definition, derived, arrays, sizes)
    assert max(errors.values()) < TOLERANCE, (errors, text, show_program(derived))
