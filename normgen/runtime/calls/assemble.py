"""A call with its arrays looked at -> the call prepared: checked, planned, compiled, all given its place."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from normgen.devices.executors import Executor
from normgen.dtypes import DTYPES
from normgen.launching.launch import DeviceKey, Launch, LaunchPlan, Slot
from normgen.launching.machine import Machine
from normgen.package.direction import Direction
from normgen.runtime.calls.binding import Bound, bind
from normgen.runtime.calls.look import ViewedCall, bits_name
from normgen.runtime.calls.prepared import Guard, PreparedCall, Scratch, Step, taking
from normgen.runtime.calls.utility_kernels import copy_launch, fill_launch
from normgen.runtime.calls.workspace import align
from normgen.runtime.planning.needed import made_of

Executors = Callable[[DeviceKey], Executor]
Planner = Callable[..., LaunchPlan]
# By text and entry.
Functions = dict[tuple[str, str], Any]
# By name: first byte, bytes, bytes of an element.
Memory = dict[str, tuple[int, int, int]]

COMPILERS = 8  # at a time


@dataclass(frozen=True)
class Assembler:
    """What prepares the calls of one direction."""

    direction: Direction
    executors: Executors
    planner: Planner

    def plan(self, bound: Bound, device: Machine, sm_count: int | None) -> LaunchPlan:
        """What a call launches, on a device or on so many of its multiprocessors."""
        if sm_count is not None:
            if isinstance(sm_count, bool) or not isinstance(sm_count, int):
                raise TypeError(f"sm_count must be an int but is a {type(sm_count).__name__}")
            if sm_count < 1:
                raise ValueError(f"sm_count must be positive but is {sm_count}")
            device = replace(device, multiprocessors=sm_count)
        if bound.idle:
            return LaunchPlan(())
        if not self.direction.record.strategies:
            if 0 in dict(bound.binding.extents).values():
                return LaunchPlan(())
            raise ValueError(
                f"{self.direction.text} has no kernels: the backward of the lower level computes it"
            )
        return self.planner(self.direction.record, bound.binding, device)

    def _bound(self, call: ViewedCall) -> Bound:
        return bind(self.direction, call.views, call.out, call.wanted, call.accumulate, dict(call.types))

    def texts(self, call: ViewedCall) -> list[Launch]:
        """The launches of a call, and others with all texts that calls need which differ from it in the
        number of rows."""
        bound = self._bound(call)
        if bound.idle:
            return []
        plan = self.plan(bound, self.executors(call.device).device, call.sm_count)
        return [*plan.launches, *plan.alike()]

    def compile(self, launches: Iterable[Launch], device: DeviceKey) -> Functions:
        """The functions of launches, each text compiled and loaded once, several at a time. Raises what the
        first of them that cannot be compiled raises."""
        shared: dict[tuple[str, str], int] = {}
        for launch in launches:
            key = launch.source, launch.entry
            shared[key] = max(launch.shared, shared.get(key, 0))
        function, workers = self.executors(device).function, min(len(shared), os.cpu_count() or 1, COMPILERS)
        if workers < 2:  # not worth a thread
            return {key: function(*key, room) for key, room in shared.items()}
        with ThreadPoolExecutor(workers, thread_name_prefix="normgen-compile") as threads:
            made = {key: threads.submit(function, *key, room) for key, room in shared.items()}
        return {key: each.result() for key, each in made.items()}

    def prepare(self, call: ViewedCall) -> PreparedCall:
        """The call for all arrays that lie like these."""
        direction, views = self.direction, call.views
        bound = self._bound(call)
        given = [result for result in bound.results if result[0] in call.out]
        made = [result for result in bound.results if result[0] not in call.out]
        launches: list[Launch] = []
        functions: Functions = {}
        scratch, memory = Scratch(), _memory(bound)
        added = {name for name in call.wanted if call.accumulate and direction.accumulates(name)}
        plan = LaunchPlan(())
        if not bound.idle:
            executor = self.executors(call.device)
            plan = self.plan(bound, executor.device, call.sm_count)
            _check_zeros(direction, bound, plan)
        idle = not plan.launches
        if not idle:
            launches = _before(direction, call, bound, memory)
            scratch = _scratch(launches, plan, memory)
            launches += [*_empty_sums(bound, plan, added), *plan.launches]
            functions = self.compile(launches, call.device)
        # A number that is filled in has two places: that of its operand, which is empty, and a scratch array.
        operands = [_as_given(name) if name in bound.copies else name for name in views]
        theirs, ours = [name for name, _, _ in given], [name for name, _, _ in made]
        numbers = _numbers(launches)
        pool = Pool([*operands, *theirs, *numbers, *ours, *(name for name, _ in scratch.offsets)])
        steps = [
            compiled(executor, functions[item.source, item.entry], item, pool, memory, added)
            for item in launches
        ]

        extents = _extents(direction, bound, [*views], theirs)

        fields = [*theirs, *ours, None]
        return PreparedCall(
            device=call.device,
            operands=tuple(views),
            given=tuple(theirs),
            numbers=numbers,
            made=tuple((shape, dtype) for _, shape, dtype in made),
            constants=tuple(pool.constants),
            fields=taking([fields.index(n if n in call.wanted else None) for n in direction.results]),
            scratch=scratch,
            steps=tuple(steps),
            guards=_guards(extents, bound.in_place),
            supplied=_guards([*extents, *_workspace_extents(scratch, pool, memory)], bound.in_place),
            idle=idle,
            cleared=_cleared(bound, pool, added) if idle else (),
        )


class Pool:
    """Where in the pool of a call everything lies, while its steps are made: what has a name comes first,
    then the constants of its launches."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}
        self.constants: list[Any] = []
        self._length = len(names)

    def place(self, value: Any) -> int:
        """The place of an argument. An address that has none is null: an operand left out, a result not
        wanted."""
        if isinstance(value, Slot):
            if value.name in self.places:
                return self.places[value.name]
            assert value.kind == "pointer", value
            value = 0
        self.constants.append(value)
        return self._length + len(self.constants) - 1


