"""The derived mathematics against itself in float64: the backward against differences, centring against the
plain form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from normgen.ir.centre import centre
from normgen.ir.program import Definition, Program
from normgen.ir.reference import check_gradient, evaluate
from normgen.verify.cases import Case, make_case
from normgen.verify.draw import Sample, draw

TOLERANCE = 1e-6
CENTRING_TOLERANCE = 1e-9
LEAST_SIZE = 1e-3  # of a result, to which an error of centring is relative
SHAPES = ((2, 5), (3, 4), (1, 3))
# A difference quotient across a kink (a tie of max, a sign change under abs) says nothing. One of several
# draws does.
ATTEMPTS = 3
LARGEST = 100_000  # elements of a case: each of some of them is moved four times


@dataclass(frozen=True, slots=True)
class GradientOutcome:
    """The largest relative error of one gradient (or of a centred result) at one shape."""

    stage: str
    result: str
    shape: str
    error: float
    tolerance: float
    drawn: str
    note: str = ""

    @property
    def known(self) -> bool:
        """Whether there was anything to compare."""
        return not np.isnan(self.error)

    @property
    def ok(self) -> bool:
        """Within the tolerance."""
        return self.error <= self.tolerance


def check_derivatives(
    definition: Definition,
    backward: Program | None,
    scalars: Mapping[str, float],
    samples: Mapping[str, Sample] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Iterator[GradientOutcome]:
    """Every derived gradient at a few small shapes, and every result of the centred programs. `sizes`: given
    lengths of axes, as far as differences of so many elements are in reason."""
    for case in _cases(definition, {axis: length for axis, length in (sizes or {}).items() if length}):
        if backward is not None and definition.of:
            yield from _gradients(definition, backward, case, scalars, samples)
        drawn = draw(definition, case, scalars, samples)
        saved = evaluate(definition.program, drawn.arrays, case.extents, scalars)
        yield from _centred(definition.program, drawn.arrays, case, scalars, drawn.text)
        if backward is not None:
            yield from _centred(backward, {**saved, **drawn.arrays}, case, scalars, drawn.text)


def _cases(definition: Definition, sizes: Mapping[str, int]) -> list[Case]:
    found = [make_case(definition, rows, width, sizes=sizes) for rows, width in SHAPES]
    small = [case for case in found if case.elements(definition) <= LARGEST]
    if not small:
        return [make_case(definition, rows, width) for rows, width in SHAPES]
    return list({tuple(case.extents.items()): case for case in small}.values())


def _gradients(
    definition: Definition,
    backward: Program,
    case: Case,
    scalars: Mapping[str, float],
    samples: Mapping[str, Sample] | None,
) -> Iterator[GradientOutcome]:
    best: dict[str, float] = {}
    text = ""
    for attempt in range(ATTEMPTS):
        drawn = draw(definition, replace(case, seed=attempt), scalars, samples)
        text = text or drawn.text
        for name, error in check_gradient(definition, backward, drawn.arrays, case.extents, scalars).items():
            best[name] = float(np.fmin(best.get(name, np.nan), error))
        if all(error <= TOLERANCE for error in best.values()):
            break
    for name, error in best.items():
        note = "the finite differences are not numbers" if np.isnan(error) else ""
        yield GradientOutcome("differences", name, case.shape_text, error, TOLERANCE, text, note)


def _centred(
    program: Program,
    arrays: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
    case: Case,
    scalars: Mapping[str, float],
    text: str,
) -> Iterator[GradientOutcome]:
    centred = centre(program)
    if [r.expr for r in centred.results] == [r.expr for r in program.results]:
        return
    plain = evaluate(program, arrays, case.extents, scalars)
    for name, value in evaluate(centred, arrays, case.extents, scalars).items():
        known = np.isfinite(plain[name])
        scale = max(float(np.max(np.abs(plain[name][known]), initial=0.0)), LEAST_SIZE)
        error = float(np.max(np.abs(value - plain[name])[known], initial=0.0)) / scale
        error = np.inf if np.isnan(error) else error
        yield GradientOutcome("centring", name, case.shape_text, error, CENTRING_TOLERANCE, text)
