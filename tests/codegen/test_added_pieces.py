"""Rows in pieces that are added up besides: what is planned, when it is taken, that it is right."""

from __future__ import annotations

import pytest

from normgen.codegen.strategies.stages import groups_of
from normgen.families.rows.compile.plan import plan_in_pieces
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.kernel.group import Misfit
from normgen.kernel.plan import KernelPlan
from tests.codegen.alone import defined
from tests.codegen.holding import definition

NAME = "groupnorm_channels_last"


def planned(name: str, groups: int = 0) -> KernelPlan:
    (group,) = groups_of(centre(backward(definition(name, groups))), "k")
    return plan_in_pieces(group)


def test_pieces_of_a_group_are_added_up_channel_by_channel():
    plan = planned(NAME, 4)
    assert (plan.kept, plan.pieces, plan.piece) == (("B", "G"), ("...",), ("C",))
    assert {(c.kept, c.part, c.wide) for c in plan.columns} == {(("G",), ("C",), False)}
    assert plan.adds_pieces and plan.inside == plan.pieces and not plan.segment
    assert [r.tensor.name for r in plan.finals] == ["dw", "db"]
    modulated = planned("modulated")  # they keep more or less of what numbers the rows
    assert {c.kept for c in modulated.columns} == {("B", "G"), ("G",)}
    assert {r.tensor.name for r in modulated.finals} == {"ds", "db"}


def test_what_needs_the_sums_of_its_row_follows_them_if_it_is_no_multiple():
    (group,) = groups_of(centre(definition("squashed").program), "k")
    assert not any(c.terms for c in plan_in_pieces(group).columns)
    assert all(c.terms for c in planned("bounded").columns)


@pytest.mark.parametrize(
    ("total", "fits"),
    [
        ("total[C] = sum[B, S, D](x)", True),  # is a sum of the row
        ("total[D] = sum[B, S, C](x)", True),
        ("total[C, D] = sum[B, S](x)", True),
        ("total[B, C, D] = sum[S](x)", False),  # part of what numbers the pieces
        ("total[B, S] = sum[C, D](x)", False),  # over a piece
        ("total[C, D] = max[B, S](x)", False),
        ("total[C, D] = sum[B, S]((x - mean[B, S](x))^2)", False),  # one needs the other
    ],
)
def test_sums_that_keep_a_whole_piece_or_nothing_of_a_row(total, fits):
    text = f"norm n\ninput x[B, S, C, D]\noutput y[B, S, C, D] = x - mean[B, S, D](x)\noutput {total}\n"
    (group,) = groups_of(centre(defined(text).program), "k")
    try:
        plan = plan_in_pieces(group)
    except Misfit:
        assert not fits
    else:
        assert (plan.adds_pieces or not plan.columns) == fits
