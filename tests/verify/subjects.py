"""Bundled specs as subjects of a check, and the calls that the tests make on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from normgen import bundled
from normgen.codegen.package import package
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS, Case, DtypeSet, make_case
from normgen.verify.draw import Drawn, Sample, draw, scalar_values
from normgen.verify.expected import Expectation, Subject
from normgen.verify.kernels import run_case

CHECKED = HostExecutor(checked=True)
PLAIN = HostExecutor()
F32, BF16 = DTYPE_SETS[0], DTYPE_SETS[1]
# Norms of four axes, of which kernels of a family step along two or three.
OUTER = {
    family: f"norm {family}\ninput x[A, B, C, D]\n{rest}"
    for family, rest in {
        "rows": "output y[A, B, C, D] = x - mean[D](x)\n",
        "columns": "let m[A, B, D] = max[C](x)\noutput y[A, B, C, D] = exp(x - m)\n",
        "tiles": "output y[A, B, C, D] = 2 * x\noutput t[A, B, D, C] = 3 * x\n",
    }.items()
}
OUTER_SIZES = {"A": 2, "B": 3, "C": 16, "D": 24}


@cache
def bundled_subject(name: str, attrs: tuple[tuple[str, object], ...] = ()) -> Subject:
    return subject_of(bundled_source(name), dict(attrs))


def bundled_source(name: str) -> Source:
    source = bundled.read(name)
    assert source is not None
    return source


def subject_of(source: Source, attrs: dict[str, object] | None = None) -> Subject:
    definition = load_definition(source, attrs or {})
    derived = backward(definition) if definition.of else None
    return Subject(definition, derived, Norm(package(definition)))


def case_of(subject: Subject, rows: int, width: int, dtypes: DtypeSet = F32, **rest: Any) -> Case:
    return replace(make_case(subject.definition, rows, width, dtypes), **rest)


def prove(
    subject: Subject,
    case: Case,
    executor: Any = CHECKED,
    samples: dict[str, Sample] | None = None,
    drawn: Drawn | None = None,
    directions: tuple[str, ...] = ("forward", "backward"),
) -> None:
    """Run a case and hold every result to its bound."""
    scalars = scalar_values(subject.definition.program)
    drawn = drawn or draw(subject.definition, case, scalars, samples)
    expectation = Expectation(subject, case, drawn, scalars)
    for outcome in run_case(subject, expectation, executor, directions=directions):
        assert outcome.comparison.ok, (case.shape_text, case.dtype_name, outcome)


def numbers(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
