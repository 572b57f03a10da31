"""Every strategy, in both directions, for any number of multiprocessors: all that is read has been written.

Scratch memory holds NaN before each call, and results too: a kernel that leaves out a place shows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source, SpecError
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case
from tests.axis_specs import axis_specs
from tests.channel_specs import channel_specs
from tests.poisoned import poisoned
from tests.sampling import sampled
from tests.verify.subjects import CHECKED, prove, subject_of
from tests.verify.test_properties import STEADY

MULTIPROCESSORS = (1, 2, 7)
SIZES = {"B": 3, "S": 5, "D": 4}
# Gradients that are the same along axes of their operands, beside sums that are reduced with them.
SPECS = {
    "a minimum": """
        input x[B, S, D]
        input z[D]
        param w[B, S] = 1
        save s1[] = sum[B, S, D](min[B](w) * x)
        output y[B, S, D] = min(sum[D](z), s1 + x)
    """,
    "channels": """
        input x[B, C, ...]
        param w[C] = 1
        save r[C] = rsqrt(mean[B, ...](x^2) + 1)
        output y[B, C, ...] = x * r * sum[C](w)
    """,
    # The backward's factor of what blocks hold is made of a sum of each element, which no block has whole.
    "a sum of sums": """
        input x[B, S, D]
        let s = sum[D](tanh(sum[B](tanh(x))))
        output y[B, S, D] = 1.5 * x + s
    """,
    "two results": """
        input x[B, S, D]
        input z[S, D]
        save m[B] = mean[S, D](x * z)
        output y[B, S, D] = x * tanh(m + mean[S](z))
        output v[D] = mean[B, S](x) * mean[S, D](z)
    """,
}


def run_everywhere(text: str) -> None:
    """Prove every strategy of a spec; one without kernels is no case."""
    try:
        subject = subject_of(Source("scratch.norm", text))
    except SpecError as error:
        assert [d.code for d in error.diagnostics] == ["unsupported"], error
        assume(False)
    package = subject.norm.package
    sizes = {axis.name: SIZES[axis.name] for axis in subject.definition.program.axes if axis.name in SIZES}
    case = make_case(subject.definition, 3, 5, sizes=sizes)
    passes = [record for record in (package.forward, package.backward) if record is not None]
    for strategy in dict.fromkeys(s.name for record in passes for s in record.strategies):
        for count in MULTIPROCESSORS:
            norm = Norm(package, planner=poisoned(count, strategy))
            prove(replace(subject, norm=norm), case, CHECKED)


@pytest.mark.parametrize("name", sampled(SPECS, 1, 2))
def test_what_is_read_was_written(name: str) -> None:
    run_everywhere(f"norm written{SPECS[name]}")


@given(axis_specs(2))
@settings(STEADY, max_examples=3)
def test_what_is_read_was_written_in_drawn_specs(text: str) -> None:
    note(text)
    run_everywhere(text)


@pytest.mark.thorough
@given(st.one_of(axis_specs(), channel_specs()))
@settings(STEADY, max_examples=60)
def test_what_is_read_was_written_in_many_specs(text: str) -> None:
    note(text)
    run_everywhere(text)
