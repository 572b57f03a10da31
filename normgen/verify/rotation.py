"""Which strategy runs which group of cases: each in turn, so that all of them meet all that calls ask for.

A fault of one strategy shows only where that strategy is asked for what is at fault: a gradient that is
overwritten and not added to, say. So a group goes to a strategy that has not met what the group asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from normgen.verify.cases import Case
from normgen.verify.places import SAMPLED

ACCUMULATED = "accumulated"  # goes before all else: few groups ask for it
_ASKED: Mapping[str, Callable[[Case], bool]] = {
    ACCUMULATED: lambda case: case.accumulate,
    "in place": lambda case: case.in_place,
    "given": lambda case: case.given_out,
    "padded": lambda case: bool(case.pitch),
    "misaligned": lambda case: bool(case.offset),
    "left out": lambda case: bool(case.absent),
    "some gradients": lambda case: case.wrt is not None,
    "no saves": lambda case: not case.save,
}


def asked_for(cases: Collection[Case], turns: int) -> set[str]:
    """What the cases of a group ask for, a run without checks among that. `turns`: combinations of attr
    values, which share the groups."""
    found = {name for name, asks in _ASKED.items() if any(map(asks, cases))}
    (group,) = {case.group for case in cases}
    return found | {"without checks"} if sum(divmod(group, turns)) % SAMPLED == 0 else found


def strategies_of(cases: Sequence[Case], count: int, turns: int) -> dict[int, int]:
    """Which of `count` strategies runs each group of cases."""
    met: set[tuple[int, str]] = set()
    taken: Counter[int] = Counter()
    found: dict[int, int] = {}
    for group, own in in_groups(cases).items():
        asked = asked_for(own, turns)
        worth = {}
        for strategy in range(count):
            new = {name for name in asked if (strategy, name) not in met}
            worth[strategy] = (ACCUMULATED in new, len(new), -taken[strategy], -((strategy - group) % count))
        found[group] = chosen = max(worth, key=worth.__getitem__)
        taken[chosen] += 1
        met |= {(chosen, name) for name in asked}
    return found


def in_groups(cases: Sequence[Case]) -> dict[int, list[Case]]:
    """The cases of each group."""
    groups: dict[int, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return groups
