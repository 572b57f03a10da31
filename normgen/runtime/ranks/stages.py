"""The local programs of a direction, run on one rank: kernels, and between them what all ranks have told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from normgen import arrays
from normgen.arrays.views import View
from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.layout import Lengths, Shape, shape_of
from normgen.package.direction import Direction, directions, result_tuple
from normgen.package.records import Package, TensorRecord
from normgen.package.spread import SpreadRecord, StageRecord
from normgen.runtime.calls.assemble import Executors, Planner
from normgen.runtime.calls.dispatch import Dispatcher
from normgen.runtime.ranks.group import RankCall

# What a rank without elements tells, by the part that it has.
IDENTITY = {"sum": 0.0, "max": -np.inf, "min": np.inf}
_ALIGNED = 4  # floats of 16 bytes: where each tensor begins in what is exchanged

Numbers = Mapping[str, float]


class Memory(Protocol):
    """Where ranks have what they tell each other: on one device, as arrays of which parts can be taken and
    assigned to."""

    device: DeviceKey

    def zeros(self, size: int) -> Any:
        """So many floats, of 0."""

    def numbers(self, values: Sequence[float]) -> Any:
        """Floats of these values."""

    def contiguous(self, array: Any) -> Any:
        """An array whose elements lie one after the other."""


class HostMemory:
    """Arrays of NumPy."""

    device = HOST

    def zeros(self, size: int) -> Any:
        """So many floats, of 0."""
        return np.zeros(size, np.float32)

    def numbers(self, values: Sequence[float]) -> Any:
        """Floats of these values."""
        return np.array(values, np.float32)

    def contiguous(self, array: Any) -> Any:
        """An array whose elements lie one after the other."""
        return np.ascontiguousarray(array)


@dataclass(frozen=True, slots=True)
class LocalCall:
    """A call of one rank: its arrays by name, None for those left out, and what it is to make of them."""

    operands: Mapping[str, Any]
    numbers: Numbers
    like: View | None  # of an operand, whose library makes the results; None in calls that have no tensors
    memory: Memory
    lengths: Lengths  # on this rank
    results: Mapping[str, tuple[Shape, str]]  # that are wanted: shape and element type
    types: Mapping[str, str]  # of operands
    idle: bool  # nothing is wanted, or all cotangents are zero
    rank: int = 0  # which one it is

    def zeros(self) -> dict[str, Any]:
        """The wanted results, of zeros."""
        return {name: self.array(*about) for name, about in self.results.items()}

    def array(self, shape: Shape, dtype: str) -> Any:
        """An array of zeros where the operands are."""
        assert self.like is not None, "a call with tensors"
        return arrays.zeros(self.like, shape, dtype, arrays.stream_of(self.like))


class Compute(Protocol):
    """What runs a local program."""

    def __call__(
        self,
        operands: Mapping[str, Any],
        numbers: Numbers,
        wanted: tuple[str, ...],
        out: Mapping[str, Any],
        types: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Its results by name, None for those that are not wanted; those in `out` are written there. States
        are updated. `types`: of the operands of the whole call."""


# What runs the local program at a place: rounds, then what merges, and what makes results.
Computes = Callable[[int, Direction, Package], Compute]


def by_kernels(executors: Executors, planner: Planner) -> Computes:
    """What runs local programs by kernels."""

    def compute_of(_: int, direction: Direction, package: Package) -> Compute:
        result = result_tuple(direction.result_type, tuple(direction.results))
        dispatcher = Dispatcher(direction, package, result, executors, planner)

        def compute(
            operands: Mapping[str, Any],
            numbers: Numbers,
            wanted: tuple[str, ...],
            out: Mapping[str, Any],
            types: Mapping[str, str],
        ) -> Mapping[str, Any]:
            request = dispatcher.arguments.request((), {**operands, **numbers})
            absent = tuple((name, kind) for name, kind in types.items() if operands.get(name) is None)
            made = dispatcher.run(request._replace(wanted=wanted, out=out, types=absent))
            return dict(made._asdict())

        return compute

    return compute_of


