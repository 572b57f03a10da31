"""Programs cut as late as possible: how many kernels that takes, and that they are right."""

from __future__ import annotations

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.fewest import fewest
from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.ir.centre import centre
from normgen.kernel.plan import KernelPlan
from tests.codegen.alone import defined

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
TWICE = """norm twice
input x[M, N]
let   a[M, N] = x / (max[M](abs(x)) + 1)
output y[M, N] = a / (sum[N](a^2) + 1)
"""


def written(text: str) -> list[set[str]]:
    """The results of each kernel."""
    found = []
    for plan in fewest(centre(defined(text).program), "k").plans:
        parts = plan.parts if isinstance(plan, ColumnsPlan) else plan
        results = (*parts.results, *(parts.finals if isinstance(parts, KernelPlan) else ()))
        found.append({result.tensor.name for result in results})
    return found


def test_a_row_and_what_is_accumulated_over_rows_share_a_kernel():
    assert written(TENSOR) == [{"t1", "t2", "rstd", "scale"}, {"q", "qt"}]


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
    definition = defined(text)
    found = strategies(definition.program, definition.source, "k")
    assert "fewest" not in [s.name for s in found]
