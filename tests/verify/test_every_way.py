"""Norms of channels and groups are right in every way that is offered for a call: by all strategies, with all
forms of their kernels, forward and backward, whatever is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, note, seed, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source, SpecError
from normgen.verify.cases import DTYPE_SETS, DtypeSet, make_case
from normgen.verify.turns import in_turn
from tests.channel_specs import channel_specs
from tests.codegen.residing import small_slices
from tests.every_way import in_every_way
from tests.sampling import sampled
from tests.strategies import COMPILED, well_typed_specs
from tests.verify.subjects import F32, prove, subject_of

# Few of each, and rows of no whole number of vectors among them; channels of whole ones at times.
LENGTHS = {"D": 40, "B": 3, "G": 2, "C": 6, "...": 35, "S": 9, "H": 5, "W": 8}
EVEN = {**LENGTHS, "C": 8, "...": 64}
SOME_TYPES = (F32, DTYPE_SETS[1], DTYPE_SETS[5])
HEAD = """norm found
attr eps > 0 = 0.1
axis G = 2
"""
# What was once wrong: params that a result is not made of in the second stage; rows of segments in a form
# that has all of them under way at once; two kernels of one name, before and after a state is updated.
FOUND = {
    "two gains": """input x[B, (G C), ...]
param w[(G C)] = 1
param g[(G C)] = 1
save rstd[B, G] = rsqrt(mean[C, ...](x^2) + eps)
output y[B, (G C), ...] = x * rstd * w * g
""",
    "a gain within a function": """input x[B, (G C), ...]
param v[(G C)] = 1
param w[(G C)] = 1
param b[(G C)] = 0
save rstd[B, G] = rsqrt(var[C, ...](x) + eps)
output y[B, (G C), ...] = x * sigmoid(v * x) * rstd * w + b
""",
    "statistics beside rows": """input x[B, S, (G C)]
param w[G] = 1
save rstd[B, G] = rsqrt(mean[S, C](x^2) + eps)
output y[B, S, (G C)] = silu(x * sigmoid(w * x) * rstd)
""",
    "a state beside its update": """input x[B, C, ...]
param w[C] = 1
state running[C] = 1
save phi[C] = mean[B, ...](x^2)
output y[B, C, ...] = x * rsqrt(phi + eps) * w + 0.1 * running
update running = lerp(running, phi, 0.25)
""",
}


def run(text: str, dtypes: DtypeSet, even: bool, turn: int) -> None:
    """A spec in every way, with what a call of this turn gives and wants."""
    subject = subject_of(Source("drawn.norm", text))
    lengths = EVEN if even else LENGTHS
    sizes = {axis.name: lengths[axis.name] for axis in subject.norm.package.axes}
    case = make_case(subject.definition, 1, 1, dtypes, sizes)
    case = in_turn(subject.definition, replace(case, offset=(0, 0, 1)[turn % 3]), turn, True)
    for direction in ("forward", "backward"):
        for one, ways in in_every_way(subject):
            try:
                prove(one, case, directions=(direction,))
            except Exception as fault:
                raise AssertionError(f"{direction}, {ways.choice}, of\n{text}") from fault


@pytest.mark.parametrize("name", sampled(FOUND, 0))
def test_what_was_once_wrong(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    small_slices(monkeypatch)
    run(HEAD + FOUND[name], F32, even=False, turn=4)


@pytest.mark.parametrize(
    ("number", "specs", "examples"),
    [
        (0, channel_specs(), 1),
        (3, well_typed_specs(), 1),
        pytest.param(3, well_typed_specs(), 2, marks=pytest.mark.thorough),
        *(pytest.param(n, channel_specs(), 4, marks=pytest.mark.thorough) for n in (1, 2)),
    ],
)
def test_drawn_specs(
    monkeypatch: pytest.MonkeyPatch, number: int, specs: st.SearchStrategy[str], examples: int
) -> None:
    small_slices(monkeypatch)

    @seed(number)
    @given(specs, st.sampled_from(SOME_TYPES), st.booleans(), st.integers(0, 99))
    @settings(COMPILED, max_examples=examples)
    def check(text: str, dtypes: DtypeSet, even: bool, turn: int) -> None:
        note(text)
        try:
            run(text, dtypes, even, turn)
        except SpecError as error:
            assert [d.code for d in error.diagnostics] == ["unsupported"]
            assume(False)

    check()
