"""Programs cut as late as possible: how many kernels that takes, and that they are right."""

from __future__ import annotations

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.fewest import fewest
from normgen.codegen.strategies.stages import PlannedStrategy
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.ir.centre import centre
from normgen.kernel.plan import KernelPlan

TENSOR = """norm tensor
input x[..., D]
param w[D] = 1
save  rstd[...] = rsqrt(mean[D](x^2) + 0.01)
let   y[..., D] = x * rstd * w
output scale[]: f32 = max[..., D](abs(y)) / 448
output q[..., D]: f8e4m3 = y / scale
output qt[D, ...]: f8e4m3 = y / scale
grad  y wrt x, w
"""
BLOCKS = """norm blocks
attr  group: int >= 1 = 32
axis  E = group
input x[..., (G E)]
save  mu[...] = mean[G, E](x)
save  rstd[...] = rsqrt(mean[G, E]((x - mu)^2) + 0.01)
let   y[..., (G E)] = (x - mu) * rstd
output s[..., G]: f32 = (max[E](abs(y)) + 0.001) / 57344
output q[..., (G E)]: f8e5m2 = y / s
grad  y wrt x
"""
TWICE = """norm twice
input x[M, N]
let   a[M, N] = x / (max[M](abs(x)) + 1)
output y[M, N] = a / (sum[N](a^2) + 1)
"""


def stages(text: str) -> PlannedStrategy:
    return fewest(centre(load_definition(Source("spec.norm", text), {}).program), "k")


def written(text: str) -> list[set[str]]:
    """The results of each kernel."""
    plans = [p.parts if isinstance(p, ColumnsPlan) else p for p in stages(text).plans]
    return [
        {r.tensor.name for r in (*p.results, *(p.finals if isinstance(p, KernelPlan) else ()))} for p in plans
    ]


def test_a_row_and_what_is_accumulated_over_rows_share_a_kernel():
    assert written(TENSOR) == [{"t1", "t2", "rstd", "scale"}, {"q", "qt"}]


def test_a_part_of_the_row_shares_a_kernel_with_what_it_scales():
    statistics, last = written(BLOCKS)
    assert {"mu", "rstd"} < statistics
    assert last == {"s", "q"}


def test_a_reduction_of_what_another_scales_takes_another_kernel():
    statistics, last = written(TWICE)
    assert all(name.startswith("t") for name in statistics)
    assert last == {"y"}


def test_states_are_left_to_others():
    text = """norm stated
        input x[B, C]
        state m[C] = 0
        output y[B, C] = x - mean[B](x)
        update m = m + 0.1 * (mean[B](x) - m)
    """
    definition = load_definition(Source("spec.norm", text), {})
    found = strategies(definition.program, definition.source, "k")
    assert "fewest" not in [s.name for s in found]
