"""What is known of schedules of the rows family before anything runs, as plain numbers: those of many
schedules at once, for several numbers of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import numpy as np

from normgen.families.rows.launch.forms import FORMS, form_of
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.call import WORD
from normgen.launching.machine import WARP, Machine
from normgen.launching.quantities import WAITED, Array, Placed, log2, placed

_FORMS = {name: place for place, name in enumerate(FORMS)}
_UNKNOWN_REGISTERS = 64.0  # per thread, of forms that have no estimate


def quantities(
    shape: RowShape, device: Machine, schedules: Sequence[RowSchedule], rows: Sequence[int]
) -> Mapping[str, Array]:
    """The quantities of each schedule, first of all for the first number of rows in a segment."""
    s = _columns(schedules, len(rows))
    s["rows"] = np.repeat(np.asarray(rows, float), len(schedules))
    grid = _grid(shape, device, s)
    row, moving = float(max(1, shape.walked)), float(shape.walked + shape.stored)
    all_rows, several = s["rows"] * shape.segments, s["several"]
    # sums over rows are read and written: by every row but the first of a block where they lie in memory
    sums = 8.0 * shape.wide_columns
    in_memory = s["streams"] * (1 - s["held"]) * sums * (1 - 1 / grid.turns)
    values = shape.length * all_rows * (moving + s["streams"] * shape.again + in_memory)
    partials = grid.blocks / several * shape.length * max(sums, 8.0 * (shape.columns > 0))
    places = s["items"] * s["vector"] * s["team"]
    each = s["threads"] * s["deep"] * s["vector"] * row
    width = np.minimum(WORD, s["vector"] * shape.narrowest)
    warps = s["team"] / WARP
    there = placed(grid, values + partials * (shape.columns > 0), each, device)
    return {
        **there,
        # all blocks that run wait together
        WAITED: shape.tells * device.peer_latency * np.maximum(1.0, 2.0 ** there["waves"]),
        **{name: s[name] for name in _AS_THEY_ARE},
        **{f"is {form}": (s["form"] == place) * 1.0 for form, place in _FORMS.items()},
        "rows": log2(all_rows), "segments": log2(shape.segments), "length": log2(shape.length),
        "threads": log2(s["threads"]), "team": log2(s["team"]),
        "rows of a block": log2(s["teams"] * s["batch"]),
        "blocks of a row": log2(several), "elements": s["items"] * s["vector"], "width": width,
        "registers": s["registers"], "idle": np.where(s["covers"] > 0, log2(places / shape.length), 0.0),
        "bytes of a thread": s["items"] * s["vector"] * row,
        "accumulated": s["items"] * s["vector"] * shape.wide_columns,
        "shared by rows": s["items"] * s["vector"] * shape.shared * (1 - s["late"]),
        "shared memory": s["shared"] * s["blocks"], "row": log2(shape.length * row),
        "warps that exchange": shape.exchanges * log2(warps + 1),
        "exchange per element": shape.exchanges * s["team"] / shape.length,
        "partials": log2(partials + 1) * (shape.columns > 0),
        "second stage": log2(grid.blocks / several) * (shape.columns > 0),
        **{name: np.array(float(value)) for name, value in _of_shape(shape).items()},
    }  # fmt: skip


_AS_THEY_ARE = (
    "items", "blocks", "stages", "reload", "late", "staged", "bulk", "places", "realigned", "batch", "walks",
    "members", "held",
)  # fmt: skip


def _of_shape(shape: RowShape) -> Mapping[str, float]:
    return {
        "walked": shape.walked, "stored": shape.stored, "params": shape.shared, "kept": shape.held,
        "functions": shape.functions, "moments": shape.moments, "exchanges": shape.exchanges,
        "sums": shape.columns, "wide sums": shape.wide_columns, "gathered": shape.gathered,
        "streams of rows": shape.streams, "floats": shape.whole, "parts": shape.parts, "picked": shape.picked,
        "side by side": np.log2((shape.run or shape.length) * shape.narrowest),
        "folded": shape.folded, "pieces": shape.in_pieces, "piece": shape.piece, "sums of parts": shape.sums,
        "narrowest": shape.narrowest, "odd": shape.length % 2, "eights": shape.length % 8 == 0,
    }  # fmt: skip


_KNOBS = (*_AS_THEY_ARE, "vector", "team", "teams", "threads", "cluster", "shared")
_FLAGS = ("covers", "in_order", "streams", "rounds")  # of forms
_OF_SCHEDULE, _OF_FORM = attrgetter(*_KNOBS), attrgetter(*_FLAGS)


def _columns(schedules: Sequence[RowSchedule], times: int) -> dict[str, Array]:
    """The knobs and estimates of schedules, and what their forms are, each so often."""

    def numbers(s: RowSchedule) -> tuple[float, ...]:
        form = form_of(s)
        others = _FORMS[s.form], form.deep(s), s.registers or _UNKNOWN_REGISTERS
        return (*_OF_SCHEDULE(s), *_OF_FORM(form), *others)

    table = np.array([numbers(s) for s in schedules], float).reshape(len(schedules), -1)
    names = (*_KNOBS, *_FLAGS, "form", "deep", "registers")
    found = dict(zip(names, np.tile(table.T, times), strict=True))
    found["blocks"] = np.maximum(1.0, found["blocks"])
    found["several"] = found["cluster"] * found["members"]
    return found


def _grid(shape: RowShape, device: Machine, s: Mapping[str, Array]) -> Placed:
    """Blocks, and rows of each, nearly as `RowBlocks` deals them out."""
    together = np.maximum(1.0, device.multiprocessors * s["blocks"] // s["several"])
    tiles = np.ceil(s["rows"] / (s["teams"] * s["batch"]))
    room = np.maximum(1.0, s["rounds"] * together // shape.segments)
    if shape.columns:
        per_segment = np.minimum(tiles, room)
    else:
        walking = np.where(s["in_order"] > 0, together, room)
        per_segment = np.where(s["in_order"] + s["walks"] > 0, np.minimum(tiles, walking), tiles)
    units = per_segment * shape.segments
    launches = np.where(s["streams"] * (s["members"] > 1) > 0, max(1, shape.launches), 1.0)
    return Placed(units * s["several"], s["blocks"], s["threads"], tiles / per_segment, launches)
