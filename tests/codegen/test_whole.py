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
from normgen.kernel.group import Misfit
from tests.codegen.holding import subject


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
