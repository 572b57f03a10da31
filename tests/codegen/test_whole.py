"""Rows that thread groups hold while they sum parts of them, and rows in pieces: what is planned."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.stages import groups_of
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.rows.compile.plan import plan_in_pieces, plan_whole
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.show import show
from normgen.kernel.group import Misfit
from normgen.kernel.plan import KernelPlan
from tests.codegen.holding import subject


def planned(name: str, groups: int = 0) -> KernelPlan:
    definition = load_definition(
        subject(name, groups).definition.source, {"groups": groups} if groups else {}
    )
    (group,) = groups_of(centre(backward(definition)), "k")
    return plan_whole(group)


@pytest.mark.parametrize(
    ("name", "groups", "kept", "part"),
    [("groupnorm", 4, ("G",), ("C",)), ("adagn", 4, ("B", "G"), ("C",)), ("nested", 0, (), ("C",))],
)
def test_what_the_accumulators_keep(name, groups, kept, part):
    plan = planned(name, groups)
    assert {(c.kept, c.part, c.wide) for c in plan.columns} == {(kept, part, False)}
    assert not plan.segment and not plan.splits


def test_a_sum_that_needs_one_of_the_row_takes_it_in():
    (final,) = [r for r in planned("adagn", 4).finals if r.tensor.name == "dscale"]
    mean = "sum[C, ...](minus(x, mu)) * dy / (size[...] * size[C])"
    assert show(final.expr) == f"rstd * sum[...](dy * minus(x, mu) - {mean})"


def test_parts_of_two_kinds_are_left_to_several_kernels():
    definition = subject("twice").definition
    (group,) = groups_of(centre(backward(definition)), "k")
    with pytest.raises(Misfit):
        plan_whole(group)


def test_what_one_kernel_does_anyway_or_no_row_holds_has_no_such_strategy():
    for name in ("instancenorm", "batchnorm_channels_last"):
        definition = load_definition(bundled.read(name), {})
        assert "whole" not in {s.name for s in strategies(backward(definition), definition.source, "k")}


@pytest.mark.parametrize(
    ("file", "name", "groups", "direction"),
    [("parts.backward.cu", "groupnorm", 4, "backward"), ("pieces.forward.cu", "batchnorm", 0, "forward")],
)
def test_the_texts(file, name, groups, direction, golden):
    record = getattr(subject(name, groups).norm.package, direction)
    (found,) = [s for s in record.strategies if s.name == "whole"]
    golden(file, "\n".join(form.source for kernel in found.kernels for form in kernel.forms))


# -------------------------------------------------------------------------------------------------- pieces


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
