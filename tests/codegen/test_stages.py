"""Cutting a program at its reductions: which kernels follow one another, what they hand on, and the strategy
whose blocks share rows."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.registry import plan_kernel
from normgen.codegen.strategies.stages import groups_of, split
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.kernel.group import Misfit


def programs(spec, **attrs):
    source = bundled.read(spec) if "\n" not in spec else Source("spec.norm", spec)
    definition = load_definition(source, attrs)
    return definition, backward(definition)


def written(plans):
    """What each kernel writes."""
    parts = [getattr(plan, "parts", plan) for plan in plans]
    return [[r.tensor.name for r in (*part.results, *part.finals)] for part in parts]


def kernels(program, name, **how):
    stages = split(centre(program), name, **how)
    return [plan.name.removeprefix(f"{name}_") for plan in stages.plans], [
        f"{t.name}[{', '.join(t.order)}]" for t in stages.temporaries
    ]


def test_backward_passes_are_cut_at_what_their_elements_need():
    _, derived = programs("groupnorm", groups=2)
    found, temporaries = kernels(derived, "b")
    assert found == ["statistics", "statistics_2", "apply_1", "apply_2"]
    assert {t.partition("[")[2] for t in temporaries} == {"B, G, C]", "B, G]"}


def test_a_state_is_updated_after_all_that_reads_it():
    text = """norm n
input x[..., D]
state s[D] = 0
let    m[D] = mean[...](x^2)
output y[..., D] = (x - s) / m
update s = m
"""
    definition = load_definition(Source("n.norm", text), {})
    (found,) = strategies(definition.program, definition, "f")
    assert written(found.plans)[1:] == [["y"], ["s"]]


def test_temporaries_take_names_that_nobody_has():
    text = "norm n\ninput x[B, C, ...]\nparam t1[C] = 1\noutput y[B, C, ...] = (x - mean[B, ...](x)) * t1\n"
    definition, _ = programs(text)
    _, temporaries = kernels(definition.program, "f")
    assert "t1[C]" not in temporaries and temporaries


def test_what_fits_no_family_says_why():
    text = "norm n\ninput x[D]\noutput y[D] = sum[D: -1..1](x) / sum[D](x)\n"
    definition, _ = programs(text)
    (group,) = groups_of(centre(definition.program), "n")
    with pytest.raises(Misfit, match="`n` sums over a window"):
        plan_kernel(group)


def test_a_maximum_of_computed_values_is_compared_with_them_as_they_were_stored():
    text = """norm n
input x[..., (G E)]
attr size: int = 128
axis E = size
save rstd[...] = rsqrt(mean[G, E](x^2) + 1)
output s[..., G] = max[E](abs(x * rstd))
"""
    definition, derived = programs(text)
    assert strategies(definition.program, definition, "f")
    (found,) = strategies(derived, definition, "b")
    whole = next(t for t in derived.operands if t.name == "x")
    assert any(t.axes == whole.axes for t in found.temporaries)  # stored first, and compared as stored
