"""Runs a norm in every way that is offered for a call: all strategies, with all forms of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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


def first(offers: tuple[Candidate, ...]) -> list[Knobs]:
    """What a call takes without being told."""
    return [offers[0].knobs]


Picked = Callable[[tuple[Candidate, ...]], Sequence[Knobs]]


def _ways(record: PassRecord, binding: Binding, device: Machine, picked: Picked) -> Iterator[Choice]:
    """Every strategy that fits a call, as often as the kernel with the most picks has some."""
    for alternative in alternatives(record, binding, device):
        offered = candidates(alternative.strategy, binding, device)
        some = {offers[0].kernel.name: picked(offers) for offers in offered}
        for turn in range(max(map(len, some.values()))):
            schedules = {name: knobs[turn % len(knobs)] for name, knobs in some.items()}
            yield Choice(alternative.strategy.name, schedules)


class Ways:
    """Plans launches in the way whose turn it is. `turns`: how many ways the calls so far have at most.

    `picked`: of all offers for a kernel those to be run.
    """

    def __init__(self, picked: Picked = kinds) -> None:
        self.turn, self.turns = 0, 1
        self.choice: Choice | None = None
        self._picked = picked
        self._known: dict[tuple[int, Binding], tuple[Choice, ...]] = {}

    def __call__(self, record: PassRecord, binding: Any, device: Any) -> LaunchPlan:
        key = id(record), binding
        if key not in self._known:
            self._known[key] = tuple(_ways(record, binding, device, self._picked))
        choices = self._known[key]
        self.turns = max(self.turns, len(choices))
        self.choice = choices[self.turn % len(choices)]
        found = chosen(record, binding, device, self.choice)
        assert found is not None, self.choice
        return found.plan


def in_every_way(subject: Subject, picked: Picked = kinds) -> Iterator[tuple[Subject, Ways]]:
    """The subject as it runs in one way after the other, for as long as there are more."""
    ways = Ways(picked)
    while ways.turn < ways.turns:
        yield replace(subject, norm=Norm(subject.norm.package, planner=ways)), ways
        ways.turn += 1
