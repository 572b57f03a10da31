"""What is known of residences before anything runs, as plain numbers: those of many at once, for several
numbers of segments. What means the same has the name that it has for rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from normgen.families.resident.launch.residence import MOST_STARTS, Residence, divided, division_of, every
from normgen.families.resident.launch.segments import FLOAT, Segment
from normgen.launching.call import WORD
from normgen.launching.knobs import distinct
from normgen.launching.machine import WARP, Machine
from normgen.launching.pick import Space, buckets_of, compared
from normgen.launching.quantities import Array, Placed, log2, placed

_AS_THEY_ARE = ("items", "blocks", "places", "members", "depth")


@dataclass(frozen=True, slots=True)
class ResidentShape:
    """What the quantities depend on beside a residence, in bytes of one element of all operands unless
    stated. Of the only segment of a call a part is a band, else it is a segment."""

    device: Machine
    bands: int  # of the only segment; 1 where there are more
    rows: int  # of a part
    length: int  # of a row of a part, in elements
    held: int
    written: int
    narrowest: int  # of what is held
    kept: int  # of a vector of all that is held, in registers, for each of its elements
    left: int  # floats that a block leaves for the others of its part
    sums: int  # of each element of a row
    second_stage: int  # sums over segments that the call wants
    made: int  # values of each group that a block makes of what all have left
    moments: bool
    functions: bool  # whether exponentials and their like are applied
    banded: bool


def quantities(
    shape: ResidentShape, residences: Sequence[Residence], segments: Sequence[int]
) -> Mapping[str, Array]:
    """The quantities of each, first of all for the first number of segments."""
    s = _knobs(residences, len(segments))
    parts = np.repeat(np.asarray(segments, float), len(residences)) * shape.bands
    blocks = parts * s["members"]
    again = s["again"] / s["depth"]
    values = parts * shape.rows * shape.length * (shape.held * (1 + again) + shape.written)
    published = blocks * shape.left * FLOAT
    partials = blocks * shape.length * shape.second_stage * FLOAT
    own = s["items"] * s["vector"]
    wide = s["vector"] * shape.narrowest
    grid = Placed(blocks, s["blocks"], s["threads"], s["depth"])
    on_their_way = s["threads"] * own * (s["depth"] - s["again"]) * shape.held
    rounds = np.ceil(blocks / (s["blocks"] * shape.device.multiprocessors))
    return {
        **placed(grid, values + 2 * (published + partials), on_their_way, shape.device),
        **{name: s[name] for name in _AS_THEY_ARE},
        "is of resident": np.array(1.0), "rows": log2(parts * shape.rows), "segments": log2(parts),
        "length": log2(shape.length), "row": log2(shape.length * shape.held), "threads": log2(s["threads"]),
        "team": log2(s["team"]), "rows of a block": log2(s["teams"] * s["depth"]),
        "blocks of a row": log2(s["members"]), "rows of a part": log2(shape.rows), "elements": own,
        "width": np.minimum(WORD, wide), "line": log2(np.minimum(s["team"], WARP) * wide),
        "idle": log2(s["team"] * own / shape.length),
        "idle across": log2(s["members"] * s["teams"] * s["depth"] / shape.rows),
        "again": again, "held": s["depth"] - s["places"] - s["again"],
        "bytes of a thread": own * (s["depth"] - s["places"] - s["again"]) * shape.kept,
        "shared memory": s["shared"] * s["blocks"], "rounds": log2(rounds),
        "accumulated": own * max(1, shape.sums),
        "bytes of an exchange": log2(s["members"] * shape.left * FLOAT),
        "moved by exchanges": published * s["members"] / values,
        "warps that exchange": log2(s["threads"] / WARP + 1) * (s["teams"] > 1),
        "partials": log2(partials + 1), "second stage": log2(blocks) * (shape.second_stage > 0),
        **{name: np.array(float(value)) for name, value in _of_shape(shape).items()},
    }  # fmt: skip


def _of_shape(shape: ResidentShape) -> Mapping[str, float]:
    return {
        "walked": shape.held, "stored": shape.written, "moments": shape.moments, "exchanges": 1,
        "exchanged": shape.left, "sums": shape.second_stage, "wide sums": shape.sums, "made": shape.made,
        "functions": shape.functions, "banded": shape.banded, "narrowest": shape.narrowest,
    }  # fmt: skip


def _knobs(residences: Sequence[Residence], times: int) -> dict[str, Array]:
    names = (*_AS_THEY_ARE, "vector", "threads", "team", "teams", "again", "shared")
    table = {name: np.array([getattr(s, name) for s in residences], float) for name in names}
    return {name: np.tile(values, times) for name, values in table.items()}


@dataclass(frozen=True, slots=True)
class ResidentSpace(Space[Residence]):
    """Segments of a shape, however many there are."""

    segment: Segment
    shape: ResidentShape

    @property
    def counts(self) -> tuple[int, ...]:
        moved = self.segment.rows * self.segment.length * max(1, self.shape.held + self.shape.written)
        return (1,) if self.segment.bands else buckets_of(moved)

    def starts(self) -> Sequence[Residence]:
        return list(islice(distinct(every(self.segment, self.shape.device)), MOST_STARTS))

    def near(self, start: Residence) -> Iterator[Residence]:
        return distinct(divided(self.segment, division_of(start), self.shape.device))

    def times(self, found: Sequence[Residence], counts: Sequence[int]) -> Array:
        return compared(quantities(self.shape, found, counts), len(found))
