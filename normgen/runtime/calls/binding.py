"""A call's arrays -> a `Binding`, after every check that does not depend on addresses.

Pure: `bind` sees views, never memory.  Whatever is wrong with the arrays of a call is said here, before
anything is compiled or launched: TypeError for what an array is, ValueError for how it is shaped or
placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from normgen.dtypes import DEVICE_DTYPES, DTYPES
from normgen.launching.in_place import pairs_in_place
from normgen.launching.launch import Binding, Operand
from normgen.launching.layout import (
    Lengths,
    Shape,
    axis_strides,
    is_contiguous,
    packed_strides,
    shape_of,
    solve,
    span,
    taken_as_is,
)
from normgen.package.direction import Direction
from normgen.package.records import AxisRecord, TensorRecord

if TYPE_CHECKING:
    from normgen.arrays.views import View

ALIGNMENT = 16
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Bound:
    """A binding with what the call itself must do around the launches."""

    binding: Binding
    results: tuple[tuple[str, Shape, str], ...]  # name, shape and dtype of each that is wanted
    copies: tuple[str, ...]  # operands that are made contiguous first
    extents: dict[str, tuple[int, int]]  # first and one past the last byte, counted from a tensor's pointer
    in_place: frozenset[tuple[str, str]]  # (result, operand): the one may lie exactly over the other
    idle: bool  # nothing is launched, results are zero: nothing is wanted, or all cotangents are zero


def bind(
    direction: Direction,
    given: Mapping[str, View],
    out: Mapping[str, View],
    wanted: tuple[str, ...],
    accumulate: bool = False,
    types: Mapping[str, str] = _NOTHING,
) -> Bound:
    """Check one call's arrays against the spec and against each other, and say how they lie in memory.

    `types`: of operands that are not given, which their gradients have too.
    """
    _check_devices([*given.items(), *((f"out[{name!r}]", view) for name, view in out.items())])
    check_dtypes(direction, given)
    for name in direction.updated & given.keys():
        _check_writable(name, name, given[name])
    shapes = [(direction.operands[name], view.shape) for name, view in given.items()]
    shapes += [(direction.results[name], view.shape) for name, view in out.items()]
    lengths = solve(shapes, direction.axes)
    _check_known(direction, lengths)
    check_reductions(direction, lengths)

    operands: dict[str, Operand] = {}
    extents: dict[str, tuple[int, int]] = {}
    copies: list[str] = []
    for name in direction.reads:
        if name not in given:
            continue
        view = given[name]
        record = direction.operands[name]
        _check_alignment(name, view)
        bytes_each = DTYPES[view.dtype].bytes
        low, high = span(view.shape, view.strides)
        extents[name] = (low * bytes_each, high * bytes_each)
        strides = axis_strides(record, view.shape, view.strides, lengths)
        if strides is not None and taken_as_is(direction.record.always, name, strides, lengths):
            operands[name] = Operand(view.dtype, tuple(strides.items()), alignment_of(view.pointer))
        elif name in direction.updated and 0 not in view.shape:
            raise ValueError(
                f"state {name} is updated in place, so it must be contiguous: pass a contiguous array"
            )
        else:
            if 0 not in view.shape:
                copies.append(name)
            operands[name] = Operand(view.dtype, tuple(packed_strides(record, lengths).items()), ALIGNMENT)

    results: list[tuple[str, Shape, str]] = []
    _check_told(direction, types, given)
    known = {**dtypes_of(given), **types}
    for name in wanted:
        record = direction.results[name]
        shape = shape_of(record, lengths)
        dtype = result_dtype(direction, record, known, dtypes_of(out))
        alignment = ALIGNMENT
        if name in out:
            alignment = _check_out(name, out[name], shape, dtype)
        results.append((name, shape, dtype))
        extents[name] = (0, prod(shape) * DTYPES[dtype].bytes)
        operands[name] = Operand(dtype, tuple(packed_strides(record, lengths).items()), alignment)
    binding = Binding(_ordered(lengths.axes, direction.axes), tuple(operands.items()), accumulate)
    replaced = [name for name in out if not (accumulate and direction.accumulates(name))]
    return Bound(
        binding=binding,
        results=tuple(results),
        copies=tuple(copies),
        extents=extents,
        in_place=pairs_in_place(direction.record, binding, replaced, copies),
        idle=not (wanted or direction.updated & given.keys())
        or bool(direction.mentioned and not direction.mentioned & given.keys()),
    )


def alignment_of(pointer: int) -> int:
    """The largest power of two, 16 at most, that divides an address."""
    low = pointer & (ALIGNMENT - 1)
    return low & -low if low else ALIGNMENT


def device_text(device: tuple[str, int]) -> str:
    """How messages name a device: `the host`, `cuda:0`."""
    return "the host" if device[0] == "host" else f"{device[0]}:{device[1]}"


def _ordered(lengths: dict[str, int], axes: tuple[AxisRecord, ...]) -> tuple[tuple[str, int], ...]:
    declared = [axis.name for axis in axes if axis.name in lengths]
    return tuple((axis, lengths[axis]) for axis in dict.fromkeys([*declared, *sorted(lengths)]))


def _check_devices(views: list[tuple[str, View]]) -> None:
    for name, view in views[1:]:
        first, at = views[0]
        if view.device != at.device:
            here, there = device_text(at.device), device_text(view.device)
            raise ValueError(f"{first} is on {here} but {name} is on {there}: move them to one device")


def check_dtypes(direction: Direction, given: Mapping[str, View]) -> None:
    """Refuse operands of other element types than the spec says."""
    for name, view in given.items():
        _check_dtype(direction, name, view, given)


def _check_dtype(direction: Direction, name: str, view: View, given: Mapping[str, View]) -> None:
    if view.dtype not in DEVICE_DTYPES:
        kind = DTYPES[view.dtype].numpy_name if view.dtype in DTYPES else view.dtype
        raise TypeError(
            f"{name} is {kind}, which kernels do not support; cast it: {_cast(name, view, 'f32')}"
        )
    record = direction.operands[name]
    wanted, why = record.dtype, "the spec says so"
    if wanted is None and record.like is not None and record.like in given:
        wanted, why = given[record.like].dtype, f"like {record.like}"
    if wanted is not None and view.dtype != wanted:
        text = f"{record.text} must be {wanted} ({why}) but is {view.dtype}"
        raise TypeError(f"{text}; cast it: {_cast(name, view, wanted)}")


def _check_told(direction: Direction, told: Mapping[str, str], given: Mapping[str, View]) -> None:
    """Refuse a type that a call tells of an operand that has another."""
    for name, dtype in told.items():
        own = given[name].dtype if name in given else _declared(direction.declared, name)
        if own not in (None, dtype):
            raise TypeError(f"dtypes: {name} is {own}, not {dtype}: correct it or leave it out")


def _check_writable(name: str, text: str, view: View) -> None:
    if view.readonly:
        raise ValueError(f"{text} is read-only, but the call writes it: pass a writable copy")


def _check_alignment(text: str, view: View) -> None:
    if view.pointer % DTYPES[view.dtype].bytes:
        raise ValueError(
            f"{text} has {view.dtype} elements at address {view.pointer:#x}, which is not aligned to their "
            "size: pass a copy"
        )


def _check_out(name: str, view: View, shape: Shape, dtype: str) -> int:
    text = f"out[{name!r}]"
    if view.dtype != dtype:
        raise TypeError(f"{text} must be {dtype} but is {view.dtype}")
    if view.shape != shape:
        raise ValueError(f"{text} must have shape {shape} but has {view.shape}")
    if not is_contiguous(view.shape, view.strides):
        raise ValueError(f"{text} must be contiguous")
    _check_writable(name, text, view)
    _check_alignment(text, view)
    return alignment_of(view.pointer)


def _check_known(direction: Direction, lengths: Lengths) -> None:
    for kernel in direction.record.kernels:
        for axis in (*kernel.kept, *kernel.inner):
            if axis not in lengths.axes:
                raise ValueError(f"the length of {axis} is unknown: no given array has it")


def check_reductions(direction: Direction, lengths: Lengths) -> None:
    """A statistic of no elements at all does not exist: refuse groups that are there but empty. An empty
    batch or an empty space (see `PassRecord.reduced`) makes an empty call instead."""
    empty = [axis for axis in direction.record.reduced if lengths.axes.get(axis) == 0]
    others = {axis: length for axis, length in lengths.axes.items() if axis not in direction.record.reduced}
    if empty and others and 0 not in others.values():
        groups = " x ".join(f"{axis} = {length}" for axis, length in others.items())
        raise ValueError(
            f"{empty[0]} is 0, but the norm reduces over {empty[0]}, which must not be empty if {groups}"
        )


def dtypes_of(views: Mapping[str, View]) -> dict[str, str]:
    """The element type of each array."""
    return {name: view.dtype for name, view in views.items()}


def result_dtype(
    direction: Direction, record: TensorRecord, given: Mapping[str, str], out: Mapping[str, str] = _NOTHING
) -> str:
    """The element type of a result, from those of the arrays of a call: that of the first of these that has
    one."""
    declared = direction.declared
    sources: list[str | None]
    if record.role == "gradient":
        source = record.source
        like = declared[source].like if source in declared else None
        sources = [given.get(source), record.dtype, _declared(declared, source), given.get(like or "")]
        sources += [out.get(record.name)]
        sources += [given.get(name) for name in direction.reads if name in direction.mentioned]
    else:
        like = record.like or ""
        if record.dtype is None and like not in given and like in direction.results:
            return result_dtype(direction, direction.results[like], given, out)
        sources = [record.dtype, given.get(like), _declared(declared, like)]
    known = (dtype for dtype in (*sources, *given.values()) if dtype is not None)
    return next(known, "f32")


def _declared(declared: Mapping[str, TensorRecord], name: str) -> str | None:
    return declared[name].dtype if name in declared else None


def _cast(name: str, view: View, dtype: str) -> str:
    """The cast to write, in the words of the array's own library."""
    return name + view.library.cast(DTYPES[dtype].numpy_name)