def compiled(
    executor: Executor,
    function: Any,
    item: Launch,
    pool: Pool,
    memory: Memory,
    added: Collection[str] = (),
) -> Step:
    """A launch with its function. `added`: results added to."""
    both = [name for name in item.writes if name in item.reads or name in added]
    access = dict.fromkeys(item.reads, "read") | dict.fromkeys(item.writes, "write")
    access |= dict.fromkeys(both, "update")
    # Only the host looks at buffers; elsewhere there is nothing to be gained from telling them.
    told = access if executor.device.host else {}
    places = tuple(pool.place(value) for value in item.values)
    return Step(
        launch=item,
        function=function,
        fire=executor.prepare(function, item),
        pack=struct.Struct(item.format).pack,
        places=places,
        take=taking(places),
        buffers=tuple(
            (pool.places[name], *memory[name], access[name])
            for name in told
            if name in memory and name in pool.places
        ),
    )


def _as_given(name: str) -> str:
    return f"{name} (as given)"


def _memory(bound: Bound) -> Memory:
    """The memory that operands and results take."""
    operands = dict(bound.binding.operands)
    return {
        name: (low, high - low, DTYPES[operands[name].dtype].bytes)
        for name, (low, high) in bound.extents.items()
    }


def _before(direction: Direction, call: ViewedCall, bound: Bound, memory: Memory) -> list[Launch]:
    """What runs ahead of the kernels: views are made contiguous, numbers are filled in."""
    launches: list[Launch] = []
    for name in bound.copies:
        view, itemsize = call.views[name], memory[name][2]
        launches.append(copy_launch(_as_given(name), name, view.shape, view.strides, itemsize))
        memory[_as_given(name)] = memory[name]
        memory[name] = (0, prod(view.shape) * itemsize, itemsize)
    for name in direction.reads:
        if bits_name(name) in call.bits:
            launches.append(fill_launch(name, 1, memory[name][2], Slot("scalar", bits_name(name))))
    return launches


def _scratch(before: Iterable[Launch], plan: LaunchPlan, memory: Memory) -> Scratch:
    """The arena of a call: what the launches ahead of the kernels write, then the kernels' workspace."""
    for name, shape, dtype in plan.workspace:
        itemsize = DTYPES[dtype].bytes
        memory[name] = (0, prod(shape) * itemsize, itemsize)
    names = [name for name, _, _ in plan.workspace]
    offsets, size = _one_after_the_other([*(n for item in before for n in item.writes), *names], memory)
    zeros, zero_size = _one_after_the_other([n for n in names if n in plan.zeros], memory)
    return Scratch(offsets, size, plan.workspace, zeros, zero_size)


