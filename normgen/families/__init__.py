"""The families of kernels, a folder each: `compile` plans and writes texts, `launch` chooses schedules and
launches them.

A half of a family is the object `FAMILY` of its module `family`. Halves are found by the name of the folder,
which is what the family's record has as `family`. No half imports another's: what runs generated modules does
without the compiler.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

NAMES = tuple(sorted(each.name for each in iter_modules(__path__) if each.ispkg))


@cache
def half(family: str, which: str) -> Any:
    """The `compile` or the `launch` half of a family."""
    return import_module(f"{__name__}.{family}.{which}.family").FAMILY
