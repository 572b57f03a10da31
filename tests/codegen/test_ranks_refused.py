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
        ("local_response_norm", ["C"], "has windows along C, which is sharded"),
        ("layernorm", ["...", "D"], "x has two sharded axes, ... and D"),
        ("rmsnorm", ["E"], "rmsnorm has no axis 'E' to shard"),
        ("groupnorm", ["G"], "groupnorm fixes G to 2, so G cannot be sharded"),
        (APART, ["(G C)"], "apart fixes G to 2, which 3 ranks cannot share equally, and shards"),
        (OPEN, ["(G C)", "(H E)"], "open fixes G to 2, which 3 ranks cannot share equally"),
        ("groupnorm", ["(G D)"], "groupnorm has no dimension (G D) to shard"),
        ("qk_norm", ["D"], "qk_norm fixes D to 4, so D cannot be sharded"),
        (TIES, ["D"], "peak compares a maximum or minimum over D with values that ranks recompute"),
    ],
)
def test_what_cannot_be_spread_is_refused_with_a_place_and_a_cure(spec, axes, said):
    definition = written(spec) if "\n" in spec else bundled(spec)
    with pytest.raises(SpecError) as caught:
        spread_program(definition, backward(definition), local_definition(definition, axes, 3).axes)
    (fault,) = caught.value.diagnostics
    assert said in fault.message and fault.code == "spread"
    assert fault.labels and fault.help
