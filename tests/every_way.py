"""Runs a norm in every way that is offered for a call: all strategies, with all forms of their kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normgen.launching.knobs import Knobs
from normgen.launching.launch import Binding, LaunchPlan
from normgen.launching.machine import Machine
from normgen.package.records import PassRecord
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import Candidate, Choice, alternatives, candidates, chosen
from normgen.verify.expected import Subject


def kinds(offers: tuple[Candidate, ...]) -> list[Knobs]:
    """The first offer of each kind: what kernel texts differ by, beside numbers."""
    found: dict[object, Knobs] = {}
    for each in offers:
        knobs = dict(each.knobs)
        switches = tuple(name for name, value in knobs.items() if value is True)
        numbers = tuple(knobs.get(name, 1) != 1 for name in ("cluster", "teams", "items"))
        found.setdefault((knobs.get("form"), switches, numbers), each.knobs)
    return list(found.values())


def ways(record: PassRecord, binding: Binding, device: Machine) -> Iterator[Choice]:
    """Every strategy that fits a call, as often as the kernel with the most kinds of offers has some."""
    for alternative in alternatives(record, binding, device):
        offered = candidates(alternative.strategy, binding, device)
        some = {offers[0].kernel.name: kinds(offers) for offers in offered}
        for turn in range(max(map(len, some.values()))):
            schedules = {name: knobs[turn % len(knobs)] for name, knobs in some.items()}
            yield Choice(alternative.strategy.name, schedules)


class Way:
    """Plans launches in the `turn`-th way, and knows how many there were."""

    def __init__(self, turn: int) -> None:
        self.turn, self.count = turn, 1
        self.choice: Choice | None = None

    def __call__(self, record: PassRecord, binding: Any, device: Any) -> LaunchPlan:
        every = list(ways(record, binding, device))
        self.count, self.choice = len(every), every[self.turn]
        found = chosen(record, binding, device, self.choice)
        assert found is not None, self.choice
        return found.plan


def in_every_way(subject: Subject) -> Iterator[tuple[Subject, Way]]:
    """The subject as it runs in one way after the other, for as long as there are more."""
    turn, count = 0, 1
    while turn < count:
        way = Way(turn)
        yield Subject(subject.definition, subject.backward, Norm(subject.norm.package, planner=way)), way
        turn, count = turn + 1, way.count
