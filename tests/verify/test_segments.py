"""Norms whose backward adds up rows in segments, of any width: results are right, and every kernel ends.

A segment is what one place along the axes of a param has, where other axes are summed over; a width of one
leaves partials that no vector holds.
"""

from __future__ import annotations

import pytest
from hypothesis import given, note, seed, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source
from normgen.verify.cases import make_case
from tests.strategies import COMPILED
from tests.verify.subjects import prove, subject_of

ENDS = """norm ends
input x[..., A, B]
param p0[A, B] = 0
let m = max[..., A](x)
output y[..., A, B] = (x - m) * p0
"""
AXES = ("A", "B", "C")
LONG, NARROW = (3, 17, 40), (1, 1, 1, 2, 5)
REDUCTIONS = ("max", "min", "mean", "sum")


@st.composite
def segments(draw: st.DrawFn) -> tuple[str, int, dict[str, int]]:
    """A spec, how many samples it has, and the lengths of its other axes."""
    axes = AXES[: draw(st.integers(2, 3))]
    over = ", ".join(("...", *(a for a in axes if draw(st.booleans()))))
    params = {name: draw(st.sampled_from((axes, axes, axes[1:], axes[:1]))) for name in ("p", "q")}
    declared = (f"param {name}[{', '.join(own)}] = 1" for name, own in params.items())
    whole = f"[..., {', '.join(axes)}]"
    lines = (
        "norm drawn",
        f"input x{whole}",
        *declared,
        f"let m = {draw(st.sampled_from(REDUCTIONS))}[{over}](x)",
    )
    body = draw(st.sampled_from(("(x - m) * p + q", "x * p + tanh(m) * q", "tanh(x * q) * (p + m)")))
    sizes = {axis: draw(st.sampled_from(NARROW if axis == axes[-1] else LONG)) for axis in axes}
    return "\n".join((*lines, f"output y{whole} = {body}", "")), draw(st.integers(1, 7)), sizes


def run(text: str, rows: int, sizes: dict[str, int]) -> None:
    subject = subject_of(Source("drawn.norm", text))
    prove(subject, make_case(subject.definition, rows, 1, sizes=sizes))


def test_a_segment_of_one_column_ends() -> None:
    run(ENDS, 3, {"A": 17, "B": 1})


@pytest.mark.parametrize(("number", "examples"), [(0, 4), pytest.param(1, 40, marks=pytest.mark.thorough)])
def test_drawn_segments(number: int, examples: int) -> None:
    @seed(number)
    @given(segments())
    @settings(COMPILED, max_examples=examples)
    def check(drawn: tuple[str, int, dict[str, int]]) -> None:
        note(str(drawn))
        run(*drawn)

    check()
