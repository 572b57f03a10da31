"""A call's arguments -> operands and numbers by name, or a TypeError in the words of the spec."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any

import numpy as np

from normgen.dtypes import real
from normgen.package.records import AttrRecord, Package
from normgen.runtime.calls.direction import Direction

LARGEST = 3.4028234663852886e38  # of a float32, which is what a kernel gets


class Arguments:
    """The parameters of one direction: operands by position or name, float attrs by name."""

    def __init__(self, package: Package, direction: Direction) -> None:
        self._norm = package.name
        self._direction = direction
        self._attrs = {attr.name: attr for attr in package.attrs}
        self._folded = dict(package.folded)
        self._defaults = {attr.name: attr.default for attr in package.attrs if attr.default is not None}
        used = {
            parameter.name
            for kernel in direction.record.kernels
            for form in kernel.forms
            for parameter in form.parameters
            if parameter.kind == "scalar"
        }
        self._needed = tuple(name for name in self._attrs if name in used and name not in self._defaults)

    def sort(
        self, arrays: tuple[object, ...], named: Mapping[str, Any]
    ) -> tuple[dict[str, object], dict[str, float]]:
        """Operands and numbers by name. Operands may still be None."""
        direction = self._direction
        if len(arrays) > len(direction.reads):
            names = ", ".join(direction.reads)
            count = len(arrays)
            raise TypeError(
                f"{self._call} takes {len(direction.reads)} arrays ({names}) but was given {count}"
            )
        operands: dict[str, object] = dict(zip(direction.reads, arrays, strict=False))
        numbers: dict[str, float] = dict(self._defaults)
        for name, value in named.items():
            if name in direction.operands:
                if name in operands:
                    raise TypeError(f"{self._call} was given {name} twice, by position and by name")
                operands[name] = value
            elif name in self._attrs:
                numbers[name] = number(self._attrs[name], value)
            elif name in self._folded:
                self._check_folded(name, value)
            else:
                self._unknown(name)
        for name in direction.required:
            if operands.get(name) is None:
                raise TypeError(f"{self._call} needs {self._first_missing(operands)}")
        for name in direction.mentioned:
            if name not in operands:
                raise TypeError(f"{self._call} needs {name} (None stands for zero)")
        for name in self._needed:
            if name not in numbers:
                raise TypeError(f"{self._call} needs the attr {name}, which has no default")
        return operands, numbers

    def bounds(self, name: str) -> tuple[float, float] | None:
        """The least and the greatest number that an attr takes without a closer look; None for an operand."""
        if name in self._folded:
            fixed = self._folded[name]
            return (fixed, fixed)
        attr = self._attrs.get(name)
        if attr is None:
            return None
        low = -LARGEST if attr.low is None else attr.low
        return (float(np.nextafter(np.float32(low), np.float32(LARGEST))) if attr.strict else low, LARGEST)

    @property
    def _call(self) -> str:
        return f"{self._norm}.{self._direction.name}()"

    def _first_missing(self, operands: Mapping[str, object]) -> str:
        needed = (name for name in self._direction.operands if name in self._direction.required)
        return next(name for name in needed if operands.get(name) is None)

    def _check_folded(self, name: str, value: Any) -> None:
        fixed = self._folded[name]
        if not isinstance(fixed, float):
            kind = "a bool" if isinstance(fixed, bool) else "an int"
            raise TypeError(f"{name} is {kind} attr: it is fixed when the spec is loaded, here to {fixed}")
        if real(value, name) == fixed:
            return
        raise TypeError(f"{name} was folded to {fixed!r} when the spec was loaded; a call may not change it")

    def _unknown(self, name: str) -> None:
        known = [*self._direction.operands, *self._attrs, "out", "stream", "workspace", "sm_count"]
        known += ["save"] if self._direction.name == "forward" else ["wrt", "accumulate"]
        close = get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; it takes {', '.join(known)}"
        raise TypeError(f"{self._call} got an unknown argument {name!r}{hint}")


def number(attr: AttrRecord, value: Any) -> float:
    """The value of a float attr, checked against its range."""
    if type(value) is not float:
        value = real(value, attr.name)
    if not isfinite(value):
        raise ValueError(f"{attr.name} must be finite but is {value}")
    if abs(value) > LARGEST:
        raise ValueError(f"{attr.name} = {value!r} is beyond the range of f32")
    low = attr.low
    if low is not None and (value < low or (attr.strict and float(np.float32(value)) <= low)):
        raise ValueError(f"{attr.name} must be {'>' if attr.strict else '>='} {low:g} but is {value!r}")
    return float(value)


def is_plain(wrt: object) -> bool:
    """Whether `wrt` may be looked at more than once, and be part of a key."""
    return wrt is None or type(wrt) is str or (type(wrt) is tuple and all(type(name) is str for name in wrt))


def check_mapping(what: str, given: object, form: str) -> None:
    """Refuse what holds no arrays by name. `form`: how it is to be written."""
    if given is not None and not isinstance(given, Mapping):
        way = "its ._asdict()" if hasattr(given, "_asdict") else f"a dict of arrays by name, {form}"
        raise TypeError(f"{what} is a {type(given).__name__}: give {way}")
