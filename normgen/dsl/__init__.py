"""The language: text to a checked definition.

`load_definition` is the whole stage. What is slow to import (the parser generator) is imported when first
needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from normgen.diagnostics import Source

if TYPE_CHECKING:
    from normgen.ir.program import Definition

__all__ = ["load_definition"]


def load_definition(source: Source, attrs: Mapping[str, object] | None = None) -> Definition:
    """Parse and check a spec with these attr values. Every fault of either is in the `SpecError` raised."""
    from normgen.dsl.check import check
    from normgen.dsl.syntax import parse

    return check(parse(source), attrs or {}, source)
