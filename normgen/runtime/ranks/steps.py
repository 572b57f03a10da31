"""A call of one rank as a list of steps: local programs, and exchanges between them.

A list is made once for calls that differ in values alone. `walk` runs any list, whatever computes its
programs: kernels on NumPy arrays or tensors, or PyTorch's operators in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

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

# What a rank without elements sends, by the part that it has.
IDENTITY = {"sum": 0.0, "max": -np.inf, "min": np.inf}
SENT = ""  # the name of the floats that a rank sends in a round
_ALIGNED = 4  # floats of 16 bytes: where each tensor begins in what is exchanged

Numbers = Mapping[str, float]
Values = dict[str, Any]  # the arrays and numbers of a call, by name
Along = Mapping[str, "np.ndarray[Any, Any]"]  # of each spread axis the lengths on all ranks
Program = Callable[[Values], Mapping[str, Any]]  # a step that computes: takes the values, returns new ones


@dataclass(frozen=True, slots=True)
class Exchange:
    """A step that all-gathers an array. `send` returns the array of this rank; `receive` takes the arrays of
    all ranks, stacked along a first axis, and returns new values."""

    send: Callable[[Values], Any]
    receive: Callable[[Values, Any], Mapping[str, Any]]


Step = Program | Exchange


def walk(steps: Sequence[Step], values: Values) -> RankCall:
    """Run the steps of a call in order. Returns all values. `values`: operands and numbers of the call."""
    for step in steps:
        if isinstance(step, Exchange):
            values |= step.receive(values, (yield step.send(values)))
        else:
            values |= step(values)
    return values


class Memory:
    """Where ranks have what they send: on one device, as arrays of which parts can be taken and assigned to.
    Here on the host, as NumPy arrays."""

    device: DeviceKey = HOST

    def zeros(self, size: int) -> Any:
        """So many floats, of 0."""
        return np.zeros(size, np.float32)

    def numbers(self, values: Sequence[float]) -> Any:
        """Floats of these values."""
        return np.array(values, np.float32)

    def parts(self, every: Any, start: int, shape: Shape) -> Any:
        """The tensors [n, *shape] that begin at `start` in each of n arrays. `every`: [n, size]."""
        return np.ascontiguousarray(every[:, start : start + prod(shape)]).reshape(len(every), *shape)


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

    def zeros(self) -> Values:
        """The wanted results, of zeros: what a rank without elements leaves as it is."""
        return {name: self.array(*about) for name, about in self.results.items()}

    def array(self, shape: Shape, dtype: str) -> Any:
        """An array of zeros where the operands are."""
        assert self.like is not None, "a call with tensors"
        return arrays.zeros(self.like, shape, dtype, arrays.stream_of(self.like))

    def run(self, steps: Sequence[Step]) -> RankCall:
        """The wanted results by name."""
        values = yield from walk(steps, {**self.operands, **self.numbers, **self.zeros()})
        return {name: values[name] for name in self.results}


class LocalRun(NamedTuple):
    """A run of a local program. `wanted`: the results to compute, which are written to `out` where that has
    them; `types`: of the operands of the whole call."""

    operands: Mapping[str, Any]
    numbers: Numbers
    wanted: tuple[str, ...]
    out: Mapping[str, Any]
    types: Mapping[str, str]


# What runs a local program: its results by name, None for those that are not wanted. States are updated.
Compute = Callable[[LocalRun], Mapping[str, Any]]
# What runs the local program at a place: rounds, then what merges, and what makes results.
Computes = Callable[[int, Direction, Package], Compute]


def by_kernels(executors: Executors, planner: Planner) -> Computes:
    """What runs local programs by kernels."""

    def compute_of(_: int, direction: Direction, package: Package) -> Compute:
        result = result_tuple(direction.result_type, tuple(direction.results))
        dispatcher = Dispatcher(direction, package, result, executors, planner)

        def compute(run: LocalRun) -> Mapping[str, Any]:
            request = dispatcher.arguments.request((), {**run.operands, **run.numbers})
            absent = tuple((name, kind) for name, kind in run.types.items() if run.operands.get(name) is None)
            made = dispatcher.run(request._replace(wanted=run.wanted, out=run.out, types=absent))
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
        self, values: Values, out: Mapping[str, Any], types: Mapping[str, str], empty: Collection[str] = ()
    ) -> Values:
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
        operands = {name: values.get(name) for name in direction.operands}
        numbers = {name: values[name] for name in self._numbers}
        written = {name: out[name] for name in wanted if name in out}
        made = self._compute(LocalRun(operands, numbers, wanted, written, types))
        return {name: made[name] for name in wanted if name not in out}


class Stages:
    """The local programs of a direction. Any number of threads may run calls of them."""

    def __init__(self, record: SpreadRecord, computes: Computes) -> None:
        self.record = record
        every = (*record.rounds, record.merge, record.apply)
        self.every = tuple(Stage(each, place, computes) for place, each in enumerate(every))

    def steps(self, call: LocalCall, along: Along) -> Iterator[Step]:
        """The steps of a call."""
        empty = {axis for axis in self.record.axes if call.lengths.axes.get(axis) == 0}
        merge = len(self.record.rounds)

        def program(place: int, sent: Sent | None) -> Program:
            stage = self.every[place]

            def run(values: Values) -> Values:
                mine = {} if sent is None else sent.identity(values)
                out = {**{name: values[name] for name in call.results}, **mine}
                return {**mine, **stage.run(values, out, call.types, () if place == merge else empty)}

            return run

        return steps_of(self.record, call.lengths, along, call.memory, program)


def steps_of(
    record: SpreadRecord,
    lengths: Lengths,
    along: Along,
    memory: Memory,
    program: Callable[[int, Sent | None], Program | None],
) -> Iterator[Step]:
    """The steps of a call. `lengths`: on this rank; `program`: makes the local program at a place, which
    sends these tensors in a round; None if there is nothing to compute."""
    numbers = constants(record, lengths, along)
    counts = {name: along[axis].tolist() for name, axis in record.counts}
    yield lambda _: {**numbers, **{name: memory.numbers(each) for name, each in counts.items()}}
    for place, stage in enumerate((*record.rounds, record.merge, record.apply)):
        sent = Sent(stage.told, lengths, memory) if stage.told else None
        if (step := program(place, sent)) is not None:
            yield step
        if sent is not None:
            yield sent.exchange(dict(record.own))


def constants(record: SpreadRecord, lengths: Lengths, along: Along) -> dict[str, float]:
    """The numbers that programs take for lengths."""
    sizes = {name: float(along[axis].sum()) for name, axis in record.sizes}
    return sizes | {name: float(lengths.axes.get(axis, 0)) for name, axis in record.lengths}


class Layout(NamedTuple):
    """How the tensors that a rank sends lie in one array: where each begins and its shape, by name; how many
    floats there are."""

    places: Mapping[str, tuple[int, Shape]]
    size: int

    def tensors(self, floats: Any) -> Values:
        """The tensors in such an array."""
        return {n: floats[at : at + prod(shape)].reshape(shape) for n, (at, shape) in self.places.items()}


def layout(tensors: Sequence[tuple[TensorRecord, str]], lengths: Lengths) -> Layout:
    """The layout of what a rank sends; that of one tensor has nothing behind it."""
    places: dict[str, tuple[int, Shape]] = {}
    size = end = 0
    for record, _ in tensors:
        shape = shape_of(record, lengths)
        places[record.name] = size, shape
        end = size + prod(shape)
        size = -(-end // _ALIGNED) * _ALIGNED
    return Layout(places, size if len(places) > 1 else end)


class Sent:
    """The tensors that a rank sends in a round, each with the part of its value that a rank has. They lie one
    after the other in an array of floats: once, or once per slot."""

    def __init__(
        self, tensors: Sequence[tuple[TensorRecord, str]], lengths: Lengths, memory: Memory, slots: int = 1
    ) -> None:
        self.tensors, self.memory, self.slots = tensors, memory, slots
        self.layout = layout(tensors, lengths)

    def identity(self, _: Values) -> Values:
        """The array to send as a rank without elements sends it, and its tensors (of the last slot) by
        name."""
        floats = self.memory.zeros(self.slots * self.layout.size)
        for slot in floats.reshape(self.slots, self.layout.size):
            places = self.layout.tensors(slot)
            for record, part in self.tensors:
                places[record.name][...] = IDENTITY[part]
        return {SENT: floats, **places}

    def gathered(self, every: Any) -> Values:
        """The tensors of all ranks, with a first axis of ranks and their slots."""
        every = every.reshape(len(every) * self.slots, self.layout.size)
        return {name: self.memory.parts(every, *place) for name, place in self.layout.places.items()}

    def exchange(self, own: Mapping[str, str]) -> Exchange:
        """The exchange of a round. `own`: the names by which later steps read what this rank has sent."""
        places = self.layout.places
        kept = {called: places[name] for called, name in own.items() if name in places}
        mine = self.layout._replace(places=kept)
        return Exchange(
            lambda values: values[SENT],
            lambda values, every: {**self.gathered(every), **mine.tensors(values[SENT])},
        )
