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

STREAM_REGISTERS = 64  # a thread's share in passes over the row: with 32 nearly every kernel spills
WHOLE_ELEMENTS = 48  # of a row in a thread of a block of 128, 256, ... threads
WHOLE_SHARE = 0.8  # of the places for vectors that are taken, at least
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a team is a cluster
ALONE = (
    8192  # columns up to which, with sums over rows, one block does better than a cluster: 0.84 against 0.78
)


def one_shot(shape: Shape) -> list[Schedule]:
    vectors = -(-shape.length // shape.vector)
    deep = is_deep(shape)
    items = at_least_one((32 if deep else 16) // shape.vector)
    if vectors <= 32 * items:
        team = min(32, power_of_two(vectors))
        found = [(team, -(-vectors // team))]
    else:
        counts = [items, 2 * items, 4 * items] if deep or vectors > 256 else [1, items]
        counts += [
            k for k in (items // 2, items // 4) if k and k not in counts
        ]  # where several operands are held
        found = [(_warps(vectors, k), k) for k in counts if _warps(vectors, k) <= 512]
    out = _whole_blocks(shape, vectors, found[0][0] if found else 0)
    for team, count in found:
        threads = max(team, 128)
        teams = threads // team if team < 128 else 1
        for late in (False, True) if shape.shared else (False,):
            out.append(Schedule("registers", shape.vector, team, teams, count, 0, late=late))
    return out


def _whole_blocks(shape: Shape, vectors: int, team: int) -> list[Schedule]:
    """Teams of a multiple of 128 threads, where the usual `team` is none, or where rows are shifted: then as
    few warps as may be, since each has two ends of its own.

    5 vectors in each of 128 threads: 5120 columns with one sum 0.99 of a copy where 2 in 320 reach 0.94,
    with moments 0.84 where 4 in 160 reach 0.75; shifted rows of 5119 columns 0.95 where 2 in 320 reach 0.79.
    What rows share is loaded when it is used.
    """
    if team <= 32 or (team % 128 == 0 and shape.vector != shape.shifted):
        return []
    for threads in (128, 256, 384, 512):
        count = -(-vectors // threads)
        if count * shape.vector <= WHOLE_ELEMENTS and vectors >= WHOLE_SHARE * threads * count:
            late = bool(shape.shared)
            return [Schedule("registers", shape.vector, threads, 1, count, 0, late=late)]
    return []


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
    pairs = has_clusters(device) and not shape.narrow and shape.exchanges > 0 and not shape.whole
    alone, clusters = _rings(shape, pairs), _cluster_rings(shape, device)
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


def _rings(shape: Shape, pairs: bool) -> list[Schedule]:
    """`pairs`: teams of two blocks, where that of one is none of 128, 256, ... threads. 5120 columns of
    2-byte elements in 2 blocks of 160 threads reach 0.88 and 0.84 of a triad (one sum over rows, two), in one
    of 320 0.78 and 0.73.

    Shifted rows with one sum over rows are better off with 32 elements a thread: 5119 columns 0.77, in pairs
    0.64. With two it is the other way round: 0.51, in pairs 0.55.
    """
    vectors = -(-shape.length // shape.vector)
    out = []
    choices = [(16, False, False), (8, False, False), (32, False, False), (32, True, False), (32, True, True)]
    shifted = shape.vector == shape.shifted
    if pairs and shifted and shape.wide_columns < 2 and shape.walked <= 4 and vectors > 512:
        choices.insert(0, (32, False, False))
    for elements, reload, late in choices:
        items = at_least_one(elements // shape.vector)
        team = power_of_two(-(-vectors // items)) if vectors <= 32 * items else _warps(vectors, items)
        if not shape.wide_columns:  # neighbours read whole sectors of memory
            sector = at_least_one(64 // (shape.vector * at_least_one(shape.walked)))
            team = max(team, min(32, power_of_two(vectors), power_of_two(sector)))
        items = -(-vectors // team)
        teams = max(1, 256 // team)
        if pairs and elements == 16 and team > 256 and team % 128:
            half = _warps(-(-vectors // 2), items)
            out.append(Schedule("ring", shape.vector, 2 * half, 1, items, 0, cluster=2))
        out.append(Schedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late))
    return out


def split(shape: Shape, device: Device) -> Schedule:
    threads = 256
    by_registers = device.registers_per_multiprocessor // (threads * STREAM_REGISTERS)
    blocks = max(1, min(device.threads_per_multiprocessor // threads, by_registers))
    # 64 bytes under way in each thread; the elements of narrow vectors take a register each
    items = min(16, at_least_one(64 // max(1, (shape.walked + shape.shared) * shape.vector)))
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


def _warps(vectors: int, items: int) -> int:
    threads = -(-vectors // items)
    return -(-threads // 32) * 32
