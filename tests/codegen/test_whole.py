"""Rows that thread groups hold while they sum parts of them: what is planned, when it is taken, that it is
right."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.stages import groups_of
from normgen.dsl import load_definition
from normgen.families.rows.compile.plan import plan_whole
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.show import show
from normgen.kernel.group import Misfit
from normgen.kernel.plan import KernelPlan
from tests.codegen.holding import subject

# --------------------------------------------------------------------------------------------------- the plan


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


@pytest.mark.parametrize("name", ["layernorm", "instancenorm", "batchnorm_channels_last", "layernorm2d"])
def test_what_one_kernel_does_anyway_or_no_row_holds_has_no_such_strategy(name):
    definition = load_definition(bundled.read(name), {})
    found = strategies(backward(definition), definition.source, "k")
    assert "whole" not in {s.name for s in found}


@pytest.mark.parametrize(
    ("file", "name", "groups", "direction"),
    [("parts.backward.cu", "groupnorm", 4, "backward"), ("pieces.forward.cu", "batchnorm", 0, "forward")],
)
def test_the_texts(file, name, groups, direction, golden):
    record = getattr(subject(name, groups).norm.package, direction)
    (found,) = [s for s in record.strategies if s.name == "whole"]
    golden(file, "\n".join(form.source for kernel in found.kernels for form in kernel.forms))
