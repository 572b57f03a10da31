"""What files say of a shape's launches: names of sizes and kernels, arguments and what they mean."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

from normgen.ahead.cases import Cases, Scratch, Step, Text
from normgen.launching.formula import Formula
from normgen.launching.launch import Slot
from normgen.package.operands import axis_name
from normgen.package.records import TensorRecord

TYPES = {"P": "pointer", "i": "int32", "q": "int64", "I": "uint32", "f": "float32"}


@dataclass(frozen=True)
class Argument:
    """A parameter of a kernel. `offset`: bytes from where the first one begins."""

    type: str  # of TYPES
    offset: int
    meaning: str


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


def kernel_names(cases: Cases) -> dict[Text, str]:
    """A name for each kernel: its entry, with a number for the second one of that and the next."""
    found: dict[Text, str] = {}
    for text in cases.texts:
        count = 1 + sum(other.entry == text.entry for other in found)
        found[text] = text.entry if count == 1 else f"{text.entry}.variant{count}"
    return found


def spec_digest(spec: str) -> str:
    """The sha256 of a spec's text."""
    return sha256(spec.encode()).hexdigest()


def arguments(text: Text) -> tuple[Argument, ...]:
    """The parameters of a kernel, in order, in their native layout."""
    found: list[Argument] = []
    for place, (code, parameter) in enumerate(zip(text.format, text.parameters, strict=True)):
        before = struct.calcsize(text.format[: place + 1]) - struct.calcsize(code)
        found.append(Argument(TYPES[code], before, parameter.meaning))
    return tuple(found)


def bytes_of_arguments(text: Text) -> int:
    """Bytes of all parameters together."""
    return struct.calcsize(text.format)


def values(step: Step, cases: Cases, scratch: tuple[Scratch, ...]) -> tuple[str, ...]:
    """The arguments of a launch: the name of an array, of scratch memory or of an attr, or a formula."""
    names = size_names(cases)
    kept = {each.name for each in scratch}
    return tuple(
        (f"scratch {value.name}" if value.name in kept else value.name)
        if isinstance(value, Slot)
        else value.text(names.__getitem__)
        for value in step.values
    )


@dataclass(frozen=True)
class Tensor:
    """An array of a call: contiguous, at an address that 16 divides."""

    record: TensorRecord
    dtype: str
    shape: tuple[str, ...]  # of formulas
    access: str  # read, write, or update: read and written


def tensors(cases: Cases) -> tuple[Tensor, ...]:
    """The arrays that a call gives: what it reads, then its results."""
    direction, names, sizes = cases.direction, size_names(cases), cases.sizes
    steps = [step for case in cases.cases for step in case.steps]
    read = {name for step in steps for name in step.text.reads}
    written = {name for step in steps for name in step.text.writes}
    found = []
    for name, operand in cases.binding.operands:
        record = (direction.operands | direction.results)[name]
        shape = []
        for group in record.dims:
            length = Formula.of(1)
            for axis in group:
                length *= Formula.of(sizes[axis]) if axis in sizes else Formula.axis(axis)
            shape.append(length.text(names.__getitem__))
        access = "update" if name in read & written else "write" if name in written else "read"
        found.append(Tensor(record, operand.dtype, tuple(shape), access))
    return tuple(found)


def scalars(cases: Cases) -> frozenset[str]:
    """The float attrs that a call gives."""
    return frozenset(
        value.name
        for case in cases.cases
        for step in case.steps
        for value in step.values
        if isinstance(value, Slot) and value.kind == "scalar"
    )
