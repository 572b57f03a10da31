"""What ranks cannot have runs of, or cannot compute: each is said with a place in the spec and a cure."""

from __future__ import annotations

import pytest

from normgen.codegen.ranks import local_definition, spread_program
from normgen.diagnostics import SpecError
from normgen.ir.grad import backward
from tests.ir.specs import bundled, written

TIES = """norm peak
input x[..., D]
param w[D]
output y[..., D] = x / max[D](x * w)
"""


OPEN = """norm open
axis G = 2
axis E = 4
input x[..., (G C)]
input z[..., (H E)]
output y[..., (G C)] = x * rsqrt(mean[C](x^2))
output s[..., (H E)] = z * rsqrt(mean[E](z^2))
"""
APART = """norm apart
axis G = 2
input x[..., (G C)]
param w[G, C]
output y[..., (G C)] = w * x * rsqrt(mean[C](x^2))
"""


@pytest.mark.parametrize(
    ("spec", "axes", "said"),
    [
        ("local_response_norm", ["C"], "has windows along C, which is spread over ranks"),
        ("layernorm", ["...", "D"], "x has two spread axes, ... and D"),
        ("rmsnorm", ["E"], "rmsnorm has no axis 'E' to spread"),
        ("groupnorm", ["G"], "groupnorm: G is fixed to 2, so ranks cannot have runs of it"),
        (APART, ["(G C)"], "apart: G is fixed to 2, of which 3 ranks have no equal runs, and w keeps them"),
        (OPEN, ["(G C)", "(H E)"], "open: G is fixed to 2, of which 3 ranks have no equal runs"),
        ("groupnorm", ["(G D)"], "groupnorm has no dimension (G D) to spread"),
        ("qk_norm", ["D"], "qk_norm: D is fixed to 4, so ranks cannot have runs of it"),
        (TIES, ["D"], "peak compares an extreme over D with values that ranks compute anew"),
    ],
)
def test_what_cannot_be_spread_is_refused_with_a_place_and_a_cure(spec, axes, said):
    definition = written(spec) if "\n" in spec else bundled(spec)
    with pytest.raises(SpecError) as caught:
        spread_program(definition, backward(definition), local_definition(definition, axes, 3).axes)
    (fault,) = caught.value.diagnostics
    assert said in fault.message and fault.code == "spread"
    assert fault.labels and fault.help
