"""Operands of which a kernel, or a whole direction, knows no more than an element type or a length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import normgen
from normgen.diagnostics import Source
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS, DtypeSet, make_case
from normgen.verify.events import FAILED, OK, Row
from normgen.verify.expected import Subject
from normgen.verify.run import Options, run, strategy_names
from tests.sampling import sampled

from .subjects import prove, subject_of

pytestmark = pytest.mark.kernels

MIXED = DtypeSet("f32 bf16", ("f32", "bf16"), ("f16",), ("f32",))
# Values are rounded to the type of x, or of w, whose elements nothing reads, or only another kernel.
ROUNDED = {
    "rows": "input r[B, D]\ninput x[B, D]\noutput y[B, D] = cast(r * 3, x) * 2",
    "a backward": "input r[B, D]\ninput x[B, D]\noutput y[B, D] = tanh(cast(r * 3, x))",
    "a residual": "input r[B, D]\ninput x[B, D]\n"
    "let h = cast(r + x, x)\nsave s[B] = rsqrt(mean[D](h^2) + 1)\n"
    "output y[B, D] = h * s",
    "a statistic": "input r[B, D]\ninput x[B, D]\noutput y[B, D] = r * cast(mean[D](r^2), x)",
    "a param": "input r[B, D]\nparam w[D] = 1\noutput y[B, D] = tanh(cast(r * 3, w))",
    "the gradient of a param": "input r[B, D]\ninput x[B, D]\nparam w[D] = 1\n"
    "output y[B, D] = tanh(cast(w * r, x))",
    "channels": "input r[B, C, S]\ninput x[B, C, S]\n"
    "output y[B, C, S] = cast(r, x) * rsqrt(mean[B, S](cast(r, x)^2) + 1)",
    "channels last": "input r[B, S, C]\ninput x[B, S, C]\n"
    "output y[B, S, C] = cast(r * 3, x) * cast(rsqrt(mean[B, S](r^2) + 1), x)",
    "neighbours": "input r[B, C, S]\ninput x[B, C, S]\noutput y[B, C, S] = r * sum[C: -1 .. 1](cast(r, x))",
    "turned": "input r[B, D]\ninput x[B, D]\noutput y[D, B] = cast(r * 3, x)",
}
# No gradient reads x, whose length it needs all the same.
MEASURED = {
    "a mean": "input x[B, D]\noutput y[B] = mean[D](x)",
    "further dimensions": "input x[..., D]\noutput y[...] = sum[D](x) * size[D]",
    "all": "input x[B, D]\noutput y[] = mean[B, D](x)",
    "a part": "axis G = 2\ninput x[B, (G E)]\noutput y[B, G] = sum[E](x)",
    "two": "input x[B, D]\ninput z[B, E]\noutput y[B] = mean[D](x) + mean[E](z)",
    "a cotangent that may be absent": "input x[B, D]\ninput z[B]\noutput y[B, D] = 2 * x\n"
    "output t[B] = z + mean[D](x)",
    "neighbours": "input x[B, D]\noutput y[B] = sum[D](sum[D: -1 .. 1](x))",
    "a param": "input x[B]\nparam w[D]\noutput y[B] = x + mean[D](w)",
}


def source(text: str) -> Source:
    return Source("test.norm", f"norm test\n{text}\n")


@pytest.mark.parametrize("name", sampled(ROUNDED, 0, 1, 2, 4, 5, 7))
def test_every_kernel_knows_the_types_that_it_rounds_to(name: str) -> None:
    made = subject_of(source(ROUNDED[name]))
    for name in strategy_names(made.norm.package):
        planner = partial(plan_launches, strategy=name or None)
        subject = Subject(made.definition, made.backward, Norm(made.norm.package, planner=planner), name)
        for dtypes in (MIXED, DTYPE_SETS[1]):
            prove(subject, make_case(made.definition, 4, 37, dtypes))


def test_what_a_call_leaves_out_has_no_type_to_round_to() -> None:
    made = subject_of(source(ROUNDED["a param"]))
    prove(made, replace(make_case(made.definition, 4, 37, MIXED), absent=("w",)))


@pytest.mark.parametrize("name", sampled(MEASURED, 1, 3, 5, 6))
def test_every_gradient_knows_its_lengths(name: str) -> None:
    options = Options(dtype="f32", executors=("host",), quick=True)
    rows = [event for event in run(source(MEASURED[name]), options) if isinstance(event, Row)]
    assert not [row for row in rows if row.status == FAILED]
    assert {row.direction for row in rows if row.stage == "kernels" and row.status == OK} == {
        "forward",
        "backward",
    }


def test_what_is_measured_is_an_operand() -> None:
    norm = normgen.load(source(MEASURED["a mean"]).text)
    assert norm.backward_args == ("dy", "x")
    x = np.ones((2, 4), np.float32)
    assert np.array_equal(norm.backward(np.array([1, 2], np.float32), x).dx, [[0.25] * 4, [0.5] * 4])
    assert normgen.load("layernorm").backward_args == ("dy", "x", "w", "mu", "rstd")
