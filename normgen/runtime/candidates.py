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
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a team is a cluster
ALONE = (
    8192  # columns up to which, with sums over rows, one block does better than a cluster: 0.84 against 0.78
)


def tiers(shape: Shape, device: Device) -> list[list[Schedule]]:
    """Candidates in order of preference; those of one tier differ in how busy they keep the memory."""
    if not shape.columns:
        return [_one_shot(shape), *_each(_clusters(shape, device))]
    rings, clusters = _rings(shape), _cluster_rings(shape, device)
    if shape.length > ALONE:
        return _each([*clusters, *rings])
    (first, second), rest = rings[:2], rings[2:]
    return [[first, *_pairs(shape, device), second], *_each([*rest, *clusters])]


def _each(found: list[Schedule]) -> list[list[Schedule]]:
    return [[schedule] for schedule in found]


def _one_shot(shape: Shape) -> list[Schedule]:
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


def _clusters(shape: Shape, device: Device) -> list[Schedule]:
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


def _pairs(shape: Shape, device: Device) -> list[Schedule]:
    """Two blocks a row with 16 elements a thread: more of them find place on a multiprocessor than of one
    that has a row alone (two sums, 5120 columns: 0.87 of a triad against 0.75)."""
    if not has_clusters(device) or shape.narrow or not shape.exchanges:
        return []
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(16 // shape.vector)
    threads = _warps(-(-vectors // 2), items)
    if threads < 128:
        return []
    return [Schedule("ring", shape.vector, 2 * threads, 1, -(-vectors // (2 * threads)), 0, cluster=2)]


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
