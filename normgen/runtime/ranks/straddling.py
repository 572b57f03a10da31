"""The steps of a rank whose runs of a dimension `(G C)` straddle groups: its local programs, block by block.

Every rank sends what it has of each group that it has elements of, in one exchange for all groups, and each
then makes the same numbers of them: a group is on any number of ranks, and one that is whole on a rank is no
special case. The program that merges sees by counts who has elements of which group. What ranks compute of
their own elements they compute for three blocks, each a view of their run and a call of the same kernels:
to these a block is so many groups of so many channels.

    round    t1[B, G] = sum[C, ...](x^2)            of each block, for its groups
    merge    rstd[B, G] of sum[Rank](t1[Rank, B, G])     of all groups, on all ranks
    apply    y[B, G, C, ...] = x * rstd             of each block
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

from normgen import arrays
from normgen.launching.layout import REST, Lengths, Shape, is_contiguous, shape_of
from normgen.package.direction import Direction
from normgen.package.records import TensorRecord
from normgen.runtime.ranks.division import BLOCKS, Block, Division, Span
from normgen.runtime.ranks.steps import (
    IDENTITY,
    SENT,
    Exchange,
    LocalCall,
    Numbers,
    Program,
    Sent,
    Stages,
    Step,
    Values,
    layout,
)


@dataclass(frozen=True, slots=True)
class Window:
    """What a block is of arrays: of axes some elements, and of dimensions that are two axes a run, as so many
    groups of so many members."""

    axes: Mapping[str, Span]
    runs: Mapping[str, tuple[Span, tuple[int, int]]]

    def of(self, array: Any, record: TensorRecord) -> Any:
        """The view of an array."""
        index: list[slice] = []
        shape: list[int] = []
        rest = getattr(array, "ndim", 0) - len(record.dims) + 1  # (a number stands for an array of none)
        for dim in record.dims:
            at, name = len(index), dim[0]
            span = self.axes.get(name)
            if name in self.runs:
                span, parts = self.runs[name]
                shape += parts
            elif span is not None:
                shape.append(span.length)
            else:
                width = rest if name == REST else 1
                index += [slice(None)] * width
                shape += array.shape[at : at + width]
                continue
            index.append(slice(span.start, span.end))
        piece = array[tuple(index)] if index else array  # (of NumPy no number in place of an array)
        return piece.reshape(shape) if any(dim[0] in self.runs for dim in record.dims) else piece


class Piece(NamedTuple):
    """A block that has elements: its dimension, its place among the blocks of the run, its window of arrays,
    and the suffix of the names of its own values."""

    division: Division
    place: int
    block: Block
    window: Window
    tag: str


class Straddling:
    """The steps of calls with given runs on all ranks."""

    def __init__(
        self, stages: Stages, direction: Direction, divisions: Sequence[Division], call: LocalCall
    ) -> None:
        """`direction`: what the rank takes and returns, with `(G C)` as one axis."""
        self.record = record = stages.record
        self.stages, self.direction, self.divisions, self.call = stages.every, direction, divisions, call
        self.inner = dict(record.placements)
        both = {each.pair.outer: each.groups for each in divisions}
        both |= {each.pair.inner: each.members for each in divisions}
        self.lengths = Lengths({**call.lengths.axes, **both}, call.lengths.rest)  # on all ranks together
        told = [each for stage in record.rounds for each, _ in stage.told]
        # Per rank: 1 if all that ranks send has values per group, otherwise one per block.
        self.slots = 1 if all(self._outer(each) for each in told) else BLOCKS
        merged = record.merge.package
        self.records: dict[str, TensorRecord] = {
            **direction.operands,
            **{n.name: of_ranks(n.name, [a for a in n.pair if a not in n.over]) for n in record.numbers},
            **{each.name: of_ranks(each.name, each.axes) for each in told},
            **({} if merged is None else {each.name: each for each in merged.forward.writes}),
        }

    def steps(self) -> Iterator[Step]:
        """The steps of a call."""
        pieces, rounds = list(self._pieces()), self.record.rounds
        most = {each.pair.outer: max(own.length for own in each.touched) for each in self.divisions}
        lengths = replace(self.lengths, axes={**self.lengths.axes, **most})
        yield from self._whole_groups()
        yield self._constants
        for place, stage in enumerate(rounds):
            sent = Sent(stage.told, lengths, self.call.memory, self.slots)
            yield sent.identity
            for piece in pieces:
                yield from self._block(place, piece, sent)
            yield Exchange(lambda values: values[SENT], partial(self.gathered, sent))
        yield self._merge
        for piece in pieces:
            yield from self._block(len(rounds) + 1, piece, None)
        yield from self._added()

    def gathered(self, sent: Sent, _: Values, every: Any) -> Values:
        """What all ranks send in a round, of all groups."""
        slots, found = self.slots, sent.gathered(every)
        for record, part in sent.tensors:
            division = self._outer(record)
            if division is None:
                continue
            every, shape = found[record.name], shape_of(record, self.lengths)
            made = sent.memory.zeros(len(every) * prod(shape)).reshape(len(every), *shape)
            made[...] = IDENTITY[part]
            for at, each in enumerate(every):
                touched = division.touched[at // slots]
                groups = touched if slots == 1 else division.blocks[at // slots][at % slots].groups
                if groups.length:
                    _copy_groups(record, division, (each, groups.within(touched)), (made[at], groups))
            found[record.name] = made
        return found

    def _outer(self, record: TensorRecord) -> Division | None:
        """The dimension of whose groups a tensor has values, one for each."""
        return next((each for each in self.divisions if each.pair.outer in record.axes), None)

    def _shared(self, record: TensorRecord) -> Division | None:
        """The same, where each rank has some of these groups."""
        found = self._outer(record)
        return None if found is None or found.all_owned else found

    # ------------------------------------------------------------------------------- blocks

    def _pieces(self) -> Iterator[Piece]:
        for division in self.divisions:
            for place, block in enumerate(division.blocks[self.call.rank]):
                if block.run.length:
                    tag = f" of block {place} of {division.pair.name}"
                    yield Piece(division, place, block, self._window(division, block), tag)

    def _window(self, own: Division, block: Block) -> Window:
        """What a block is of all arrays: of other dimensions than its own it has nothing."""
        axes = {own.pair.outer: block.groups, own.pair.inner: block.members}
        runs = {own.pair.name: (block.run, (block.groups.length, block.members.length))}
        for each in self.divisions:
            if each is not own:
                outer, inner = each.pair.axes
                axes.setdefault(outer, Span(0, 0))
                axes.setdefault(inner, Span(0, 0 if axes[outer].length else each.members))
                runs[each.pair.name] = Span(0, 0), (axes[outer].length, axes[inner].length)
        return Window(axes, runs)

    def _block(self, place: int, piece: Piece, sent: Sent | None) -> Iterator[Program]:
        """What a block adds to what a stage sends, and to results."""
        stage, window, pair, tag = self.stages[place], piece.window, piece.division.pair.axes, piece.tag
        mine = {name for name, axes in stage.concerned.items() if {*axes}.issuperset(pair)}
        results = [name for name in self.call.results if name in mine]
        exchanged = {each.name for each, _ in stage.told}
        if not results and mine.isdisjoint(exchanged) and stage is not self.stages[-1]:
            return
        lengths = self._lengths({axis: span.length for axis, span in window.axes.items()})

        def program(values: Values) -> Values:
            places = {n: window.of(values[self._sum(n)], self.direction.results[n]) for n in results}
            if sent is not None:
                places |= {n: each for n, each in self._places(piece, sent, values).items() if n in mine}
            into = {name: self._room(name, array) for name, array in places.items()}
            read = [n for n in stage.reads if n in self.records and values.get(n) is not None]
            views = {name: window.of(values[name], self.records[name]) for name in read}
            own = {called: values.get(called + tag) for called, _ in self.record.own}
            stage.run({**values, **own, **views, **lengths}, into, self.call.types)
            for name, array in places.items():
                if self.inner.get(name) == "part":
                    array += into[name]
                elif array is not into[name]:
                    array[...] = into[name]
            return {called + tag: into[other] for called, other in self.record.own if other in into}

        yield program

    def _places(self, piece: Piece, sent: Sent, values: Values) -> Values:
        """Where a block has what it sends."""
        pair, block = piece.division.pair, piece.block
        groups = block.groups.within(piece.division.touched[self.call.rank])
        window = Window({pair.outer: groups, pair.inner: block.members}, {})
        slots = values[SENT].reshape(self.slots, sent.layout.size)
        tensors = sent.layout.tensors(slots[min(piece.place, self.slots - 1)])
        return {record.name: window.of(tensors[record.name], record) for record, _ in sent.tensors}

    def _room(self, name: str, array: Any) -> Any:
        """Where kernels write what goes to an array: this itself if it is contiguous, and no sum."""
        seen = arrays.view(array)
        direct = self.inner.get(name) == "shard" and is_contiguous(seen.shape, seen.strides)
        return array if direct else _like(array, seen.shape)

    def _sum(self, name: str) -> str:
        """What the array is called in which blocks have a result: sums are rounded once they are complete."""
        return f"sum of {name}" if self.inner[name] == "part" else name

    def _lengths(self, axes: Mapping[str, int]) -> Numbers:
        axes = {**self.lengths.axes, **axes}
        return {name: float(axes.get(axis, 0)) for name, axis in self.record.lengths}

    def _constants(self, _: Values) -> Values:
        """What depends on lengths alone, and the sums that blocks add to."""
        memory, lengths = self.call.memory, self.lengths
        made: Values = {name: float(lengths.axes[axis]) for name, axis in self.record.sizes}
        read = {name for stage in self.stages for name in stage.reads}
        for record in self.record.numbers:
            if record.name in read:
                (division,) = (each for each in self.divisions if each.pair.axes == record.pair)
                found = division.numbers(record, self.slots)
                made[record.name] = memory.numbers(found.reshape(-1).tolist()).reshape(found.shape)
        for name in self._parts:
            shape = shape_of(self.direction.results[name], lengths)
            made[self._sum(name)] = memory.zeros(prod(shape)).reshape(shape)
        return made

    # ------------------------------------------------------------------------------- tensors of groups

    def _whole_groups(self) -> Iterator[Exchange]:
        """Gives the operands of groups alone, of which ranks have some each, all groups."""
        given = [self.direction.operands[n] for n, each in self.call.operands.items() if each is not None]
        shared = [(record, each) for record in given if (each := self._shared(record))]
        if not shared:
            return
        most = {each.pair.outer: max(own.length for own in each.owned) for _, each in shared}
        lengths = Lengths({**self.lengths.axes, **most}, self.lengths.rest)
        lies = layout([(record, "sum") for record, _ in shared], lengths)

        def send(values: Values) -> Any:
            floats = self.call.memory.zeros(lies.size)
            for record, division in shared:
                own = division.owned[self.call.rank]
                mine = values[record.name], own.within(own)
                _copy_groups(record, division, mine, (lies.tensors(floats)[record.name], own.within(own)))
            return floats

        def receive(values: Values, every: Any) -> Values:
            made = {}
            for record, division in shared:
                made[record.name] = whole = _like(values[record.name], shape_of(record, self.lengths))
                for floats, own in zip(every, division.owned, strict=True):
                    theirs = lies.tensors(floats)[record.name], own.within(own)
                    _copy_groups(record, division, theirs, (whole, own))
            return made

        yield Exchange(send, receive)

    def _merge(self, values: Values) -> Values:
        """What all ranks make of what all have sent."""
        into = {}
        for name in self.call.results:
            if self.inner[name] == "whole":
                record = self.direction.results[name]
                shape = shape_of(record, self.lengths)
                into[name] = _like(values[name], shape) if self._shared(record) else values[name]
        flat = {each.pair.name for each in self.divisions}
        shards = [n for n, each in self.direction.operands.items() if not flat.isdisjoint(each.axes)]
        given = {**values, **dict.fromkeys(shards), **self._lengths({})}
        handed = self.stages[len(self.record.rounds)].run(given, into, self.call.types)
        for name, array in into.items():
            if array is not values[name]:
                self._own_groups(name, array, values)
        return handed

    def _own_groups(self, name: str, array: Any, values: Values) -> None:
        """Have this rank's groups of a result."""
        record = self.direction.results[name]
        division = self._shared(record)
        assert division is not None
        own = division.owned[self.call.rank]
        _copy_groups(record, division, (array, own), (values[name], own.within(own)))

    @property
    def _parts(self) -> list[str]:
        """The results that blocks add up, before they are rounded."""
        return [name for name in self.call.results if self.inner[name] == "part"]

    def _added(self) -> Iterator[Step]:
        """Gives results what this rank adds to them; of groups that ranks have some of each, what all add."""
        results = self.direction.results
        shared = [name for name in self._parts if self._shared(results[name])]
        alone = [name for name in self._parts if name not in shared]

        def rounded(values: Values) -> Values:
            for name in alone:
                values[name][...] = values[self._sum(name)]
            return {}

        yield rounded
        if not shared:
            return
        lies = layout([(results[name], "sum") for name in shared], self.lengths)

        def send(values: Values) -> Any:
            floats = self.call.memory.zeros(lies.size)
            for name, place in lies.tensors(floats).items():
                place[...] = values[self._sum(name)]
            return floats

        def receive(values: Values, every: Any) -> Values:
            total = every[0]
            for each in every[1:]:
                total = total + each
            for name, array in lies.tensors(total).items():
                self._own_groups(name, array, values)
            return {}

        yield Exchange(send, receive)


def _copy_groups(
    record: TensorRecord, division: Division, given: tuple[Any, Span], into: tuple[Any, Span]
) -> None:
    """Copy groups of a tensor that has values for all to others."""
    source, place = (
        Window({division.pair.outer: groups}, {}).of(array, record) for array, groups in (given, into)
    )
    place[...] = source


def of_ranks(name: str, axes: Sequence[str]) -> TensorRecord:
    """What all ranks have sent, by axes."""
    return TensorRecord(name, "input", (("",), *((axis,) for axis in axes)), "f32")


def _like(array: Any, shape: Shape) -> Any:
    """An array of zeros of the same library and element type."""
    seen = arrays.view(array)
    return arrays.zeros(seen, shape, seen.dtype, arrays.stream_of(seen))
