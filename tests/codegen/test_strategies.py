"""Which ways to run a pass are planned, and which of them a call takes."""

from __future__ import annotations

from functools import partial

import pytest

from normgen.codegen.package import package
from normgen.codegen.strategies.cut import strategies
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import alternatives, choose_strategy, plan_launches
from normgen.verify.cases import make_case
from normgen.verify.kernels import Subject
from tests.codegen.norms import H200, bound, package_of, packaged
from tests.verify.subjects import BF16, F32, prove

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


# Images of one sample: few long ones leave most of the device idle unless blocks share them.
CHOSEN = [
    (3, 4096 * 4096, "shared"),
    (1, 3000 * 3000, "shared"),
    (3, 16 * 16, "fused"),
    (512, 56 * 56, "fused"),
    (4096, 112 * 112, "fused"),
]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("channels", "places", "name"), CHOSEN)
def test_few_long_groups_are_shared(direction, channels, places, name):
    record = getattr(packaged("instancenorm"), direction)
    binding = bound(record, "bf16", B=1, C=channels, rest=places)
    chosen = choose_strategy(alternatives(record, binding, H200))
    assert chosen.strategy.name == name


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_kernel_over_few_long_rows_has_blocks_for_the_whole_device(direction):
    record = getattr(packaged("instancenorm"), direction)
    binding = bound(record, "bf16", B=1, C=3, rest=4096 * 4096)
    rows = [x for x in plan_launches(record, binding, H200).launches if x.entry.endswith("_split")]
    assert rows[0].entry.endswith("_shared_statistics_split")
    assert len(rows) == 2 and all(x.grid[0] >= 3 * H200.multiprocessors for x in rows)


@pytest.mark.parametrize("text", [SOFTMAX, CENTRED], ids=["softmax", "centred"])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 40), (2, 5000), (1, 70000)])
def test_shared_rows_give_what_is_meant(text, rows, width):
    definition = load_definition(Source("spec.norm", text), {})
    norm = Norm(package(definition), planner=partial(plan_launches, strategy="shared"))
    subject = Subject(definition, backward(definition), norm, "shared")
    prove(subject, make_case(definition, rows, width, F32))
    prove(subject, make_case(definition, rows, width, BF16), HostExecutor())
