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

BATCH_ITEMS = 8  # vectors of a row in one thread's registers, where nothing is exchanged
BATCH_THREADS = 256  # of a block that has several rows
MOST_BATCH_THREADS = 448
# Bytes that a thread has under way from the rows it has together, where they share no operands and where they do: 207 us
# with 32 and 64, in place of 254 with 16 (a channels-last image). With accumulators 128: 181 us in place of 198 with a
# ring (sums of two images).
BATCH_BYTES = (32, 64)
ACCUMULATED_BYTES = 128
BATCH_ROUNDS = 4  # blocks that accumulate, for each that is resident: the later ones even out the work
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
        team = min(32, power_of_two(vectors))
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
        if not shape.wide_columns:  # neighbours read whole sectors of memory
            sector = at_least_one(64 // (shape.vector * at_least_one(shape.walked)))
            team = max(team, min(32, power_of_two(vectors), power_of_two(sector)))
        items = -(-vectors // team)
        teams = max(1, 256 // team)
        out.append(Schedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late))
    return out


def batches(shape: Shape, device: Device) -> list[Schedule]:
    """Rows of which no element needs another, in the registers of a team that need not be whole warps: the
    fewest threads that have nothing to do, then the fewest elements a thread. None for rows that blocks share.

    Several rows are under way together where they share operands, or are accumulated (see BATCH_BYTES):
    for each row anew, the operands that a channels-last image shares kept the first-level cache busy to 92 %
    and the memory to 65 %.
    """
    vectors = -(-shape.length // shape.vector)
    found = []
    for items in range(1, BATCH_ITEMS + 1):
        least = -(-vectors // items)
        for team in range(least, -(-least // 32) * 32 + 1):
            quantum = 32 // gcd(team, 32)
            teams = max(1, BATCH_THREADS // (team * quantum)) * quantum
            if team * teams <= MOST_BATCH_THREADS and items * shape.vector <= CLUSTER_ELEMENTS:
                idle = team * items / vectors - 1 + 0.02 * (items - 1) + (0.02 if team * teams > 320 else 0)
                found.append((idle, items, team, teams))
    if not found:
        return []
    _, items, team, teams = min(found)
    elements = items * shape.vector
    shares = bool(shape.shared or shape.parts or shape.picked)
    wanted = ACCUMULATED_BYTES if shape.columns else BATCH_BYTES[shares]
    batch = min(8, at_least_one(wanted // (elements * at_least_one(shape.walked))))
    packed = batch * elements * shape.walked / 4
    picked = elements * (2 * shape.picked + (shape.shared / 4 if not shape.picked else shape.shared / 2))
    registers = 40 + int(packed + picked) + 2 * items * shape.parts
    registers = min(255, -(-registers // 8) * 8)
    threads = team * teams
    blocks = min(device.registers_per_multiprocessor // (threads * registers), 2048 // threads)
    reason = f"nothing in a row is exchanged; {teams} rows a block side by side, {batch} one after another"
    return [
        Schedule(
            "batch", shape.vector, team, teams, items, at_least_one(blocks), batch=batch, reason=reason,
            registers=registers,
        )
    ]  # fmt: skip


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
