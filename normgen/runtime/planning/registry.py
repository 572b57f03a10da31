"""The families of kernels: which of them plans a kernel, by the type of its record."""

from __future__ import annotations

from typing import Any

from normgen.families.columns.launch.lower import Columns
from normgen.families.resident.launch.lower import Resident
from normgen.families.rows.launch.lower import Rows
from normgen.families.tiles.launch.lower import Tiles
from normgen.families.windows.launch.lower import Windows
from normgen.launching.family import LaunchFamily
from normgen.package.kernels import (
    ColumnsRecord,
    Kernel,
    KernelRecord,
    ResidentRecord,
    TilesRecord,
    WindowsRecord,
)

FAMILIES: dict[type[Kernel], LaunchFamily[Any, Any]] = {
    KernelRecord: Rows(),
    ColumnsRecord: Columns(),
    TilesRecord: Tiles(),
    WindowsRecord: Windows(),
    ResidentRecord: Resident(),
}


def family_of(kernel: Kernel) -> LaunchFamily[Any, Any]:
    """The family of a kernel."""
    return FAMILIES[type(kernel)]
