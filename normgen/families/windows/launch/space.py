"""The forms of the windows family, and the schedules of each that a call allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from normgen.counting import counted
from normgen.families.windows.launch import march, pixels
from normgen.families.windows.launch.schedule import Sizes, WindowSchedule, divided, ranged
from normgen.families.windows.launch.shape import WindowShape
from normgen.launching.facts import power_of_two
from normgen.launching.knobs import settled
from normgen.launching.support import Support
from normgen.package.kernels import WindowsRecord

_BLOCKS = (64, 128, 256, 512)  # threads per block, of spans and of direct looks
_WIDEST_SPAN = 64  # elements that a thread reads of an operand


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the kernels of this family, as it is launched."""

    # The schedule of such sizes, if there is one.
    made: Callable[[WindowsRecord, WindowShape, Sizes], WindowSchedule | None]
    sizes: Callable[[WindowShape], Iterable[Sizes]]  # those that it may have
    each: Callable[[WindowSchedule], str]  # what a thread has at a time, in a few words
    threads: Callable[[WindowSchedule, int], int] = lambda s, images: images * s.lanes  # of all images
    strips: Callable[[WindowSchedule], int] = lambda s: s.lanes  # parts of an image
    beyond: Callable[[WindowsRecord, WindowSchedule], int] = lambda record, s: 0  # elements past its end
    whole: bool = True  # whether images must lie in one piece
    ranged: bool = False  # whether ranges share the steps of an image
    tells_threads: bool = False  # whether a few words about it tell the threads of a block


def made(record: WindowsRecord, shape: WindowShape) -> list[WindowSchedule]:
    """The schedules of every form that a call allows, in one range each."""
    forms = [FORMS[form.form] for form in record.forms]
    sizes = ((form, each) for form in forms if shape.whole or not form.whole for each in form.sizes(shape))
    found = (form.made(record, shape, each) for form, each in dict.fromkeys(sizes))
    return [s for s in found if s is not None]


def for_images(record: WindowsRecord, s: WindowSchedule, images: int, multiprocessors: int) -> WindowSchedule:
    """A schedule with the ranges that so many images should have."""
    form = FORMS[s.form]
    threads = form.threads(ranged(s, 1), images)
    return divided(record, s, threads, multiprocessors) if form.ranged else s


def settle(record: WindowsRecord, shape: WindowShape, s: WindowSchedule) -> WindowSchedule | Support:
    """A schedule with what is estimated of it, or why none of a kernel in a call is so. Ranges may be as many
    as there are steps."""
    if s.form not in FORMS or all(s.form != each.form for each in record.forms):
        return Support(False, f"{record.name} has no form {s.form}")
    form, sizes = FORMS[s.form], Sizes(s.vector, s.threads, s.chunk)
    if form.whole and not shape.whole:
        return Support(False, "images are not contiguous")
    found = form.made(record, shape, sizes) if sizes in form.sizes(shape) else None
    if found is None:
        return Support(False, f"{s.form}, {form.each(s)}, {counted(s.threads, 'thread')}, does not fit")
    if form.ranged and 0 < s.ranges <= found.steps:
        found = ranged(found, s.ranges)
    return settled(s, found)


# ------------------------------------------------------------------------------------------------ forms


def _sizes(shape: WindowShape) -> Iterator[Sizes]:
    return (Sizes(vector, threads) for vector, threads in product(shape.vectors, _BLOCKS))


def _direct_sizes(shape: WindowShape) -> Iterator[Sizes]:
    return (Sizes(shape.looked, threads) for threads in _BLOCKS)


def _direct(record: WindowsRecord, shape: WindowShape, sizes: Sizes) -> WindowSchedule:
    lanes = -(-shape.images * shape.image // sizes.vector)
    return WindowSchedule("direct", sizes.vector, sizes.threads, "every neighbor is read", lanes=lanes)


def _span(record: WindowsRecord, shape: WindowShape, sizes: Sizes) -> WindowSchedule | None:
    reach, vector = march.reach_of(record), sizes.vector
    # in pieces that are aligned
    halo = -(-reach // vector) * vector if reach > vector else reach and power_of_two(reach)
    if vector + 2 * halo > _WIDEST_SPAN:
        return None
    reason = f"{counted(halo, 'neighbor')} on either side are read with {counted(vector, 'element')}"
    lanes = shape.size // vector
    return WindowSchedule("span", vector, sizes.threads, reason, halo, lanes=lanes)


def _access(s: WindowSchedule) -> str:
    return f"{counted(s.vector, 'element')} per access"


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "march": Form(march.made, march.sizes, _access, march.threads, march.strips, ranged=True),
        "pixels": Form(
            pixels.made,
            pixels.sizes,
            lambda s: f"{counted(s.chunk, 'channel')} at a time",
            pixels.threads,
            pixels.strips,
            pixels.past_the_end,
            ranged=True,
            tells_threads=True,
        ),
        "span": Form(_span, _sizes, _access),
        "direct": Form(_direct, _direct_sizes, _access, lambda s, images: s.lanes, whole=False),
    }
)
