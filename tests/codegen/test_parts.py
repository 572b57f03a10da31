"""Operands with some of a row's axes: scales of groups, gains of channels. A vector needs one load."""

from __future__ import annotations

import pytest

from normgen.diagnostics import Source
from normgen.launching.launch import Launch
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS, DtypeSet, make_case
from tests.codegen.norms import H200, bound, package_of
from tests.sampling import paired
from tests.verify.subjects import CHECKED, PLAIN, prove, subject_of

SCALED = """norm scaled
attr  group: int >= 1 = 16
axis  E = group
input xq[..., (G E)]: f8e4m3
input xs[..., G]
param w[(G E)] = 1
let   x[..., (G E)] = xq * xs
save  rstd[...] = rsqrt(mean[G, E](x^2) + 0.01)
let   y[..., (G E)] = x * rstd * w
output q[..., (G E)]: f8e5m2 = y
output h[..., (G E)] = y
grad  y wrt x, w
"""
MIXTURES = [DTYPE_SETS[0], DTYPE_SETS[1], DtypeSet("f16, params f32", ("f16",), ("f32",), ("bf16",))]


def run(text: str, sizes: dict[str, int], dtypes: DtypeSet, executor=CHECKED, **attrs: object) -> None:
    made = subject_of(Source("spec.norm", text), attrs)
    prove(made, make_case(made.definition, 1, 1, dtypes, sizes), executor)


@pytest.mark.parametrize(("dtypes", "sizes"), paired(MIXTURES, [(16, 9), (8, 40), (3, 16), (1, 24)]))
def test_scales_of_groups(sizes, dtypes):
    group, groups = sizes
    run(SCALED, {"...": 5, "G": groups}, dtypes, group=group)


def test_scales_of_groups_in_rows_that_stream():
    run(SCALED, {"...": 2, "G": 24000}, DTYPE_SETS[1], PLAIN, group=3)


def launch(direction: str, group: int, groups: int, dtype: str = "bf16") -> Launch:
    package = package_of(SCALED, group=group)
    record = getattr(package, direction)
    binding = bound(record, dtype, rest=4096, G=groups, E=group)
    return plan_launches(record, binding, H200, "fused").launches[0]


def test_a_vector_has_one_scale_where_half_of_its_width_does():
    """Of 16 elements of fp8, or 8."""
    for group, vector in ((16, 16), (8, 8), (48, 16), (3, 16)):
        assert f"constexpr int VEC = {vector};" in launch("forward", group, 256).source
