"""What a call would need, from sizes and dtypes alone: stand-in views for planning ahead of any array."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from operator import index
from typing import Any, cast

from normgen.arrays.numpy import NUMPY
from normgen.arrays.views import View, packed
from normgen.dtypes import DEVICE_DTYPES, DTYPES
from normgen.launching.launch import DeviceKey
from normgen.launching.layout import REST, Lengths, shape_of
from normgen.package.direction import Direction
from normgen.package.records import TensorRecord
from normgen.runtime.calls.arguments import Types
from normgen.runtime.calls.binding import Bound, bind
from normgen.runtime.calls.look import ViewedCall

Sizes = Mapping[str, int | tuple[int, ...]]


def bind_sizes(
    direction: Direction,
    sizes: Sizes,
    dtypes: str | Mapping[str, str],
    alignment: int = 16,
    device: DeviceKey = ("cuda", 0),
    wanted: tuple[str, ...] | None = None,
) -> Bound:
    """A call with contiguous arrays of these lengths, every operand present and every result `wanted`, or
    some."""
    views = stand_ins(direction, sizes, dtypes, alignment, device)
    results = tuple(direction.results) if wanted is None else wanted
    return bind(direction, views, {}, results, types=dict(_unread(direction, dtypes)))


def imagined(
    direction: Direction, sizes: Sizes, dtypes: str | Mapping[str, str], device: DeviceKey
) -> ViewedCall:
    """Such a call on a device, as if its arrays had been looked at."""
    views = stand_ins(direction, sizes, dtypes, 16, device)
    return ViewedCall(views, {}, tuple(direction.results), types=_unread(direction, dtypes))


def stand_ins(
    direction: Direction, sizes: Sizes, dtypes: str | Mapping[str, str], alignment: int, device: DeviceKey
) -> dict[str, View]:
    """Contiguous views of every operand that the pass reads, at an address of just this alignment."""
    if alignment not in (1, 2, 4, 8, 16):
        raise ValueError(f"alignment must be 1, 2, 4, 8 or 16 bytes but is {alignment}")
    records = {name: direction.operands[name] for name in direction.reads}
    lengths = _lengths(direction, records, sizes)
    chosen = _dtypes(direction, records, dtypes)
    views = {}
    for name, record in records.items():
        shape = shape_of(record, lengths)
        address = max(alignment, DTYPES[chosen[name]].bytes)
        views[name] = View(
            pointer=address,
            dtype=chosen[name],
            shape=shape,
            strides=packed(shape),
            readonly=False,
            device=device,
            library=NUMPY,
            owner=None,
        )
    return views


def _unread(direction: Direction, dtypes: str | Mapping[str, str]) -> Types:
    """The element types that are told of what the direction does not read."""
    told = {} if isinstance(dtypes, str) else dtypes
    return tuple((name, dtype) for name, dtype in told.items() if name not in direction.reads)


def _lengths(direction: Direction, records: Mapping[str, TensorRecord], sizes: Sizes) -> Lengths:
    sizes = {axis: _whole(axis, size) for axis, size in sizes.items()}
    lengths = {axis.name: axis.extent for axis in direction.axes if axis.extent is not None}
    needed = dict.fromkeys(axis for record in records.values() for axis in record.axes)
    known = dict.fromkeys(axis for record in direction.operands.values() for axis in record.axes)
    for axis, size in sizes.items():
        if axis not in known:
            raise ValueError(f"sizes: there is no axis {axis!r}; the axes are {', '.join(known)}")
        if axis in lengths and lengths[axis] != size:
            raise ValueError(f"sizes: {axis} is {lengths[axis]} in the spec, not {size}")
        lengths[axis] = prod(size) if isinstance(size, tuple) else size
    missing = [axis for axis in needed if axis not in lengths]
    if missing:
        raise ValueError(f"sizes: add a length for {', '.join(missing)}")
    rest = sizes.get(REST)
    return Lengths(lengths, (rest,) if isinstance(rest, int) else rest)


def _whole(axis: str, size: object) -> int | tuple[int, ...]:
    """A length, or the dimensions of `...`, as Python's ints."""
    try:
        found = tuple(map(index, size)) if isinstance(size, (tuple, list)) else index(cast("int", size))
    except TypeError:
        raise TypeError(f"sizes: {axis} must be an int or a tuple of ints but is {size!r}") from None
    if any(length < 0 for length in (found if isinstance(found, tuple) else (found,))):
        raise ValueError(f"sizes: {axis} must not be negative but is {size!r}")
    return found


def _dtypes(
    direction: Direction, records: Mapping[str, TensorRecord], dtypes: str | Mapping[str, str]
) -> dict[str, str]:
    given: Mapping[str, str] = {} if isinstance(dtypes, str) else dtypes
    for name, dtype in given.items():
        if name not in direction.operands and name not in direction.declared:
            raise ValueError(f"dtypes: there is no tensor {name!r}; the operands are {', '.join(records)}")
        _check_dtype(dtype)
    usual = dtypes if isinstance(dtypes, str) else next(iter(given.values()), "f32")
    _check_dtype(usual)
    chosen: dict[str, str] = {}
    for name, record in records.items():
        chosen[name] = record.dtype or given.get(name) or usual
    for name, record in records.items():
        if record.dtype is None and record.like is not None and name not in given:
            chosen[name] = chosen.get(record.like, chosen[name])
    return chosen


def _check_dtype(dtype: Any) -> None:
    if dtype not in DEVICE_DTYPES:
        raise ValueError(f"dtypes: {dtype!r} is not supported; use one of {', '.join(DEVICE_DTYPES)}")
