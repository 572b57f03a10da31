"""What a family of kernels offers to choose from: every schedule that fits a call, by the order of its model.

A family plans launches with the first of its offers. The others are for those who want to know what was
passed over, and for tuning, which measures them. Each is a family's own record; its `knobs` name it in a form
that can be compared, hashed and written down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

Knob = int | str | bool
Knobs = tuple[tuple[str, Knob], ...]

# What a schedule's record has beside what it decides.
_NOTES = frozenset(("reason", "registers", "efficiency", "few", "paired"))


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to run a kernel. `text`: it in a few words; `merit`: how it should do beside the first offer,
    as far as the efficiency of its launches does not tell. `fine`: knobs that only adjust it: offers that
    differ in nothing else have the same `core`.
    """

    schedule: Any
    text: str
    merit: float = 1.0
    fine: tuple[str, ...] = ()

    @property
    def knobs(self) -> Knobs:
        """What names it."""
        return knobs_of(self.schedule)

    @property
    def core(self) -> Knobs:
        """The knobs that are not fine."""
        return tuple((name, value) for name, value in self.knobs if name not in self.fine)


def knobs_of(schedule: Any) -> Knobs:
    """What a schedule decides, by name; not what is estimated or said about it."""
    names = (field.name for field in fields(schedule) if field.name not in _NOTES)
    return tuple((name, getattr(schedule, name)) for name in names)


def distinct(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The offers, each once, those of equal knobs where the first of them was."""
    found: dict[Knobs, Offer] = {}
    for offer in offers:
        found.setdefault(offer.knobs, offer)
    return tuple(found.values())
