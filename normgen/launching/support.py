"""Whether something can run, and where not, why."""

from __future__ import annotations

from dataclasses import dataclass


class NoSchedule(ValueError):
    """A call that no strategy of a pass fits, and why."""


class TooLarge(NoSchedule):
    """A launch with more blocks than a grid has, or numbers that its kernel has no room for."""


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a kernel can run in a call, and where not, why."""

    ok: bool
    reason: str = ""


SUPPORTED = Support(True)
