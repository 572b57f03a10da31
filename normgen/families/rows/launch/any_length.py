"""Candidates for rows of any length: several in a thread, or streaming."""

from __future__ import annotations

from normgen.families.rows.launch.registers import MULTIPASS_REGISTERS
from normgen.families.rows.launch.schedule import MOST_BATCH, RowSchedule, RowShape, at_least_one
from normgen.launching.facts import STATIC_SHARED, in_whole_warps
from normgen.launching.machine import LINE, WARP, Machine

BATCH_ITEMS = 4  # vectors of a row in one thread's registers, where nothing is exchanged
BATCH_THREADS = 256  # per block of such rows, at most
BATCH_BYTES = 128  # in flight per thread


def batches(shape: RowShape) -> list[RowSchedule]:
    """Rows of which no element needs another, in the registers of a thread group that need not be whole
    warps; none for rows that are long enough for blocks to share them.

    Several rows are under way together, for which what they share is loaded once: else the first-level cache
    is busier than the memory.
    """
    teams = _batch_teams(shape)
    if not teams:
        return []
    _, items, team, side_by_side = min(teams)
    elements = items * shape.vector
    under_way = at_least_one(BATCH_BYTES // (elements * at_least_one(shape.walked)))
    batch = min(MOST_BATCH, under_way)
    walks = bool(shape.picked)
    return [RowSchedule("batch", shape.vector, team, side_by_side, items, batch=batch, walks=walks)]


def _batch_teams(shape: RowShape) -> list[tuple[float, int, int, int]]:
    """The thread groups that such a row may have: what is idle of them, vectors of a thread, threads,
    teams."""
    vectors = shape.vectors
    run = min(vectors, at_least_one(LINE // (shape.vector * at_least_one(shape.narrowest))))
    found = []
    for items in range(1, BATCH_ITEMS + 1):
        least = max(run, -(-vectors // items))
        for team in range(least, -(-least // WARP) * WARP + 1):
            if side_by_side := in_whole_warps(team, BATCH_THREADS):
                idle = items * team / vectors + 0.01 * items
                found.append((idle, items, team, side_by_side))
    return found


def stream(shape: RowShape, device: Machine) -> RowSchedule:
    """One pass over a row for each level of reductions."""
    vectors = shape.vectors
    # (where there is room for one copy only, more threads work on it)
    wide = vectors > 8192 or (vectors > 2048 and copies(shape, device) == 1)
    usual = 1024 if wide else 512 if vectors >= 512 else 256
    threads = min(usual, device.registers_per_multiprocessor // MULTIPASS_REGISTERS // WARP * WARP)
    return RowSchedule("multipass", shape.vector, threads, 1, -(-vectors // threads))


def copies(shape: RowShape, device: Machine) -> int:
    """How many rows, as far as a later pass reads them again, fit the shared memory of a multiprocessor."""
    row = shape.length * max(1, shape.rewalked) + STATIC_SHARED
    if row > device.shared_per_block:
        return 0
    return device.blocks(row)
