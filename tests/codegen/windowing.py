"""Norms over windows as subjects of a proof, and their kernels in each form."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from normgen.diagnostics import Source
from normgen.families.windows.launch.family import choose
from normgen.families.windows.launch.schedule import WindowSchedule
from normgen.launching.launch import Binding
from normgen.launching.machine import Machine
from normgen.package.kernels import WindowsRecord
from normgen.package.records import Package, PassRecord
from normgen.runtime.norm import Norm
from normgen.verify.cases import Case, DtypeSet, make_case, same_dtype
from normgen.verify.expected import Subject
from tests.codegen.norms import H200, bound
from tests.verify.subjects import subject_of

# {x}: the axes of the input, {window}: bounds along each windowed axis, {keep}: save or let.
NORM = """norm windowed
attr alpha = 0.25
attr beta = 0.75
attr k = 1.5
{axes}input x[{x}]
{keep} d[{x}] = k + alpha * sum[{window}](x^2)
output y[{x}] = x * d^-beta
"""
ACROSS, LAST, WITHIN, GROUPS = "B, C, ...", "B, ..., C", "B, C, H, W", "B, (G C), ..."


def text(x: str = ACROSS, window: str = "C: -2 .. 2", keep: str = "save") -> str:
    """A local response norm."""
    return NORM.format(x=x, window=window, keep=keep, axes="axis G = 2\n" if "G" in x else "")


@cache
def subject(spec: str, form: str = "", attrs: tuple[tuple[str, object], ...] = ()) -> Subject:
    """A norm to prove, with kernels of one form only where `form` says so."""
    found = subject_of(Source("windowed.norm", spec), dict(attrs))
    package = found.norm.package
    if form:
        package = replace(package, forward=only(package.forward, form), backward=only(package.backward, form))
    return replace(found, norm=Norm(package))


def only(record: PassRecord | None, form: str) -> PassRecord | None:
    """A pass with the forms of that name alone."""
    if record is None:
        return None
    strategies = []
    for strategy in record.strategies:
        kernels = [replace(k, forms=tuple(f for f in k.forms if f.form == form)) for k in strategy.kernels]
        assert all(k.forms for k in kernels), f"no form {form}"
        strategies.append(replace(strategy, kernels=tuple(kernels)))
    return replace(record, strategies=tuple(strategies))


def case(found: Subject, lengths: dict[str, int], dtypes: str | DtypeSet = "f32", **rest: Any) -> Case:
    """Lengths by axis, `rest` for `...`."""
    named = {("..." if axis == "rest" else axis): length for axis, length in lengths.items()}
    kinds = same_dtype(dtypes) if isinstance(dtypes, str) else dtypes
    made = make_case(found.definition, 1, 1, kinds, named)
    assert all(made.extents[axis] == length for axis, length in named.items()), made.extents
    return replace(made, **rest)


def kernel(package: Package, direction: str) -> WindowsRecord:
    """The one kernel of a direction."""
    record = getattr(package, direction)
    (strategy,) = record.strategies
    (found,) = strategy.kernels
    assert isinstance(found, WindowsRecord)
    return found


def schedule(
    spec: str, direction: str, dtype: str = "bf16", device: Machine = H200, **how: Any
) -> WindowSchedule:
    """What is chosen for lengths by axis and the rest of `how`, which `bound` explains."""
    from normgen.launching.call import Call

    package = subject(spec).norm.package
    binding: Binding = bound(getattr(package, direction), dtype, **how)
    return choose(kernel(package, direction), Call(binding, device))
