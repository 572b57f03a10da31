"""A direction on one rank whose runs of a dimension `(G C)` straddle groups: its local programs, block by
block.

Every rank tells what it has of each group that it has elements of, in one exchange for all groups, and each
then makes the same numbers of them: a group is on any number of ranks, and one that is whole on a rank is no
special case. The program that merges sees by counts who has elements of which group. What ranks compute of
their own elements they compute for three blocks, each a view of their run and a call of the same kernels:
to these a block is so many groups of so many channels.

    round    t1[B, G] = sum[C, ...](x^2)            of each block, for its groups
    merge    rstd[B, G] of sum[Rank](t1[Rank, B, G])     of all groups, on all ranks
    apply    y[B, G, C, ...] = x * rstd             of each block
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from math import prod
from typing import Any

from normgen import arrays
from normgen.launching.layout import Lengths, Shape, is_contiguous, shape_of
from normgen.package.direction import Direction
from normgen.package.records import TensorRecord
from normgen.package.spread import NumberRecord
from normgen.runtime.ranks.blocks import (
    Arrays,
    Everywhere,
    Piece,
    ToldOfGroups,
    Window,
    groups_of,
    of_ranks,
)
from normgen.runtime.ranks.division import BLOCKS, Block, Division, Span
from normgen.runtime.ranks.group import RankCall
from normgen.runtime.ranks.stages import LocalCall, Numbers, Stages, layout, part_of


class Straddling:
    """Calls of one rank with given runs on all ranks."""

    def __init__(
        self,
        stages: Stages,
        direction: Direction,
        divisions: Sequence[Division],
        call: LocalCall,
    ) -> None:
        """`direction`: what the rank takes and returns, with `(G C)` as one axis."""
        self.record = record = stages.record
        self.direction, self.call = direction, call
        self.inner = dict(record.placements)
        self.stages = stages.every
        both = {each.pair.outer: each.groups for each in divisions}
        both |= {each.pair.inner: each.members for each in divisions}
        lengths = Lengths({**call.lengths.axes, **both}, call.lengths.rest)
        told = [each for stage in record.rounds for each, _ in stage.told]
        of_groups = all(any(d.pair.outer in each.axes for d in divisions) for each in told)
        self.all = Everywhere(tuple(divisions), call.rank, lengths, 1 if of_groups else BLOCKS)
        self.sizes = {name: float(lengths.axes[axis]) for name, axis in record.sizes}
        self.pieces = list(self._pieces())

    def run(self) -> RankCall:
        """The wanted results by name."""
        made = self.call.zeros()
        hold: Arrays = {name: each for name, each in self.call.operands.items() if each is not None}
        hold |= yield from self._whole_groups(hold)
        read = {name for stage in self.stages for name in stage.reads}
        numbers = [each for each in self.record.numbers if each.name in read]
        hold |= {each.name: self._number(each) for each in numbers}
        records: dict[str, TensorRecord] = dict(self.direction.operands)
        records |= {n.name: of_ranks(n.name, [a for a in n.pair if a not in n.over]) for n in numbers}
        own: dict[int, Arrays] = {k: {} for k in range(len(self.pieces))}
        totals = self._totals(made)
        for place, stage in enumerate(self.record.rounds):
            told = ToldOfGroups(stage, self.all, self.call.memory)
            for k, piece in enumerate(self.pieces):
                self._block(place, piece, {**hold, **own[k]}, records, made, totals, told, own[k])
            hold |= told.of_all((yield told.floats))
            records |= {each.name: of_ranks(each.name, each.axes) for each, _ in stage.told}
        merge = len(self.record.rounds)
        hold |= self._merge(merge, hold, made)
        package = self.record.merge.package
        records |= {} if package is None else {each.name: each for each in package.forward.writes}
        for k, piece in enumerate(self.pieces):
            self._block(merge + 1, piece, {**hold, **own[k]}, records, made, totals, None, own[k])
        yield from self._added(totals, made)
        return made

    # ------------------------------------------------------------------------------- blocks

    def _pieces(self) -> Iterator[Piece]:
        for division in self.all.divisions:
            for place, block in enumerate(division.blocks[self.call.rank]):
                if block.run.length:
                    window = self._window(division, block)
                    lengths = {**self.all.lengths.axes, **{a: span.length for a, span in window.axes.items()}}
                    yield Piece(division, place, block, window, Lengths(lengths, self.all.lengths.rest))

    def _window(self, own: Division, block: Block) -> Window:
        """What a block is of all arrays: of other dimensions than its own it has nothing."""
        axes = {own.pair.outer: block.groups, own.pair.inner: block.members}
        runs = {own.pair.name: (block.run, (block.groups.length, block.members.length))}
        for each in self.all.divisions:
            if each is not own:
                outer, inner = each.pair.axes
                axes.setdefault(outer, Span(0, 0))
                axes.setdefault(inner, Span(0, 0 if axes[outer].length else each.members))
                runs[each.pair.name] = Span(0, 0), (axes[outer].length, axes[inner].length)
        return Window(axes, runs)

    def _block(
        self,
        place: int,
        piece: Piece,
        hold: Arrays,
        records: Mapping[str, TensorRecord],
        made: Arrays,
        totals: Arrays,
        told: ToldOfGroups | None,
        own: Arrays,
    ) -> None:
        """What a block adds to what a stage tells, and to results."""
        stage, window = self.stages[place], piece.window
        places = self._places(place, piece, made | totals, told)
        if not places and stage is not self.stages[-1]:
            return
        into = {}
        for name, array in places.items():
            direct = self.inner.get(name) == "shard" and _has_no_gaps(array)
            into[name] = array if direct else self._room(name, array)
        views = {n: window.of(each, records[n]) if n in records else each for n, each in hold.items()}
        numbers = {**self.call.numbers, **self.sizes, **self._lengths(piece.lengths)}
        stage.run(views, numbers, into, self.call.types, ())
        for name, array in places.items():
            if name in totals:
                array += into[name]
            elif array is not into[name]:
                array[...] = into[name]
        own |= {name: into[other] for name, other in self.record.own if other in into}

    def _places(self, place: int, piece: Piece, made: Arrays, told: ToldOfGroups | None) -> Arrays:
        """What a block adds to: its window of results, and its part of what the stage tells."""
        pair, results = piece.division.pair.axes, self.direction.results
        mine = {name for name, axes in self.stages[place].concerned.items() if {*axes}.issuperset(pair)}
        inside = {} if told is None else told.of_block(piece)
        own = {name: piece.window.of(made[name], results[name]) for name in made if name in mine}
        return own | {name: array for name, array in inside.items() if name in mine}

    def _room(self, name: str, array: Any) -> Any:
        """Where a block has what it adds to a result, or tells."""
        shape = tuple(array.shape)
        is_rounded = name in self.call.results and self.inner[name] != "part"
        return self.call.array(shape, self.call.results[name][1]) if is_rounded else self._floats(shape)

    def _floats(self, shape: Shape) -> Any:
        return self.call.memory.zeros(prod(shape)).reshape(shape)

    def _lengths(self, lengths: Lengths) -> Numbers:
        return {name: float(lengths.axes.get(axis, 0)) for name, axis in self.record.lengths}

    # ------------------------------------------------------------------------------- tensors of groups

    def _shared(self, record: TensorRecord) -> Division | None:
        """The dimension of whose groups a tensor has values, where each rank has some of them."""
        found = self.all.outer(record)
        return None if found is None or found.all_owned else found

    def _whole_groups(self, hold: Arrays) -> RankCall:
        """The operands of groups alone, of which ranks have some each, with all groups."""
        operands = self.direction.operands
        shared = [(operands[name], each) for name in hold if (each := self._shared(operands[name]))]
        if not shared:
            return {}
        most = {each.pair.outer: each.most_owned for _, each in shared}
        lengths = Lengths({**self.all.lengths.axes, **most}, self.all.lengths.rest)
        lies = layout([(record, "sum") for record, _ in shared], lengths)
        floats = self.call.memory.zeros(lies.size)
        for record, division in shared:
            own = Span(0, division.owned[self.call.rank].length)
            place = part_of(floats, lies.places[record.name])
            groups_of(place, record, division, own)[...] = groups_of(hold[record.name], record, division, own)
        every = yield floats
        made = {}
        for record, division in shared:
            shape = shape_of(record, self.all.lengths)
            made[record.name] = whole = self.call.array(shape, self.call.types[record.name])
            for rank, owned in enumerate(division.owned):
                piece = part_of(every[rank], lies.places[record.name])
                groups_of(whole, record, division, owned)[...] = groups_of(
                    piece, record, division, Span(0, owned.length)
                )
        return made

    def _merge(self, place: int, hold: Arrays, made: Arrays) -> Arrays:
        """What all ranks make of what all have told."""
        results = self.direction.results
        into: Arrays = {}
        for name in made:
            if self.inner[name] == "whole":
                shared = self._shared(results[name])
                shape = shape_of(results[name], self.all.lengths)
                into[name] = self.call.array(shape, self.call.results[name][1]) if shared else made[name]
        flat = {each.pair.name for each in self.all.divisions}
        whole = {n: a for n, a in hold.items() if not self._is_shard(n, flat)}
        numbers = {**self.call.numbers, **self.sizes, **self._lengths(self.all.lengths)}
        handed = self.stages[place].run(whole, numbers, into, self.call.types, ())
        for name, array in into.items():
            if array is not made[name]:
                self._own_groups(results[name], array, made[name])
        return handed

    def _is_shard(self, name: str, flat: Set[str]) -> bool:
        record = self.direction.operands.get(name)
        return record is not None and not flat.isdisjoint(record.axes)

    def _own_groups(self, record: TensorRecord, array: Any, made: Any) -> None:
        division = self._shared(record)
        assert division is not None
        own = division.owned[self.call.rank]
        groups_of(made, record, division, Span(0, own.length))[...] = groups_of(array, record, division, own)

    def _totals(self, made: Arrays) -> Arrays:
        """The results that blocks add up, before they are rounded."""
        results = self.direction.results
        names = [name for name in made if self.inner[name] == "part"]
        return {n: self._floats(shape_of(results[n], self.all.lengths)) for n in names}

    def _added(self, totals: Arrays, made: Arrays) -> RankCall:
        """Have what this rank adds to results; of groups that ranks have some of each, what all add."""
        results = self.direction.results
        shared = {name: each for name, each in totals.items() if self._shared(results[name])}
        for name in totals.keys() - shared.keys():
            made[name][...] = totals[name]
        if not shared:
            return
        lies = layout([(results[name], "sum") for name in shared], self.all.lengths)
        floats = self.call.memory.zeros(lies.size)
        for name, array in shared.items():
            part_of(floats, lies.places[name])[...] = array
        every = yield floats
        total = every[0]
        for each in every[1:]:
            total = total + each
        for name in shared:
            self._own_groups(results[name], part_of(total, lies.places[name]), made[name])

    def _number(self, record: NumberRecord) -> Any:
        (division,) = (each for each in self.all.divisions if each.pair.axes == record.pair)
        found = division.numbers(record, self.all.slots)
        return self.call.memory.numbers(found.reshape(-1).tolist()).reshape(found.shape)


def _has_no_gaps(array: Any) -> bool:
    seen = arrays.view(array)
    return is_contiguous(seen.shape, seen.strides)
