"""A request's arrays -> views of them: how each lies in memory, whatever its library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from normgen import arrays
from normgen.arrays.views import View, scalar_view
from normgen.dtypes import DEVICE_DTYPES, name_of_numpy, real, round_to
from normgen.launching.launch import HOST, DeviceKey
from normgen.package.direction import Direction
from normgen.runtime.calls.arguments import Request, Types

# What may stand for a 0-d array.
SCALARS = (float, int, np.generic)


class ViewedCall(NamedTuple):
    """A call with its arrays looked at."""

    views: Mapping[str, View]  # of the operands that are there, in declared order
    out: Mapping[str, View]  # of the results that the caller gives
    wanted: tuple[str, ...]
    accumulate: bool = False
    sm_count: int | None = None
    loose: tuple[str, ...] = ()  # operands that numbers stand for
    bits: Mapping[str, int] = {}  # bit patterns of those of them that a device has yet to be told of
    types: Types = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """All that its preparation depends on: not on addresses, but on how they are aligned."""
        out = _signatures(self.out) if self.out else ()
        asked = self.wanted, self.accumulate, self.sm_count, self.types
        return (_signatures(self.views), out, asked, (*self.bits,))

    @property
    def device(self) -> DeviceKey:
        """Where its arrays are."""
        return next(iter(self.views.values())).device

    @property
    def like(self) -> str:
        """The operand whose library makes the results."""
        arrays = [name for name in self.views if name not in self.loose] if self.loose else None
        return next(iter(arrays or self.views))


def look(direction: Direction, request: Request) -> ViewedCall:
    """Look at every array that a request gives."""
    out = {name: arrays.view(array, f"out[{name!r}]", written=True) for name, array in request.out.items()}
    views: dict[str, View] = {}
    loose: dict[str, Any] = {}
    for name in direction.operands:
        array = request.operands.get(name)
        if isinstance(array, SCALARS):
            loose[name] = array
        elif array is not None:
            views[name] = arrays.view(array, name, name in direction.updated)
    bits: dict[str, int] = {}
    if loose:
        first = next(iter((*views.values(), *out.values())), None)
        for name, number in loose.items():
            value = _zero_dimensional(name, number, _scalar_dtype(direction, name, number, views))
            if first is None or first.device == HOST:
                views[name] = arrays.view(value)
            else:
                views[name] = scalar_view(first, name_of_numpy(value.dtype) or "f32")
                bits[bits_name(name)] = int(value.view(f"u{value.itemsize}"))
        views = {name: views[name] for name in direction.operands if name in views}
    asked = request.wanted, request.accumulate, request.sm_count
    return ViewedCall(views, out, *asked, tuple(loose), bits, request.types)


def bits_name(operand: str) -> str:
    """The name of the bit pattern of a number that stands for an operand."""
    return f"{operand} (bits)"


def _signatures(views: Mapping[str, View]) -> tuple[Any, ...]:
    # view[1:6]: dtype, shape, strides, readonly, device
    return tuple([(name, view.pointer & 15, view[1:6]) for name, view in views.items()])


def _scalar_dtype(direction: Direction, name: str, value: object, views: Mapping[str, View]) -> str:
    record = direction.operands[name]
    if record.dtype is not None:
        return record.dtype
    if record.like is not None and record.like in views:
        return views[record.like].dtype
    own = name_of_numpy(value.dtype) if isinstance(value, np.generic) else None
    return own if own in DEVICE_DTYPES else "f32"


def _zero_dimensional(name: str, value: object, dtype: str) -> np.ndarray[Any, Any]:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is a bool: pass a number or an array")
    return np.asarray(round_to(real(value, name), dtype))
