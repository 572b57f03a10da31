"""The schedules that a kernel of the rows family may have, in order of preference: form, team, vectors, ring.

The rules come from measurements on an H200 (bf16 unless said; fractions of a copy of the same bytes):

- Vectors of 16 bytes of the narrowest operand, as far as length, strides and addresses allow.
- Forward: one-shot grid with the row in registers. One reduction: 16 elements a thread (0.98 at 4096), a warp
  a row up to 512 columns. Moments or several reductions: a warp a row up to 1024, then 32 elements a thread,
  the fewest warps that keep two blocks a multiprocessor (0.98 at 4096, 0.93 at 8192, 0.96 at 16384).
- Column sums: persistent blocks, 16 elements a thread, a ring of 64 to 96 KB a multiprocessor (0.96 to 0.98
  at 1024 to 8192). Any spill is decisive (0.34 with 480 bytes): a candidate's registers are estimated first.
- Column sums of more than 8192 columns: the same in a cluster of blocks, each with a slice of 8192 or 4096
  columns (0.88 to 0.71 at 16384 to 262144; one pass for each level reaches 0.34 to 0.07).
- Wider rows: re-read from the ring instead of kept in registers, then one pass over the row per level, from a
  copy in shared memory (0.94 at 32768) or from memory (0.68 to 0.91).
"""

from __future__ import annotations

from math import gcd

from normgen.runtime.launches import Device
from normgen.runtime.schedule import (
    RESERVED_SHARED,
    STATIC_SHARED,
    Schedule,
    Shape,
    at_least_one,
    has_clusters,
    is_deep,
    power_of_two,
)

BATCH_ITEMS = 4  # vectors of a row in one thread's registers, where nothing is exchanged
BATCH_THREADS = 256  # of a block of such rows: with 416 an image took 322 us where 224 take 282
# Bytes that a thread has under way together from rows that share operands or are accumulated: 283 us in
# place of 301 with 64 and 401 with 32 (a channels-last image and its gradient); and from others (not measured
# on its own: images of long rows took 199 us with 80 bytes, of shorter ones 225 with 32).
BATCH_BYTES = 128
APART_BYTES = 64
BATCH_ROUNDS = (
    4  # blocks that walk over the rows, for each that is resident: the later ones even out the work
)
SPLIT_BYTES = 128  # of a row that blocks share under way in each thread: 475 us in place of 496 with 64
LINE = 128  # bytes
STREAM_REGISTERS = 64  # a thread's share in passes over the row: with 32 nearly every kernel spills
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a team is a cluster
ALONE = (
    8192  # columns up to which, with sums over rows, one block does better than a cluster: 0.84 against 0.78
)


