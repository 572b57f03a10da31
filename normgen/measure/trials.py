"""What tuning tries, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from normgen.launching.knobs import Knobs
from normgen.measure.arithmetic import Bytes, rho
from normgen.measure.norms import Case
from normgen.runtime.planning.choose import Alternative, Choice
from normgen.runtime.planning.store import Tuned

TOP = 24  # offers of a kernel that are tried


@dataclass(frozen=True, slots=True)
class Trial:
    """One way that a pass was run: a strategy with a schedule for one of its kernels.

    `expected` and `us`: microseconds of the whole pass; None where it could not be timed. `registers` and
    `local`: the compiler's report on the kernel, `local` being bytes that a thread spills. `verdict`:
    default, wrong, failed, or nothing.
    """

    strategy: str
    kernel: str
    schedule: str
    expected: float
    us: float | None
    registers: int = 0
    local: int = 0
    verdict: str = ""
    why: str = ""
    knobs: Knobs = ()

    def chosen_by(self, choice: Choice) -> bool:
        """Whether it is of what a choice takes."""
        if self.strategy != choice.strategy:
            return False
        return choice.schedules.get(self.kernel) == self.knobs if self.kernel else not choice.schedules


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of tuning one direction. `usual`: microseconds of the default; `found`: the choice that was
    kept, or None where the default is as good; `path`: where; `taken`: that choice, or else the default,
    planned; `left`: offers that were not tried for want of time."""

    case: Case
    bytes: Bytes
    ceiling_us: float
    trials: tuple[Trial, ...]
    usual: float
    found: Tuned | None
    path: Path
    taken: Alternative
    left: int

    def rho(self, us: float) -> float:
        """The share of the memory's speed that a time is."""
        return rho(self.ceiling_us, us)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much to try: offers of each kernel, and seconds, after which no other offer is begun."""

    top: int = TOP
    seconds: float = float("inf")
