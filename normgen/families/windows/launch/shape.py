"""A kernel of the windows family in one call, as far as the choice of its schedule depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from normgen.families.windows.launch.schedule import beyond, images_of
from normgen.launching.call import Call, once
from normgen.launching.machine import Machine
from normgen.package.kernels import WindowsRecord


@dataclass(frozen=True, slots=True)
class WindowShape:
    """What the choice of a schedule depends on, in elements unless stated."""

    device: Machine
    images: int
    image: int  # of an image
    channels: int  # along which windows run, and threads walk
    reads: int  # bytes per element, over operands that have one for each place of an image
    writes: int  # bytes per element
    operands: int  # that are read so
    narrowest: int  # bytes
    params: int  # operands without an element for each place
    neighbours: int  # that an element looks at where it looks at each, itself included
    beyond: int  # steps that a range takes beside its own
    across: int  # elements that windows reach along the rows of an image, to either side
    levels: int  # of windows of sums of windows
    sums: int  # of all levels
    early: int  # parts of results that wait for the last sums
    functions: bool  # whether what is summed takes roots, powers or the like
    # Of the schedules that there are, not of what they take:
    size: int  # along the axes of an image; 1 where there is none to speak of
    plane: int  # of an image, in one step along its first axis
    vector: int  # of the widest access to what has an element for each place
    looked: int  # of the widest access to what lies along the innermost axis
    read_sizes: tuple[int, ...]  # bytes, of each operand that has an element for each place
    write_sizes: tuple[int, ...]  # bytes, of each result
    whole: bool  # whether images lie in one piece

    @property
    def vectors(self) -> list[int]:
        """The vectors, widest first, in which images can be moved."""
        return [self.vector >> n for n in range(self.vector.bit_length())]


@once
def shape_of(record: WindowsRecord, call: Call) -> WindowShape:
    """The plain numbers of a kernel in a call."""
    touched = call.touched(record.reads, record.writes)
    images, places = images_of(record, call), [o for o in touched if o.inner]
    reads, writes = call.read(record.reads), call.present(record.writes)
    reaches = zip(record.reaches, record.across, strict=True)
    return WindowShape(
        device=call.device,
        images=images,
        image=call.size(record.axes) // images,
        channels=call.extents[(record.image or record.windowed)[0]],
        reads=sum(call.itemsize(o) for o in reads if o in places),
        writes=sum(map(call.itemsize, writes)),
        operands=sum(o in places for o in reads),
        narrowest=min(map(call.itemsize, touched)),
        params=sum(o not in places for o in reads),
        neighbours=prod((high - low + 1) * (2 * across + 1) for (low, high), across in reaches),
        beyond=beyond(record),
        across=sum(record.across),
        levels=len(record.sums),
        sums=sum(record.sums),
        early=record.early,
        functions=record.functions,
        size=call.size(record.image),
        plane=call.size(record.image[1:]),
        vector=call.vector_width(places, call.size(record.image)),
        looked=_looked(record, call),
        read_sizes=tuple(call.itemsize(o) for o in reads if o.inner),
        write_sizes=tuple(map(call.itemsize, writes)),
        whole=all(map(call.contiguous, places)),
    )


def _looked(record: WindowsRecord, call: Call) -> int:
    inner = record.axes[-1]
    touched = call.touched(record.reads, record.writes)
    along = [o for o in touched if dict(call.operands[o.tensor].strides).get(inner, 0) == 1]
    return 1 if inner in record.windowed else call.vector_width(along, call.extents[inner])