def one_shot(shape: Shape) -> list[Schedule]:
    vectors = -(-shape.length // shape.vector)
    deep = is_deep(shape)
    items = at_least_one((32 if deep else 16) // shape.vector)
    if vectors <= 32 * items:
        team = _short_team(vectors, items) if shape.exchanges else min(32, power_of_two(vectors))
        found = [(team, -(-vectors // team))]
    else:
        counts = [items, 2 * items, 4 * items] if deep or vectors > 256 else [1, items]
        counts += [
            k for k in (items // 2, items // 4) if k and k not in counts
        ]  # where several operands are held
        found = [(_warps(vectors, k), k) for k in counts if _warps(vectors, k) <= 512]
    out = []
    for team, count in found:
        threads = max(team, 128)
        teams = threads // team if team < 128 else 1
        for late in (False, True) if shape.shared else (False,):
            out.append(Schedule("registers", shape.vector, team, teams, count, 0, late=late))
    return out


def clusters(shape: Shape, device: Device) -> list[Schedule]:
    """Rows too long for the registers of a block, in those of several: from sm_90 on, and on the host.

    256 threads a block with 64 elements each measured best at 32768 to 262144 columns, where three blocks
    share a multiprocessor: moments 0.83 to 0.66 of a copy, where passes over shared memory or memory reach
    0.70 to 0.54. A single exchange is better off with a copy in shared memory, as far as two of them fit
    (0.93 against 0.89).
    """
    copies = device.shared_per_multiprocessor // (shape.length * max(1, shape.rewalked) + RESERVED_SHARED)
    if not has_clusters(device) or not shape.rewalked or (copies >= 2 and not is_deep(shape)):
        return []
    vectors = -(-shape.length // shape.vector)
    threads = 256
    out = []
    for cluster in (2, 4, 8, 16):
        count = -(-vectors // (cluster * threads))
        if count * shape.vector <= CLUSTER_ELEMENTS:
            team = cluster * threads
            out.append(
                Schedule(
                    "registers", shape.vector, team, 1, count, 0, late=bool(shape.shared), cluster=cluster
                )
            )
    return out


def with_columns(shape: Shape, device: Device) -> list[Schedule]:
    alone, clusters = _rings(shape), _cluster_rings(shape, device)
    return [*clusters, *alone] if shape.length > ALONE else [*alone, *clusters]


def _cluster_rings(shape: Shape, device: Device) -> list[Schedule]:
    """256 threads with 32 elements each: 0.75 of a triad where 16 reach 0.52 (two sums, 65536 columns),
    and as good elsewhere; but 16 where an element has 4 bytes, of which no more fit the registers.

    Slices that are read again in every pass come as bulk copies, 0.71 against 0.47 at 262144 columns; those
    that are kept in registers come thread by thread, 0.86 against 0.80 at 16384.
    """
    if not has_clusters(device) or shape.narrow or not shape.exchanges:
        return []
    vectors = -(-shape.length // shape.vector)
    kept = ((16, 256), (32, 256)) if shape.whole else ((32, 256), (16, 256))
    out = []
    for elements, threads, reload in (*((*each, False) for each in kept), (32, 256, True), (32, 512, True)):
        items = at_least_one(elements // shape.vector)
        cluster = power_of_two(-(-vectors // (items * threads)))
        if not 2 <= cluster <= 16:
            continue
        team = cluster * threads
        out.append(
            Schedule(
                "ring",
                shape.vector,
                team,
                1,
                -(-vectors // team),
                0,
                reload=reload,
                late=threads == 512,
                cluster=cluster,
                bulk=reload and shape.whole_words,
            )
        )
    return out


def _rings(shape: Shape) -> list[Schedule]:
    vectors = -(-shape.length // shape.vector)
    out = []
    choices = ((16, False, False), (8, False, False), (32, False, False), (32, True, False), (32, True, True))
    for elements, reload, late in choices:
        items = at_least_one(elements // shape.vector)
        team = power_of_two(-(-vectors // items)) if vectors <= 32 * items else _warps(vectors, items)
        # neighbours read whole lines of memory, or sectors: 64 channels last 242 us where others took 184
        run = at_least_one(
            (LINE if shape.wide_columns else 64) // (shape.vector * at_least_one(shape.narrowest))
        )
        team = max(team, min(32, power_of_two(vectors), power_of_two(run)))
        items = -(-vectors // team)
        teams = max(1, 256 // team)
        out.append(Schedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late))
    return out


def batches(shape: Shape, device: Device) -> list[Schedule]:
    """Rows of which no element needs another, in the registers of a team that need not be whole warps; none
    for rows that are long enough for blocks to share them.

    Several rows are under way together where they share operands, or are accumulated: loaded for each row
    anew, the operands that the rows of a channels-last image share kept the first-level cache busy to 92 %
    and the memory to 65 %.
    """
    teams = _batch_teams(shape)
    if not teams:
        return []
    _, items, team, side_by_side = min(teams)
    elements = items * shape.vector
    shares = bool(shape.shared or shape.parts or shape.picked)
    wanted = BATCH_BYTES if shares or shape.columns else APART_BYTES
    quantum = 32 // gcd(team, 32)
    side_by_side = min(side_by_side, -(-shape.rows // quantum) * quantum)
    batch = min(
        8, at_least_one(wanted // (elements * at_least_one(shape.walked))), -(-shape.rows // side_by_side)
    )
    unpacked = 2 if shape.picked else 1
    own = batch * shape.walked / 4 + unpacked * shape.shared / 4 + 2 * shape.picked
    registers = min(255, (40 + int(elements * own) + 2 * items * shape.parts + 7) // 8 * 8)
    threads = team * side_by_side
    blocks = min(device.registers_per_multiprocessor // (threads * registers), 2048 // threads, 32)
    reason = (
        f"nothing in a row is exchanged; {side_by_side} rows a block side by side, {batch} one after another"
    )
    return [
        Schedule(
            "batch", shape.vector, team, side_by_side, items, at_least_one(blocks), batch=batch,
            walks=bool(shape.picked), registers=registers, reason=reason,
        )
    ]  # fmt: skip


def _batch_teams(shape: Shape) -> list[tuple[float, int, int, int]]:
    """The teams that such a row may have: what is idle of them, vectors of a thread, threads, teams."""
    vectors = -(-shape.length // shape.vector)
    run = min(vectors, at_least_one(LINE // (shape.vector * at_least_one(shape.narrowest))))
    found = []
    for items in range(1, BATCH_ITEMS + 1):
        least = max(run, -(-vectors // items))
        for team in range(least, -(-least // 32) * 32 + 1):
            quantum = 32 // gcd(team, 32)
            if team * quantum <= BATCH_THREADS:
                idle = items * team / vectors + 0.01 * items
                found.append((idle, items, team, BATCH_THREADS // (team * quantum) * quantum))
    return found


def split(shape: Shape, device: Device) -> Schedule:
    threads = 256
    by_registers = device.registers_per_multiprocessor // (threads * STREAM_REGISTERS)
    blocks = max(1, min(device.threads_per_multiprocessor // threads, by_registers))
    # the elements of narrow vectors take a register each
    items = min(16, at_least_one(SPLIT_BYTES // max(1, (shape.walked + shape.shared) * shape.vector)))
    reason = "the row is long and nothing in it is exchanged; blocks share it"
    return Schedule("split", shape.vector, threads, 1, items, blocks, reason=reason)


def stream(shape: Shape, device: Device) -> Schedule:
    vectors = -(-shape.length // shape.vector)
    threads = 1024 if vectors > 8192 else 512 if vectors >= 512 else 256
    items = -(-vectors // threads)
    copy = items * shape.vector * threads * shape.rewalked
    staged = 0 < copy <= device.shared_per_block - STATIC_SHARED
    shared = copy if staged else 0
    by_shared = device.shared_per_multiprocessor // (shared + STATIC_SHARED + RESERVED_SHARED)
    by_registers = device.registers_per_multiprocessor // (threads * STREAM_REGISTERS)
    blocks = max(1, min(device.threads_per_multiprocessor // threads, by_registers, by_shared, 2))
    where = "a copy in shared memory" if staged else "memory"
    reason = f"the row does not fit registers; later passes read it from {where}"
    return Schedule(
        "stream", shape.vector, threads, 1, items, blocks, staged=staged, shared=shared, reason=reason
    )


def _short_team(vectors: int, items: int) -> int:
    """Lanes of a warp for a short row: those that leave the fewest without a vector, of them the most. Runs
    of 64 bytes and more are read at full speed."""
    teams = [t for t in (32, 16, 8, 4) if t <= power_of_two(vectors) and t * items >= vectors]
    return min(teams or [power_of_two(vectors)], key=lambda team: -(-vectors // team) * team)


def _warps(vectors: int, items: int) -> int:
    threads = -(-vectors // items)
    return -(-threads // 32) * 32
