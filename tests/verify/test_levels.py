"""The kernels of second and third derivatives against the float64 reference, within analysed bounds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from normgen.codegen.compilation import Compilation
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS, Case, DtypeSet, element_types, make_case
from normgen.verify.draw import Sample, draw, scalar_values
from normgen.verify.expected import Expectation, Subject
from tests.ir.specs import NAMES, bundled
from tests.kinds import of_all
from tests.sampling import sampled
from tests.verify.subjects import prove

F32, MIXED = DTYPE_SETS[0], DTYPE_SETS[2]
# One of each kind: rows, kept outputs, images, channels, channels last, neighbours, a norm with several ways.
EVERY_WAY = ("batchnorm", "groupnorm", "groupnorm_channels_last")


@cache
def level(name: str, order: int) -> Compilation:
    made = Compilation(bundled(name))
    for _ in range(order - 1):
        above = made.differentiated
        assert above is not None
        made = above
    return made


def subject(name: str, order: int, strategy: str = "") -> Subject:
    made = level(name, order)
    planner = partial(plan_launches, strategy=strategy or None)
    return Subject(made.definition, made.derived, Norm(made.package, planner=planner), strategy)


def case_of(name: str, order: int, rows: int, width: int, dtypes: DtypeSet) -> Case:
    """Sized like a case of the norm itself: a level sums over its rows too."""
    case = make_case(bundled(name), rows, width, dtypes)
    return replace(case, dtypes=element_types(level(name, order).definition, dtypes))


@pytest.mark.parametrize("name", of_all(NAMES))
def test_second_derivatives(name: str) -> None:
    prove(subject(name, 2), case_of(name, 2, 3, 37, F32), directions=("backward",))


@pytest.mark.parametrize("name", sampled(EVERY_WAY, 1))
def test_every_strategy(name: str) -> None:
    backward = level(name, 2).package.backward
    assert backward is not None and len(backward.strategies) > 1
    for strategy in backward.strategies:
        case = case_of(name, 2, 4, 96, MIXED)
        prove(subject(name, 2, strategy.name), case, directions=("backward",))


@pytest.mark.parametrize("name", ["rmsnorm", "l2norm"])
def test_third_derivatives(name: str) -> None:
    prove(subject(name, 3), case_of(name, 3, 3, 37, F32), directions=("backward",))


@pytest.mark.parametrize("absent", ["grad_y", "dgrad_x", "dgrad_w"])
def test_a_cotangent_of_any_level_may_be_absent(absent: str) -> None:
    case = replace(case_of("rmsnorm", 2, 3, 37, F32), absent=(absent,))
    prove(subject("rmsnorm", 2), case, directions=("backward",))


def test_one_gradient_alone() -> None:
    for wrt in ("grad_y", "x", "w"):
        case = replace(case_of("rmsnorm", 2, 3, 37, F32), wrt=(wrt,))
        prove(subject("rmsnorm", 2), case, directions=("backward",))


@pytest.mark.parametrize("name", ["layernorm", "groupnorm", "batchnorm"])
def test_means_that_are_large_beside_the_deviation(name: str) -> None:
    made, case = subject(name, 2), case_of(name, 2, 4, 96, F32)
    scalars, samples = scalar_values(made.definition.program), {"x": Sample("normal", 1e6, 1.0)}
    drawn = draw(made.definition, case, scalars, samples)
    expected = Expectation(made, case, drawn, scalars).backward
    # (a bound that grew with the mean would let anything pass)
    assert all(np.max(expected.bounds[n]) < 1e-4 * np.max(np.abs(expected.truth[n])) for n in expected.truth)
    prove(made, case, drawn=drawn, directions=("backward",))
