"""Record + binding + device -> launches: a strategy is chosen, and each of its kernels planned by its
family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from normgen.families.columns.launch.lower import columns_launches, columns_offers
from normgen.families.resident.launch.moments import resident_fits, resident_launches, resident_offers
from normgen.families.resident.launch.sums import (
    resident_sums_fit,
    resident_sums_launches,
    resident_sums_offers,
)
from normgen.families.rows.launch.lower import rows_fit, rows_launches, rows_texts
from normgen.families.rows.launch.offers import rows_offers
from normgen.families.tiles.launch.lower import tiles_launches, tiles_offers
from normgen.families.windows.launch.lower import windows_launches, windows_offers
from normgen.launching.call import Call, Planned
from normgen.launching.launch import Binding, Device, Launch, LaunchPlan
from normgen.launching.offers import Knobs, Offer
from normgen.package.kernels import (
    ColumnsRecord,
    Kernel,
    KernelRecord,
    ResidentRecord,
    ResidentSumsRecord,
    TilesRecord,
    WindowsRecord,
)
from normgen.package.records import PassRecord, Strategy

_SPEED = 4e6  # bytes a microsecond, of an H200's memory
_LAUNCH = 2.0  # microseconds from one kernel's end to where the next is under way
_FINALISING = 2.5  # more, where a kernel combines what blocks left: two trips to memory, and little moved


@dataclass(frozen=True, slots=True)
class Family:
    """What a family of kernels knows of one kernel in a call. `launches(record, call, schedule)`: how it
    runs, by default as should be fastest; `offers(record, call)`: every schedule that fits, that one first;
    `fits(record, call)`: whether there is one; `texts(record, call)`: launches with every text of calls
    that differ from this one in the number of their rows, where it is known what these are.
    """

    launches: Callable[..., Planned]
    offers: Callable[..., tuple[Offer, ...]]
    fits: Callable[..., bool] = lambda record, call: True
    texts: Callable[..., tuple[Launch, ...]] = lambda record, call: ()


# By type of record.
_FAMILIES: Mapping[type, Family] = MappingProxyType(
    {
        KernelRecord: Family(rows_launches, rows_offers, rows_fit, rows_texts),
        ColumnsRecord: Family(columns_launches, columns_offers),
        TilesRecord: Family(tiles_launches, tiles_offers),
        WindowsRecord: Family(windows_launches, windows_offers),
        ResidentRecord: Family(resident_launches, resident_offers, resident_fits),
        ResidentSumsRecord: Family(resident_sums_launches, resident_sums_offers, resident_sums_fit),
    }
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run a pass that is not left to the estimates: a strategy by name, and by kernel the knobs of a
    schedule. Kernels that are not named take what should be fastest."""

    strategy: str
    schedules: Mapping[str, Knobs]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A strategy as it would run one call. `microseconds`: a rough estimate, to choose by. `alike`: see
    `LaunchPlan`."""

    strategy: Strategy
    temporaries: tuple[tuple[str, tuple[int, ...], str], ...]
    kernels: tuple[tuple[Kernel, Planned], ...]
    alike: Callable[[], tuple[Launch, ...]] = field(default=tuple, compare=False, repr=False)

    @property
    def microseconds(self) -> float:
        """What the launches are expected to take on an H200."""
        return sum(expected(planned) for _, planned in self.kernels)

    @property
    def plan(self) -> LaunchPlan:
        """Its launches, in order."""
        planned = [p for _, p in self.kernels]
        return LaunchPlan(
            tuple(launch for p in planned for launch in p.launches),
            (*self.temporaries, *(w for p in planned for w in p.workspace)),
            tuple(p.note for p in planned),
            self.alike,
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """An offer for a kernel, planned. `microseconds`: what its launches are expected to take."""

    kernel: Kernel
    offer: Offer
    planned: Planned

    @property
    def microseconds(self) -> float:
        return expected(self.planned, self.offer.merit)


def expected(planned: Planned, merit: float = 1.0) -> float:
    """What the launches of a kernel are expected to take on an H200, in microseconds. One that clears counts,
    although calls mostly do without: else schedules would be taken that were not measured beside others."""
    speed = _SPEED * max(1e-3, planned.efficiency * merit)
    finalising = sum(launch.entry.endswith("_finalise") for launch in planned.launches)
    return _LAUNCH * len(planned.launches) + _FINALISING * finalising + sum(planned.moved.values()) / speed


def plan_launches(
    record: PassRecord, binding: Binding, device: Device, header: str = "", strategy: str | None = None
) -> LaunchPlan:
    """The launches of one pass. Every extent is at least 1; a tensor that `binding` lacks is absent or not
    wanted.

    `strategy`: the name of the one to take; by default the one that should be fastest.
    """
    return choose_strategy(alternatives(record, binding, device, header, strategy)).plan


def choose_strategy(found: tuple[Alternative, ...]) -> Alternative:
    """The alternative with the least estimated time; of equals the first."""
    return min(found, key=lambda each: each.microseconds)


def alternatives(
    record: PassRecord, binding: Binding, device: Device, header: str = "", only: str | None = None
) -> tuple[Alternative, ...]:
    """Every strategy of a pass that fits a call, planned for it; or, where there is one, that of a given
    name."""
    every = (_Running(strategy, binding, device, header) for strategy in record.strategies)
    found = [running for running in every if running.fits]
    named = [running for running in found if running.strategy.name == only]
    return tuple(running.alternative({}) for running in named or found)


def chosen(
    record: PassRecord, binding: Binding, device: Device, header: str, choice: Choice
) -> Alternative | None:
    """The alternative that a choice names; None where it does not fit the call."""
    for strategy in record.strategies:
        if strategy.name == choice.strategy:
            running = _Running(strategy, binding, device, header)
            if not running.fits:
                return None
            picked = {}
            for kernel in running.kernels:
                wanted = choice.schedules.get(kernel.name)
                if wanted is not None:
                    found = [o for o in running.offers(kernel) if o.knobs == wanted]
                    if not found:
                        return None
                    picked[kernel.name] = found[0]
            return running.alternative(picked) if picked.keys() == choice.schedules.keys() else None
    return None


def candidates(
    strategy: Strategy, binding: Binding, device: Device, header: str = ""
) -> tuple[tuple[Candidate, ...], ...]:
    """For each kernel that a strategy would run in a call every offer of its family, in its order."""
    running = _Running(strategy, binding, device, header)
    return tuple(
        tuple(Candidate(kernel, o, running.planned(kernel, o)) for o in running.offers(kernel))
        for kernel in running.kernels
    )


class _Running:
    """A strategy in one call: its kernels with something to write that is wanted."""

    def __init__(self, strategy: Strategy, binding: Binding, device: Device, header: str) -> None:
        self.strategy = strategy
        self.kernels, needed = _needed(strategy, binding)
        self.held = tuple(t for t in strategy.temporaries if t.name in needed)
        self.call = Call(binding, device, header, self.held, _warm(self.kernels))

    @property
    def fits(self) -> bool:
        """Whether every kernel has a schedule."""
        return all(_FAMILIES[type(kernel)].fits(kernel, self.call) for kernel in self.kernels)

    def offers(self, kernel: Kernel) -> tuple[Offer, ...]:
        return _FAMILIES[type(kernel)].offers(kernel, self.call)

    def planned(self, kernel: Kernel, offer: Offer | None = None) -> Planned:
        return _FAMILIES[type(kernel)].launches(kernel, self.call, offer and offer.schedule)

    def alternative(self, picked: Mapping[str, Offer]) -> Alternative:
        """The strategy, with these offers for the kernels of these names."""
        shapes = [tuple(self.call.extents[axis] for group in t.dims for axis in group) for t in self.held]
        temporaries = tuple(
            (t.name, shape, t.dtype or "f32") for t, shape in zip(self.held, shapes, strict=True)
        )
        kernels = tuple((k, self.planned(k, picked.get(k.name))) for k in self.kernels)
        return Alternative(self.strategy, temporaries, kernels, self.alike)

    def alike(self) -> tuple[Launch, ...]:
        """Launches with every text of calls that differ from this one in the number of their rows."""
        return tuple(each for k in self.kernels for each in _FAMILIES[type(k)].texts(k, self.call))


def _warm(kernels: list[Kernel]) -> dict[str, set[str]]:
    """By kernel, the arrays that those before it read."""
    found: dict[str, set[str]] = {}
    read: set[str] = set()
    for kernel in kernels:
        found[kernel.name] = set(read)
        read |= {o.tensor for o in kernel.reads}
    return found


def _needed(strategy: Strategy, binding: Binding) -> tuple[list[Kernel], set[str]]:
    """The kernels with something to write that is wanted, and the temporaries that they hand on."""
    temporaries = {t.name for t in strategy.temporaries}
    wanted = {name for name, _ in binding.operands}
    running: list[Kernel] = []
    for kernel in reversed(strategy.kernels):
        if not any(o.tensor in wanted for o in (*kernel.writes, *kernel.finals)):
            continue
        running.insert(0, kernel)
        for o in (*kernel.reads, *kernel.final_reads):
            if o.tensor in temporaries and wanted & set(o.wanted_by):
                wanted.add(o.tensor)
    return running, wanted & temporaries
