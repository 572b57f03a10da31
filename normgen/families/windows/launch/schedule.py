"""What a schedule of the windows family is, which operands it is about, and how images are divided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from normgen.launching.call import Call
from normgen.launching.facts import VECTORS
from normgen.launching.knobs import estimate, knob
from normgen.launching.machine import WARP, Machine
from normgen.package.kernels import WindowsRecord

MOST_REGISTERS = 200  # per thread, as estimated: with more, too few threads are resident
RANGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # that may share the steps of an image


@dataclass(frozen=True, slots=True)
class WindowSchedule:
    """How one kernel runs. A form leaves what it does not have as it is here."""

    form: str = knob()
    vector: int = knob(bits=False, values=VECTORS)  # elements per access
    threads: int = knob(bits=False, values=range(WARP, 1025, WARP))  # per block
    reason: str = estimate("")
    halo: int = knob(0, bits=False)  # neighbours on either side that are read with the elements of a thread
    lanes: int = knob(1, bits=False)  # threads side by side along an image, or pixels of its plane
    # elements that neighbours lie further along at each step of a march
    drift: int = knob(0, bits=False, values=range(-8, 9))
    team: int = knob(1, bits=False)  # lanes of a warp that exchange neighbours
    ghosts: int = knob(0, bits=False)  # lanes at either end of a thread group without results
    slots: int = knob(1, bits=False)  # steps of a march that are under way, unrolled
    ahead: int = knob(0, bits=False)  # steps that operands are fetched ahead
    shared: int = knob(0, bits=False)  # bytes of shared memory per block
    blocks: int = knob(1, bits=False)  # resident per multiprocessor
    steps: int = knob(1, bits=False)  # of an image: lanes * vector elements each, or a channel of every pixel
    ranges: int = knob(1, bits=False)  # that share the steps of an image
    length: int = knob(1, bits=False)  # steps per range
    registers: int = estimate(0)  # per thread
    chunk: int = knob(1, bits=False)  # channels that a thread asks for at a time


class Sizes(NamedTuple):
    """What a form makes a schedule from."""

    vector: int
    threads: int  # per block
    chunk: int = 1


# ------------------------------------------------------------------------------------------------ images


def images_of(record: WindowsRecord, call: Call) -> int:
    """How many images there are; one where there is none to speak of."""
    return call.size(record.axes) // call.size(record.image) if record.image else 1


def beyond(record: WindowsRecord) -> int:
    """Steps that each range takes beside its own: what the windows of all levels reach."""
    return sum(high - low for low, high in record.reaches)


def room(device: Machine, s: WindowSchedule, most_warps: int) -> int:
    """Blocks that a multiprocessor has registers for."""
    return max(1, min(most_warps, device.warps(s.registers)) * WARP // s.threads)


def with_blocks(device: Machine, s: WindowSchedule, most: int) -> WindowSchedule:
    """The schedule with the blocks that a multiprocessor has shared memory for."""
    return replace(s, blocks=max(1, min(most, device.blocks(s.shared))))


def divided(record: WindowsRecord, s: WindowSchedule, threads: int, multiprocessors: int) -> WindowSchedule:
    """The schedule with its steps divided among ranges. `threads`: those of all images, undivided.

    Each range takes more steps than are its own, in whole chunks. But the last threads to finish, which leave
    the rest of the device idle, are done sooner.
    """
    extra, resident = beyond(record), s.blocks * s.threads * multiprocessors

    def cost(ranges: int) -> float:
        each = -(-(-(-s.steps // ranges) + extra) // s.chunk) * s.chunk
        return (max(1.0, threads * ranges / resident) + 0.25) * each

    most = max(1, s.steps // max(4, extra))
    return ranged(s, min((each for each in RANGES if each <= most), key=cost))


def ranged(s: WindowSchedule, ranges: int) -> WindowSchedule:
    """The schedule with its steps divided among so many ranges, or fewer that are as long."""
    length = -(-s.steps // ranges)
    return replace(s, length=length, ranges=-(-s.steps // length))


def among(s: WindowSchedule) -> str:
    """How steps are divided, in a few words."""
    return f" in {s.ranges} ranges" if s.ranges > 1 else ""
