"""The report of `patch`: what changed, what stayed, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 100  # of a printed line
ON_CPU = " (on a CPU, they run their original code by default)"


@dataclass(frozen=True, slots=True)
class Replaced:
    """A module that normgen computes now."""

    name: str  # in the model; "" for the model itself
    type: str
    spec: str
    note: str = ""  # how its results differ by more than rounding, or for what it runs the original code


@dataclass(frozen=True, slots=True)
class Left:
    """A module that might be a norm and still runs its own code."""

    name: str
    type: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The changes of one call of `patch`. Printed, modules of one kind share a line.

    `fused`: blocks whose norms are joined with the sum before them or the activation after them. `unfused`:
    blocks in which the norm of a sum stays separate, and why. `already`: names of modules that an earlier
    call replaced. `on_cpu`: whether every replaced module is on a CPU.
    """

    model: str
    replaced: tuple[Replaced, ...] = ()
    fused: tuple[Replaced, ...] = ()
    unfused: tuple[Left, ...] = ()
    left: tuple[Left, ...] = ()
    already: tuple[str, ...] = ()
    on_cpu: bool = False

    def __str__(self) -> str:
        already = f"; {len(self.already)} already were" if self.already else ""
        where = ON_CPU if self.on_cpu else ""
        lines = [f"{self.model}: {_counted(len(self.replaced), 'module')} replaced{already}{where}"]
        lines += _groups(self.replaced)
        for title, rows in (
            (f"{_counted(len(self.fused), 'block')} fused", self.fused),
            (f"{_counted(len(self.unfused), 'norm')} not fused with a sum before it", self.unfused),
            (f"{_counted(len(self.left), 'module')} left unchanged", self.left),
        ):
            lines += [title, *_groups(rows)] if rows else []
        return "\n".join(lines)


def _groups(rows: Iterable[Replaced | Left]) -> list[str]:
    """A line for all rows that differ in their names alone, which are below it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if isinstance(row, Left):
            what, note = row.type, row.reason
        else:
            what, note = f"{row.type} -> {row.spec}", row.note
        groups.setdefault((what, note), []).append(row.name)
    lines = []
    for (what, note), names in groups.items():
        lines.append(f"  {len(names)} {what}" + (f": {note}" if note else ""))
        lines += _wrapped(_families(names))
    return lines


def _families(names: Iterable[str]) -> list[str]:
    """Names that differ in their numbers alone as one: layers.*.norm (2 of them)."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    return [
        (found[0] or "(the model itself)") if len(found) == 1 else f"{family} ({len(found)})"
        for family, found in families.items()
    ]


def _wrapped(words: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 2 <= WIDTH:
            lines[-1] += f", {word}"
        else:
            lines.append(f"    {word}")
    return lines


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