def _one_after_the_other(names: Iterable[str], memory: Memory) -> tuple[tuple[tuple[str, int], ...], int]:
    """Where each of these lies in one piece of memory, and how large that is."""
    offsets, size = [], 0
    for name in names:
        offsets.append((name, size))
        size += align(memory[name][1])
    return tuple(offsets), size


def _numbers(launches: Iterable[Launch]) -> tuple[str, ...]:
    """The numbers that the launches take, each once."""
    slots = (value for item in launches for value in item.values if isinstance(value, Slot))
    return tuple(dict.fromkeys(slot.name for slot in slots if slot.kind == "scalar"))


@dataclass(frozen=True, slots=True)
class _Extent:
    """The memory of a tensor that the caller gives."""

    name: str
    text: str  # how messages call it
    written: bool
    place: int  # of its address in the pool
    low: int  # its first byte, counted from that address
    high: int  # one past its last byte


def _extents(direction: Direction, bound: Bound, operands: list[str], given: list[str]) -> list[_Extent]:
    """The memory of operands and given results, which lie in this order in the pool."""
    found: list[_Extent] = []
    for name, (low, high) in bound.extents.items():
        if name in given:
            place = len(operands) + given.index(name)
            found.append(_Extent(name, f"out[{name!r}]", True, place, low, high))
        elif name in operands:
            found.append(_Extent(name, name, name in direction.updated, operands.index(name), low, high))
    return found


def _workspace_extents(scratch: Scratch, pool: Pool, memory: Memory) -> list[_Extent]:
    """The memory of a workspace that the caller gives."""
    texts = ((name, f"workspace[{name!r}]") for name, _, _ in scratch.workspace)
    return [_Extent(text, text, True, pool.places[n], 0, memory[n][1]) for n, text in texts]


def _guards(extents: Sequence[_Extent], in_place: Collection[tuple[str, str]]) -> tuple[Guard, ...]:
    """Refuse memory that one call would write twice, or write while another array of the call still lives
    there, unless it lies exactly there and the pair may do so."""
    seen = [extent for extent in extents if not extent.written]
    found: list[Guard] = []
    for extent in (extent for extent in extents if extent.written):
        hosts = " or ".join(sorted(operand for result, operand in in_place if result == extent.name))
        allowed = f", or exactly that of {hosts}" if hosts else ""
        for other in seen:
            fault = f"{extent.text} overlaps {other.text} in memory: give {extent.text} its own memory"
            alike = extent.high - extent.low == other.high - other.low
            same = extent.low - other.low if alike and (extent.name, other.name) in in_place else None
            distances = (extent.low - other.high, extent.high - other.low)
            found.append((extent.place, other.place, *distances, same, fault + allowed))
        seen.append(extent)
    return tuple(found)


def _check_zeros(direction: Direction, bound: Bound, plan: LaunchPlan) -> None:
    """Refuse gradients that no kernel computes, since an axis is empty, but that are not zero for that: they
    are linear in cotangents, some of which are there."""
    empty = {axis for axis, length in bound.binding.extents if not length}
    written = {name for launch in plan.launches for name in launch.writes}
    there = direction.mentioned & bound.extents.keys()
    for name, shape, _ in bound.results if empty and direction.record.strategies else ():
        if not prod(shape) or name in written:
            continue
        for other in sorted(there & made_of(direction.record.strategies[0], name)):
            if empty.isdisjoint(direction.operands[other].axes):
                raise ValueError(
                    f"{', '.join(sorted(empty))} is 0, and no kernel computes {name} from {other}, which is "
                    f"not empty: pass None for {other}, or leave {name} out"
                )


def _empty_sums(bound: Bound, plan: LaunchPlan, added: Collection[str]) -> Iterator[Launch]:
    """What sets results to zero that no kernel writes, since some axis that they are made of is empty."""
    written = {name for launch in plan.launches for name in launch.writes}
    for name, shape, dtype in bound.results:
        count = prod(shape)
        if count and name not in written and name not in added:
            yield fill_launch(name, count, DTYPES[dtype].bytes, 0)


def _cleared(bound: Bound, pool: Pool, added: Collection[str]) -> tuple[tuple[int, int], ...]:
    """Results of a call that launches nothing: zero, except for sums that have nothing added to them."""
    return tuple(
        (pool.places[name], prod(shape) * DTYPES[dtype].bytes)
        for name, shape, dtype in bound.results
        if name not in added
    )
