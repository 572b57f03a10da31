"""What `normgen explain` says about schedules: the one that is taken, those next to it, and why not they."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normgen.cli.sizes import Setting
    from normgen.launching.knobs import Knobs
    from normgen.launching.launch import Binding
    from normgen.launching.machine import Machine
    from normgen.package.direction import Direction
    from normgen.package.records import Package
    from normgen.runtime.planning.choose import Alternative, Candidate

NEXT = 3  # offers of each kernel that are shown beside the one that is taken
SAME = 0.01  # estimates that differ by less are not told apart


def taken(direction: Direction, binding: Binding, device: Machine) -> tuple[Alternative, list[str]]:
    """How a call would run, and a line about it where it was tuned."""
    from normgen.runtime.planning.choose import alternatives, choose_strategy
    from normgen.runtime.planning.store import Workload
    from normgen.runtime.planning.tuned import STORE, said_of, tuned

    found = tuned(direction.record, binding, device)
    if found is None:
        return choose_strategy(alternatives(direction.record, binding, device)), []
    path = STORE.where(Workload(direction.record, device))
    return found[1], [f"tuned: {said_of(found[0])}; kept in {path}"]


def schedules(package: Package, setting: Setting) -> str:
    """For each direction the schedules of its kernels, the next few of each, and the strategies passed
    over."""
    from normgen.cli.sizes import BOTH
    from normgen.package.direction import directions

    lines = [f"schedules for {setting.text}"]
    for direction in directions(package):
        if direction is not None and setting.direction in (BOTH, direction.name):
            found = _direction(direction, setting.binding(direction), setting.device)
            lines += ["", direction.name, *found]
    return "\n".join(lines) + "\n"


def others(direction: Direction, chosen: Alternative, binding: Binding, device: Machine) -> Iterator[str]:
    """A line for each strategy that is not taken, and why not."""
    from normgen.runtime.planning.choose import alternatives, misfit

    found = {each.strategy.name: each for each in alternatives(direction.record, binding, device)}
    for strategy in direction.record.strategies:
        if strategy.name == chosen.strategy.name:
            continue
        other = found.get(strategy.name)
        if other is None:
            why = misfit(strategy, binding, device)
        else:
            why = f"about {other.microseconds:.1f} us against {chosen.microseconds:.1f}"
        yield f"  not the strategy {strategy.name}: {why}"


def with_estimate(kernel: Candidate) -> Iterator[str]:
    """The lines about a kernel and its schedule, and what these are expected to take."""
    yield from kernel.lines
    cost = kernel.cost
    speed = sum(cost.moved.values()) / cost.microseconds / 1e3
    yield f"  predicted: about {cost.microseconds:.1f} us, {speed:.0f} GB/s"


def _direction(direction: Direction, binding: Binding, device: Machine) -> Iterator[str]:
    from normgen.runtime.planning.choose import candidates

    chosen, notes = taken(direction, binding, device)
    yield from (f"  {note}" for note in notes)
    every = candidates(chosen.strategy, binding, device)
    for taken_here, offers in zip(chosen.kernels, every, strict=True):
        yield from (f"  {line}" for line in with_estimate(taken_here))
        yield from _next(offers, tuned=bool(notes))
    yield from others(direction, chosen, binding, device)


def _next(offers: tuple[Candidate, ...], tuned: bool) -> Iterator[str]:
    """The offers that should do best beside the first, one of those that give a row the same bits."""
    first, *rest = offers
    distinct: dict[Knobs, Candidate] = {}
    for each in sorted(rest, key=lambda each: each.cost.microseconds):
        if each.bits != first.bits:
            distinct.setdefault(each.bits, each)
    for each in [*distinct.values()][:NEXT]:
        yield f"    next {each.text}: {_beside(each.cost.microseconds, first.cost.microseconds)}"
    beside = "" if tuned else "; `normgen tune` measures them"
    if len(offers) > 1:
        yield f"    {len(offers)} schedules fit{beside}"


def _beside(microseconds: float, taken: float) -> str:
    """An estimate beside that of the schedule that is taken, which comes first by what was measured."""
    if abs(microseconds - taken) < SAME * taken:
        return "the same time by this estimate"
    return f"about {microseconds:.1f} us" if microseconds > taken else "slower where it was measured"
