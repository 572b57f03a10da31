"""A package as plain data, and back: dicts, tuples, text and numbers, as a generated module holds it.

A record is a dict of the fields that differ from their defaults. What a package has much of is text:

    names and axes      "x w rstd"
    dimensions          "B, (G C), ..."
    parameters          "pointer x w y, stride x[...] y[...], scalar eps, rows"

A kernel says which family it is of, so that no class is named.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import groupby
from typing import Any, get_args, get_origin, get_type_hints

from normgen.package.kernels import Kernel, records
from normgen.package.operands import Parameter
from normgen.package.records import Dims, Package, dims_text

_WORDS, _PARAMETERS = tuple[str, ...], tuple[Parameter, ...]
_GROUP = re.compile(r"\(([^)]*)\)|([^,\s]+)")


def plain(value: Any) -> Any:
    """A record as plain data."""
    if _is_record(value):
        kind: Any = type(value)
        family = {"family": value.family} if isinstance(value, Kernel) else {}
        return family | {
            f.name: _field(_hints(kind)[f.name], getattr(value, f.name))
            for f in fields(value)
            if getattr(value, f.name) != f.default
        }
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def package_of(data: Mapping[str, Any]) -> Package:
    """The package that plain data is of."""
    made: Package = _made(Package, data)
    return made


@cache
def schema() -> str:
    """A digest of the fields of plain data, with their types and defaults: modules of another are refused,
    even where nobody thought of raising the ABI's number."""
    return hashlib.sha256(_described(Package).encode()).hexdigest()[:16]


def _described(hint: Any) -> str:
    """A type by what data of it looks like: names of classes do not count."""
    if hint is Kernel:
        return " | ".join(f"{name} {_described(record)}" for name, record in records().items())
    if _is_record(hint):
        parts = (
            f"{f.name}: {_described(_hints(hint)[f.name])}"
            + ("" if f.default is MISSING else f" = {f.default!r}")
            for f in fields(hint)
        )
        return f"{{{', '.join(parts)}}}"
    if inside := get_args(hint):
        name = "tuple" if get_origin(hint) is tuple else "any"
        return f"{name}[{', '.join(map(_described, inside))}]"
    return hint.__name__ if isinstance(hint, type) else repr(hint)


def _is_record(value: Any) -> bool:
    return is_dataclass(value)


@cache
def _hints(record: Any) -> dict[str, Any]:
    return get_type_hints(record)


def _field(hint: Any, value: Any) -> Any:
    """A field's value as text where that says all of it, else as data."""
    text = None
    if hint == Dims:
        text = dims_text(value)
    elif hint == _PARAMETERS:
        text = ", ".join(_parameters_text(value))
    elif hint == _WORDS:
        text = " ".join(value)
    return plain(value) if text is None or _read(hint, text) != value else text


def _made(hint: Any, data: Any) -> Any:
    """The value of a type that plain data is of."""
    if hint is Kernel:
        family = records()[data["family"]]
        return _made(family, {name: value for name, value in data.items() if name != "family"})
    if isinstance(data, str):
        return _read(hint, data)
    if isinstance(data, Mapping):
        record = hint if _is_record(hint) else next(filter(_is_record, get_args(hint)))
        hints = _hints(record)
        return record(**{name: _made(hints[name], value) for name, value in data.items()})
    if isinstance(data, tuple):
        inside = get_args(hint)
        hints_of = (inside[0],) * len(data) if inside[-1] is ... else inside
        return tuple(_made(each, value) for each, value in zip(hints_of, data, strict=True))
    return data


def _read(hint: Any, text: str) -> Any:
    """What a text of a field says: of tuples that are written as text, or the text itself."""
    if hint == Dims:
        return tuple(tuple((group or single).split()) for group, single in _GROUP.findall(text))
    if hint == _PARAMETERS:
        return tuple(_parameters(text))
    return tuple(text.split()) if hint == _WORDS else text


def _parameters_text(parameters: Iterable[Parameter]) -> Iterator[str]:
    """Neighbours of one kind together: "stride x[...] y[...]"; rows and the like have no name."""
    for (kind, named), group in groupby(parameters, lambda p: (p.kind, bool(p.name or p.axis))):
        words = [p.name + (f"[{p.axis}]" if p.axis else "") for p in group]
        yield from (f"{kind} {' '.join(words)}",) if named else (kind,) * len(words)


def _parameters(text: str) -> Iterator[Parameter]:
    for part in text.split(", ") if text else ():
        kind, *words = part.split()
        for word in words or [""]:
            name, _, axis = word.rstrip("]").partition("[")
            yield Parameter(kind, name, axis)
