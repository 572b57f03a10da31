"""The check of every bundled spec without any kernel: its bounds hold for float32 arithmetic and
see small faults, for windows, maxima, casts, states and every other thing that a bundled spec is made of."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from normgen import bundled
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.dtypes import round_to
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.program import Definition, Program
from normgen.ir.reference import evaluate
from normgen.verify.bounds import BACKWARD_SLACK, FORWARD_SLACK, Setting, analyse
from normgen.verify.cases import Case
from normgen.verify.compare import Comparison, compare
from normgen.verify.coverage import covering
from normgen.verify.draw import attr_choices, draw, scalar_values
from normgen.verify.events import FAILED, Row
from normgen.verify.expected import read_back
from normgen.verify.run import Options, run

Arrays = dict[str, np.ndarray]


@cache
def definition_of(name: str, index: int) -> Definition:
    source = bundled.read(name)
    assert source is not None
    return load_definition(source, attr_choices(parse(source), {})[index])


def combinations() -> list[object]:
    found = []
    for name in bundled.names():
        source = bundled.read(name)
        assert source is not None
        for index, attrs in enumerate(attr_choices(parse(source), {})):
            text = "-".join([name, *(f"{key}={value}" for key, value in attrs.items())])
            found.append(pytest.param(name, index, id=text))
    return found


COMBINATIONS = combinations()


def cases_of(definition: Definition) -> list[Case]:
    """One case of each group, none of them large."""
    groups: dict[int, Case] = {}
    for case in covering(definition):
        if all(case.extents.values()) and case.elements(definition) < 20_000:
            groups[case.group] = case
    return list(groups.values())


def directions(definition: Definition, case: Case) -> list[tuple[Program, Arrays, Arrays, Arrays, float]]:
    """A program in each direction, centred as kernels are: what is meant, what is read, its errors, slack."""
    scalars = scalar_values(definition.program)
    arrays = draw(definition, case, scalars).arrays
    found = [(centre(definition.program), arrays, arrays, {}, FORWARD_SLACK)]
    if definition.of:
        saved = evaluate(definition.program, arrays, case.extents, scalars, True, case.dtypes)
        exact, stored, errors = read_back(definition.program, case, arrays, saved)
        found.append((centre(backward(definition)), exact, stored, errors, BACKWARD_SLACK))
    return found


def judged(definition: Definition, case: Case, planted: float = 0.0) -> list[tuple[str, str, Comparison]]:
    """Every result of float32 arithmetic in the element type of its tensor, off by `planted` of itself."""
    scalars, found = scalar_values(definition.program), []
    for program, exact, stored, errors, slack in directions(definition, case):
        truth = evaluate(program, exact, case.extents, scalars, True, case.dtypes)
        got = evaluate(program, stored, case.extents, scalars, True, case.dtypes, np.float32)
        bounds = analyse(program, Setting(stored, case.extents, scalars, case.dtypes), errors, slack)
        assert truth.keys() == bounds.keys()
        for name, bound in bounds.items():
            # as f32, so that error shows; as it is stored, which is what a kernel is held to
            for dtype in dict.fromkeys(("f32", case.dtypes.get(name, "f32"))):
                value = np.asarray(np.float64(got[name]) * (1 + planted))
                there = np.asarray(round_to(value, dtype))
                found.append((name, dtype, compare(there, dtype, truth[name], bound.error)))
    return found


@pytest.mark.parametrize(("name", "index"), COMBINATIONS)
def test_float32_arithmetic_stays_within_the_bounds(name: str, index: int) -> None:
    definition = definition_of(name, index)
    for case in cases_of(definition):
        for result, dtype, found in judged(definition, case):
            assert found.ok, (case.shape_text, case.dtype_name, result, dtype, found)


@pytest.mark.parametrize(("name", "index"), COMBINATIONS)
def test_an_error_of_a_ten_thousandth_is_seen(name: str, index: int) -> None:
    """Of every result, somewhere: some are exact, or sums of noise in a case or other."""
    definition = definition_of(name, index)
    seen: dict[str, float] = {}
    for case in cases_of(definition):
        for result, dtype, found in judged(definition, case, 1e-4):
            if dtype == "f32":
                seen[result] = max(seen.get(result, 0.0), found.worst)
    assert min(seen.values()) > 1.0, seen


def test_means_of_columns_with_many_members() -> None:
    """96 threads a column: merged about some member's mean, theirs would miss by units in the last place."""
    source = bundled.read("layernorm2d")
    assert source is not None
    options = Options(sizes={"B": 8, "C": 512, "...": 16}, dtype="f16", executors=("host",))
    rows = [event for event in run(source, options) if isinstance(event, Row)]
    assert [row for row in rows if row.status == FAILED] == []
    assert any(row.stage == "kernels" for row in rows)
