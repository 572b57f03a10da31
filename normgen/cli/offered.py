"""What `normgen explain` says about schedules: the one that is taken, those next to it, and why not they."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normgen.cli.sizes import Setting
    from normgen.launching.family import Cost
    from normgen.launching.knobs import Knobs
    from normgen.launching.launch import Binding
    from normgen.launching.machine import Machine
    from normgen.package.direction import Direction
    from normgen.package.records import Package
    from normgen.runtime.planning.choose import Alternative, Candidate

NEAR, NEXT = 2, 5  # offers that are shown beside the one that is taken, in a summary and of a plan


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


def explained(chosen: Alternative, binding: Binding, device: Machine) -> Iterator[str]:
    """The lines about each kernel and its schedule: what these are expected to take, and the next best."""
    for kernel, offers in _offered(chosen, binding, device):
        yield from kernel.lines
        yield f"  {_sentence(kernel, offers, NEAR)}"


def _direction(direction: Direction, binding: Binding, device: Machine) -> Iterator[str]:
    chosen, notes = taken(direction, binding, device)
    yield from (f"  {note}" for note in notes)
    beside = "" if notes else "; `normgen tune` measures them"
    for kernel, offers in _offered(chosen, binding, device):
        yield from (f"  {line}" for line in kernel.lines)
        yield f"    {_sentence(kernel, offers, NEXT)}"
        if len(offers) > 1:
            yield f"    {len(offers)} schedules fit{beside}"
    yield from others(direction, chosen, binding, device)


def _offered(
    chosen: Alternative, binding: Binding, device: Machine
) -> Iterator[tuple[Candidate, Sequence[Candidate]]]:
    """Each kernel as it is taken, with all that is offered of it."""
    from normgen.runtime.planning.choose import candidates

    return zip(chosen.kernels, candidates(chosen.strategy, binding, device), strict=True)


def _sentence(kernel: Candidate, offers: Sequence[Candidate], near: int) -> str:
    """What was taken is predicted to take, and the best of those that give a row other bits."""
    best = _best(kernel, offers)[:near]
    own = kernel.cost.microseconds
    # a row has the same bits in any batch, so that what is taken is not the fastest for each number of rows
    where = "where it was measured" if kernel.measured else "in other batches"
    said = [
        f"{each.text}: {_figures(each.cost, us)}" + (f", slower {where}" if us < own else "")
        for us, each in best
    ]
    taken = f"{'measured to be fast; ' if kernel.measured else ''}predicted: {_figures(kernel.cost, own)}"
    return "; ".join([taken, *([f"next best {said[0]}", *said[1:]] if said else [])])


def _best(kernel: Candidate, offers: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """Of each kind of bits that is not the kernel's own the fastest offer, by what is predicted."""
    from normgen.runtime.planning.choose import predicted

    found: dict[Knobs, tuple[float, Candidate]] = {}
    for us, each in sorted(zip(predicted(offers), offers, strict=True), key=itemgetter(0)):
        if each.bits != kernel.bits:
            found.setdefault(each.bits, (us, each))
    return list(found.values())


def _figures(cost: Cost, microseconds: float) -> str:
    return f"{microseconds:.1f} us, {sum(cost.moved.values()) / microseconds / 1e3:.0f} GB/s"
