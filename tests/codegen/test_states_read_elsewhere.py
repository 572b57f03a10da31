"""New values of states that need more of a state than the element that they replace: all of it is read before
any of it is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.diagnostics import Source
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case
from tests.poisoned import poisoned
from tests.verify.subjects import CHECKED, prove, subject_of

SPECS = {
    "a window": "input x[B, D]\nstate s[D]\nupdate s = sum[D: -1 .. 1](s)",
    "a window along a part": "axis G = 2\ninput x[B, (G E)]\nstate s[(G E)]\nupdate s = sum[G: -1 .. 1](s)",
    "one by the other": "input x[B, D]\nstate s[D]\nstate q[D]\nupdate s = 2 * q\nupdate q = 3 * s",
    "its own sum": "input x[B, D]\nstate s[D]\nupdate s = s * mean[D](s)",
    "a sum of another": "input x[B, D]\nstate s[B, D]\nstate q[D]\nupdate s = s + q\nupdate q = mean[B](s)",
    "with a statistic": (
        "input x[B, D]\nstate s[D]\nstate q[D]\nsave m[D] = mean[B](x)\n"
        "update s = sum[D: 0 .. 1](s) * m\nupdate q = q + sum[D](s)"
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_states_are_read_before_they_are_written(name: str) -> None:
    inner = "(G E)" if "axis G" in SPECS[name] else "D"
    subject = subject_of(Source("states.norm", f"norm states\n{SPECS[name]}\noutput y[B, {inner}] = 2 * x\n"))
    case = make_case(subject.definition, 3, 9)
    for strategy in subject.norm.package.forward.strategies:
        named = replace(subject, norm=Norm(subject.norm.package, planner=poisoned(4, strategy.name)))
        prove(named, case, CHECKED, directions=("forward",))
