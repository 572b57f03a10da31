"""Which family plans a kernel: the one that its record is of."""

from __future__ import annotations

from typing import Any

from normgen.families import half
from normgen.launching.family import LaunchFamily
from normgen.package.kernels import Kernel


def family_of(kernel: Kernel) -> LaunchFamily[Any, Any]:
    """The family of a kernel."""
    found: LaunchFamily[Any, Any] = half(kernel.family, "launch")
    return found
