"""Kernels alone, with their constants known, to stand behind the device functions that they include."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normgen.package.device_functions import included, includes
from normgen.page.layout import joined
from normgen.page.page import UNIT, laid_out, whole
from normgen.page.program import settled


def kernels(sources: Sequence[str], macros: Mapping[str, int]) -> tuple[str, ...]:
    """Each text without what its constants decide. Names that it does not define stay as they are."""
    units = UNIT.findall(joined(settled(whole(sources, macros)).text))
    found = zip(sources, units, strict=True)
    return tuple(f"{includes(included(source))}\n{laid_out([unit])}" for source, unit in found)
