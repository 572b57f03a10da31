"""Record + binding + device -> launches: a strategy is chosen, and each of its kernels planned by its
family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from normgen.runtime.calling import Call, Planned
from normgen.runtime.columns import columns_launches
from normgen.runtime.launches import Binding, Device, LaunchPlan
from normgen.runtime.records import (
    ColumnsRecord,
    Kernel,
    KernelRecord,
    PassRecord,
    Strategy,
    TilesRecord,
    WindowsRecord,
)
from normgen.runtime.rows import rows_launches
from normgen.runtime.tiles import tiles_launches
from normgen.runtime.windows import windows_launches

_SPEED = 4e6  # bytes a microsecond, of an H200's memory
_LAUNCH = 2.0  # microseconds from one kernel's end to where the next is under way

# By type of record: what plans its launches.
_FAMILIES: Mapping[type, Callable[..., Planned]] = MappingProxyType(
    {
        KernelRecord: rows_launches,
        ColumnsRecord: columns_launches,
        TilesRecord: tiles_launches,
        WindowsRecord: windows_launches,
    }
)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A strategy as it would run one call. `microseconds`: a rough estimate, to choose by."""

    strategy: Strategy
    temporaries: tuple[tuple[str, tuple[int, ...], str], ...]
    kernels: tuple[tuple[Kernel, Planned], ...]

    @property
    def microseconds(self) -> float:
        """What the launches are expected to take on an H200."""
        return sum(
            _LAUNCH * len(planned.launches)
            + sum(planned.moved.values()) / (_SPEED * max(1e-3, planned.efficiency))
            for _, planned in self.kernels
        )


def plan_launches(
    record: PassRecord, binding: Binding, device: Device, header: str = "", strategy: str | None = None
) -> LaunchPlan:
    """The launches of one pass. Every extent is at least 1; a tensor that `binding` lacks is absent or not
    wanted.

    `strategy`: the name of the one to take; by default the one that should be fastest.
    """
    chosen = choose_strategy(alternatives(record, binding, device, header, strategy))
    planned = [p for _, p in chosen.kernels]
    return LaunchPlan(
        tuple(launch for p in planned for launch in p.launches),
        (*chosen.temporaries, *(w for p in planned for w in p.workspace)),
        tuple(p.note for p in planned),
    )


def choose_strategy(found: tuple[Alternative, ...]) -> Alternative:
    """The alternative with the least estimated time; of equals the first."""
    return min(found, key=lambda each: each.microseconds)


def alternatives(
    record: PassRecord, binding: Binding, device: Device, header: str = "", only: str | None = None
) -> tuple[Alternative, ...]:
    """Every strategy of a pass, planned for a call; or, where it has one, that of a given name."""
    named = [strategy for strategy in record.strategies if strategy.name == only]
    return tuple(_alternative(strategy, binding, device, header) for strategy in named or record.strategies)


def _alternative(strategy: Strategy, binding: Binding, device: Device, header: str) -> Alternative:
    running, needed = _needed(strategy, binding)
    held = tuple(t for t in strategy.temporaries if t.name in needed)
    call = Call(binding, device, header, held)
    kernels = tuple((kernel, _FAMILIES[type(kernel)](kernel, call)) for kernel in running)
    shapes = [tuple(call.extents[axis] for group in t.dims for axis in group) for t in held]
    temporaries = tuple((t.name, shape, t.dtype or "f32") for t, shape in zip(held, shapes, strict=True))
    return Alternative(strategy, temporaries, kernels)


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
