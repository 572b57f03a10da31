"""The local programs of a direction, run on one rank: kernels, and between them what all ranks have told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from normgen import arrays
from normgen.arrays.views import View
from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.layout import Lengths, Shape, shape_of
from normgen.package.direction import directions, result_tuple
from normgen.package.records import TensorRecord
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

    def __init__(self, kind: type[np.floating[Any]] = np.float32) -> None:
        self._kind = kind

    def zeros(self, size: int) -> Any:
        """So many floats, of 0."""
        return np.zeros(size, self._kind)

    def numbers(self, values: Sequence[float]) -> Any:
        """Floats of these values."""
        return np.array(values, self._kind)

    def contiguous(self, array: Any) -> Any:
        """An array whose elements lie one after the other."""
        return np.ascontiguousarray(array)


@dataclass(frozen=True, slots=True)
class LocalCall:
    """A call of one rank: its arrays by name, None for those left out, and what it is to make of them."""

    operands: Mapping[str, Any]
    numbers: Numbers
    like: View | None  # of an operand: whose library makes the results; None where no kernels run
    memory: Memory
    lengths: Lengths  # on this rank
    results: Mapping[str, tuple[Shape, str]]  # that are wanted: shape and element type
    types: Mapping[str, str]  # of operands
    idle: bool  # nothing is wanted, or all cotangents are zero
    rank: int = 0  # which one it is

    def zeros(self) -> dict[str, Any]:
        """The wanted results, of zeros."""
        like = self.like
        assert like is not None, "what kernels make"
        stream = arrays.stream_of(like)
        return {n: arrays.zeros(like, shape, dtype, stream) for n, (shape, dtype) in self.results.items()}


class Stage:
    """A local program, ready to be called."""

    def __init__(self, record: StageRecord, executors: Executors, planner: Planner) -> None:
        self.told, self.handed = record.told, record.handed
        self.concerned = dict(record.concerned)
        self.dispatcher = None
        self.numbers: tuple[str, ...] = ()
        if record.package is not None:
            self.numbers = tuple(attr.name for attr in record.package.attrs)
            direction, _ = directions(record.package)
            result = result_tuple(direction.result_type, tuple(direction.results))
            self.dispatcher = Dispatcher(direction, record.package, result, executors, planner)

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
        dispatcher = self.dispatcher
        if dispatcher is None:
            return {}
        direction = dispatcher.direction
        idle = {name for name, axes in self.concerned.items() if not set(axes).isdisjoint(empty)}
        asked = {*self.handed, *out} - idle
        wanted = tuple(name for name in direction.results if name in asked)
        if not wanted and not direction.updated - idle:
            return {}
        named = {name: hold.get(name) for name in direction.operands}
        attrs = {name: numbers[name] for name in self.numbers}
        request = dispatcher.arguments.request((), {**named, **attrs})
        read = {name: type_ for name, type_ in types.items() if named.get(name) is None}
        made = dispatcher.run(
            request._replace(
                wanted=wanted,
                out={name: out[name] for name in wanted if name in out},
                types=tuple(read.items()),
            )
        )
        return {name: value for name, value in made._asdict().items() if value is not None}


class Stages:
    """The local programs of a direction. Any number of threads may run calls of them."""

    def __init__(self, record: SpreadRecord, executors: Executors, planner: Planner) -> None:
        self.record = record
        self.rounds = [Stage(each, executors, planner) for each in record.rounds]
        self.merge, self.apply = (Stage(each, executors, planner) for each in (record.merge, record.apply))

    def run(self, call: LocalCall, every: Mapping[str, np.ndarray[Any, Any]]) -> RankCall:
        """The wanted results of a call by name. `every`: of each spread axis the lengths on all ranks."""
        record = self.record
        empty = {axis for axis in record.axes if call.lengths.axes.get(axis) == 0}
        numbers = {
            **call.numbers,
            **{name: float(every[axis].sum()) for name, axis in record.sizes},
            **{name: float(call.lengths.axes.get(axis, 0)) for name, axis in record.lengths},
        }
        counts = {name: call.memory.numbers(every[axis].tolist()) for name, axis in record.counts}
        hold: dict[str, Any] = {**call.operands, **counts}
        made = call.zeros()  # what a rank without elements leaves as it is
        for stage in self.rounds:
            told = _Told(stage.told, call.lengths, call.memory)
            stage.run(hold, numbers, {**made, **told.pieces}, call.types, empty)
            kept = {own: told.pieces[name] for own, name in record.own if name in told.pieces}
            hold |= {**told.of_all((yield told.floats)), **kept}
        hold |= self.merge.run(hold, numbers, made, call.types, ())
        self.apply.run(hold, numbers, made, call.types, empty)
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


class _Told:
    """What a rank tells in a round: tensors that lie one after the other in an array of floats."""

    def __init__(self, told: Sequence[tuple[TensorRecord, str]], lengths: Lengths, memory: Memory) -> None:
        self.memory = memory
        self.places, size = layout(told, lengths)
        self.floats = memory.zeros(size)
        self.pieces = {
            name: self.floats[at : at + prod(shape)].reshape(shape)
            for name, (at, shape) in self.places.items()
        }
        for record, part in told:
            self.pieces[record.name][...] = IDENTITY[part]

    def of_all(self, gathered: Any) -> dict[str, Any]:
        """The tensors of all ranks, with a first axis of ranks."""
        count, contiguous = len(gathered), self.memory.contiguous
        return {
            name: contiguous(gathered[:, at : at + prod(shape)]).reshape(count, *shape)
            for name, (at, shape) in self.places.items()
        }
