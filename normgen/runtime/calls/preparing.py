"""Views of a call's arrays -> the call, prepared: checked, planned, compiled, everything given its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from normgen.arrays.views import View
from normgen.devices.executors import Executor
from normgen.dtypes import DTYPES
from normgen.launching.launch import DeviceKey, Launch, LaunchPlan, Slot
from normgen.runtime.calls.binding import Bound, bind
from normgen.runtime.calls.direction import Direction
from normgen.runtime.calls.housekeeping import copy_launch, fill_launch
from normgen.runtime.calls.prepared import Extent, Prepared, Scratch, guards
from normgen.runtime.calls.steps import Layout, step, taking
from normgen.runtime.calls.workspace import align, with_multiprocessors

Planner = Callable[..., LaunchPlan]
# By name: first byte, bytes, bytes of an element.
Memory = dict[str, tuple[int, int, int]]


def prepare(
    direction: Direction,
    header: str,
    executors: Callable[[DeviceKey], Executor],
    planner: Planner,
    views: Mapping[str, View],
    out: Mapping[str, View],
    wanted: tuple[str, ...],
    accumulate: bool,
    filled: tuple[str, ...],
    sm_count: int | None,
) -> Prepared:
    """The call of one direction for arrays like these. `filled`: numbers that are filled in on the device, by
    the name that `bits` gives them."""
    bound = bind(direction, views, out, wanted, accumulate)
    device = next(iter(views.values())).device
    given = tuple(name for name, _, _ in bound.results if name in out)
    made = tuple(result for result in bound.results if result[0] not in out)
    operands = [_as_given(name) if name in bound.copies else name for name in views]

    launches: list[Launch] = []
    scratch, memory = Scratch(), _memory(bound)
    if not bound.idle:
        executor = executors(device)
        plan = planner(
            direction.record, bound.binding, with_multiprocessors(executor.device, sm_count), header
        )
        launches = _before(direction, views, bound, filled, memory)
        scratch = _scratch(launches, plan, memory)
        launches += plan.launches

    numbers = _numbers(launches)
    names = [*operands, *given, *numbers, *(name for name, _, _ in made)]
    names += [name for name, _ in scratch.offsets]
    # A number that is filled in has two places: that of its operand, which is empty, and a scratch array.
    layout = Layout({name: place for place, name in enumerate(names)}, len(names))
    added = {name for name in wanted if accumulate and direction.accumulates(name)}
    made_ready = [(item, step(executor, item, layout, memory, added)) for item in launches]

    extents = _extents(direction, bound, tuple(views), given)
    workspace = _workspace_extents(scratch, layout, memory)
    results = (*given, *(name for name, _, _ in made), None)
    return Prepared(
        device=device,
        operands=tuple(views),
        given=given,
        numbers=numbers,
        made=tuple((shape, dtype) for _, shape, dtype in made),
        fields=taking([results.index(name if name in wanted else None) for name in direction.results]),
        scratch=scratch,
        extents=(*extents, *workspace),
        in_place=bound.in_place,
        guards=guards(extents, bound.in_place),
        workspace_guards=guards((*extents, *workspace), bound.in_place),
        idle=bound.idle,
        cleared=_cleared(bound, layout, added) if bound.idle else (),
        steps=tuple(ready for _, ready in made_ready),
        repeated=tuple(ready for item, ready in made_ready if not item.clears),
        constants=tuple(layout.constants),
    )


def bits(name: str) -> str:
    """The name of the bit pattern of a number that stands for an operand."""
    return f"{name} (bits)"


def _as_given(name: str) -> str:
    return f"{name} (as given)"


def _memory(bound: Bound) -> Memory:
    """The memory that operands and results take."""
    operands = dict(bound.binding.operands)
    return {
        name: (low, high - low, DTYPES[operands[name].dtype].bytes)
        for name, (low, high) in bound.extents.items()
    }


def _before(
    direction: Direction,
    views: Mapping[str, View],
    bound: Bound,
    filled: tuple[str, ...],
    memory: Memory,
) -> list[Launch]:
    """What runs ahead of the kernels: views are made contiguous, numbers are filled in."""
    launches: list[Launch] = []
    for name in bound.copies:
        view, itemsize = views[name], memory[name][2]
        launches.append(copy_launch(_as_given(name), name, view.shape, view.strides, itemsize))
        memory[_as_given(name)] = memory[name]
        memory[name] = (0, prod(view.shape) * itemsize, itemsize)
    for name in direction.reads:
        if bits(name) in filled:
            launches.append(fill_launch(name, 1, memory[name][2], Slot("scalar", bits(name))))
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


def _extents(
    direction: Direction, bound: Bound, operands: tuple[str, ...], given: tuple[str, ...]
) -> tuple[Extent, ...]:
    """The memory of all arrays that the caller gives."""
    found: list[Extent] = []
    for name, (low, high) in bound.extents.items():
        if name in given:
            place = len(operands) + given.index(name)
            found.append(Extent(name, f"out[{name!r}]", True, place, low, high))
        elif name in operands:
            found.append(Extent(name, name, name in direction.updated, operands.index(name), low, high))
    return tuple(found)


def _workspace_extents(scratch: Scratch, layout: Layout, memory: Memory) -> tuple[Extent, ...]:
    """The memory of scratch arrays that the caller may supply."""
    texts = [(name, f"workspace[{name!r}]") for name, _, _ in scratch.workspace]
    return tuple(Extent(text, text, True, layout.places[name], 0, memory[name][1]) for name, text in texts)


def _cleared(bound: Bound, layout: Layout, added: set[str]) -> tuple[tuple[int, int], ...]:
    """Results of a call that launches nothing: zero, except for sums that have nothing added to them."""
    return tuple(
        (layout.places[name], prod(shape) * DTYPES[dtype].bytes)
        for name, shape, dtype in bound.results
        if name not in added
    )
