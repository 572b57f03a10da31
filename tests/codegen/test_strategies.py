"""Which ways to run a pass are planned, and which of them a call takes."""

from __future__ import annotations

import pytest

from normgen.codegen.strategies.cut import strategies
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from tests.codegen.norms import package_of, packaged

# Of rows that are whole images.
SOFTMAX = """norm maps "Attention over all places of an image."
input  x[B, C, ...]
output y[B, C, ...] = exp(x - max[...](x)) / sum[...](exp(x - max[...](x)))
"""
CENTRED = """norm centred "An image without its mean, at length one."
attr   eps >= 0 = 1e-5
input  x[B, C, ...]
let    c[B, C, ...] = x - mean[...](x)
output y[B, C, ...] = c * rsqrt(sum[...](c^2) + eps)
"""
NAMES = [
    ("instancenorm", "forward", "fused split shared"),
    ("instancenorm", "backward", "fused split shared"),
    ("weight_norm", "forward", "fused split shared"),
    ("layernorm", "forward", "fused"),  # one axis: a token
    ("layernorm", "backward", "fused"),
    ("batchnorm", "forward", "split whole"),
    ("batchnorm", "backward", "fewest columns whole"),
]
# Images in rows, as groups of channels are: blocks share each anyway.
IN_ROWS = "norm n\ninput x[B, H, W]\noutput y[B, H, W] = x - mean[H, W](x)\n"


def test_groups_of_several_rows_are_shared_anyway():
    assert [s.name for s in package_of(IN_ROWS).forward.strategies] == ["fused", "split"]


@pytest.mark.parametrize(("name", "direction", "found"), NAMES)
def test_strategies_by_name(name, direction, found):
    record = getattr(packaged(name), direction)
    assert [s.name for s in record.strategies] == found.split()


@pytest.mark.parametrize("text", [SOFTMAX, CENTRED], ids=["softmax", "centred"])
def test_statistics_of_long_rows_are_shared(text):
    definition = load_definition(Source("spec.norm", text), {})
    for program in (definition.program, backward(definition)):
        found = {s.name: s for s in strategies(program, definition.source, "n")}
        plans = found["shared"].plans
        assert plans[0].shared
        assert [plan.name for plan in plans if not plan.shared] == ["n_shared_apply"]


def test_a_maximum_and_the_sum_that_needs_it_are_shared_one_after_the_other():
    (shared,) = [s for s in package_of(SOFTMAX).forward.strategies if s.name == "shared"]
    assert [kernel.forms[0].form for kernel in shared.kernels] == ["split", "split", "batch"]
    assert [t.name for t in shared.temporaries] == ["t1", "t2"]
