"""What is planned: rows, column sums, rows that thread groups hold, and where no kernel fits."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.codegen.strategies.stages import groups_of
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.rows.compile.plan import plan_in_pieces, plan_rows, plan_whole
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.program import Program
from normgen.kernel.group import Misfit
from normgen.kernel.plan import KernelPlan
from tests.codegen.alone import defined
from tests.codegen.holding import subject
from tests.codegen.norms import package_of, packaged
from tests.kinds import ATTRS


def planned(program: Program, name: str) -> tuple[KernelPlan, ...]:
    """A kernel of the rows family for each group of results."""
    return tuple(plan_rows(group) for group in groups_of(centre(program), name))


def plans(name: str, direction: str) -> tuple[KernelPlan, ...]:
    definition = load_definition(bundled.read(name), ATTRS.get(name, {}))
    return planned(definition.program if direction == "forward" else backward(definition), name)


def test_moments_take_one_exchange_where_the_row_is_resident():
    (kernel,) = plans("layernorm", "forward")
    assert (len(kernel.merged_levels), len(kernel.levels)) == (1, 2)


def test_independent_results_become_kernels_of_their_own():
    first, second = plans("qk_norm", "forward")
    assert (first.kept, second.kept) == (("...", "H"), ("...", "K"))
    assert {r.tensor.name for r in first.results} == {"qn", "rq"}


def test_results_that_share_their_elements_share_a_kernel():
    (kernel,) = plans("add_rmsnorm", "forward")
    assert {r.tensor.name for r in kernel.results} == {"h", "y", "rstd"}
    (kernel,) = plans("adaln_modulate", "backward")  # whose blocks stay within a segment
    assert (kernel.segment, kernel.kept) == (("B",), ("B", "S"))


def test_operands_may_have_any_of_the_axes():
    text = """norm scaled
        input x[B, S, D]
        input a[B]
        input c[]
        input g[S, D]
        output y[B, S, D] = x * a * c * g * rsqrt(mean[D](x^2) + 1)
    """
    package = package_of(text)
    (kernel,) = package.backward.kernels
    assert {c.kept: c.wide for c in kernel.columns} == {("B",): False, (): False, ("S",): True}
    assert kernel.segment == ("B", "S")
    operands = {o.tensor: (o.kept, o.inner) for o in kernel.reads}
    assert operands["a"] == (("B",), ())
    assert operands["c"] == ((), ())
    assert operands["g"] == (("S",), ("D",))


NO_ROWS = [
    ("softmax2d", "innermost contiguous axes"),
    ("local_response_norm", "window"),
    ("rmsnorm_fp8", "reduces over"),
]
TURNED = "norm turned\ninput x[B, D]\noutput y[B, D] = x * 2\noutput z[D, B] = x * 3\n"


@pytest.mark.parametrize(("spec", "reason"), [*NO_ROWS, (TURNED, "innermost axes")])
def test_what_has_no_rows_says_why(spec, reason):
    definition = load_definition(bundled.read(spec) or Source("turned.norm", spec), {})
    with pytest.raises(Misfit, match=reason):
        planned(definition.program, "k")


@pytest.mark.parametrize(("length", "inner"), [(128, ("G", "E")), (2048, ("E",))])
def test_rows_that_the_spec_makes_short_are_joined(length, inner):
    declared = f"attr n: int = {length}\naxis E = n\ninput x[..., G, E]\n"
    definition = defined(f"norm joined\n{declared}output y[..., G, E] = x * 2\n")
    (kernel,) = planned(definition.program, "joined")
    assert kernel.inner == inner and kernel.name == "joined" and not kernel.levels


# --------------------------------------------------------------------------- rows that thread groups hold


def test_parts_of_two_kinds_are_left_to_several_kernels():
    (group,) = groups_of(centre(backward(subject("twice").definition)), "k")
    with pytest.raises(Misfit):
        plan_whole(group)


def test_what_one_kernel_does_anyway_or_no_row_holds_has_no_such_strategy():
    for name in ("instancenorm", "batchnorm_channels_last"):
        assert "whole" not in {s.name for s in packaged(name).backward.strategies}


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
    definition = defined(f"norm n\ninput x[B, C, D]\ninput v[B]\noutput {output}\n")
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
    assert ("whole" in {s.name for s in package_of(text).forward.strategies}) == found
