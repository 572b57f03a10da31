"""What is known of tilings before anything runs, as plain numbers: those of many at once. What means the same
has the name that it has for rows.

Nothing tells which tile comes first: that counts only after another kernel, of what it left in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from normgen.families.tiles.launch.tiling import PATCH, Tiling, tilings
from normgen.launching.call import WORD
from normgen.launching.machine import WARP, Machine
from normgen.launching.pick import Space, compared
from normgen.launching.quantities import Array, Placed, log2, placed

_AT_ONCE = 4  # accesses of turned operands that a thread has on their way together


@dataclass(frozen=True, slots=True)
class TilesShape:
    """What the quantities depend on beside a tiling, in bytes of one element of all operands unless
    stated."""

    device: Machine
    matrices: int
    rows: int  # of a matrix
    columns: int  # of a matrix
    read: int  # of operands that lie as the columns do
    written: int
    turned_read: int  # of operands that lie the other way
    turned_written: int
    run: int  # of the narrowest access to these
    narrowest: int  # of the operands that lie as the columns do
    beside: int  # in all, of operands that do not have every element
    singles: int  # operands that are read element by element
    registers: int  # per thread


def quantities(shape: TilesShape, tilings: Sequence[Tiling]) -> Mapping[str, Array]:
    """The quantities of each."""
    s = _knobs(tilings)
    down, across = np.ceil(shape.rows / s["rows"]), np.ceil(shape.columns / s["columns"])
    tile = s["rows"] * s["columns"]
    count = shape.matrices * down * across
    elements = float(shape.matrices * shape.rows * shape.columns)
    moving = shape.read + shape.written + shape.turned_read + shape.turned_written
    patches = np.minimum(s["patches"], s["threads"]) * PATCH * s["vector"] * shape.read
    runs = np.minimum(tile * shape.turned_read, s["threads"] * _AT_ONCE * shape.run)
    coming = np.maximum(np.maximum(patches, runs), s["threads"])  # where none has every element, a little
    straight = s["columns"] * shape.narrowest
    turned = s["rows"] * max(1, shape.turned_read, shape.turned_written)
    width = np.minimum(WORD, s["vector"] * shape.narrowest)
    grid = Placed(count, _resident(shape, s), s["threads"], np.ceil(s["patches"] / s["threads"]))
    return {
        **placed(grid, elements * moving + shape.beside, coming, shape.device),
        "is of tiles": np.array(1.0), "blocks": s["blocks"], "rows": log2(shape.matrices * shape.rows),
        "segments": log2(shape.matrices), "length": log2(shape.columns),
        "row": log2(shape.columns * max(1, shape.read)), "threads": log2(s["threads"]),
        "elements": PATCH * s["vector"], "items": tile / (s["threads"] * PATCH * s["vector"]),
        "registers": np.array(float(shape.registers)), "width": np.minimum(width, shape.run),
        "line": log2(straight), "line across": log2(turned), "tile": log2(tile),
        "rows of a block": log2(s["rows"]),
        "idle": log2(count * tile / elements), "idle down": log2(down * s["rows"] / shape.rows),
        "idle across": log2(across * s["columns"] / shape.columns),
        "idle threads": log2(s["threads"] / np.minimum(s["threads"], s["patches"])),
        "bytes of a thread": PATCH * s["vector"] * float(shape.read),
        "shared memory": s["shared"] * s["blocks"],
        **{name: np.array(float(value)) for name, value in _of_shape(shape).items()},
    }  # fmt: skip


def _of_shape(shape: TilesShape) -> Mapping[str, float]:
    return {
        "walked": shape.read, "stored": shape.written, "turned": shape.turned_read,
        "turned results": shape.turned_written, "run": shape.run, "narrowest": shape.narrowest,
        "params": shape.singles, "side by side": np.log2(shape.rows * max(1, shape.run)),
    }  # fmt: skip


def _knobs(tilings: Sequence[Tiling]) -> dict[str, Array]:
    names = ("blocks", "rows", "columns", "vector", "shared", "threads", "patches")
    return {name: np.array([getattr(s, name) for s in tilings], float) for name in names}


def _resident(shape: TilesShape, s: Mapping[str, Array]) -> Array:
    """Blocks on a multiprocessor: as many as registers are kept for, or more where they find place."""
    device = shape.device
    threads = np.minimum(device.threads_per_multiprocessor, device.warps(shape.registers) * WARP)
    shared = np.array([device.blocks(int(each)) for each in s["shared"]], float)
    return np.asarray(np.maximum(s["blocks"], np.minimum(threads // s["threads"], shared)))


@dataclass(frozen=True, slots=True)
class TilesSpace(Space[Tiling]):
    """Tilings of matrices, none of which differs in the bits of its results. `shape`: with nearly as many
    matrices and rows; `vector` and `turned`: see `tilings`."""

    shape: TilesShape
    vector: int
    turned: int

    def starts(self) -> Sequence[Tiling]:
        return list(tilings(self.shape.device, self.shape.registers, self.vector, self.turned))

    def times(self, found: Sequence[Tiling], counts: Sequence[int]) -> Array:
        return compared(quantities(self.shape, found), len(found))
