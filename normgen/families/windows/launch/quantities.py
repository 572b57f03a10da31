"""What is known of schedules of the windows family before anything runs, as plain numbers: those of many
schedules at once, for several numbers of images. What means the same has the name that it has for rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from normgen.families.windows.launch.schedule import RANGES, WindowSchedule, ranged
from normgen.families.windows.launch.shape import WindowShape
from normgen.families.windows.launch.space import FORMS, for_images, made
from normgen.launching.call import WORD
from normgen.launching.machine import WARP
from normgen.launching.pick import Space, compared
from normgen.launching.quantities import Array, Placed, log2, placed
from normgen.package.kernels import WindowsRecord

_AS_THEY_ARE = ("ahead", "slots", "halo", "team", "ghosts", "chunk", "registers")


def quantities(
    shape: WindowShape, schedules: Sequence[WindowSchedule], images: Sequence[int]
) -> Mapping[str, Array]:
    """The quantities of each schedule, first of all for the first number of images."""
    s = _knobs(shape, schedules, images)
    read, moving = float(max(1, shape.reads)), float(shape.reads + shape.writes)
    elements = s["images"] * shape.image
    again = (s["ranges"] - 1) * shape.beyond / s["steps"]  # by ranges beside each other
    taken = np.where(s["walks"] > 0, s["length"] + shape.beyond, 1.0)  # steps of a thread
    grid = Placed(np.ceil(s["all"] / s["threads"]), s["blocks"], s["threads"], np.ceil(taken / s["chunk"]))
    own = s["vector"] * s["chunk"]
    wide = s["vector"] * shape.narrowest
    ahead = s["threads"] * (own + 2 * s["halo"]) * np.maximum(1.0, s["ahead"]) * read
    return {
        **placed(grid, elements * (moving + again * shape.reads), ahead, shape.device),
        **{name: s[name] for name in _AS_THEY_ARE},
        "is of windows": np.array(1.0), **{f"is windows {form}": s[form] for form in FORMS},
        "rows": log2(elements / shape.channels), "segments": log2(s["images"]),
        "length": log2(shape.channels), "row": log2(shape.channels * read), "threads": log2(s["threads"]),
        "elements": own, "items": s["chunk"], "blocks": s["blocks"],
        "width": np.minimum(WORD, wide), "line": log2(np.minimum(WARP, s["lanes"]) * wide),
        "bytes of a thread": own * read, "shared memory": s["shared"] * s["blocks"],
        "idle": log2(s["all"] * s["vector"] / (elements / s["steps"] * s["ranges"])),
        "again": again, "looked at": np.where(s["direct"] > 0, log2(shape.neighbours), 0.0),
        "neighbours read": 2 * s["halo"] / s["vector"], "drift": np.abs(s["drift"]),
        "ranges": log2(s["ranges"]), "steps": log2(s["steps"]), "steps of a range": log2(s["length"]),
        **{name: np.array(float(value)) for name, value in _of_shape(shape).items()},
    }  # fmt: skip


def _of_shape(shape: WindowShape) -> Mapping[str, float]:
    return {
        "walked": shape.reads, "stored": shape.writes, "params": shape.params, "operands": shape.operands,
        "sums": shape.sums, "levels": shape.levels, "functions": shape.functions, "early": shape.early,
        "window": shape.beyond, "across": shape.across, "narrowest": shape.narrowest,
        "side by side": np.log2(shape.image / shape.channels * shape.narrowest),
    }  # fmt: skip


def _knobs(
    shape: WindowShape, schedules: Sequence[WindowSchedule], images: Sequence[int]
) -> dict[str, Array]:
    """The knobs and estimates of schedules, and what their forms are, for each number of images; `all` are
    the threads of all blocks."""
    names = (*_AS_THEY_ARE, "vector", "threads", "lanes", "drift", "shared", "steps", "ranges", "length")
    table = {name: [getattr(s, name) for s in schedules] for name in names}
    # Of a form that needs no images they are those of all that there are.
    table["lanes"] = [s.lanes if FORMS[s.form].whole else WARP for s in schedules]
    table |= {form: [s.form == form for s in schedules] for form in FORMS}
    table["walks"] = [FORMS[s.form].ranged for s in schedules]
    table["blocks"] = [_resident(shape, s) for s in schedules]
    found = {name: np.tile(np.array(values, float), len(images)) for name, values in table.items()}
    found["images"] = np.repeat(np.asarray(images, float), len(schedules))
    found["all"] = np.array([_threads(shape, s, count) for count in images for s in schedules], float)
    return found


def _threads(shape: WindowShape, s: WindowSchedule, images: int) -> int:
    """Those that so many images take. (The lanes of a form that needs no images are of all there are.)"""
    form = FORMS[s.form]
    return form.threads(s, images) if form.whole else -(-images * shape.image // s.vector)


def _resident(shape: WindowShape, s: WindowSchedule) -> int:
    """Blocks on a multiprocessor: those that registers are kept for, or as many as its threads are."""
    most = shape.device.threads_per_multiprocessor // s.threads
    return s.blocks if FORMS[s.form].ranged else max(1, most)


@dataclass(frozen=True, slots=True)
class WindowsSpace(Space[WindowSchedule]):
    """Images of a shape, and of those with nearly as many."""

    record: WindowsRecord = field(hash=False)  # which has the texts of its forms
    shape: WindowShape

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.shape.images,)

    def starts(self) -> Sequence[WindowSchedule]:
        """Each in the ranges that so many images should have."""
        found, multiprocessors = made(self.record, self.shape), self.shape.device.multiprocessors
        return [for_images(self.record, s, self.shape.images, multiprocessors) for s in found]

    def near(self, start: WindowSchedule) -> Iterator[WindowSchedule]:
        return in_ranges(start)

    def times(self, found: Sequence[WindowSchedule], counts: Sequence[int]) -> Array:
        return compared(quantities(self.shape, found, counts), len(found))


def in_ranges(s: WindowSchedule) -> Iterator[WindowSchedule]:
    """A schedule, and where ranges share an image those with more and fewer of them."""
    yield s
    for ranges in (*RANGES, s.ranges - 1, s.ranges + 1) if FORMS[s.form].ranged else ():
        if 0 < ranges <= s.steps:
            yield ranged(s, ranges)
