"""Record + binding + device -> launches: a strategy is chosen, and each of its kernels planned by its
family."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from normgen.launching.call import Call, once
from normgen.launching.facts import power_near
from normgen.launching.family import Lines, Lowered
from normgen.launching.knobs import Knobs, full, knobs_of, schedule_of
from normgen.launching.launch import Binding, Launch, LaunchPlan, resized
from normgen.launching.machine import Machine
from normgen.launching.model import microseconds
from normgen.launching.pick import together
from normgen.launching.support import NoSchedule, Support, TooLarge
from normgen.launching.table import Lines as Measured
from normgen.launching.table import lines_of
from normgen.locks import cached_property
from normgen.package.kernels import Kernel
from normgen.package.records import PassRecord, Strategy
from normgen.runtime.planning.needed import needed, warm
from normgen.runtime.planning.registry import family_of

_CURE = (
    "split the arrays along an axis that is not reduced and call once per part, or split a long axis in two"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run a pass that is asked for: a strategy by name, and by kernel the knobs of a schedule. Where
    no knobs are given, a kernel takes what it takes by itself."""

    strategy: str
    schedules: Mapping[str, Knobs]


@dataclass(frozen=True)
class Candidate:
    """A kernel in a call, with a schedule. What is known of it is made when it is asked for."""

    kernel: Kernel
    call: Call
    schedule: Any

    @cached_property
    def moved(self) -> Mapping[str, int]:
        """Bytes that it reads and writes, by array, the workspace included."""
        found: Mapping[str, int] = family_of(self.kernel).moved(self.kernel, self.call, self.schedule)
        return found

    @cached_property
    def microseconds(self) -> float:
        """What it is expected to take."""
        return predicted([self])[0]

    @cached_property
    def lowered(self) -> Lowered:
        """Its launches."""
        return family_of(self.kernel).lower(self.kernel, self.call, self.schedule)

    @property
    def text(self) -> str:
        """The schedule in a few words."""
        return family_of(self.kernel).describe(self.kernel, self.call, self.schedule)

    @property
    def lines(self) -> Lines:
        """The kernel and its schedule for those who want to know."""
        return family_of(self.kernel).explain(self.kernel, self.call, self.schedule)

    @property
    def measured(self) -> bool:
        """Whether the table that normgen comes with has the schedule for such calls."""
        knobs, kind = dict(self.knobs), type(self.schedule)
        return any(dict(full(kind, each)) == knobs for _, each in _lines(self.kernel, self.call))

    @property
    def knobs(self) -> Knobs:
        """What names the schedule."""
        return knobs_of(self.schedule)

    @property
    def bits(self) -> Knobs:
        """What of the schedule decides the bits of a row's results."""
        return family_of(self.kernel).bits(self.schedule)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A strategy as it would run one call."""

    strategy: Strategy
    temporaries: tuple[tuple[str, tuple[int, ...], str], ...]  # (name, shape, dtype)
    kernels: tuple[Candidate, ...]  # in order

    @property
    def microseconds(self) -> float:
        """What its kernels are predicted to take, one after the other."""
        return sum(each.microseconds for each in self.kernels)

    @property
    def measured(self) -> bool:
        """Whether a table has all that it runs."""
        return all(each.measured for each in self.kernels)

    @property
    def plan(self) -> LaunchPlan:
        """Its launches, in order."""
        lowered = [each.lowered for each in self.kernels]
        return LaunchPlan(
            tuple(launch for each in lowered for launch in each.launches),
            (*self.temporaries, *(array for each in lowered for array in each.workspace)),
            lambda: tuple(f"{each.kernel.name}: {each.text}" for each in self.kernels),
            self.alike,
        )

    def alike(self) -> tuple[Launch, ...]:
        """Launches with every text of calls that differ from this one in the number of their rows."""
        found: list[Launch] = []
        for each in self.kernels:
            with suppress(TooLarge):  # no text of 32 bits, of so many rows
                found += family_of(each.kernel).texts(each.kernel, each.call)
        return tuple(found)


def plan_launches(
    record: PassRecord, binding: Binding, device: Machine, strategy: str | None = None
) -> LaunchPlan:
    """The launches of one pass. A tensor that `binding` lacks is absent or not wanted; results that an empty
    axis concerns are left out.

    `strategy`: the name of the one to take; by default the one that should be fastest.
    """
    return fastest(record, binding, device, strategy).plan


def fastest(
    record: PassRecord, binding: Binding, device: Machine, strategy: str | None = None
) -> Alternative:
    """A pass as it runs by itself: by that strategy, or by the one that should be fastest for lengths of the
    open axes near those of the call, so that calls with nearly as many rows run alike."""
    if strategy or len(record.strategies) == 1:
        return choose_strategy(alternatives(record, binding, device, strategy))
    found = _measured(_running(record, binding, device))
    if found is not None:
        return found
    near = [each for each in _running(record, _rounded(record, binding), device) if not each.misfit]
    only = choose_strategy(tuple(each.alternative({}) for each in near)).strategy.name if near else None
    return choose_strategy(alternatives(record, binding, device, only))


def _rounded(record: PassRecord, binding: Binding) -> Binding:
    """A call with powers of two as lengths of its open axes."""
    lengths = dict(binding.extents)
    return resized(binding, {axis: power_near(lengths[axis]) for axis in record.open if axis in lengths})


def choose_strategy(found: tuple[Alternative, ...]) -> Alternative:
    """The alternative that was measured to be fast, else that with the least predicted time. Of equals the
    first."""
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda each: (not each.measured, each.microseconds))


def alternatives(
    record: PassRecord, binding: Binding, device: Machine, only: str | None = None
) -> tuple[Alternative, ...]:
    """Every strategy of a pass that fits a call; or, where it fits, that of a given name alone."""
    every = _running(record, binding, device)
    named = [each for each in every if each.strategy.name == only and not each.misfit]
    found = named or [each for each in every if not each.misfit]
    if not found:
        why = "; ".join(f"{running.strategy.name}: {running.misfit}" for running in every)
        cure = f": {_CURE}" if any(running.too_large for running in every) else ""
        raise NoSchedule(f"no kernel supports this call ({why}){cure}")
    return tuple(running.alternative({}) for running in found)


def _running(record: PassRecord, binding: Binding, device: Machine) -> list[Running]:
    return [Running(strategy, binding, device) for strategy in record.strategies]


def _measured(every: Sequence[Running]) -> Alternative | None:
    """The strategy of which a table has all kernels, without a look at the others; None where there is none
    or more than one."""
    known = [each for each in every if each.known and not each.misfit]
    found = known[0].alternative({}) if len(known) == 1 else None
    return found if found is not None and found.measured else None


def misfit(strategy: Strategy, binding: Binding, device: Machine) -> str:
    """Why a strategy does not fit a call; nothing where it does."""
    return Running(strategy, binding, device).misfit


def chosen(record: PassRecord, binding: Binding, device: Machine, choice: Choice) -> Alternative | None:
    """The alternative that a choice names; None where it does not fit the call."""
    strategy = next((each for each in record.strategies if each.name == choice.strategy), None)
    if strategy is None:
        return None
    running = Running(strategy, binding, device)
    kernels = {kernel.name: kernel for kernel in running.kernels}
    if not choice.schedules.keys() <= kernels.keys():
        return None
    settled = {name: running.settled(kernels[name], knobs) for name, knobs in choice.schedules.items()}
    picked = {name: found for name, found in settled.items() if not isinstance(found, Support)}
    left = [kernel for kernel in running.kernels if kernel.name not in picked]
    return None if len(picked) < len(settled) or running.misfit_of(left) else running.alternative(picked)


def candidates(strategy: Strategy, binding: Binding, device: Machine) -> tuple[tuple[Candidate, ...], ...]:
    """For each kernel that a strategy would run in a call every schedule of its family, in its order."""
    running = Running(strategy, binding, device)
    return tuple(
        tuple(Candidate(kernel, running.call, schedule) for schedule in running.space(kernel))
        for kernel in running.kernels
    )


def in_forms(
    strategy: Strategy, binding: Binding, device: Machine, entries: Collection[str]
) -> Iterator[Candidate]:
    """The kernels of a strategy with a schedule of each of the forms of these entries that a call allows."""
    running = Running(strategy, binding, device)
    for kernel in running.kernels:
        forms = [form.form for form in kernel.forms if form.entry in entries]
        if forms and family_of(kernel).fits(kernel, running.call).ok:
            found = (schedule for form in forms for schedule in islice(running.space(kernel, form), 1))
            yield from (Candidate(kernel, running.call, schedule) for schedule in found)


def predicted(offers: Sequence[Candidate]) -> list[float]:
    """Microseconds that schedules of one kernel should take."""
    kernel, call, schedules = offers[0].kernel, offers[0].call, [each.schedule for each in offers]
    found = family_of(kernel).quantities(kernel, call, schedules)
    return [float(us) for us in microseconds(found)]


class Running:
    """A strategy in one call: its kernels with something to write that is wanted."""

    def __init__(self, strategy: Strategy, binding: Binding, device: Machine) -> None:
        self.strategy = strategy
        self.kernels, handed_on = needed(strategy, binding)
        self.held = tuple(t for t in strategy.temporaries if t.name in handed_on)
        self.call = Call(binding, device, self.held, warm(self.kernels))
        self._defaults: dict[str, Any] = {}
        self.too_large = ""  # why a schedule is not for such a call

    @property
    def known(self) -> bool:
        """Whether a table has calls like this of every kernel."""
        return all(_lines(kernel, self.call) for kernel in self.kernels)

    @property
    def misfit(self) -> str:
        """Why some kernel has no schedule; nothing where all have one."""
        return self.misfit_of(self.kernels)

    def misfit_of(self, kernels: Iterable[Kernel]) -> str:
        """Why one of these kernels has no schedule; nothing where all have one."""
        kernels = tuple(kernels)
        for kernel in kernels:
            support = family_of(kernel).fits(kernel, self.call)
            if not support.ok:
                return support.reason
        for kernel in kernels:
            if self.default(kernel) is None:
                few = f"{self.call.device.name} has too little for any schedule of {kernel.name}"
                return self.too_large or few
        return ""

    def default(self, kernel: Kernel) -> Any:
        """The schedule that a kernel takes where nothing else is asked for; None where it has none."""
        if kernel.name not in self._defaults:
            self._defaults[kernel.name] = next(self.space(kernel), None)
        return self._defaults[kernel.name]

    def settled(self, kernel: Kernel, knobs: Knobs) -> Any:
        """The schedule of these knobs, or the `Support` that says why it has none in this call."""
        family = family_of(kernel)
        asked = schedule_of(family.schedule, knobs)
        found = asked if isinstance(asked, Support) else family.settle(kernel, self.call, asked)
        if isinstance(found, Support) or not self.call.large or self._has_launches(kernel, found):
            return found
        return Support(False, self.too_large)

    def space(self, kernel: Kernel, form: str = "") -> Iterator[Any]:
        family = family_of(kernel)
        offered = family.of_form(kernel, self.call, form) if form else family.space(kernel, self.call)
        return filter(partial(self._has_launches, kernel), offered) if self.call.large else offered

    def _has_launches(self, kernel: Kernel, schedule: Any) -> bool:
        """Whether a device can launch a kernel so: a large call may have more blocks than a grid."""
        try:
            family_of(kernel).lower(kernel, self.call, schedule)
        except TooLarge as fault:
            self.too_large = str(fault)
            return False
        return True

    def alternative(self, picked: Mapping[str, Any]) -> Alternative:
        """The strategy, with these schedules for the kernels of these names."""
        temporaries = tuple(
            (t.name, tuple(self.call.extents[axis] for axis in t.axes), t.dtype or "f32") for t in self.held
        )
        kernels = tuple(
            Candidate(kernel, self.call, picked.get(kernel.name) or self.default(kernel))
            for kernel in self.kernels
        )
        return Alternative(self.strategy, temporaries, kernels)


@once
def _lines(kernel: Kernel, call: Call) -> Measured:
    """What the table that normgen comes with has of a kernel in calls with nearly as many rows."""
    key, count = family_of(kernel).measured_as(kernel, call) or ("", 0)
    return tuple(each for each in lines_of(call.device.arch, key) if together(count, each[0]))
