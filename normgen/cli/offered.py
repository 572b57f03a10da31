"""What `normgen explain` says about schedules: the one that is taken, the next best, and why not these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normgen.cli.sizes import Setting
    from normgen.launching.knobs import Knobs
    from normgen.launching.launch import Binding
    from normgen.launching.machine import Machine
    from normgen.package.direction import Direction
    from normgen.package.records import Package
    from normgen.runtime.planning.choose import Alternative, Candidate

NEAR, NEXT = 2, 5  # how many others are shown, in a summary and with a plan
# Why a schedule that is predicted to be faster is skipped, by whether the one that is taken was measured.
_WHY_SKIPPED = {
    True: "normgen takes what was fastest in measurements, even if something else is predicted to be faster",
    False: "normgen uses few schedules for batches of all sizes, and skips one that is little faster, or is "
    "faster only near this batch size",
}


def taken(direction: Direction, binding: Binding, device: Machine) -> tuple[Alternative, list[str]]:
    """How a call would run, and a line about it if it was tuned."""
    from normgen.runtime.planning import store
    from normgen.runtime.planning.choose import fastest
    from normgen.runtime.planning.store import Workload
    from normgen.runtime.planning.tuned import said_of, tuned

    found = tuned(direction.record, binding, device)
    if found is None:
        return fastest(direction.record, binding, device), []
    path = store.where(Workload(direction.record, device))
    return found[1], [f"tuned: {said_of(found[0])}; kept in {path}"]


def schedules(package: Package, setting: Setting) -> str:
    """For each direction: the schedules of its kernels, the next best of each, and the other strategies."""
    from normgen.cli.sizes import BOTH
    from normgen.package.direction import directions

    lines = [f"schedules for {setting.text}"]
    for direction in directions(package):
        if direction is not None and setting.direction in (BOTH, direction.name):
            found = _direction(direction, setting.binding(direction), setting.device)
            lines += ["", direction.name, *found]
    return "\n".join(lines) + "\n"


def others(direction: Direction, chosen: Alternative, binding: Binding, device: Machine) -> Iterator[str]:
    """A line for each strategy that is not taken, with the reason."""
    from normgen.runtime.planning.choose import alternatives, misfit

    found = {each.strategy.name: each for each in alternatives(direction.record, binding, device)}
    for strategy in direction.record.strategies:
        if strategy.name == chosen.strategy.name:
            continue
        other = found.get(strategy.name)
        if other is None:
            why = misfit(strategy, binding, device)
        else:
            why = f"predicted: {other.microseconds:.1f} us, compared with {chosen.microseconds:.1f}"
            if other.microseconds < chosen.microseconds:
                why += f"; {_WHY_SKIPPED[True]}"
        yield f"  strategy {strategy.name} not taken: {why}"


def explained(chosen: Alternative, binding: Binding, device: Machine) -> Iterator[str]:
    """The lines about each kernel: its schedule, the predicted time, and the next best schedules."""
    for kernel, offers in _offered(chosen, binding, device):
        yield from kernel.lines
        yield from (f"  {line}" for line in _figures_of(kernel, offers, NEAR))


def _direction(direction: Direction, binding: Binding, device: Machine) -> Iterator[str]:
    chosen, notes = taken(direction, binding, device)
    yield from (f"  {note}" for note in notes)
    how = "" if notes else "; `normgen tune` measures them"
    for kernel, offers in _offered(chosen, binding, device):
        yield from (f"  {line}" for line in kernel.lines)
        yield from (f"    {line}" for line in _figures_of(kernel, offers, NEXT))
        if len(offers) > 1:
            yield f"    {len(offers)} schedules fit{how}"
    yield from others(direction, chosen, binding, device)


def _offered(
    chosen: Alternative, binding: Binding, device: Machine
) -> Iterator[tuple[Candidate, Sequence[Candidate]]]:
    """Each kernel as it is taken, with every schedule that fits it."""
    from normgen.runtime.planning.choose import candidates

    return zip(chosen.kernels, candidates(chosen.strategy, binding, device), strict=True)


def _figures_of(kernel: Candidate, offers: Sequence[Candidate], near: int) -> Iterator[str]:
    """The predicted time of the schedule that is taken, and the best of those that give a row other bits."""
    own = kernel.microseconds
    yield f"predicted: {_figures(kernel, own)}{' (measured to be fast)' if kernel.measured else ''}"
    best = _best(kernel, offers)[:near]
    skipped = [f"skipped: {each.text}: {_figures(each, us)}" for us, each in best if us < own]
    yield from skipped
    if skipped:
        yield _WHY_SKIPPED[kernel.measured]
    yield from (f"next best: {each.text}: {_figures(each, us)}" for us, each in best if us >= own)


def _best(kernel: Candidate, offers: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """The offer with the least predicted time for each kind of bits other than the kernel's own."""
    from normgen.runtime.planning.choose import predicted

    found: dict[Knobs, tuple[float, Candidate]] = {}
    for us, each in sorted(zip(predicted(offers), offers, strict=True), key=itemgetter(0)):
        if each.bits != kernel.bits:
            found.setdefault(each.bits, (us, each))
    return list(found.values())


def _figures(each: Candidate, microseconds: float) -> str:
    return f"{microseconds:.1f} us, {sum(each.moved.values()) / microseconds / 1e3:.0f} GB/s"
