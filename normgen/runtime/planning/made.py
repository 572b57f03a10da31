"""The planner of a module of one shape: its launches are known but for the lengths that a call gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from normgen.launching.launch import Binding, Launch, LaunchPlan, Slot
from normgen.launching.layout import Lengths, packed_strides
from normgen.launching.machine import Machine
from normgen.package.made import LaunchRecord, MadeRecord
from normgen.package.records import PassRecord

ALIGNMENT = 16
_SLOTS = {"in": "pointer", "out": "pointer", "inout": "pointer", "attr": "scalar"}


def plan_made(record: PassRecord, made: MadeRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """The launches of a call. ValueError where the module was made for others."""
    made_for = ", ".join(f"{axis} = {length}" for axis, length in made.sizes)
    made_for = f"made for {made_for} in {made.dtype} on {made.arch}".replace("  ", " ")
    lengths = dict(binding.extents)
    sizes = {name: lengths.get(axis, 1) for axis, name in made.open}
    limits = dict.fromkeys(each.when for each in made.launches)
    when = next((each for each in limits if not each or _value(each, sizes)), None)
    unfit = next(_misfits(record, made, binding, device), "")
    if not unfit and when is None:
        given = ", ".join(f"{name} = {length}" for name, length in sizes.items())
        unfit = f"it has no launches for {given}; for a module for any call: {made.command}"
    if unfit:
        raise ValueError(f"{made.call} was {made_for}, and {unfit}")

    def launches(records: Iterable[LaunchRecord]) -> tuple[Launch, ...]:
        return tuple(_launch(each, sizes, device) for each in records)

    return LaunchPlan(
        launches(each for each in made.launches if each.when == when),
        tuple((a.name, _values(a.shape, sizes), a.dtype) for a in made.scratch if a.when == when),
        lambda: (made_for,),
        lambda: launches(made.launches),
    )


def _misfits(record: PassRecord, made: MadeRecord, binding: Binding, device: Machine) -> Iterator[str]:
    """What of a call a module was not made for, and what to do."""
    lengths = dict(binding.extents)
    sizes = {axis: lengths.get(axis, length) for axis, length in made.sizes}
    any_shape = f"for a module for any call: {made.command}"

    def again(dtype: str = made.dtype, arch: str = made.arch) -> str:
        given = " ".join(f"--size {axis}={length}" for axis, length in sizes.items())
        return f"{made.command} {given} --dtype {dtype} --arch {arch}"

    if not device.host and device.arch.rstrip("af") != made.arch.rstrip("af"):
        yield f"this GPU is {device.arch}; generate it again: {again(arch=device.arch)}"
    if not device.host and device.multiprocessors < made.multiprocessors:
        there = device.multiprocessors
        yield f"it needs {made.multiprocessors} multiprocessors, and this GPU has {there}; {any_shape}"
    for axis, length in made.sizes:
        if sizes[axis] != length:
            yield f"{axis} is {sizes[axis]} here; generate it again: {again()}"
    yield from _misfit_operands(record, made, binding, again)


def _misfit_operands(
    record: PassRecord, made: MadeRecord, binding: Binding, again: Callable[[str], str]
) -> Iterator[str]:
    """What of the arrays of a call a module was not made for. `again`: the command for another type."""
    lengths, any_shape = dict(binding.extents), f"for a module for any call: {made.command}"
    given, wanted = dict(binding.operands), dict(made.operands)
    if given.keys() != wanted.keys() or binding.accumulate:
        names = ", ".join(sorted(given.keys() ^ wanted.keys())) or "accumulate"
        yield f"this call differs in {names}; {any_shape}"
    records = {tensor.name: tensor for tensor in (*record.reads, *record.writes)}
    dtypes = {operand.dtype for name, operand in given.items() if records[name].dtype is None}
    for name, operand in given.items():
        if operand.dtype != wanted[name]:
            yield f"{name} is {operand.dtype} here: {again(operand.dtype) if len(dtypes) == 1 else any_shape}"
    for name, operand in given.items():
        packed = packed_strides(records[name], Lengths(lengths, None))
        strides = dict(operand.strides)
        if any(strides[axis] != step for axis, step in packed.items() if lengths[axis] > 1):
            yield f"{name} is not contiguous; {any_shape}"
        if operand.alignment < ALIGNMENT:
            yield f"{name} is not aligned to {ALIGNMENT} bytes; {any_shape}"


def _launch(record: LaunchRecord, sizes: Mapping[str, int], device: Machine) -> Launch:
    arguments = [each.partition(" ") for each in record.arguments.split(", ")]

    def arrays(*access: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for kind, _, name in arguments if kind in access))

    # (constants follow the files that a text includes)
    text = record.text.replace("\n\n", f"\n\n{record.constants}\n", 1) if record.constants else record.text
    return Launch(
        text=text,
        entry=record.entry,
        grid=_values(record.grid, sizes),
        block=(record.block, 1, 1),
        shared=record.shared,
        format=record.format,
        values=tuple(
            Slot(_SLOTS[kind], name) if kind in _SLOTS else _value(f"{kind} {name}", sizes)
            for kind, _, name in arguments
        ),
        reads=arrays("in", "inout"),
        writes=arrays("out", "inout"),
        cluster=record.cluster,
        programmatic=record.programmatic and device.programmatic,
        clears=record.clears,
    )


def _values(text: str, sizes: Mapping[str, int]) -> Any:
    return _value(f"({text},)" if text else "()", sizes)


def _value(text: str, sizes: Mapping[str, int]) -> Any:
    """Of a formula, for these lengths: with lengths that stay open it is a formula of them again."""
    return eval(text, {"__builtins__": {}}, sizes)
