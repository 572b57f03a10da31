"""What a spec is tried on: attr values, lengths of axes, element types, layouts and numbers.

Attrs: a required int takes 1, 2 and 4, a bool both values, a required float 0.5 above its bound. Operands:
one with a default is drawn within 0.2 of it, any other from N(0, 1). Where the float64 results of that are
not finite, from U(0.5, 1.5), and states from 0 to 0.4 above their default, since moments of even order are
not negative. What a call leaves out is its default; an absent cotangent is zero. Everything is seeded by the
spec's name and the case, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import round_to
from normgen.ir.program import Definition, Program, Tensor, dims_of
from normgen.ir.reference import evaluate

if TYPE_CHECKING:
    from normgen.dsl.ast import Spec
    from normgen.verify.cases import Case

FloatArray = NDArray[np.float64]

INTEGERS = (1, 2, 4)
SPREAD = 0.2


def attr_choices(spec: Spec, given: Mapping[str, object]) -> list[dict[str, object]]:
    """Every combination of attr values that a check covers; `given` ones stay as they are."""
    from normgen.dsl import ast

    choices: list[list[tuple[str, object]]] = []
    for statement in spec.statements:
        if not isinstance(statement, ast.Attr) or statement.name.text in given:
            continue
        name, kind = statement.name.text, statement.kind.text if statement.kind else "float"
        if kind == "bool":
            choices.append([(name, False), (name, True)])
        elif kind == "int" and statement.default is None:
            choices.append([(name, value) for value in INTEGERS])
    return [{**given, **dict(combination)} for combination in product(*choices)]


def scalar_values(program: Program) -> dict[str, float]:
    """The float attrs that stay arguments: their defaults, or 0.5 above their bounds."""
    return {
        attr.name: float(attr.value if attr.value is not None else (attr.low or 0) + Fraction(1, 2))
        for attr in program.attrs
        if attr.kind == "float" and not attr.folded
    }


@dataclass(frozen=True, slots=True)
class Sample:
    """A distribution: `normal(mean, deviation)`, `uniform(low, high)` or `constant(value)`."""

    kind: str
    first: float
    second: float = 0.0

    def __str__(self) -> str:
        match self.kind:
            case "constant":
                return f"{self.first:g}"
            case "uniform":
                return f"U({self.first:g}, {self.second:g})"
            case _:
                return f"N({self.first:g}, {self.second:g})"

    def draw(self, generator: np.random.Generator, shape: Sequence[int]) -> FloatArray:
        """Numbers of this distribution."""
        match self.kind:
            case "constant":
                return np.full(shape, self.first)
            case "uniform":
                return generator.uniform(self.first, self.second, shape)
            case _:
                return self.first + self.second * generator.standard_normal(shape)


NORMAL = Sample("normal", 0.0, 1.0)
POSITIVE = Sample("uniform", 0.5, 1.5)
_ARGUMENTS = {"normal": 2, "uniform": 2, "constant": 1}


def parse_sample(text: str) -> Sample:
    """A distribution as it is written on the command line: `normal(1e6,1)`, `uniform(0,2)`, `constant(7)`,
    `7`."""
    kind, bracket, rest = text.strip().partition("(")
    numbers = rest.removesuffix(")").split(",") if bracket else [kind]
    kind = kind.strip() if bracket else "constant"
    try:
        if len(numbers) != _ARGUMENTS[kind] or (bracket and not rest.endswith(")")):
            raise ValueError
        sample = Sample(kind, *map(float, numbers))
    except (ValueError, KeyError):
        why = "write normal(0, 1), uniform(0.5, 1.5) or constant(7)"
        raise ValueError(f"{text!r} is not a distribution: {why}") from None
    if fault := _fault(sample):
        raise ValueError(f"{text!r} is not a distribution: {fault}")
    return sample


def _fault(sample: Sample) -> str:
    if not (isfinite(sample.first) and isfinite(sample.second)):
        return "its numbers must be finite"
    if sample.kind == "uniform" and sample.first > sample.second:
        return "give the lower bound first"
    return (
        "a standard deviation must not be negative" if sample.kind == "normal" and sample.second < 0 else ""
    )


@dataclass(frozen=True, slots=True)
class Drawn:
    """Numbers for every operand and cotangent, already rounded to their element types: a dimension per
    axis."""

    arrays: dict[str, FloatArray]
    samples: tuple[tuple[str, Sample], ...]
    finite: bool

    @property
    def text(self) -> str:
        """What was drawn, for the table."""
        return ", ".join(f"{name} {sample}" for name, sample in self.samples)


def draw(
    definition: Definition,
    case: Case,
    scalars: Mapping[str, float],
    samples: Mapping[str, Sample] | None = None,
) -> Drawn:
    """Numbers for one case, redrawn from what is positive if the float64 results are not finite."""
    first = _draw(definition, case, NORMAL, samples or {})
    if _is_finite(definition.program, first, case, scalars):
        return first
    second = _draw(definition, case, POSITIVE, samples or {})
    if _is_finite(definition.program, second, case, scalars):
        return second
    return Drawn(first.arrays, first.samples, False)


def cotangent_tensors(definition: Definition) -> tuple[Tensor, ...]:
    """The cotangents `d<name>` of everything that is differentiated."""
    return tuple(
        Tensor(f"d{name}", "cotangent", dims_of(definition.program, name), None, None, None, "", None)
        for name in definition.of
    )


def _draw(definition: Definition, case: Case, usual: Sample, samples: Mapping[str, Sample]) -> Drawn:
    arrays: dict[str, FloatArray] = {}
    used: list[tuple[str, Sample]] = []
    for tensor in (*definition.program.operands, *cotangent_tensors(definition)):
        sample, shape = samples.get(tensor.name), [case.extents[axis] for axis in tensor.order]
        if tensor.name in case.absent:
            arrays[tensor.name] = np.full(shape, float(tensor.default or 0))
            continue
        if sample is None and tensor.default is not None:
            centre = float(tensor.default) + (SPREAD if tensor.role == "state" and usual is POSITIVE else 0.0)
            sample = Sample("uniform", centre - SPREAD, centre + SPREAD)
        elif sample is None:
            sample = NORMAL if tensor.role == "cotangent" else usual
        generator = np.random.default_rng(_seed(definition.program.name, tensor.name, case.seed))
        arrays[tensor.name] = _rounded(sample.draw(generator, shape), case.dtypes[tensor.name])
        used.append((tensor.name, sample))
    return Drawn(arrays, tuple(used), True)


def _rounded(values: FloatArray, dtype: str) -> FloatArray:
    return np.asarray(round_to(values, dtype)).astype(np.float64)


def _seed(*parts: Any) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def _is_finite(program: Program, drawn: Drawn, case: Case, scalars: Mapping[str, float]) -> bool:
    if any(extent == 0 for extent in case.extents.values()):
        return True
    results = evaluate(program, drawn.arrays, case.extents, scalars, True, case.dtypes)
    return all(bool(np.all(np.isfinite(array))) for array in results.values())
