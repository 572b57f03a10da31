"""What is rounded in one pass and used again in a later one is kept packed, if it takes the place of more."""

from __future__ import annotations

import pytest

from normgen.devices.cuda.compile import compile_text
from normgen.diagnostics import Source
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS, DtypeSet, make_case
from tests.codegen.norms import H200, bound, package_of, packaged, source_of
from tests.verify.subjects import CHECKED, prove, subject_of

QUANTISER = """norm quantiser
input x[..., D]
param w[D] = 1
save  rstd[...] = rsqrt(mean[D](x^2) + 0.01)
output y[..., D] = x * rstd * w
let   stored = {stored}
let   s = max(max[D](abs(stored)), 0.001) / 448
output scale[...]: f32 = s
output q[..., D]: f8e4m3 = {value}
grad  y wrt x, w
"""
AGAIN = QUANTISER.format(stored="cast(x * rstd * w, x)", value="stored / s")
OPERAND_TOO = QUANTISER.format(stored="cast(x * rstd * w, x)", value="(stored + x) / s")
ELSEWHERE = QUANTISER.format(stored="f8e5m2(x * rstd * w)", value="stored / s")
# Moments of what is rounded, and a sum of one block's many passes.
CENTRED = """norm centred
input x[..., D]
input r[..., D]
let   h = cast(x + r, x)
output y[..., D] = (h - mean[D](h)) * rsqrt(mean[D]((h - mean[D](h))^2) + 0.01)
output sum[..., D] = x + r
"""
MIXED = DtypeSet("f16, params f32", ("f16",), ("f32",), ("bf16",))


def registers_of(text: str, wanted: str = "registers") -> str:
    forms = package_of(text).forward.strategies[0].kernels[0].forms
    return next(source_of(form) for form in forms if form.form == wanted)


def test_a_rounded_value_takes_the_place_of_what_it_was_made_of():
    source = registers_of(AGAIN)
    assert "rounded_y_words[item] = pack<x_t>(rounded_y);" in source
    last = source[source.index("// results\n") :]
    assert (
        "unpack(rounded_y_words[item], rounded_y);" in last
        and "x_words" not in last
        and "w_words" not in last
    )
    assert "y_out[i] = rounded_y[i];" in source  # a result of the type that it is rounded to
    assert "y_out[i] = rounded_y[i];" not in registers_of(ELSEWHERE)
    assert "rounded_y" not in registers_of(AGAIN, "multipass")


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [(AGAIN, MIXED), (OPERAND_TOO, DTYPE_SETS[0]), (ELSEWHERE, DTYPE_SETS[1]), (CENTRED, DTYPE_SETS[1])],
    ids=["again", "too", "elsewhere", "centred"],
)
def test_kept_values_are_right(text, dtypes):
    made = subject_of(Source("spec.norm", text), {})
    for width in (7, 1032):
        prove(made, make_case(made.definition, 5, width, dtypes, {}), CHECKED)


# ------------------------------------------------------------------------------------------- machine code


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("name", "extents"), [("rmsnorm_quantized_row", {"D": 4096}), ("rmsnorm_fp8", {"G": 256, "E": 16})]
)
def test_roundings_are_conversions_of_pairs(name, extents):
    """Those of one value go through a slow unit: two of them an element were 70 us of 190."""
    record = packaged(name).forward
    for found in plan_launches(record, bound(record, "bf16", rest=16384, **extents), H200).launches:
        if not found.entry.endswith("_second_stage"):
            ptx = compile_text(found.source, "sm_90", target="ptx")[0].decode()
            assert "cvt.rn.bf16.f32" not in ptx
