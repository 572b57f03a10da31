"""Windows: schedules of a call, what they cost, and their launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from types import MappingProxyType

from normgen.counting import counted
from normgen.families.windows.launch.pixels import PART
from normgen.families.windows.launch.quantities import WindowsSpace, quantities
from normgen.families.windows.launch.schedule import WindowSchedule, among, images_of
from normgen.families.windows.launch.shape import shape_of
from normgen.families.windows.launch.space import FORMS, made, settle
from normgen.launching.call import INT_LIMIT, Call, once
from normgen.launching.family import LaunchFamily, Lines, Lowered
from normgen.launching.knobs import distinct
from normgen.launching.pick import bucket_of, pick
from normgen.launching.quantities import Array
from normgen.launching.support import Support
from normgen.launching.table import key_of
from normgen.package.kernels import WindowsRecord

# Fields of a shape that keys of tables leave out: what schedules there are, not what they take.
_OF_SPACE = ("size", "plane", "vector", "looked", "read_sizes", "write_sizes", "whole")


class Windows(LaunchFamily[WindowsRecord, WindowSchedule]):
    """The launch half of the windows family."""

    schedule = WindowSchedule
    uses = MappingProxyType(
        {
            "span": "windows along the innermost axis: a vector and its neighbors",
            "march": "a thread walks along the windowed axis of an image",
            "pixels": "a thread walks along the channels of a pixel",
            "direct": "any strides: a thread reads neighbors from memory",
        }
    )

    def space(self, kernel: WindowsRecord, call: Call) -> Iterator[WindowSchedule]:
        return distinct(every(kernel, call))

    def of_form(self, kernel: WindowsRecord, call: Call, form: str) -> Iterator[WindowSchedule]:
        return (each for each in made(kernel, shape_of(kernel, call)) if each.form == form)

    def settle(self, kernel: WindowsRecord, call: Call, schedule: WindowSchedule) -> WindowSchedule | Support:
        return settle(kernel, shape_of(kernel, call), schedule)

    def quantities(
        self, kernel: WindowsRecord, call: Call, schedules: Sequence[WindowSchedule]
    ) -> Mapping[str, Array]:
        shape = shape_of(kernel, call)
        return quantities(shape, schedules, (shape.images,))

    def measured_as(self, kernel: WindowsRecord, call: Call) -> tuple[str, int]:
        shape = shape_of(kernel, call)
        return key_of(shape, "device", "images", *_OF_SPACE), shape.images

    def moved(self, kernel: WindowsRecord, call: Call, schedule: WindowSchedule) -> Mapping[str, int]:
        return {o.tensor: call.bytes_of(o.tensor) for o in call.touched(kernel.reads, kernel.writes)}

    def lower(self, kernel: WindowsRecord, call: Call, schedule: WindowSchedule) -> Lowered:
        s, form = schedule, FORMS[schedule.form]
        text = next(f for f in kernel.forms if f.form == s.form)
        elements, images = call.size(kernel.axes), images_of(kernel, call)
        threads = form.threads(s, images)
        counts = {
            "elements": elements, "images": images, "lanes": s.lanes, "strips": form.strips(s),
            "ranges": s.ranges, "steps": s.steps, "length": s.length, "size": call.size(kernel.image),
            "channels": s.steps,
        }  # fmt: skip
        constants = {
            "VEC": s.vector, "HALO": s.halo, "DRIFT": s.drift, "TEAM": s.team, "GHOSTS": s.ghosts,
            "CHUNK": s.chunk, "PART": PART, "PLANE": s.lanes if form.whole else 0, "SLOTS": s.slots,
            "AHEAD": s.ahead, "THREADS": s.threads, "MIN_BLOCKS": s.blocks,
        }  # fmt: skip
        beyond = (s.slots * s.lanes + s.threads) * s.vector + form.beyond(kernel, s)
        furthest = max(call.reach(), elements, threads, prod((s.ranges, s.length, s.lanes, s.vector)))
        wide = furthest + 2 * beyond >= INT_LIMIT
        launch = call.launch(
            text,
            -(-threads // s.threads),
            s.threads,
            constants,
            reads=kernel.reads,
            writes=kernel.writes,
            own={("count", name): value for name, value in counts.items()},
            wide=wide,
            shared=s.shared,
        )
        return Lowered((launch,))

    def describe(self, kernel: WindowsRecord, call: Call, schedule: WindowSchedule) -> str:
        form = FORMS[schedule.form]
        threads = f", {schedule.threads} threads" if form.tells_threads else ""
        ranges = f", {counted(schedule.ranges, 'range')}" if form.ranged else ""
        return f"{schedule.form}, {form.each(schedule)}{threads}{ranges}"

    def explain(self, kernel: WindowsRecord, call: Call, schedule: WindowSchedule) -> Lines:
        s, each = schedule, FORMS[schedule.form].each(schedule)
        along, axes = ", ".join(kernel.windowed), ", ".join(kernel.axes)
        levels = "" if len(kernel.sums) == 1 else f", {len(kernel.sums)} levels of them"
        registers = f", about {s.registers} registers per thread" if s.registers else ""
        return (
            f"kernel {kernel.name}: windows along [{along}] of [{axes}]{levels}",
            f"  {s.form}: {each}, {s.threads} threads per block{registers}",
            f"    because {s.reason}{among(s)}",
        )


FAMILY = Windows()


@once
def choose(kernel: WindowsRecord, call: Call) -> WindowSchedule:
    """The schedule that a kernel takes by itself."""
    shape = shape_of(kernel, call)
    near = replace(shape, images=bucket_of(shape.images))
    s = pick(FAMILY, kernel, call, WindowsSpace(kernel, near), shape.images)
    assert s is not None, "any images have a direct kernel"
    return s if FORMS[s.form].whole else replace(s, lanes=-(-shape.images * shape.image // s.vector))


def every(kernel: WindowsRecord, call: Call) -> Iterator[WindowSchedule]:
    """Every schedule that a call allows, some twice: the one that is taken first."""
    yield choose(kernel, call)
    shape = shape_of(kernel, call)
    space = WindowsSpace(kernel, shape)
    yield from chain.from_iterable(map(space.near, space.starts()))
