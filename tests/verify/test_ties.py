"""A value that is compared with the largest of its kind: whichever kernels find the two, some value is it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source, SpecError
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case
from tests.poisoned import poisoned
from tests.verify.subjects import F32, prove, subject_of
from tests.verify.test_properties import STEADY

EXECUTORS = (HostExecutor(), HostExecutor(contracted=True))
SEEDS = 6
VALUES = (
    "x / s",
    "x * w * s",
    "x * w / s + b",
    "abs(x * s - b)",
    "x * (s * w)",
    "tanh(x) * w + h",
    "h * s * w",
)
RESULTS = (
    "x * m", "x * w * m", "x * s * m + b", "(x * w - m) * s", "sum[C: 0 .. 1](x) * m", "h * exp(x / s - m)",
)  # fmt: skip


@st.composite
def specs(draw: DrawFn) -> str:
    keep = draw(st.sampled_from(("save m[B]", "let m")))
    statistic = draw(st.sampled_from(("save s[B]", "let s")))
    sum_ = draw(st.sampled_from(("let h", "save output h[B, C]")))
    op = draw(st.sampled_from(("max", "min")))
    return f"""norm tied
input x[B, C]
input r[B, C]
param w[C] = 1
param b[C]
{sum_} = x + r
{statistic} = mean[C](abs(x)) + 0.5
{keep} = {op}[C]({draw(st.sampled_from(VALUES))})
output y[B, C] = {draw(st.sampled_from(RESULTS))}
"""


def prove_ties(text: str) -> None:
    """Every strategy, on several draws, with and without fused multiplications and additions."""
    subject = subject_of(Source("tied.norm", text))
    package = subject.norm.package
    passes = [record for record in (package.forward, package.backward) if record is not None]
    case = make_case(subject.definition, 7, 9, F32)
    for strategy in dict.fromkeys(s.name for record in passes for s in record.strategies):
        named = replace(subject, norm=Norm(package, planner=poisoned(4, strategy)))
        for executor in EXECUTORS:
            for seed in range(SEEDS):
                prove(named, replace(case, seed=seed), executor)


@pytest.mark.parametrize("result", ["sum[C: 0 .. 1](x) * m", "x * w * m"])
@pytest.mark.parametrize("value", ["x / s", "x * w * s"])
def test_the_largest_is_one_of_them(value: str, result: str) -> None:
    prove_ties(f"""norm tied
input x[B, C]
param w[C] = 1
save s[B] = mean[C](abs(x)) + 0.5
save m[B] = max[C]({value})
output y[B, C] = {result}
""")


@pytest.mark.thorough
@given(specs())
@settings(STEADY, max_examples=12)
def test_the_largest_is_one_of_them_in_drawn_specs(text: str) -> None:
    note(text)
    try:
        prove_ties(text)
    except SpecError as error:
        assert [d.code for d in error.diagnostics] == ["unsupported"], error
        assume(False)
