"""The arguments of a call -> a `Request`, or a TypeError or ValueError in the words of the spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from normgen.counting import counted
from normgen.dtypes import DEVICE_DTYPES, real
from normgen.package.direction import Direction
from normgen.package.records import AttrRecord, Package

# Element types of operands that a call is not given, by name: what their gradients are written in.
Types = tuple[tuple[str, str], ...]
LARGEST = 3.4028234663852886e38  # of a float32, which is what a kernel gets


class Request(NamedTuple):
    """What a call asks for: its arguments by name, known to the direction and complete."""

    operands: Mapping[str, object]  # arrays, or numbers in place of them; None where left out
    numbers: Mapping[str, float]  # float attrs
    wanted: tuple[str, ...]  # results, in the order in which they are returned
    out: Mapping[str, object]  # arrays to write, by result
    accumulate: bool  # add the gradients of params to those in `out`
    stream: object
    workspace: Mapping[str, object] | None
    sm_count: int | None
    types: Types = ()


class Arguments:
    """What one direction takes: operands by position or name, float attrs and options by name."""

    def __init__(self, package: Package, direction: Direction) -> None:
        self._direction = direction
        self._attrs = {attr.name: attr for attr in package.attrs}
        self._folded = dict(package.folded)
        self._options = {option.name: option.default for option in direction.options}
        self._defaults = {attr.name: attr.default for attr in package.attrs if attr.default is not None}
        parameters = (p for k in direction.record.kernels for form in k.forms for p in form.parameters)
        used = {parameter.name for parameter in parameters if parameter.kind == "scalar"}
        self._needed = tuple(name for name in self._attrs if name in used and name not in self._defaults)
        self._required = tuple(name for name in direction.operands if name in direction.required)
        self._results = tuple(direction.results)
        self._gradient_of = {tensor.source: name for name, tensor in direction.results.items()}

    def request(
        self, arrays: tuple[object, ...], named: Mapping[str, Any], given: tuple[Any, ...] = ()
    ) -> Request:
        """The request of a call with these arguments. `given`: its options in order, if not named."""
        options: dict[str, Any] = {**self._options, **dict(zip(self._options, given, strict=False))}
        operands, numbers = self._sort(arrays, named, options)
        self._check_complete(operands, numbers)
        out, accumulate, workspace = options["out"], options.get("accumulate", False), options["workspace"]
        if workspace is not None:
            check_mapping("workspace", workspace, "as `workspace` lists them")
        if out is None:
            out = {}
        else:
            check_mapping("out", out, f"such as out={{{self._results[0]!r}: ...}}")
            self._check_names("out", out, self._results)
        if self._direction.name == "forward":
            wanted = self._outputs(options["save"], out)
        else:
            wanted = self._gradients(options["wrt"], accumulate, operands, out)
        stream, sm_count = options["stream"], options["sm_count"]
        types = self.types(options.get("dtypes"))
        return Request(operands, numbers, wanted, out, accumulate, stream, workspace, sm_count, types)

    def names(self, wrt: object) -> tuple[str, ...] | None:
        """`wrt` as names: to be looked at more than once, and to be part of a key."""
        if wrt is None:
            return None
        if not isinstance(wrt, Iterable):
            raise TypeError(f"wrt takes names of operands, not a {type(wrt).__name__}")
        found = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        for name in found:
            if not isinstance(name, str):
                self._refuse_name("wrt", name, tuple(self._gradient_of))
        return found

    def types(self, dtypes: Any) -> Types:
        """`dtypes` as pairs, to be part of a key."""
        if dtypes is None or isinstance(dtypes, tuple):  # such pairs
            return dtypes or ()
        check_mapping("dtypes", dtypes, "such as dtypes={'b': 'f32'}", "element types")
        for name, dtype in dtypes.items():
            self._check_names("dtypes", (name,), tuple(self._gradient_of))
            if dtype not in DEVICE_DTYPES:
                raise ValueError(f"dtypes: {dtype!r} is not supported; use one of {', '.join(DEVICE_DTYPES)}")
        return tuple(dtypes.items())

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
        return f"{self._direction.text}()"

    def _sort(
        self, arrays: tuple[object, ...], named: Mapping[str, Any], options: dict[str, Any]
    ) -> tuple[dict[str, object], dict[str, float]]:
        """Operands and numbers by name, with what float attrs are by default; options go into `options`."""
        direction = self._direction
        if len(arrays) > len(direction.reads):
            names, count = ", ".join(direction.reads), len(direction.reads)
            raise TypeError(
                f"{self._call} takes at most {counted(count, 'array')} ({names}) but got {len(arrays)}"
            )
        operands: dict[str, object] = dict(zip(direction.reads, arrays, strict=False))
        numbers: dict[str, float] = dict(self._defaults)
        for name, value in named.items():
            if name in options:
                options[name] = value
            elif name in direction.operands:
                if name in operands:
                    raise TypeError(f"{self._call} got {name} twice, by position and by name")
                operands[name] = value
            elif name in self._attrs:
                numbers[name] = number(self._attrs[name], value)
            elif name in self._folded:
                self._check_folded(name, value)
            else:
                known = [*direction.operands, *self._attrs, *self._options]
                raise unknown(self._call, name, known)
        return operands, numbers

    def _check_complete(self, operands: Mapping[str, object], numbers: Mapping[str, float]) -> None:
        """Refuse a call that lacks an operand or an attr."""
        direction = self._direction
        for name in self._required:
            if operands.get(name) is None:
                raise TypeError(f"{self._call} needs {name}")
        for name in direction.mentioned:
            if name not in operands:
                raise TypeError(f"{self._call} needs {name}: pass None if it is zero")
        for name in self._needed:
            if name not in numbers:
                raise TypeError(f"{self._call} needs the attr {name}, which has no default")

    def _check_folded(self, name: str, value: Any) -> None:
        fixed = self._folded[name]
        if not isinstance(fixed, float):
            kind = "a bool" if isinstance(fixed, bool) else "an int"
            raise TypeError(
                f"{name} is {kind} attr, fixed to {fixed} when the spec was loaded: load the spec again"
            )
        if real(value, name) != fixed:
            raise TypeError(
                f"{name} was fixed to {fixed!r} when the spec was loaded: load it again to change it"
            )

    def _outputs(self, save: object, out: Mapping[str, object]) -> tuple[str, ...]:
        """The results of a forward: all, or outputs and the saves that are in `out`."""
        results = self._direction.results
        return self._results if save else tuple(n for n in results if results[n].role != "save" or n in out)

    def _gradients(
        self, wrt: object, accumulate: bool, operands: Mapping[str, object], out: Mapping[str, object]
    ) -> tuple[str, ...]:
        """The results of a backward: those of `wrt`, but for what was left out of the forward."""
        direction, names = self._direction, self.names(wrt)
        self._check_names("wrt", names or (), tuple(self._gradient_of))
        wanted = tuple(
            gradient
            for source, gradient in self._gradient_of.items()
            if (names is None or source in names)
            and (source not in direction.reads or operands.get(source) is not None)
        )
        for name in wanted:
            if accumulate and direction.accumulates(name) and name not in out:
                raise ValueError(f"accumulate=True needs out[{name!r}]: pass it, or leave it out of wrt")
        for name in out:
            if name not in wanted:
                source = direction.results[name].source
                raise ValueError(f"out[{name!r}] is not computed: add {source} to wrt, or remove it from out")
        return wanted

    def _check_names(self, what: str, given: Iterable[str], known: tuple[str, ...]) -> None:
        for name in given:
            if name not in known:
                self._refuse_name(what, name, known)

    def _refuse_name(self, what: str, name: object, known: tuple[str, ...]) -> None:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"{what} takes names, such as {known[0]!r}, not a {kind}")
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the names are {', '.join(known)}"
        raise ValueError(f"{what}: {self._direction.norm} has no {name!r}; {hint}")


def number(attr: AttrRecord, value: Any) -> float:
    """The value of a float attr, checked against its range."""
    if type(value) is not float:
        value = real(value, attr.name)
    if not isfinite(value):
        raise ValueError(f"{attr.name} must be finite but is {value}")
    if abs(value) > LARGEST:
        raise ValueError(f"{attr.name} = {value!r} is beyond the range of float32")
    low = attr.low
    if low is not None and (value < low or (attr.strict and float(np.float32(value)) <= low)):
        raise ValueError(f"{attr.name} must be {'>' if attr.strict else '>='} {low:g} but is {value!r}")
    return float(value)


def unknown(call: str, name: str, known: list[str]) -> TypeError:
    """The error for a name that a call does not know."""
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}"
    return TypeError(f"{call} got an unknown argument {name!r}; {hint}")


def check_mapping(what: str, given: object, form: str, held: str = "arrays") -> None:
    """Refuse what holds no arrays, or others, by name. `form`: how it is to be written."""
    if not isinstance(given, Mapping):
        way = "its ._asdict()" if hasattr(given, "_asdict") else f"a dict of {held} by name, {form}"
        raise TypeError(f"{what} is a {type(given).__name__}: pass {way}")
