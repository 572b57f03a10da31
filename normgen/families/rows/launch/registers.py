"""Registers per thread, estimated before anything is compiled: fitted to what the compiler reported for
hand-written kernels."""

from __future__ import annotations

from normgen.families.rows.launch.schedule import RowSchedule, RowShape, register_bytes
from normgen.launching.machine import REGISTER_BYTES, Machine

MULTIPASS_REGISTERS = 64  # per thread in passes over the row: with fewer nearly every kernel spills


def of_multipass(s: RowSchedule, shape: RowShape, device: Machine) -> int:
    """Of passes over the row, and of sums over rows that stay there. The words around vectors of several
    operands take half as many more, and as many more beside sums that lie in memory, which are loaded too."""
    halves = 2 + (0 if not (s.realigned and shape.wide_columns) else 1 if s.held else 2)
    return MULTIPASS_REGISTERS * halves // 2 + (s.elements * shape.wide_columns if s.held else 0)


def of_row_tile(s: RowSchedule, shape: RowShape, device: Machine) -> int:
    """Of rows that a block stages through shared memory: elements have a register each, those of vectors too,
    of which moments spill some where they are many."""
    elements = s.elements
    beside = 8 if s.late else elements * shape.shared / shape.narrowest
    beside += s.items * shape.parts + (0.6 * elements if shape.moments and s.vector > 1 else 0)
    return _round8(16 + elements * max(shape.streams, shape.held) + beside)


def of_held(s: RowSchedule, shape: RowShape, device: Machine) -> int:
    """Of rows in registers."""
    elements = _in_registers(s) * s.vector
    walked, shared = held_bytes(s, shape) / 4, elements * shape.shared / 4
    functions = 8 if shape.functions or shape.quantises else 0
    unpacking = 0 if shape.whole else 0.3 * walked
    row = max(walked + unpacking, elements * shape.held)
    # sums of parts: one for each vector, or where segments are added up one for each element of a vector
    sums = (s.vector if shape.piece else s.items) * shape.sums
    parts = s.items * shape.parts + sums + _places(s, shape)
    # the compiler loads what is late somewhat early
    beside = 8 + (0.35 * elements if shape.moments else 0) if s.late else 1.05 * shared
    if s.cluster > 1 and shape.functions:
        if shape.held and shape.streams == 1 and not shape.shares:
            # leaves room for six blocks on sm_90; for sm_100 the compiler spills even with five
            return _round8(row + (16 if device.fitted else 40))
        # what is kept does not take the row's place there where more is computed of it
        row, functions = walked + unpacking + elements * shape.held, 24 if shape.moments else 16
    row = 24 + row + parts + beside + _ends(s, shape, walked) + functions
    return _round8(max(row, 32 + elements if s.realigned else 0) + _crowded(s, shape, elements, device))


def _ends(s: RowSchedule, shape: RowShape, walked: float) -> float:
    """Registers for where rows in registers begin and end."""
    if s.realigned:  # the word after each vector; 2-byte elements have room for it when they are unpacked
        return walked + 32 if shape.whole else 24 if shape.streams > 1 else 0
    even = s.elements * s.team == shape.length and not s.team & (s.team - 1)
    return 0 if even or shape.piece else 8


def of_batch(s: RowSchedule, shape: RowShape, device: Machine) -> int:
    """Of rows of which a thread group has several under way together."""
    unpacked = 2 if shape.picked else 1
    own = s.batch * shape.walked / 4 + unpacked * shape.shared / 4 + 2 * shape.picked
    return min(255, _round8(40 + int(s.elements * own) + 2 * s.items * shape.parts))


def of_pipeline(s: RowSchedule, shape: RowShape, device: Machine, copies: int = 1) -> int:
    """Of rows that come through shared memory. `copies`: of what rows share early, where they are read
    again."""
    elements = s.elements
    columns = elements * shape.wide_columns
    walked, shared = held_bytes(s, shape) / 4, elements * shape.shared / 4
    functions = 8 if shape.functions else 0
    held = 0 if shape.columns else elements * shape.held
    if s.reload:
        kept = 0 if s.late else copies * shared
        return _round8(44 + functions + held + 1.05 * (columns + kept))
    masked = 0 if shape.columns or elements * s.team == shape.length else 16
    base, each = (30, 1.15 if shape.narrow else 1.6) if shape.columns else (22 + masked, 1.7)
    whole = elements * shape.whole
    if s.late:
        row = 1.6 * columns + (1.1 if shape.whole else each) * walked
    else:
        row = 1.6 * columns + each * (walked + shared - whole) + 1.1 * whole
    row = max(row, 1.3 * held)  # which takes the row's place
    # for sm_100 the compiler has one register too few where moments are merged between blocks, and spills it
    merging = 8 if shape.moments and s.cluster > 1 and not (device.fitted or device.host) else 0
    return _round8(base + row + 2 * s.items * shape.parts + merging)


def _crowded(s: RowSchedule, shape: RowShape, elements: int, device: Machine) -> int:
    """Further registers for moments of many elements in each lane of one warp that has the row: without them
    40 bytes of 48 elements are spilled that are cut out of words, and for sm_100 28 of 56."""
    if not shape.moments or s.team > 32 or elements <= (32 if s.realigned else 48):
        return 0
    return 16 if s.realigned or not (device.fitted or device.host) else 0


def held_bytes(s: RowSchedule, shape: RowShape) -> int:
    """Bytes of a thread's registers that its share of the row takes."""
    return _in_registers(s) * register_bytes(s.vector, shape)


def _in_registers(s: RowSchedule) -> int:
    """How many vectors of a row a thread has there: those of a row that blocks share may be in shared memory
    too."""
    return s.items - s.places if s.members > 1 else s.items


def _places(s: RowSchedule, shape: RowShape) -> float:
    """Registers for where the vectors of a row in pieces are: the compiler finds all of them ahead of the
    loads where every thread has all of its vectors, else some."""
    if not shape.in_pieces:
        return 0
    if shape.piece:  # all as far apart, and what all pieces share is held once
        return 1.25 * s.items
    if s.elements * s.team != shape.length:
        # in clusters elements that are alone in their vectors have their places in registers too
        alone = s.cluster > 1 and shape.streams == 1 and s.vector * shape.narrowest < REGISTER_BYTES
        return 1.25 * s.items if alone else s.items * (shape.streams - 1) + 8
    return s.items * 2 * shape.streams + (8 if shape.moments and shape.whole else 0)


def _round8(value: float) -> int:
    return -(-int(value) // 8) * 8
