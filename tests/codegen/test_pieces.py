"""Rows in pieces, which only thread groups that hold them have: what is planned, when taken, that it is
right."""

from __future__ import annotations

import pytest

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.stages import groups_of
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.rows.compile.plan import plan_in_pieces
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.kernel.group import Misfit
from tests.codegen.holding import subject

# --------------------------------------------------------------------------------------------------- the plan


def test_a_row_in_pieces():
    definition = subject("batchnorm").definition
    for program in (definition.program, backward(definition)):
        (found,) = [s for s in strategies(program, definition.source, "k") if s.name == "whole"]
        (plan,) = found.plans
        assert (plan.kept, plan.pieces, plan.piece) == (("C",), ("B",), ("...",))
        assert plan.levels and not plan.columns


def test_pieces_numbered_by_several_axes():
    definition = subject("video").definition
    (group,) = groups_of(centre(definition.program), "k")
    plan = plan_in_pieces(group)
    assert (plan.kept, plan.pieces, plan.piece) == (("C",), ("N", "T"), ("H", "W"))
    assert {o.tensor.name: (o.kept, o.inner) for o in plan.operands}["x"] == (("N", "T", "C"), ("H", "W"))


@pytest.mark.parametrize(
    "output",
    [
        "y[B, C, D] = x - mean[C](x)",  # no piece is contiguous
        "y[B, C, D] = x - mean[C, D](x)",  # one piece
        "y[B, C, D] = x - mean[B, D](x) - mean[D](x)",
        "y[B, C, D] = x - mean[B, D](x) + v",  # an operand with part of a row, of which each piece has one
    ],
)
def test_what_is_no_row_in_pieces(output):
    definition = load_definition(
        Source("spec.norm", f"norm n\ninput x[B, C, D]\ninput v[B]\noutput {output}\n"), {}
    )
    (group,) = groups_of(centre(definition.program), "k")
    with pytest.raises(Misfit):
        plan_in_pieces(group)


@pytest.mark.parametrize(("used", "found"), [("s", False), ("0", True)])
def test_a_state_that_every_element_needs_is_updated_by_another_kernel(used, found):
    text = f"""norm n
input x[B, C, D]
state s[C] = 0
output y[B, C, D] = x - mean[B, D](x) + {used}
update s = lerp(s, mean[B, D](x), 0.1)
"""
    definition = load_definition(Source("spec.norm", text), {})
    assert ("whole" in {s.name for s in strategies(definition.program, definition.source, "k")}) == found
