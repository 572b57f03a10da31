"""The planner of a module of one shape: its launches are known but for the lengths that a call gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from normgen.launching.launch import Binding, Launch, LaunchPlan, Slot
from normgen.launching.layout import Lengths, packed_strides
from normgen.launching.machine import Machine
from normgen.package.constants import listing
from normgen.package.made import LaunchRecord, MadeRecord
from normgen.package.operands import FormRecord
from normgen.package.records import PassRecord

ALIGNMENT = 16
_SLOTS = {"in": "pointer", "out": "pointer", "inout": "pointer", "attr": "scalar"}


def plan_made(record: PassRecord, made: MadeRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """The launches of a call. ValueError where the module was made for others."""
    unfit = next(_misfits(record, made, binding, device), None)
    if unfit is not None:
        raise ValueError(f"{made.call} was made for {_made_for(made)}, and {unfit}")
    lengths = dict(binding.extents)
    sizes = {name: lengths[axis] for axis, name in made.open}
    when = next((each.when for each in made.launches if _value(each.when, sizes)), None)
    if when is None:
        given = ", ".join(f"{name} = {length}" for name, length in sizes.items())
        unfit = f"it has no launches for {given}; {_any_shape(made)}"
        raise ValueError(f"{made.call} was made for {_made_for(made)}, and {unfit}")
    forms = {form.entry: form for kernel in record.kernels for form in kernel.forms}
    return LaunchPlan(
        tuple(_launch(each, forms[each.entry], sizes, device) for each in made.launches if each.when == when),
        tuple(
            (each.name, tuple(_values(each.shape, sizes)), each.dtype)
            for each in made.scratch
            if each.when == when
        ),
        lambda: (f"made for {_made_for(made)}",),
        lambda: tuple(_launch(each, forms[each.entry], sizes, device) for each in made.launches),
    )


def _misfits(record: PassRecord, made: MadeRecord, binding: Binding, device: Machine) -> Iterator[str]:
    """What of a call a module was not made for, and what to do."""
    lengths = dict(binding.extents)
    sizes = {axis: lengths.get(axis, length) for axis, length in made.sizes}
    if not device.host and device.arch.rstrip("af") != made.arch.rstrip("af"):
        yield f"this GPU is {device.arch}; generate it again: {_again(made, sizes, made.dtype, device.arch)}"
    if not device.host and device.multiprocessors < made.multiprocessors:
        there = device.multiprocessors
        yield f"it needs {made.multiprocessors} multiprocessors, and this GPU has {there}; {_any_shape(made)}"
    for axis, length in made.sizes:
        if sizes[axis] != length:
            cure = _again(made, sizes, made.dtype, made.arch)
            yield f"{axis} is {sizes[axis]} here; generate it again: {cure}"
    given, wanted = dict(binding.operands), dict(made.operands)
    if given.keys() != wanted.keys() or binding.accumulate:
        names = ", ".join(sorted(given.keys() ^ wanted.keys())) or "accumulate"
        yield f"this call differs in {names}; {_any_shape(made)}"
    fixed = {tensor.name for tensor in (*record.reads, *record.writes) if tensor.dtype is not None}
    dtypes = {operand.dtype for name, operand in given.items() if name not in fixed}
    for name, dtype in made.operands:
        if given[name].dtype != dtype:
            cure = _again(made, sizes, given[name].dtype, made.arch) if len(dtypes) == 1 else _any_shape(made)
            yield f"{name} is {given[name].dtype} here: {cure}"
    records = {tensor.name: tensor for tensor in (*record.reads, *record.writes)}
    for name, operand in binding.operands:
        packed = packed_strides(records[name], Lengths(lengths, None))
        strides = dict(operand.strides)
        if any(strides[axis] != step for axis, step in packed.items() if lengths[axis] > 1):
            yield f"{name} is not contiguous; {_any_shape(made)}"
        if operand.alignment < ALIGNMENT:
            yield f"{name} is not aligned to {ALIGNMENT} bytes; {_any_shape(made)}"


def _made_for(made: MadeRecord) -> str:
    sizes = ", ".join(f"{axis} = {length}" for axis, length in made.sizes)
    return f"{sizes} in {made.dtype} on {made.arch}".strip()


def _again(made: MadeRecord, sizes: Mapping[str, int], dtype: str, arch: str) -> str:
    given = " ".join(f"--size {axis}={length}" for axis, length in sizes.items())
    return f"{made.command} {given} --dtype {dtype} --arch {arch}"


def _any_shape(made: MadeRecord) -> str:
    return f"for a module for any call: {made.command}"


def _launch(record: LaunchRecord, form: FormRecord, sizes: Mapping[str, int], device: Machine) -> Launch:
    text = listing(form.source)
    arguments = record.arguments.split(", ")
    x, y, z = _values(record.grid, sizes)
    return Launch(
        source=text.before + record.defines + "\n" * bool(record.defines) + text.after,
        entry=record.entry,
        grid=(x, y, z),
        block=(record.block, 1, 1),
        shared=record.shared,
        format=record.format,
        values=tuple(_argument(each, sizes) for each in arguments),
        reads=_arrays(arguments, ("in", "inout")),
        writes=_arrays(arguments, ("out", "inout")),
        cluster=record.cluster,
        programmatic=record.programmatic and device.programmatic,
        clears=record.clears,
    )


def _argument(text: str, sizes: Mapping[str, int]) -> int | Slot:
    kind, _, name = text.partition(" ")
    return Slot(_SLOTS[kind], name) if kind in _SLOTS else int(_value(text, sizes))


def _arrays(arguments: Sequence[str], kinds: tuple[str, ...]) -> tuple[str, ...]:
    parts = (each.partition(" ") for each in arguments)
    return tuple(dict.fromkeys(name for kind, _, name in parts if kind in kinds))


def _values(text: str, sizes: Mapping[str, int]) -> list[int]:
    return [int(_value(each, sizes)) for each in text.split(", ")] if text else []


@lru_cache(maxsize=1024)
def _code(text: str) -> CodeType:
    return compile(text or "True", "<formula>", "eval")


def _value(text: str, sizes: Mapping[str, int]) -> Any:
    return eval(_code(text), {"__builtins__": {}}, sizes)
