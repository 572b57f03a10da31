"""Schedules of the windows family that a call allows: form, vectors, and of a march who walks where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from normgen.launching.call import INT_LIMIT, WORD, Call
from normgen.launching.knobs import estimate, knob
from normgen.launching.machine import WARP
from normgen.package.kernels import WindowsRecord
from normgen.package.operands import OperandRecord

_THREADS = 64
_DIRECT_THREADS = 256
# Of all operands, that a multiprocessor should have on their way, and in how many steps.
_BYTES_AHEAD = 49152
_LEAST_AHEAD, _MOST_AHEAD = 3, 6
_COPIED = 4  # bytes that the hardware copies into shared memory at least
_FEWEST_USEFUL = 8  # lanes of a warp beside those that are there for their neighbours only
_MOST_WARPS = 24  # of a multiprocessor; more would have too few registers
_MOST_PIXEL_WARPS = 48
_MORE_REGISTERS = 12  # that a hungry compiler takes beside, of pixels
_REGISTERS = 200  # of a thread, as estimated: with more, too few threads are resident
_MOST_SLOTS = 24  # steps that are unrolled
_WIDEST_SPAN = 64
# Threads of a block and channels of a chunk of pixels, the fastest first: on an H200, of fifteen pairs by
# hand for (128, 96, 55, 55) in bf16 and f32, with windows of windows and without. The last is for wide
# windows. More warps than 48 were no faster.
PART = 4  # channels of a chunk that a thread works on together: with more it takes more registers
_NESTED_CHUNKS = ((256, 8), (192, 12), (128, 8), (256, 4))
_CHUNKS = ((192, 12), (256, 8), (128, 8), (256, 4))


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one kernel runs. `vector`: elements of an access; `halo`: neighbours that are read with them.

    Of pixels: `lanes` of them take `steps` channels, `chunk` at a time, divided among `ranges` of `length`.
    `blocks` fit a multiprocessor, of `shared` bytes each.

    Of a march: `lanes` threads side by side take `steps` steps of lanes * vector elements, divided among
    `ranges` of `length`; neighbours `drift` elements further along from step to step. A `team` of lanes of a
    warp exchanges neighbours, and has `ghosts` at either end that have no results of their own. `slots` steps
    are under way, of which operands are fetched `ahead`, and take `shared` bytes of a block; `blocks` fit a
    multiprocessor. `registers` is an estimate.
    """

    form: str
    vector: int
    threads: int
    reason: str = estimate()
    halo: int = 0
    lanes: int = 1
    drift: int = 0
    team: int = 1
    ghosts: int = 0
    slots: int = 1
    ahead: int = 0
    shared: int = 0
    blocks: int = 1
    steps: int = 1
    ranges: int = knob(1, fine=True)
    length: int = knob(1, fine=True)
    registers: int = estimate(0)
    chunk: int = 1


def schedules(record: WindowsRecord, call: Call) -> list[Schedule]:
    """Every schedule that a call allows, those with the widest vectors first."""
    forms = {form.form for form in record.forms}
    found: list[Schedule] = []
    if forms - {"direct"} and _in_one_piece(record, call):
        found += _marches(record, call) if "march" in forms else ()
        found += _pixels(record, call) if "pixels" in forms else ()
        found += _spans(record, call) if "span" in forms else ()
    return [*found, _direct(record, call)]


# ------------------------------------------------------------------------------------------------ operands


def touched(record: WindowsRecord, call: Call) -> list[OperandRecord]:
    """What the kernel reads and writes in this call."""
    return [*call.read(record.reads), *call.present(record.writes)]


def _wide(record: WindowsRecord, call: Call) -> list[OperandRecord]:
    """Those of them with an element for each place of an image."""
    return [o for o in touched(record, call) if o.inner]


def _in_one_piece(record: WindowsRecord, call: Call) -> bool:
    """Whether the images of all operands are contiguous."""
    for o in _wide(record, call):
        step, strides = 1, dict(call.operands[o.tensor].strides)
        for axis in reversed(record.image):
            if call.extents[axis] > 1 and strides[axis] != step:
                return False
            step *= call.extents[axis]
    return True


def _vectors(record: WindowsRecord, call: Call, size: int) -> Iterator[int]:
    """The vectors, widest first, that images of `size` elements can be moved in."""
    wide = _wide(record, call)
    vector = WORD // min(map(call.itemsize, wide))
    while vector:
        if size % vector == 0 and all(_aligned(o, call, vector) for o in wide):
            yield vector
        vector //= 2


def _aligned(o: OperandRecord, call: Call, vector: int) -> bool:
    operand, itemsize = call.operands[o.tensor], call.itemsize(o)
    word = min(WORD, vector * itemsize)
    strides = dict(operand.strides)
    steps = (strides[axis] * itemsize for axis in o.kept if call.extents[axis] > 1)
    return operand.alignment % word == 0 and all(step % word == 0 for step in steps)


