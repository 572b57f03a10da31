"""The language: from text to a checked definition, by `load_definition`.

The parser generator is slow to import, so it is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from normgen.diagnostics import Source

if TYPE_CHECKING:
    from normgen.ir.program import Definition

__all__ = ["load_definition"]


def load_definition(source: Source, attrs: Mapping[str, object] | None = None) -> Definition:
    """Parse and check a spec with these attr values. Raises `SpecError` with every fault found."""
    from normgen.dsl.check import check
    from normgen.dsl.syntax import parse

    return check(parse(source), attrs or {}, source)
