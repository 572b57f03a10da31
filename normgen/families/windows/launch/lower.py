"""Launches of the windows family: the form, the vectors, the steps of a march, and who takes which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from normgen.families.windows.launch.space import PART, Schedule, march_threads, schedules, strips, touched
from normgen.launching.call import INT_LIMIT, WORD, Call, once
from normgen.launching.family import Cost, LaunchFamily, Lines, Lowered
from normgen.launching.knobs import distinct
from normgen.launching.launch import Launch
from normgen.package.kernels import WindowsRecord

_RANGED = ("march", "pixels")  # forms that divide an image
_MANY = 1024  # images
_WIDTH_EFFICIENCY = {16: 1.0, 8: 0.9, 4: 0.8, 2: 0.6, 1: 0.4}
_FORM_EFFICIENCY = {"pixels": 0.8, "march": 0.8, "span": 0.9, "direct": 0.4}
_NARROW = {16: 0.0, 8: 0.05, 4: 0.12, 2: 0.3, 1: 0.6}  # what accesses of so many bytes cost
_DRIFTING = 0.1  # what it costs a march to ask other lanes for neighbours
_NOT_MEASURED = 1.0  # of pixels: every march comes first
_MOVED = 6  # bytes of a pixel, at least
_FULL = 1.1  # threads for a pixel, at most, where blocks are full of them


class Windows(LaunchFamily[WindowsRecord, Schedule]):
    """The launch half of the windows family."""

    def space(self, kernel: WindowsRecord, call: Call) -> Iterator[Schedule]:
        """Every schedule for a kernel in a call, that of the least cost first; marches and pixels also in
        more and fewer ranges."""
        return distinct(_space(kernel, call))

    def cost(self, kernel: WindowsRecord, call: Call, schedule: Schedule) -> Cost:
        tensors = touched(kernel, call)
        narrowest = min(map(call.itemsize, tensors))
        # neighbouring pixels are one access
        width = WORD if schedule.form == "pixels" else min(WORD, schedule.vector * narrowest)
        speed = _WIDTH_EFFICIENCY[width] * _FORM_EFFICIENCY[schedule.form]
        least = 1 + _cost(kernel, call, choose(kernel, call))
        merit = least / (1 + _cost(kernel, call, schedule))
        return Cost({o.tensor: call.bytes_of(o.tensor) for o in tensors}, speed, merit)

    def lower(self, kernel: WindowsRecord, call: Call, schedule: Schedule) -> Lowered:
        return Lowered((_launch(kernel, call, schedule),))

    def describe(self, kernel: WindowsRecord, call: Call, schedule: Schedule) -> str:
        threads = f", {schedule.threads} threads" if schedule.form == "pixels" else ""
        ranges = f", {schedule.ranges} ranges" if schedule.form in _RANGED else ""
        return f"{schedule.form}, {_each(schedule)}{threads}{ranges}"

    def explain(self, kernel: WindowsRecord, call: Call, schedule: Schedule) -> Lines:
        return tuple(_describe(kernel, schedule))


@once
def choose(record: WindowsRecord, call: Call) -> Schedule:
    """The schedule with the least estimated cost."""
    return min(schedules(record, call), key=lambda s: _cost(record, call, s))


def _space(record: WindowsRecord, call: Call) -> Iterator[Schedule]:
    yield choose(record, call)
    for s in sorted(schedules(record, call), key=lambda s: _cost(record, call, s)):
        yield from (s, *_other_ranges(s))


def _other_ranges(s: Schedule) -> Iterator[Schedule]:
    for ranges in (1, s.ranges - 1, s.ranges + 1, 2 * s.ranges, 4 * s.ranges):
        if s.form in _RANGED and 0 < ranges <= s.steps:
            length = -(-s.steps // ranges)
            ranges = -(-s.steps // length)
            yield replace(s, length=length, ranges=ranges, reason=f"{s.reason}, cut into {ranges} instead")


def _each(s: Schedule) -> str:
    return f"{s.chunk} channels at a time" if s.form == "pixels" else f"{s.vector} elements an access"


def _cost(record: WindowsRecord, call: Call, s: Schedule) -> float:
    """A rough measure to compare schedules by: narrow accesses, what is computed for neighbours again or for
    nobody, and what neighbours hand to one another. It does not depend on how many images there are, since
    pixels add up in another order than the other forms."""
    weight = 0.4 if record.functions else 0.1  # of computing all of it once more
    width = _NARROW[min(WORD, s.vector * min(map(call.itemsize, touched(record, call))))]
    match s.form:
        case "direct":
            return 10.0
        case "pixels":
            return 1 - s.lanes / (strips(s) * s.threads) + (0.0 if _pays(record, call, s) else _NOT_MEASURED)
        case "span":
            return width + weight * 2 * s.halo / s.vector
        case _:
            again = march_threads(s, _MANY) / (_MANY * s.lanes) - 1
            return width + weight * again + (_DRIFTING if s.drift else 0.0)


def _pays(record: WindowsRecord, call: Call, s: Schedule) -> bool:
    """Whether pixels gain over a march that drifts: enough bytes of each are moved, and planes fill blocks.
    On an H200 local response norms of (128, 96, 55, 55) and (128, 256, 27, 27) take, in us, and a march in
    brackets, with 4 bytes a pixel (bf16 forward) 56 (52) and 38 (38), 6 (backward) 84 (96) and 58 (66), 8
    (f32 forward) 82 (94) and 54 (74), 12 (backward) 119 (153) and 80 (100). Where sums are saved: bf16
    forward 91 (97) and 60 (70), backward 131 (142) and 79 (73), f32 126 (137) and 81 (146), 147 (222) and
    103 (146)."""
    moved = sum(call.itemsize(o) for o in touched(record, call) if o.inner)
    return moved >= _MOVED and strips(s) * s.threads <= _FULL * s.lanes


def _describe(record: WindowsRecord, s: Schedule) -> list[str]:
    levels = "" if len(record.sums) == 1 else f", {len(record.sums)} levels of them"
    registers = f", about {s.registers} registers a thread" if s.registers else ""
    return [
        f"kernel {record.name}: windows along [{', '.join(record.windowed)}] of "
        f"[{', '.join(record.axes)}]{levels}",
        f"  {s.form}: {_each(s)}, {s.threads} threads a block{registers}",
        f"    because {s.reason}",
    ]


# ------------------------------------------------------------------------------------------------ launch


def _launch(record: WindowsRecord, call: Call, s: Schedule) -> Launch:
    form = next(f for f in record.forms if f.form == s.form)
    size = call.size(record.image)
    elements = call.size(record.axes)
    images = elements // size if record.image else 1
    counts = {
        "elements": elements, "images": images, "lanes": s.lanes, "strips": strips(s), "ranges": s.ranges,
        "steps": s.steps, "length": s.length, "size": size, "channels": s.steps,
    }  # fmt: skip
    threads = {
        "direct": s.lanes,
        "span": images * s.lanes,
        "march": march_threads(s, images, s.ranges),
        "pixels": images * s.ranges * strips(s) * s.threads,
    }[s.form]
    beyond = s.slots * s.lanes * s.vector + s.threads * s.vector
    beyond += (
        (s.chunk + sum(high - low for low, high in record.reaches)) * s.lanes if s.form == "pixels" else 0
    )
    furthest = max(call.reach(), elements, threads, prod((s.ranges, s.length, s.lanes, s.vector)))
    wide = furthest + 2 * beyond >= INT_LIMIT
    preamble = call.preamble(
        form,
        f"{s.form}: {s.reason}",
        record.reads,
        record.writes,
        wide=wide,
        knobs={
            "VEC": s.vector, "HALO": s.halo, "DRIFT": s.drift, "TEAM": s.team, "GHOSTS": s.ghosts,
            "CHUNK": s.chunk, "PART": PART, "PLANE": s.lanes, "SLOTS": s.slots, "AHEAD": s.ahead,
            "THREADS": s.threads, "MIN_BLOCKS": s.blocks,
        },
    )  # fmt: skip
    return call.launch(
        form,
        preamble,
        -(-threads // s.threads),
        s.threads,
        shared=s.shared,
        own={("count", name): value for name, value in counts.items()},
        wide=wide,
        reads=[o.tensor for o in record.reads],
        writes=[o.tensor for o in record.writes],
    )
