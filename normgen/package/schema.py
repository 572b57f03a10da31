"""The schema of records: what a generated module and the runtime must agree on beside the ABI's number."""

from __future__ import annotations

import hashlib
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from normgen.package import kernels, operands, records


@cache
def schema() -> str:
    """A digest of every record's fields in order, with their types and defaults.

    Modules of another schema are refused even where nobody thought of raising the ABI's number."""
    return hashlib.sha256("\n".join(described()).encode()).hexdigest()[:16]


def described() -> tuple[str, ...]:
    """The records that modules hold, one a line, by name."""
    return tuple(
        f"{name}({', '.join(map(_text, fields(each)))})" for name, each in sorted(record_types().items())
    )


def record_types() -> dict[str, type]:
    """The types of records that modules hold, by name."""
    return {
        each.__name__: each
        for module in (records, kernels, operands)
        for each in vars(module).values()
        if isinstance(each, type) and is_dataclass(each) and each.__module__ == module.__name__
    }


def _text(field: Field[Any]) -> str:
    # The number of the ABI is a default too, but no part of what it counts.
    default = "" if field.default is MISSING or field.name == "abi" else f" = {field.default!r}"
    return f"{field.name}: {field.type}{default}"
