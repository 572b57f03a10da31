"""Cases of norms whose axes are spread over simulated ranks: arrays cut for them, and put together again.

Runs are alike, of different lengths, and empty on some ranks. Those of a dimension that is two axes may begin
and end within groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.codegen.ranks import local_definition
from normgen.dtypes import DTYPES, round_to
from normgen.ir.program import Definition, Tensor
from normgen.package.records import Dims, dims_text
from normgen.package.spread import PairRecord
from normgen.runtime.ranks.division import Span, divided
from normgen.verify.cases import Case, DtypeSet, make_case

# Rows and widths; those after the first few are for a thorough check.
SHAPES = ((3, 37), (2, 5), (33, 128), (1, 1000), (5, 3), (7, 100))
_QUICK, _USUAL = 1, 3
Runs = tuple[int, ...]


def case_count(quick: bool, thorough: bool) -> int:
    """How many cases a check takes."""
    return _QUICK if quick else len(SHAPES) if thorough else _USUAL


def runs_of(length: int, count: int, turn: int) -> Runs:
    """The lengths of an axis on so many ranks: nearly alike; or in turn larger, with none in the middle."""
    if turn % 2 == 0 or count == 1:
        return tuple(len(part) for part in np.array_split(np.arange(length), count))
    shares = np.arange(1, count + 1, dtype=np.float64)
    shares[count // 2] = 0
    ends = np.round(length * np.cumsum(shares) / shares.sum()).astype(int)
    return tuple(int(n) for n in np.diff(ends, prepend=0))


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank has of a dimension of arrays: some elements, and how many its array has room for."""

    span: Span
    room: int


@dataclass(frozen=True, slots=True)
class SpreadCase:
    """A case with the lengths that its spread axes have on each rank: `runs` by axis, or by dimension where
    that is two axes (`pairs`)."""

    case: Case
    runs: Mapping[str, Runs]
    pairs: tuple[PairRecord, ...] = ()

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(next(iter(self.runs.values())))

    @property
    def text(self) -> str:
        """The lengths, for the table."""
        cut = ", ".join(f"{axis} in {'+'.join(map(str, lengths))}" for axis, lengths in self.runs.items())
        return f"{self.case.shape_text}, {cut}"

    def cut(self, tensor: Tensor, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Of a tensor, by axes, what each rank has, as its arrays lie in memory."""
        dtype = self.case.dtypes[tensor.name]
        whole = values.reshape([self._length(dim) for dim in self._dims(tensor)])
        found = self._shares(tensor)
        pieces = [whole] * self.ranks
        if found is not None:
            at, shares = found
            pieces = [_piece(whole, at, share) for share in shares]
        return [
            np.asarray(round_to(piece, dtype), DTYPES[dtype].numpy).reshape(self._shape(tensor, piece)).copy()
            for piece in pieces
        ]

    def joined(self, tensor: Tensor, placement: str, parts: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
        """A result by axes, of what the ranks have of it; None where a whole one differs between ranks."""
        found = self._shares(tensor)
        made: NDArray[Any]
        if placement == "shard" and found is not None:
            at, shares = found
            kept = []
            for part, share in zip(parts, shares, strict=True):
                lengths = [self._length(dim) for dim in self._dims(tensor)]
                lengths[at] = share.room
                kept.append(np.take(part.reshape(lengths), range(share.span.length), at))
            made = np.concatenate(kept, at)
        elif placement == "whole":
            if any(each.tobytes() != parts[0].tobytes() for each in parts):
                return None
            made = parts[0]
        else:
            made = np.asarray(np.sum([each.astype(np.float64) for each in parts], axis=0))
        return made.reshape([self.case.extents[axis] for axis in tensor.order])

    def _dims(self, tensor: Tensor) -> Dims:
        """The axes of a tensor, together where they are cut together."""
        pairs = {pair.axes for pair in self.pairs}
        return tuple(part for dim in tensor.dims for part in ((dim,) if dim in pairs else zip(dim)))

    def _length(self, dim: tuple[str, ...]) -> int:
        return prod(self.case.extents[axis] for axis in dim)

    def _shape(self, tensor: Tensor, piece: NDArray[Any]) -> tuple[int, ...]:
        """That of a piece in memory."""
        lengths = dict(zip(self._dims(tensor), piece.shape, strict=True))
        shape: list[int] = []
        for dim in tensor.dims:
            if dim == ("...",) and "..." not in self.runs:
                shape += self.case.rest
            else:
                shape.append(lengths[dim] if dim in lengths else prod(lengths[axis,] for axis in dim))
        return tuple(shape)

    def _shares(self, tensor: Tensor) -> tuple[int, list[Share]] | None:
        """Which dimension of a tensor is cut, and what each rank has of it."""
        for at, dim in enumerate(self._dims(tensor)):
            for pair in self.pairs:
                division = divided(pair, self.runs[pair.name])
                if dim == (pair.outer,) and not division.all_owned:
                    room = [own.length for own in division.owned]
                    if pair.groups is None:
                        room = [-(-length // division.members) for length in division.lengths]
                    return at, list(map(Share, division.owned, room))
            runs = self.runs.get(dims_text((dim,)))
            if runs is not None:
                ends = np.cumsum(runs).tolist()
                return at, [Share(Span(end - n, n), n) for end, n in zip(ends, runs, strict=True)]
        return None


def _piece(values: NDArray[Any], at: int, share: Share) -> NDArray[Any]:
    found = np.take(values, range(share.span.start, share.span.end), at)
    missing = [(0, 0)] * values.ndim
    missing[at] = 0, share.room - share.span.length
    return np.pad(found, missing)


def spread_cases(
    definition: Definition,
    axes: Mapping[str, int],
    sizes: Mapping[str, int],
    sets: Sequence[DtypeSet],
    count: int,
) -> Iterator[SpreadCase]:
    """Cases of several shapes, element types and runs. `axes`: over how many ranks each is spread."""
    local = local_definition(definition, axes, next(iter(axes.values())))
    fixed = {axis.name for axis in definition.program.axes if axis.extent is not None}
    axes_of = {pair.name: pair.axes for pair in local.pairs}
    for turn, (rows, width) in enumerate(SHAPES[:count]):
        case = make_case(definition, rows, width, sets[turn % len(sets)], sizes)
        if "..." in local.names:
            case = replace(case, rest=(case.extents["..."],))
        runs = {
            name: runs_of(
                prod(case.extents[axis] for axis in axes_of.get(name, (name,))),
                ranks,
                0 if name in fixed else turn,
            )
            for name, ranks in zip(local.names, axes.values(), strict=True)
        }
        yield SpreadCase(replace(case, seed=3000 + turn), runs, local.pairs)
