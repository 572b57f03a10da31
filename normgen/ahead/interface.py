"""What files say of a shape's launches: names of sizes and kernels, arguments and what they mean."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from normgen.ahead.cases import Cases
from normgen.dtypes import DTYPES
from normgen.launching.formula import Formula
from normgen.launching.launch import Launch, Slot
from normgen.launching.tracing import formula_of
from normgen.package.operands import FormRecord, axis_name
from normgen.package.records import TensorRecord

Name = Callable[[str], str]  # what files call the length of an axis


def size_names(cases: Cases) -> dict[str, str]:
    """What the lengths that a call gives are called: those of `...` alone are its rows."""
    if cases.open == ("...",):
        return {"...": "rows"}
    return {axis: axis_name(axis) for axis in cases.open}


def file_stem(cases: Cases) -> str:
    """The end of the names of files, without their suffix: `bf16.D4096.sm_90`."""
    sizes = [f"{axis_name(axis)}{length}" for axis, length in cases.sizes.items()]
    saves = [] if cases.saves else ["no_saves"]
    return ".".join([cases.dtype, *sizes, *saves, cases.device.arch])


def kernel_names(cases: Cases) -> dict[Launch, str]:
    """A name for each kernel: its entry, with a number for the second one of that and the next."""
    found: dict[Launch, str] = {}
    for kernel in cases.kernels:
        count = 1 + sum(other.entry == kernel.entry for other in found)
        found[kernel] = kernel.entry if count == 1 else f"{kernel.entry}.variant{count}"
    return found


def forms_of(cases: Cases) -> dict[str, FormRecord]:
    """The forms of a direction by their entries."""
    return {form.entry: form for kernel in cases.direction.record.kernels for form in kernel.forms}


def texts_of(numbers: Sequence[int], name: Name) -> list[str]:
    """Numbers that depend on lengths, as formulas."""
    return [formula_of(each).text(name) for each in numbers]


def bytes_of(shape: Sequence[int], dtype: str) -> Formula:
    """The size of a scratch array."""
    return prod(map(formula_of, shape), start=Formula.of(DTYPES[dtype].bytes))


def filled(text: str, width: int, first: str = "", others: str = "") -> str:
    """A text in lines that are full, and end after commas or semicolons. `first`, `others`: what lines begin
    with."""
    fill = textwrap.TextWrapper(width, first, others, break_long_words=False, break_on_hyphens=False).fill
    return fill(re.sub(r"(?<![,;]) ", "\0", text)).replace("\0", " ")


@dataclass(frozen=True)
class Tensor:
    """An array of a call: contiguous, at an address that 16 divides."""

    record: TensorRecord
    dtype: str
    shape: tuple[str, ...]  # of formulas
    access: str  # read, write, or update: read and written


def tensors(cases: Cases) -> tuple[Tensor, ...]:
    """The arrays that a call gives: what it reads, then its results."""
    direction, name_of = cases.direction, size_names(cases).__getitem__
    lengths = {axis: Formula.axis(axis) for axis in cases.open}
    lengths |= {axis: Formula.of(length) for axis, length in cases.sizes.items()}
    read = {name for launch in cases.launches for name in launch.reads}
    written = {name for launch in cases.launches for name in launch.writes}
    found = []
    for name, operand in cases.binding.operands:
        record = (direction.operands | direction.results)[name]
        dims = [prod((lengths[axis] for axis in dim), start=Formula.of(1)) for dim in record.dims]
        access = "update" if name in read & written else "write" if name in written else "read"
        found.append(Tensor(record, operand.dtype, tuple(each.text(name_of) for each in dims), access))
    return tuple(found)


def scalars(cases: Cases) -> frozenset[str]:
    """The float attrs that a call gives."""
    slots = [value for launch in cases.launches for value in launch.values if isinstance(value, Slot)]
    return frozenset(slot.name for slot in slots if slot.kind == "scalar")
