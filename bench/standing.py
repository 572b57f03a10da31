"""How normgen stands beside its peers over calls drawn at random: by class and direction, in tables.

A line is what `heldout.py` writes of one call: `us`, `wrong` and `fault` of each provider by name, among
others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, NamedTuple

from tables import MINE, TITLES, shape_text, table

Line = dict[str, Any]
EVERY = "all"  # classes
TOGETHER = "all together"  # whose the fault of a process is that measured every provider of a call
BEHIND = (0.02, 0.10)  # by more than which normgen is slower


class Gain(NamedTuple):
    """The time of the fastest right peer over that of normgen, and where."""

    ratio: float
    peer: str
    line: Line


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one class and direction: how many calls were measured, and the gains of those that have one."""

    kind: str
    direction: str
    calls: int
    gains: tuple[Gain, ...]

    @property
    def mean(self) -> float:
        """The geometric mean of the gains."""
        return geometric_mean(gain.ratio for gain in self.gains)

    @property
    def worst(self) -> Gain:
        """Where normgen is furthest behind, or least ahead."""
        return min(self.gains, key=lambda gain: gain.ratio)

    def behind(self, share: float) -> int:
        """At how many points normgen takes longer by more than this share of the peer's time."""
        return sum(gain.ratio < 1 / (1 + share) for gain in self.gains)


def gain_of(line: Line, peers: Collection[str] | None = None) -> Gain | None:
    """That over the fastest of these peers, by default of all; None without a right result of both."""
    right = right_times(line)
    mine = right.pop(MINE, None)
    others = {p: us for p, us in right.items() if peers is None or p in peers}
    if mine is None or not others:
        return None
    best = min(others, key=others.__getitem__)
    return Gain(others[best] / mine, best, line)


def right_times(line: Line) -> dict[str, float]:
    """Microseconds of the providers whose results are right."""
    return {p: us for p, us in line["us"].items() if p not in line["wrong"]}


def standings(lines: Sequence[Line], peers: Collection[str] | None = None) -> list[Standing]:
    """Those of each class and direction, then of all classes together."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in (*lines, *({**line, "kind": EVERY} for line in lines)):
        groups.setdefault((line["kind"], line["direction"]), []).append(line)
    made = []
    for (kind, direction), members in groups.items():
        gains = tuple(gain for line in members if (gain := gain_of(line, peers)) is not None)
        made.append(Standing(kind, direction, len(members), gains))
    return sorted(made, key=lambda s: s.kind == EVERY)


def report(lines: Sequence[Line]) -> str:
    """The tables beside the best peer and beside PyTorch alone, then what was wrong or failed."""
    parts = [
        "Time of the fastest right peer over that of normgen (over 1: normgen is faster):",
        _standings_table(standings(lines)),
        "The same over torch (eager) alone:",
        _standings_table(standings(lines, ("torch",))),
    ]
    faults = _faults(lines)
    return "\n\n".join([*parts, "Wrong or failed:\n\n" + "\n".join(faults)] if faults else parts)


def _standings_table(found: Iterable[Standing]) -> str:
    head = ["class", "direction", "calls", "points", "geomean", "worst"]
    head += [*(f"behind > {100 * share:.0f} %" for share in BEHIND), "worst point"]
    return table(head, map(_cells, found))


def _cells(s: Standing) -> list[str]:
    about = [s.kind, s.direction, str(s.calls), str(len(s.gains))]
    if not s.gains:
        return [*about, *[""] * (3 + len(BEHIND))]
    ratio, peer, line = s.worst
    counts = [str(s.behind(share)) for share in BEHIND]
    return [*about, f"{s.mean:.3f}", f"{ratio:.3f}", *counts, f"{call_text(line)}: {title(peer)}"]


def call_text(line: Line) -> str:
    """The call of a line, without its class and direction."""
    params = f", {line['params']} params" if line["params"] else ""
    return f"{line['op']} {shape_text(line['shape'])} {line['dtype']} {line['layout']}{params}"


def title(provider: str) -> str:
    """A provider by the name that readers know."""
    return TITLES.get(provider, provider)


def _faults(lines: Iterable[Line]) -> list[str]:
    """Each fault once, with how often and where it first was; those of normgen first."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        for provider, told in (*line["wrong"].items(), *line["fault"].items()):
            where = f"{line['direction']} of {call_text(line)}"
            found.setdefault((title(provider), told), []).append(where)
    listed = sorted(found.items(), key=lambda item: item[0][0] != MINE)
    return [
        f"- {who}: {told} ({at[0]}{f' and {len(at) - 1} more' * (len(at) > 1)})" for (who, told), at in listed
    ]
