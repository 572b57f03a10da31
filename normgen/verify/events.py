"""What a check reports while it runs: how far it is, and the rows of its table."""

from __future__ import annotations

from dataclasses import dataclass

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
# What may be missing; see `Row.missing`.
NO_GPU = "no GPU here"
NO_KERNELS = "no kernels yet"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the check is."""

    done: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `worst`: the largest error as a multiple of its bound, at `result`. `drawn`: what the numbers were drawn
    from. `note`: why it failed or was skipped, and what else is worth knowing. `missing`: what is not there,
    in a few words, where that is why. `internal`: it failed by a fault of normgen's own code and not of what
    its kernels compute.
    """

    spec: str
    attrs: str
    stage: str
    status: str
    direction: str = ""
    shape: str = ""
    dtypes: str = ""
    executor: str = ""
    result: str = ""
    worst: float = 0.0
    drawn: str = ""
    note: str = ""
    missing: str = ""
    internal: bool = False

    @property
    def ok(self) -> bool:
        """Neither failed nor skipped."""
        return self.status == OK


Event = Progress | Row
