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
from tests.channel_specs import channel_specs
from tests.kinds import of_all
from tests.strategies import distinct_arrays, well_typed_specs

from .specs import NAMES, bundled, draw, extents, written

TOLERANCE = 1e-6
EXAMPLES = int(os.environ.get("EXAMPLES", "0"))  # more than usual, drawn anew


def above(definition: Definition) -> Level:
    level = differentiated(definition)
    assert level is not None
    return level


def assert_right(definition: Definition) -> None:
    """The backward of a level agrees with differences of its forward."""
    derived, sizes = backward(definition), extents(definition)
    assert derived.results and {r.tensor.name for r in derived.results} == {f"d{n}" for n in definition.wrt}
    errors = check_gradient(definition, derived, draw(definition, derived, sizes), sizes)
    assert max(errors.values()) < TOLERANCE, errors


def renamed(level: Level, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {own: arrays[name] for own, name in level.cotangents.items()}


@pytest.mark.parametrize("name", of_all(NAMES))
def test_the_derivative_is_whole(name: str) -> None:
    """Through saves, and with what arrives at kept outputs sent on through the first backward, the second
    backward gives the slope of the first one along any direction. The derivative by a `let` has none: it
    is that of its level alone.
    """
    if bundled(name).opened is not None:
        return assert_right(above(bundled(name)).definition)
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


@pytest.mark.parametrize("name", ["l2norm", "rmsnorm_eps_outside", "layernorm"])
def test_rows_of_zeros_have_second_derivatives_where_they_have_first_ones(name: str) -> None:
    level = above(bundled(name)).definition
    sizes = extents(level)
    arrays = draw(level, backward(level), sizes)
    arrays["x"][1] = 0
    found = evaluate(backward(level), evaluate(level.program, arrays, sizes) | arrays, sizes)
    assert all(np.isfinite(array).all() for array in found.values())


@settings(
    max_examples=EXAMPLES or 25,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(well_typed_specs() | channel_specs())
def test_second_derivatives_of_drawn_specs(text: str) -> None:
    level = differentiated(written(text))
    assert level is not None
    definition = level.definition
    derived = backward(definition)
    sizes = {axis.name: axis.extent or (4 if axis.name == "D" else 2) for axis in definition.program.axes}
    tensors = {t.name: t for t in (*definition.program.operands, *derived.operands) if t.role != "saved"}
    arrays = distinct_arrays(tuple(tensors.values()), sizes, seed=1)
    errors = check_gradient(definition, derived, arrays, sizes)
    assert max(errors.values()) < TOLERANCE, (errors, text, show_program(derived))


# --------------------------------------------------------------------------- what a level is made of


def names_of(level: Level) -> tuple[list[str], list[str], tuple[str, ...]]:
    program = level.definition.program
    return [t.name for t in program.operands], [r.tensor.name for r in program.results], level.definition.wrt


def test_names_of_levels() -> None:
    second = above(bundled("rmsnorm"))
    assert names_of(second) == (
        ["grad_y", "x", "w"], ["grad_x", "grad_w", "rstd"], ("grad_y", "x", "w"),
    )  # fmt: skip
    assert second.cotangents == {"grad_y": "dy"}
    assert second.gradients == {"grad_x": "dx", "grad_w": "dw"}
    third = above(second.definition)
    assert names_of(third)[0] == ["grad2_grad_x", "grad2_grad_w", "grad_y", "x", "w"]
    assert third.cotangents == {"grad2_grad_x": "dgrad_x", "grad2_grad_w": "dgrad_w"}
    assert third.gradients == {"grad2_grad_y": "dgrad_y", "grad2_x": "dx", "grad2_w": "dw"}
    assert_right(third.definition)


def test_names_that_a_spec_has_taken() -> None:
    text = "input x[D]\ninput grad_x[D]\nlet dgrad2_y = x + grad_x\noutput y[D] = x * dgrad2_y"
    assert names_of(above(written(text)))[0] == ["grad3_y", "x", "grad_x"]


def test_a_kept_output_is_an_operand() -> None:
    level = above(bundled("add_rmsnorm"))
    assert names_of(level) == (
        ["grad_h", "grad_y", "h", "w"],
        ["grad_x", "grad_residual", "grad_w", "rstd"],
        ("grad_h", "grad_y", "h", "w"),
    )
    assert [t.name for t in backward(level.definition).operands if t.role == "saved"] == ["rstd"]


def test_a_kept_output_that_is_not_differentiated_is_a_function() -> None:
    text = "input x[D]\nsave output h[D] = exp(x)\noutput y[D] = h^2\ngrad y wrt x"
    level = above(written(text)).definition
    assert level.wrt == ("grad_y", "x")
    assert_right(level)
    assert [(t.name, t.role) for t in backward(level).operands if t.name == "h"] == [("h", "saved")]


def test_roots_of_kept_outputs_are_not_differentiated() -> None:
    """The sum is the root of y, which would spare it; but where it is 0 the root has no slope."""
    text = "save output y[] = sum[D](max(x, 0))^2\noutput z[D] = x * sum[D](max(x, 0))"
    level = above(written(f"input x[D]\n{text}")).definition
    assert "y" not in level.wrt
    sizes = {"D": 3}
    ones = dict.fromkeys(("grad_z", "dgrad_x"), np.ones(3)) | {"grad_y": np.ones(())}
    for x, want in ((np.array([-1.0, -2, -3]), [0, 0, 0]), (np.array([-1.0, 2, 3]), [2, 9, 9])):
        arrays = ones | {"x": x}
        saved = evaluate(level.program, arrays, sizes) | arrays
        np.testing.assert_allclose(evaluate(backward(level), saved, sizes)["dx"], want)


def test_what_is_of_no_influence() -> None:
    """The gradient of a bias is the cotangent alone, and nothing else depends on the bias."""
    level = above(bundled("layernorm"))
    assert "grad_b" in level.definition.of
    assert "b" not in level.definition.wrt
    scaled = above(written("input x[D]\ninput z[D]\noutput y[D] = x + 2 * stop(z)\ngrad y wrt x, z"))
    assert scaled.gradients == {"grad_x": "dx"}
    assert scaled.definition.wrt == ("grad_y",)


def test_where_there_is_nothing_to_differentiate() -> None:
    linear = above(written("input x[D]\noutput y[D] = 2 * x")).definition
    assert linear.wrt == ("grad_y",)
    assert [show(r.expr) for r in backward(linear).results] == ["2 * dgrad_x"]