def _halo(reach: int, vector: int) -> int:
    """How many neighbours to read on either side for `reach` of them: in pieces that are aligned."""
    if reach > vector:
        return -(-reach // vector) * vector
    return 1 << (reach - 1).bit_length() if reach else 0


# ------------------------------------------------------------------------------------------------ forms


def _direct(record: WindowsRecord, call: Call) -> Schedule:
    inner = record.axes[-1]
    along = [o for o in touched(record, call) if dict(call.operands[o.tensor].strides).get(inner, 0) == 1]
    vector = 1 if inner in record.windowed else call.vector_width(along, call.extents[inner])
    lanes = -(-call.size(record.axes) // vector)
    return Schedule("direct", vector, _DIRECT_THREADS, "every neighbour is looked at", lanes=lanes)


def _spans(record: WindowsRecord, call: Call) -> Iterator[Schedule]:
    size = call.size(record.image)
    reach = _reach(record)
    for vector in _vectors(record, call, size):
        halo = _halo(reach, vector)
        if vector + 2 * halo <= _WIDEST_SPAN:
            reason = f"{halo} neighbours on either side are read with {vector} elements"
            yield Schedule("span", vector, _DIRECT_THREADS, reason, halo, lanes=size // vector)


# ------------------------------------------------------------------------------------------------ marches


def _marches(record: WindowsRecord, call: Call) -> Iterator[Schedule]:
    """Marches with few enough registers, those with the widest accesses first."""
    size = call.size(record.image)
    plane = call.size(record.image[1:])
    for vector in _vectors(record, call, size):
        lanes = (plane + vector // 2) // vector
        drift = plane - lanes * vector
        ghosts = -(-(abs(drift) * _reach(record) + sum(record.across)) // vector)
        rows = not any(record.across) or plane % vector == 0
        if lanes and rows and WARP - 2 * ghosts >= _FEWEST_USEFUL:
            team = min(WARP, lanes + 2 * ghosts) if ghosts else 1
            across = Schedule("march", vector, _THREADS, "", 0, lanes, drift, team, ghosts)
            schedule = _march(record, call, across)
            if _fits(schedule, call):
                yield schedule


def _reach(record: WindowsRecord) -> int:
    """How many steps the windows of all levels reach between them."""
    return sum(max(-low, high) for low, high in record.reaches)


def _fits(s: Schedule, call: Call) -> bool:
    room = s.shared <= call.device.shared_per_block
    return room and s.registers <= _REGISTERS and s.slots <= _MOST_SLOTS


def _march(record: WindowsRecord, call: Call, schedule: Schedule) -> Schedule:
    """A march of which it is known how its threads lie beside each other."""
    lead, lag = -sum(low for low, _ in record.reaches), sum(high for _, high in record.reaches)
    itemsizes = [call.itemsize(o) for o in call.read(record.reads) if o.inner]
    vector, lanes = schedule.vector, schedule.lanes
    schedule = replace(schedule, registers=_registers(record, schedule, itemsizes))
    schedule = _with_ring(record, call, schedule, itemsizes)
    steps = -(-call.size(record.image) // (lanes * vector))
    images = call.size(record.axes) // call.size(record.image)
    resident = schedule.blocks * schedule.threads * call.multiprocessors
    length = -(-steps // _ranges(march_threads(schedule, images), steps, lead + lag, resident))
    ranges = -(-steps // length)
    among = f" in {ranges} ranges" if ranges > 1 else ""
    along = f", drifting by {schedule.drift}" if schedule.drift else ""
    reason = f"images take {steps} steps of {lanes} lanes{among}{along}"
    return replace(schedule, steps=steps, ranges=ranges, length=length, reason=reason)


def _with_ring(record: WindowsRecord, call: Call, s: Schedule, itemsizes: list[int]) -> Schedule:
    """The steps ahead that keep enough bytes on their way, and what a multiprocessor then has room for."""
    lag = sum(high for _, high in record.reaches)
    room = max(1, min(_MOST_WARPS, call.device.warps(s.registers)) * WARP // s.threads)
    each = s.vector * sum(itemsizes)
    wanted = -(-_BYTES_AHEAD // max(1, room * s.threads * each))
    ahead = max(_LEAST_AHEAD, min(_MOST_AHEAD, wanted))
    waiting = record.reaches[-1][1] + 1 if record.early else 1
    slots = -(-max(ahead + lag + 1, *_depths(record)) // waiting) * waiting
    ahead = slots - lag - 1
    copied = sum(s.vector * itemsize for itemsize in itemsizes if s.vector * itemsize >= _COPIED)
    shared = s.threads * (slots * copied + waiting * record.early * s.vector * 4)
    blocks = min(room, call.device.blocks(shared))
    return replace(s, ahead=ahead, slots=slots, shared=shared, blocks=max(1, blocks))


def strips(s: Schedule) -> int:
    """How many teams, or blocks of pixels, the lanes of an image take."""
    if s.form == "pixels":
        return -(-s.lanes // s.threads)
    return -(-s.lanes // (s.team - 2 * s.ghosts))


def march_threads(s: Schedule, images: int, ranges: int = 1) -> int:
    """Threads of a march, whole warps."""
    return -(-images * ranges * strips(s) // (WARP // s.team)) * WARP


def _depths(record: WindowsRecord) -> list[int]:
    """How many sums of each level are under way: from one that begins to that whose results are stored."""
    after = [sum(high for _, high in record.reaches[k:]) for k in range(len(record.reaches))]
    return [lag - low + 1 for lag, (low, _) in zip(after, record.reaches, strict=True)]


def _registers(record: WindowsRecord, s: Schedule, itemsizes: list[int]) -> int:
    """Registers a thread: fitted from above to what nvcc reports for kernels of one to three operands."""
    # what waits in shared memory for the last sums takes the place of earlier ones
    depths = [high - low + 1 for low, high in record.reaches] if record.early else _depths(record)
    sums = sum(n * depth for n, depth in zip(record.sums, depths, strict=True))
    passing = max(len(record.reaches), len(itemsizes)) + 0.25
    kept = sum(_MOST_AHEAD + 3 for itemsize in itemsizes if s.vector * itemsize < _COPIED)
    own = 30 + 4 * (len(record.writes) - 1) + (0 if s.ghosts else 4)
    return ceil((own + kept + s.vector * (sums + passing)) / 8) * 8


def _ranges(threads: int, steps: int, beyond: int, resident: int, chunk: int = 1) -> int:
    """Into how many ranges to divide the steps, of which a thread takes whole chunks: each takes `beyond`
    steps more than are its own, but the last threads to finish, which leave the rest of the device idle, are
    done sooner."""

    def cost(ranges: int) -> float:
        each = -(-(-(-steps // ranges) + beyond) // chunk) * chunk
        return (max(1.0, threads * ranges / resident) + 0.25) * each

    most = max(1, steps // max(4, beyond))
    return min(range(1, min(most, 64) + 1), key=cost)


# ------------------------------------------------------------------------------------------------ pixels


def _pixels(record: WindowsRecord, call: Call) -> Iterator[Schedule]:
    """Walks from channel to channel with few enough registers, those that should be fastest first."""
    channels, plane = call.extents[record.image[0]], call.size(record.image[1:])
    images = call.size(record.axes) // call.size(record.image)
    beyond = sum(high - low for low, high in record.reaches)
    if plane >= INT_LIMIT:
        return
    for threads, chunk in _NESTED_CHUNKS if len(record.sums) > 1 else _CHUNKS:
        threads = min(threads, -(-plane // WARP) * WARP)
        s = Schedule("pixels", 1, threads, "", lanes=plane, steps=channels, chunk=chunk)
        s = replace(s, registers=_pixel_registers(record, call, s), shared=_rows(record, call, s))
        if s.registers > _REGISTERS or s.shared > call.device.shared_per_block:
            continue
        blocks = _room(call, s)
        taken = images * strips(s) * threads
        resident = blocks * threads * call.multiprocessors
        length = -(-channels // _ranges(taken, channels, beyond, resident, chunk))
        ranges = -(-channels // length)
        among = f" in {ranges} ranges" if ranges > 1 else ""
        reason = f"a thread walks along {channels} channels of its pixel{among}"
        yield replace(s, blocks=blocks, ranges=ranges, length=length, reason=reason)


def _room(call: Call, s: Schedule) -> int:
    """How many blocks a multiprocessor has room for."""
    by_registers = min(_MOST_PIXEL_WARPS, call.device.warps(s.registers)) * WARP // s.threads
    return max(1, min(by_registers, call.device.blocks(s.shared)))


def _rows(record: WindowsRecord, call: Call, s: Schedule) -> int:
    """Bytes of two chunks of results: rows are as far apart as planes, in elements of a word, and begin
    anywhere in one."""
    found = 0
    for itemsize in map(call.itemsize, call.present(record.writes)):
        each = WORD // itemsize
        words = -(-(each - 1 + s.chunk * (s.threads + s.lanes % each)) // each)
        found += 2 * words * WORD
    return found


def _pixel_registers(record: WindowsRecord, call: Call, s: Schedule) -> int:
    """Registers a thread: fitted from above to what nvcc does not spill with, for windows of 2 to 9 channels,
    one and two levels, one to three operands, chunks of 4 to 12."""
    reads = sum(bool(o.inner) for o in call.read(record.reads))
    kept = sum(n * (high - low) for n, (low, high) in zip(record.sums, record.reaches, strict=True))
    own = (
        28 + (_MORE_REGISTERS if call.device.hungry else 0) + 8 * (reads - 1) + 16 * (len(record.writes) - 1)
    )
    return ceil((own + 1.5 * s.chunk * reads + kept * (2 + kept / 16)) / 8) * 8
