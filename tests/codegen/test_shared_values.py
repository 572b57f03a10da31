"""A value that several rows or columns share is computed once and stored once, in every strategy."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from normgen.codegen.compilation import Compilation
from normgen.codegen.strategies.cut import strategies
from normgen.diagnostics import Source
from normgen.kernel.plan import KernelPlan, Parts
from normgen.verify.cases import DTYPE_SETS, make_case
from normgen.verify.turns import in_turn
from tests.every_way import Picked, first, in_every_way, kinds
from tests.verify.subjects import F32, prove, subject_of

SIZES = {"B": 3, "C": 5, "D": 40, "E": 11}
HEAD = "norm shared\nattr eps > 0 = 0.1\n"
OPERANDS = "input x[B, C, D]\ninput p[E]\ninput q[C, E]\ninput s[B, E]\nparam w[D] = 1\nparam c[C] = 1\n"
# By what they are reduced over, values that elements of x share, whole rows of it, or rows of one sample.
VALUES = {
    "sum[E](p^2)": "a scalar",
    "max[E](q)": "one for each channel",
    "sum[E](abs(s))": "one for each sample",
    "sum[E](p * s)": "one for each sample, of what samples share",
    "rsqrt(mean[D](w^2) + eps)": "of the axis of a row",
    "rsqrt(mean[C](c^2) + eps)": "of an axis outside of it",
    "min[C](sum[E](q))": "of what is reduced already",
}
OF_X = ("x", "x * rsqrt(mean[D](x^2) + eps)", "x - mean[C](x)", "x * w * rsqrt(mean[C, D](x^2) + eps) + c")


def sums_of_rows(plan: object) -> list[tuple[frozenset[str], frozenset[str]]]:
    """For each sum that a kernel's rows or columns exchange, the axes that it varies over, and all of these
    that number them."""
    parts = plan.parts if isinstance(plan, Parts) else plan
    assert isinstance(parts, KernelPlan)
    return [(n.axes, frozenset(parts.kept)) for level in parts.levels for n in level.sums]


def check(text: str, turn: int, picked: Picked = first) -> None:
    subject = subject_of(Source("shared.norm", HEAD + OPERANDS + text))
    definition = subject.definition
    for _, program in Compilation(definition).programs:
        for strategy in strategies(program, definition, "shared"):
            for plan in strategy.plans:
                assert all(axes == kept for axes, kept in sums_of_rows(plan)), (plan.name, text)
    dtypes = (F32, DTYPE_SETS[1], DTYPE_SETS[5])[turn % 3]
    case = in_turn(definition, make_case(definition, 1, 1, dtypes, SIZES), turn, True)
    for direction in ("forward", "backward"):
        for one, _ in in_every_way(subject, picked):
            prove(one, case, directions=(direction,))


@pytest.mark.parametrize("value", VALUES)
def test_a_value_of_other_axes(value: str) -> None:
    check(f"output y[B, C, D] = {OF_X[len(value) % len(OF_X)]} * {value}\n", len(value))


def test_a_saved_value() -> None:
    check("save r[] = rsqrt(mean[E](p^2) + 1)\nsave t[B] = r * sum[E](s)\noutput y[B, C, D] = x * t\n", 2)


def test_a_gradient_that_repeats_along_an_axis() -> None:
    check("output y[B, C, D] = x * sum[E](s) - mean[D](x)\n", 9)


def test_beside_a_window() -> None:
    check("output y[B, C, D] = sum[D: -1 .. 1](x) * sum[E](p^2)\n", 3)


@pytest.mark.thorough
@given(st.lists(st.sampled_from(list(VALUES)), min_size=2, max_size=3, unique=True), st.sampled_from(OF_X))
@settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=3,
    phases=(Phase.generate,),
    suppress_health_check=(HealthCheck.too_slow,),
)
def test_several(values: list[str], of_x: str) -> None:
    text = f"output y[B, C, D] = ({of_x}) * {' * '.join(values)}\n"
    note(text)
    check(text, len(of_x), kinds)
