"""Results of misaligned rows over what they are computed from, in every form that realigns: threads read
aligned words, in which their neighbours have elements that they may have stored already."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.diagnostics import Source
from normgen.launching.knobs import Knobs
from normgen.runtime.planning.choose import Candidate
from normgen.verify.cases import DTYPE_SETS, DtypeSet, make_case
from tests.every_way import in_every_way
from tests.sampling import sampled
from tests.verify.subjects import F32, prove, subject_of

# What a kernel accumulates over rows, and stores of each row: with no exchange within a row, with one before
# its elements are stored, with values that rows share, and with one value for all elements.
SPECS = {
    "sums": "output s[N] = sum[M](v)\noutput t[N] = sum[M](v^2)\noutput y[M, N] = 2 * v\n",
    "shared": "param w[N] = 1\noutput s[N] = sum[M](v * w)\noutput y[M, N] = v * w\n",
    "rows": "let r[M] = rsqrt(mean[N](v^2) + 1)\noutput s[N] = sum[M](v * r)\noutput y[M, N] = v * r\n",
    "one": "output s[] = sum[M, N](exp(v))\noutput t[] = max[M, N](v)\noutput y[M, N] = 2 * v\n",
    "moments": "let m[] = mean[M, N](v)\noutput t[] = mean[M, N]((v - m)^2)\noutput y[M, N] = v\n",
    "whole": "output y[M, N] = 2 * v + 1\n",
}
# Rows of some warps, which begin at every element of a word, and of one; and of few elements.
_MORE = (5, 1023), (33, 67), (49, 7)
SHAPES = [(9, 343), *(pytest.param(each, marks=pytest.mark.thorough) for each in _MORE)]
TYPES = [F32, pytest.param(DTYPE_SETS[1], marks=pytest.mark.thorough)]


def realigning(offers: tuple[Candidate, ...]) -> list[Knobs]:
    """The first realigned offer of each form and number of threads, or else the first of all."""
    found: dict[object, Knobs] = {}
    for each in offers:
        knobs = dict(each.knobs)
        if knobs.get("realigned"):
            found.setdefault((knobs["form"], knobs["team"], knobs["reload"]), each.knobs)
    return list(found.values())[:3] or [offers[0].knobs]


@pytest.mark.parametrize("dtypes", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", sampled(SPECS, 1, 2, 4))
def test_in_every_realigned_form(name: str, shape: tuple[int, int], dtypes: DtypeSet) -> None:
    subject = subject_of(Source("two.norm", f"norm two\ninput v[M, N]\n{SPECS[name]}"))
    sizes = dict(zip("MN", shape, strict=True))
    case = replace(make_case(subject.definition, 1, 1, dtypes, sizes), in_place=True)
    for direction in ("forward", "backward"):
        for one, ways in in_every_way(subject, realigning):
            try:
                prove(one, case, directions=(direction,))
            except Exception as fault:
                raise AssertionError(f"{direction}, {ways.choice}") from fault