class Stage:
    """A local program, ready to be called."""

    def __init__(self, record: StageRecord, place: int, computes: Computes) -> None:
        self.told, self.handed = record.told, record.handed
        self.concerned = dict(record.concerned)
        self.reads: tuple[str, ...] = ()
        self._compute = None
        if record.package is not None:
            self._numbers = tuple(attr.name for attr in record.package.attrs)
            self._direction, _ = directions(record.package)
            self.reads = self._direction.reads
            self._compute = computes(place, self._direction, record.package)

    def run(
        self,
        hold: Mapping[str, Any],
        numbers: Numbers,
        out: Mapping[str, Any],
        types: Mapping[str, str],
        empty: Collection[str],
    ) -> dict[str, Any]:
        """Its results by name: those in `out` are written there; of the others, what is handed on is made.
        `empty`: spread axes along which this rank has no elements."""
        if self._compute is None:
            return {}
        direction = self._direction
        idle = {name for name, axes in self.concerned.items() if not set(axes).isdisjoint(empty)}
        asked = {*self.handed, *out} - idle
        wanted = tuple(name for name in direction.results if name in asked)
        if not wanted and not direction.updated - idle:
            return {}
        operands = {name: hold.get(name) for name in direction.operands}
        attrs = {name: numbers[name] for name in self._numbers}
        written = {name: out[name] for name in wanted if name in out}
        made = self._compute(operands, attrs, wanted, written, types)
        return {name: value for name, value in made.items() if value is not None}


class Stages:
    """The local programs of a direction. Any number of threads may run calls of them."""

    def __init__(self, record: SpreadRecord, computes: Computes) -> None:
        self.record = record
        every = (*record.rounds, record.merge, record.apply)
        self.every = tuple(Stage(each, place, computes) for place, each in enumerate(every))

    def run(self, call: LocalCall, every: Mapping[str, np.ndarray[Any, Any]]) -> RankCall:
        """The wanted results of a call by name. `every`: of each spread axis the lengths on all ranks."""
        record = self.record
        *rounds, merge, apply = self.every
        empty = {axis for axis in record.axes if call.lengths.axes.get(axis) == 0}
        numbers = {
            **call.numbers,
            **{name: float(every[axis].sum()) for name, axis in record.sizes},
            **{name: float(call.lengths.axes.get(axis, 0)) for name, axis in record.lengths},
        }
        counts = {name: call.memory.numbers(every[axis].tolist()) for name, axis in record.counts}
        hold: dict[str, Any] = {**call.operands, **counts}
        made = call.zeros()  # what a rank without elements leaves as it is
        for stage in rounds:
            told = Told(stage.told, call.lengths, call.memory)
            (pieces,) = told.pieces
            stage.run(hold, numbers, {**made, **pieces}, call.types, empty)
            kept = {own: pieces[name] for own, name in record.own if name in pieces}
            hold |= {**told.of_all((yield told.floats)), **kept}
        hold |= merge.run(hold, numbers, made, call.types, ())
        apply.run(hold, numbers, made, call.types, empty)
        return made


class Layout(NamedTuple):
    """How what a rank tells in a round lies in one array: where each tensor begins and its shape, by name;
    how many floats there are."""

    places: Mapping[str, tuple[int, Shape]]
    size: int


def layout(told: Sequence[tuple[TensorRecord, str]], lengths: Lengths) -> Layout:
    """The layout of what a round tells; that of one tensor has nothing behind it."""
    places: dict[str, tuple[int, Shape]] = {}
    size = end = 0
    for record, _ in told:
        shape = shape_of(record, lengths)
        places[record.name] = size, shape
        end = size + prod(shape)
        size = -(-end // _ALIGNED) * _ALIGNED
    return Layout(places, size if len(places) > 1 else end)


class Told:
    """What a rank tells in a round: tensors that lie one after the other in an array of floats, once or in
    each of some slots."""

    def __init__(
        self, told: Sequence[tuple[TensorRecord, str]], lengths: Lengths, memory: Memory, slots: int = 1
    ) -> None:
        self.memory, self.slots = memory, slots
        self.places, self.size = layout(told, lengths)
        self.floats = memory.zeros(slots * self.size)
        self.pieces = [self.of(each) for each in self.floats.reshape(slots, self.size)]
        for pieces in self.pieces:
            for record, part in told:
                pieces[record.name][...] = IDENTITY[part]

    def of(self, floats: Any) -> dict[str, Any]:
        """The tensors in such an array."""
        return {name: part_of(floats, place) for name, place in self.places.items()}

    def of_all(self, gathered: Any) -> dict[str, Any]:
        """The tensors of all ranks, with a first axis of ranks and their slots."""
        every = gathered.reshape(len(gathered) * self.slots, self.size)
        return {
            name: self.memory.contiguous(every[:, at : at + prod(shape)]).reshape(len(every), *shape)
            for name, (at, shape) in self.places.items()
        }


def part_of(floats: Any, place: tuple[int, Shape]) -> Any:
    """A tensor in an array of floats."""
    start, shape = place
    return floats[start : start + prod(shape)].reshape(shape)
