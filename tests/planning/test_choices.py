"""What is taken for calls drawn at random, judged without a GPU: the faults that are known, and no others.

The golden texts list them. A line less is progress; a line more needs a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.drawn import KINDS, Drawn, draw
from normgen.runtime.planning.choose import Candidate
from tests.planning.judged import DEVICES, FAULTS, disliked, faults, planned

CALLS, COSTED = 60, 20  # drawn; and of them those of which every schedule is estimated
SEED = 0


def test_what_is_taken_has_the_known_faults_alone(golden: Callable[[str, str], None]) -> None:
    found: dict[str, list[str]] = {}
    for call in draw(SEED, CALLS):
        for name, device in DEVICES.items():
            for fault in faults(call, device):
                found.setdefault(f"{call.text}; {fault}", []).append(name)
    golden("choices.txt", "".join(f"{line}: {', '.join(names)}\n" for line, names in found.items()))


def test_estimates_like_others_better_where_that_is_known(golden: Callable[[str, str], None]) -> None:
    devices, lines = list(DEVICES.items()), []
    for place, call in enumerate(draw(SEED, COSTED)):
        name, device = devices[(place + place // len(KINDS)) % len(devices)]
        lines += [f"{call.text}; {fault}: {name}\n" for fault in disliked(call, device)]
    golden("choices_estimated.txt", "".join(lines))


def test_calls_are_drawn_from_every_class_and_by_their_seed() -> None:
    calls = draw(1, 3 * len(KINDS))
    assert {call.kind for call in calls} == set(KINDS)
    assert calls == draw(1, len(calls)) != draw(2, len(calls))


def kernel_of(norm: str, direction: str, sizes: dict[str, int], **attrs: int) -> Candidate:
    """The only kernel of a call on an H200, with its schedule."""
    call = Drawn("", norm, tuple(attrs.items()), direction, "bf16", tuple(sizes.items()))
    (found,) = planned(call, DEVICES["H200"])[0].kernels
    return found


@pytest.mark.parametrize(
    ("fault", "width", "change"),
    [
        ("single elements", 5001, {"form": "registers", "vector": 1, "realigned": False}),
        ("idle places", 4096, {"items": 64}),
        ("few blocks", 4096, {"teams": 1024}),
    ],
)
def test_a_worse_schedule_has_its_fault(fault: str, width: int, change: dict[str, object]) -> None:
    good = kernel_of("rmsnorm", "forward", {"...": 8192, "D": width})
    assert not any(found(good) for found in FAULTS.values())
    bad = replace(good, schedule=replace(good.schedule, **change))
    assert [name for name, found in FAULTS.items() if found(bad)] == [fault]
