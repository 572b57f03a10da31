"""Records as Python source, laid out as a formatter would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

WIDTH = 110


def literal(value: Any, names: Mapping[str, str] | None = None, prefix: str = "", indent: int = 0) -> str:
    """A record as Python source, on one line where it fits; texts in `names` are written as those names.

    `prefix` stands before the value on its first line.
    """
    names = names or {}
    flat = prefix + _flat(value, names)
    if len(flat) + indent + (1 if indent else 0) <= WIDTH or not _parts(value):
        return flat
    opening, closing = _brackets(value)
    inner = indent + 4
    lines = [
        " " * inner + literal(part, names, f"{name}=" if name else "", inner) + ","
        for name, part in _parts(value)
    ]
    return "\n".join([prefix + opening, *lines, " " * indent + closing])


def _flat(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return names[value] if "\n" in value and value in names else quoted(value)
    parts = _parts(value)
    if not parts and not isinstance(value, tuple) and not is_dataclass(value):
        return repr(value)
    inside = ", ".join((f"{name}=" if name else "") + _flat(part, names) for name, part in parts)
    if isinstance(value, tuple) and len(parts) == 1:
        inside += ","
    opening, closing = _brackets(value)
    return opening + inside + closing


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The fields of a record that differ from their defaults, or the elements of a tuple."""
    if isinstance(value, tuple):
        return [("", element) for element in value]
    if not is_dataclass(value):
        return []
    return [
        (field.name, getattr(value, field.name))
        for field in fields(value)
        if field.default is MISSING or getattr(value, field.name) != field.default or field.name == "abi"
    ]


def _brackets(value: Any) -> tuple[str, str]:
    return ("(", ")") if isinstance(value, tuple) else (f"{type(value).__name__}(", ")")


def record_types(value: Any) -> Iterator[type]:
    """The record types that a literal of this value names."""
    if is_dataclass(value):
        yield type(value)
    for _, part in _parts(value):
        yield from record_types(part)


def quoted(text: str) -> str:
    """A string literal with double quotes, as a formatter would choose."""
    plain = repr(text)
    if plain.startswith("'") and '"' not in plain:
        return f'"{plain[1:-1]}"'
    return plain
