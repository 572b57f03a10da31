"""What is known of schedules of the columns family before anything runs, as plain numbers: those of many
schedules at once, for several numbers of columns. What means the same has the name that it has for rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from normgen.families.columns.launch.schedule import FORMS, ColumnSchedule, ColumnShape, exchange, shared
from normgen.families.columns.launch.space import neighbours, starts
from normgen.launching.call import WORD
from normgen.launching.machine import WARP
from normgen.launching.pick import Space, bucket_of, buckets_of, compared
from normgen.launching.quantities import Array, Placed, log2, placed

_SHORT = 256  # planes up to this, of which the last vectors are a part that counts
_AS_THEY_ARE = ("items", "blocks", "registers", "ahead", "realigned")


def quantities(
    shape: ColumnShape, schedules: Sequence[ColumnSchedule], columns: Sequence[int]
) -> Mapping[str, Array]:
    """The quantities of each schedule, first of all for the first number of columns in a segment."""
    s = _knobs(schedules, shape, len(columns))
    s["columns"] = np.repeat(np.asarray(columns, float), len(schedules))
    s["chunks"] = _chunks(shape, s)
    grid = _grid(shape, s)
    read, moving = float(max(1, shape.reads)), float(shape.reads + shape.writes)
    values = shape.length * s["columns"] * shape.segments * (moving + (1 - s["holds"]) * shape.again)
    partials = grid.blocks * (1 + shape.wide * shape.length) * 8.0 * shape.persistent
    own = s["items"] * s["vector"]
    wide = s["vector"] * shape.narrowest
    line = s["lanes"] * wide
    return {
        **placed(grid, values + partials, s["threads"] * s["deep"] * s["vector"] * read, shape.device),
        **{name: s[name] for name in _AS_THEY_ARE},
        "is of columns": np.array(1.0), **{f"is columns {form}": s[form] for form in FORMS},
        "rows": log2(s["columns"] * shape.segments), "segments": log2(shape.segments),
        "length": log2(shape.length), "threads": log2(s["threads"]), "team": log2(s["team"]),
        "rows of a block": log2(s["lanes"] * s["vector"]), "elements": own, "width": np.minimum(WORD, wide),
        "idle": np.where(s["holds"] > 0, log2(s["items"] * s["team"] / shape.length), 0.0),
        "idle across": log2(np.ceil(s["chunks"] / s["lanes"]) * s["lanes"] * s["vector"] / s["columns"]),
        "bytes of a thread": own * read, "accumulated": s["items"] * shape.wide, "line": log2(line),
        "shared memory": s["shared"] * s["blocks"], "row": log2(shape.length * read),
        "warps that exchange": shape.exchanges * log2(s["threads"] / WARP + 1) * (s["team"] > 1),
        "exchange per element": shape.exchanges * s["team"] / shape.length,
        "bytes of an exchange": s["exchange"], "moved by exchanges": shape.exchanges * s["exchange"]
        / (s["threads"] * own * read),
        "partials": log2(partials + 1), "second stage": log2(grid.blocks) * shape.persistent,
        **{name: np.array(float(value)) for name, value in _of_shape(shape).items()},
    }  # fmt: skip


def _of_shape(shape: ColumnShape) -> Mapping[str, float]:
    return {
        "walked": shape.reads, "stored": shape.writes, "params": 4 * shape.elements, "kept": shape.held,
        "moments": shape.moments, "exchanges": shape.exchanges, "exchanged": shape.exchanged,
        "sums": shape.sums * shape.persistent, "wide sums": shape.wide, "narrowest": shape.narrowest,
    }  # fmt: skip


def _knobs(schedules: Sequence[ColumnSchedule], shape: ColumnShape, times: int) -> dict[str, Array]:
    """The knobs and estimates of schedules, and what their forms are, each so often."""
    names = (*_AS_THEY_ARE, "vector", "team", "lanes", "threads", "holds", "deep")
    table = {name: [getattr(s, name) for s in schedules] for name in names}
    table |= {form: [s.form == form for s in schedules] for form in FORMS}
    table["shared"] = [shared(s.lanes, s, shape) for s in schedules]
    table["exchange"] = [exchange(s.lanes, s, shape) for s in schedules]
    return {name: np.tile(np.array(values, float), times) for name, values in table.items()}


def _chunks(shape: ColumnShape, s: Mapping[str, Array]) -> Array:
    """Groups of neighbouring columns: realigned ones begin anew with what lies side by side."""
    side = shape.side_by_side
    whole = np.where(s["realigned"] > 0, np.ceil(side / s["vector"]) * s["vector"] / side, 1.0)
    return np.asarray(s["columns"] / s["vector"] * whole)


def _grid(shape: ColumnShape, s: Mapping[str, Array]) -> Placed:
    """Blocks, and tiles of each, as the grid of a launch has them."""
    tiles = np.ceil(s["chunks"] / s["lanes"])
    room = np.maximum(1.0, s["blocks"] * shape.device.multiprocessors // shape.segments)
    per_segment = np.minimum(tiles, room) if shape.persistent else tiles
    return Placed(per_segment * shape.segments, s["blocks"], s["threads"], tiles / per_segment)


@dataclass(frozen=True, slots=True)
class ColumnsSpace(Space[ColumnSchedule]):
    """Columns of a shape, however many there are (`shape` has none)."""

    shape: ColumnShape

    @property
    def counts(self) -> Sequence[int]:
        shape, few = self.shape, self.shape.side_by_side
        found = buckets_of(shape.length * max(1, shape.reads + shape.writes)) if shape.batched else ()
        return [count for count in found if 2 * count > few] or [few]

    def starts(self) -> Sequence[ColumnSchedule]:
        return starts(self.shape)

    def near(self, start: ColumnSchedule) -> Sequence[ColumnSchedule]:
        return neighbours(start, self.shape)

    def times(self, found: Sequence[ColumnSchedule], counts: Sequence[int]) -> Array:
        return compared(quantities(self.shape, found, counts), len(found))


def nearly(shape: ColumnShape) -> ColumnsSpace:
    """The space of such columns, however many there are, and of those of nearly such images."""
    side = shape.side_by_side
    exact = not shape.batched or (side <= _SHORT and shape.misaligned > shape.vector)
    return ColumnsSpace(replace(shape, columns=0, side_by_side=side if exact else bucket_of(side)))
