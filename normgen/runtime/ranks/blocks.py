"""Blocks of runs that straddle groups: what they are of arrays, and what a rank tells of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from normgen.launching.layout import REST, Lengths, shape_of
from normgen.package.records import TensorRecord
from normgen.package.spread import StageRecord
from normgen.runtime.ranks.division import Block, Division, Span
from normgen.runtime.ranks.stages import IDENTITY, Memory, Told

Arrays = dict[str, Any]


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
    """A block that has elements: of which dimension, its place among the blocks of the run, what it is of
    arrays, and the lengths that kernels see."""

    division: Division
    place: int
    block: Block
    window: Window
    lengths: Lengths


class Everywhere(NamedTuple):
    """What all blocks of a call have in common: the runs of all ranks, which rank this is, the lengths of
    axes on all ranks together, and of how many parts a rank tells: 1, or one for each block."""

    divisions: tuple[Division, ...]
    rank: int
    lengths: Lengths
    slots: int

    def outer(self, record: TensorRecord) -> Division | None:
        """The dimension of whose groups a tensor has values, one for each."""
        return next((each for each in self.divisions if each.pair.outer in record.axes), None)


class ToldOfGroups(Told):
    """The same of each of a rank's groups; where not all that it tells is of groups, of each of its
    blocks."""

    def __init__(self, stage: StageRecord, everywhere: Everywhere, memory: Memory) -> None:
        self.stage, self.all = stage, everywhere
        most = {each.pair.outer: each.most_touched for each in everywhere.divisions}
        lengths = everywhere.lengths
        lies = replace(lengths, axes={**lengths.axes, **most})
        super().__init__(stage.told, lies, memory, everywhere.slots)

    def of_block(self, piece: Piece) -> Arrays:
        """Where a block tells what it has."""
        pair, block = piece.division.pair, piece.block
        touched = piece.division.touched[self.all.rank]
        window = Window({pair.outer: block.groups.within(touched), pair.inner: block.members}, {})
        pieces = self.pieces[min(piece.place, self.slots - 1)]
        return {record.name: window.of(pieces[record.name], record) for record, _ in self.stage.told}

    def of_all(self, gathered: Any) -> Arrays:
        """What all ranks tell, of all groups."""
        slots, found = self.slots, super().of_all(gathered)
        for record, part in self.stage.told:
            division = self.all.outer(record)
            if division is None:
                continue
            every, shape = found[record.name], shape_of(record, self.all.lengths)
            made = self.memory.zeros(len(every) * prod(shape)).reshape(len(every), *shape)
            made[...] = IDENTITY[part]
            for at, each in enumerate(every):
                touched = division.touched[at // slots]
                groups = touched if slots == 1 else division.blocks[at // slots][at % slots].groups
                if groups.length:
                    told = groups_of(each, record, division, groups.within(touched))
                    groups_of(made[at], record, division, groups)[...] = told
            found[record.name] = made
        return found


def groups_of(array: Any, record: TensorRecord, division: Division, groups: Span) -> Any:
    """The view of these groups of a tensor that has values for all."""
    return Window({division.pair.outer: groups}, {}).of(array, record)


def of_ranks(name: str, axes: Sequence[str]) -> TensorRecord:
    """What all ranks have told, by axes."""
    return TensorRecord(name, "input", (("",), *((axis,) for axis in axes)), "f32")
