"""Specs of the columns family, and their kernels on the checked host executor against float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.columns.compile.family import Columns
from normgen.families.columns.compile.plan import ColumnsPlan, plan_columns
from normgen.families.columns.launch.schedule import ColumnSchedule, ColumnShape
from normgen.families.columns.launch.space import _candidates as candidates
from normgen.ir.centre import centre
from normgen.ir.expr import walk
from normgen.ir.grad import backward
from normgen.ir.program import Definition, Program
from normgen.ir.show import show_program
from normgen.kernel.group import Group
from normgen.kernel.text import Wording
from normgen.launching.launch import Launch
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.package.kernels import ColumnsRecord
from normgen.package.records import Package, PassRecord, Strategy
from normgen.runtime.norm import Norm
from normgen.verify.cases import DtypeSet, element_types, make_case, same_dtype
from normgen.verify.draw import Sample, draw, scalar_values
from normgen.verify.expected import Expectation, Subject
from normgen.verify.kernels import Outcome, run_case
from tests.codegen.norms import package_of

SOFTMAX2D = """norm softmax2d
input x[B, C, H, W]
let e = exp(x - stop(max[C](x)))
save output y[B, C, H, W] = e / sum[C](e)
"""
LAYERNORM2D = """norm layernorm2d
attr eps >= 0 = 1e-6
input x[B, C, ...]
param w[C] = 1
param b[C] = 0
save mu[B, ...] = mean[C](x)
save rstd[B, ...] = rsqrt(mean[C]((x - mu)^2) + eps)
output y[B, C, ...] = (x - mu) * rstd * w + b
"""
RMSNORM2D = """norm rmsnorm2d
attr eps >= 0 = 1e-6
input x[B, C, ...]
param w[C] = 1
save rstd[B, ...] = rsqrt(mean[C](x^2) + eps)
output y[B, C, ...] = x * rstd * w
"""
FIRST_AXIS = """norm first_axis
input x[N, D]
save output y[N, D] = exp(x - stop(max[N](x))) / sum[N](exp(x - stop(max[N](x))))
"""
# A scale and a shift for each image and channel: their gradients are sums over the pixels of one image.
MODULATED = """norm modulated
attr eps >= 0 = 1e-5
input x[B, C, H, W]
input scale[B, C]
input shift[B, C]
save rstd[B, H, W] = rsqrt(mean[C](x^2) + eps)
output y[B, C, H, W] = x * rstd * (1 + scale) + shift
"""
# Operands over every kind of axes: pixels, rows of pixels, images. Only the forward is one kernel.
MASKED = """norm masked
attr eps >= 0 = 1e-5
input x[B, C, H, W]
input weight[C, H, W]
input gain[B]
param mask[H, W] = 1
param tint[W] = 0
param shade[C, H] = 1
save rstd[B, H, W] = rsqrt(mean[C](x^2) * gain^2 + eps)
output y[B, C, H, W] = (x * weight * rstd * mask + tint) * shade
"""
# The gradients of numbers are sums over everything.
SCALED = """norm scaled
attr eps >= 0 = 1e-5
input x[B, C, ...]
param alpha[] = 1
param beta[] = 0
save rstd[B, ...] = rsqrt(mean[C](x^2) + eps)
output y[B, C, ...] = x * rstd * alpha + beta
"""
# The gradient of a number is a sum over columns of what each of them has once.
POOLED = """norm pooled
input x[B, C, ...]
param beta[] = 1
let z = exp(mean[C](x) * 0.25)
output y[B, ...] = beta * z
"""
# R is two axes, and one parameter has only one of them.
GROUPED = """norm grouped
attr eps >= 0 = 1e-5
input x[B, G, E, W]
param w[G, E] = 1
save rstd[B, W] = rsqrt(mean[G, E](x^2) + eps)
output y[B, G, E, W] = x * rstd * w
"""


@cache
def definition_of(text: str) -> Definition:
    return load_definition(Source("spec.norm", text), {})


def program_of(text: str, direction: str) -> Program:
    definition = definition_of(text)
    return definition.program if direction == "forward" else backward(definition)


def plan_of(text: str, direction: str) -> ColumnsPlan:
    """The one kernel of all results of a direction."""
    program = centre(program_of(text, direction))
    axes = [r.tensor.axes.union(*(n.axes for n in walk(r.expr))) for r in program.results]
    name = f"{program.name}_{direction}"
    return plan_columns(Group(name, program, frozenset().union(*axes), program.results))


@cache
def packaged(text: str) -> Package:
    """A package whose passes are one columns kernel each, where they can be."""
    package = package_of(text)
    assert package.backward is not None
    backward = package.backward if text == MASKED else _fused(package.backward, text, "backward")
    forward = _fused(package.forward, text, "forward")
    return replace(package, forward=forward, backward=backward)


def _fused(record: PassRecord, text: str, direction: str) -> PassRecord:
    definition = definition_of(text)
    params = frozenset(f"d{t.name}" for t in definition.program.operands if t.role == "param")
    formulas = tuple(show_program(program_of(text, direction)).splitlines())
    accumulated = params if direction == "backward" else frozenset()
    kernel = Columns().emit(plan_of(text, direction), Wording(definition.source, accumulated, formulas))
    return replace(record, strategies=(Strategy("fused", (kernel,)),))


def outcomes(
    text: str,
    executor: HostExecutor,
    extents: Mapping[str, int],
    dtypes: DtypeSet | None = None,
    samples: Mapping[str, Sample] | None = None,
    directions: tuple[str, ...] = ("forward", "backward"),
    **how: object,
) -> list[Outcome]:
    """Every result of a call with such lengths, compared with float64."""
    definition = definition_of(text)
    dtypes = dtypes or same_dtype("f32")
    rest = (extents["..."],) if "..." in extents else ()
    case = replace(
        make_case(definition, 1, 1, dtypes),
        extents=dict(extents),
        rest=rest,
        dtypes=element_types(definition, dtypes),
        **how,
    )
    scalars = scalar_values(definition.program)
    drawn = draw(definition, case, scalars, samples)
    subject = Subject(definition, backward(definition), Norm(packaged(text)))
    expectation = Expectation(subject, case, drawn, scalars)
    return list(run_case(subject, expectation, executor, directions=directions))


def kernel_of(text: str, direction: str) -> ColumnsRecord:
    (kernel,) = getattr(packaged(text), direction).kernels
    return kernel


# One multiprocessor, so that blocks walk several tiles; on one the next is on its way where there is one, on
# another no column is held in registers.
ONE = replace(HOST_MACHINE, multiprocessors=1)
STREAMS = replace(ONE, name="streams")
STARVED = replace(ONE, registers_per_multiprocessor=2560)
AHEAD = replace(ONE, name="ahead")
DEVICES = (ONE, AHEAD, STREAMS)


class On(HostExecutor):
    """Runs on a device of any kind, and keeps the launches."""

    def __init__(self, device: Machine, checked: bool = True, order: int = 0) -> None:
        super().__init__(checked, order, maximum_steps=10**7)
        self._device = device
        self.entries: list[tuple[str, int]] = []

    @property
    def device(self) -> Machine:
        return self._device

    def launch(self, function, launch: Launch, packed, buffers, stream) -> None:  # type: ignore[no-untyped-def]
        self.entries.append((launch.entry, launch.grid[0]))
        super().launch(function, launch, packed, buffers, stream)


def _with_next_tiles(shape: ColumnShape) -> list[ColumnSchedule]:
    return [s for s in candidates(shape) if s.ahead or not shape.persistent]


@contextmanager
def running_on(device: Machine, order: int = 0) -> Iterator[On]:
    """An executor, with columns streaming if the device says so."""
    with pytest.MonkeyPatch.context() as patch:
        if device is STREAMS:
            patch.setattr("normgen.families.columns.launch.space._REGISTERS", 0)
        if device is AHEAD:
            patch.setattr("normgen.families.columns.launch.space._candidates", _with_next_tiles)
        yield On(device, order=order)


def lengths(text: str, outer: int, reduced: int, across: int) -> dict[str, int]:
    if text is FIRST_AXIS:
        return {"N": reduced, "D": outer * across}
    if text is GROUPED:
        e = 7 if reduced % 7 == 0 else 1
        return {"B": outer, "G": reduced // e, "E": e, "W": across}
    if text in (SOFTMAX2D, MODULATED, MASKED):
        h = 11 if across % 11 == 0 else 2 if across % 2 == 0 else 1
        return {"B": outer, "C": reduced, "H": h, "W": across // h}
    return {"B": outer, "C": reduced, "...": across}


def check(text: str, device: Machine, extents: dict[str, int], **how: object) -> list[str]:
    """Runs both directions, or what of them is one kernel; the entries that ran."""
    if text is MASKED:
        how["directions"] = ("forward",)
    with running_on(device) as executor:
        for found in outcomes(text, executor, extents, **how):  # type: ignore[arg-type]
            assert found.comparison.ok, (found, extents)
    return [entry for entry, _ in executor.entries]
