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
- Forward, long rows: with moments or several exchanges a ring, in one block (0.88 at 32768) or in clusters;
  with one exchange a copy in shared memory, then clusters (see `without_columns`).
"""

from __future__ import annotations

from dataclasses import replace
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
    is_narrow,
    power_of_two,
)

# Stages of a ring whose rows leave it two rows later, and its bytes: 0.88 of a triad with 6, 0.79 with 4.
SKEWED_STAGES = 6
SKEWED_RING = 196608
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
HELD_BYTES = 128  # of a row in one thread's registers: beyond, a copy in shared memory measured faster
WHOLE_ELEMENTS = 48  # of a row in a thread of a block of 128, 256, ... threads
WHOLE_SHARE, SHIFTED_SHARE = 0.95, 0.8  # of the places for vectors that are taken, at least
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a team is a cluster
ALONE = (
    8192  # columns up to which, with sums over rows, one block does better than a cluster: 0.84 against 0.78
)


def tiers(shape: Shape, device: Device) -> list[list[Schedule]]:
    """Candidates in order of preference; those of one tier differ in how busy they keep the memory."""
    if not shape.shifted:
        return _tiers(shape, device)
    wide = replace(shape, vector=shape.shifted, whole_words=False)
    shifted = [[replace(each, shifted=True) for each in tier] for tier in _tiers(wide, device)]
    return shifted if shape.splits else [*shifted, *_tiers(shape, device)]


def _tiers(shape: Shape, device: Device) -> list[list[Schedule]]:
    if not shape.columns:
        long = _each(_long(shape, device))
        return [[*_whole_blocks(shape), *_one_shot(shape)], *long]
    rings, clusters = _rings(shape), _cluster_rings(shape, device)
    if shape.length > ALONE:
        return _each([*_skewed(shape, device), *clusters, *rings])
    if shape.vector == shape.shifted:
        return _each([*_shifted_first(shape, device), *rings, *clusters])
    (first, second), rest = rings[:2], rings[2:]
    return [[first, *_pairs(shape, device), second], *_each([*rest, *clusters])]


def _each(found: list[Schedule]) -> list[list[Schedule]]:
    return [[schedule] for schedule in found]


def _one_shot(shape: Shape) -> list[Schedule]:
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
        # one block of 1024: 0.96 and 0.92 of a copy at 32768 f32, in shared memory 0.93, in a ring 0.83
        whole = shape.whole and shape.walked <= 4 and (shape.moments or not is_deep(shape))
        most = {k: 1024 if whole and k * shape.vector * shape.walked >= HELD_BYTES else 512 for k in counts}
        found = [(_warps(vectors, k), k) for k in counts if _warps(vectors, k) <= most[k]]
    out = []
    for team, count in found:
        threads = max(team, 128)
        teams = threads // team if team < 128 else 1
        for late in (False, True) if shape.shared else (False,):
            out.append(Schedule("registers", shape.vector, team, teams, count, 0, late=late))
    return out


def _whole_blocks(shape: Shape) -> list[Schedule]:
    """Teams of a multiple of 128 threads, where the usual one is none, or where rows are shifted: then as few
    warps as may be, since each has two ends of its own.

    5 vectors in each of 128 threads: 5120 columns with one sum 0.99 of a copy where 2 in 320 reach 0.94,
    with moments 0.93 where 4 in 160 reach 0.90; shifted rows of 5119 columns 0.95 where 2 in 320 reach 0.79.
    What rows share is loaded when it is used.
    """
    vectors = -(-shape.length // shape.vector)
    items = at_least_one((32 if is_deep(shape) else 16) // shape.vector)
    shifted = shape.vector == shape.shifted
    if vectors <= 32 * items or (_warps(vectors, items) % 128 == 0 and not shifted):
        return []
    share = SHIFTED_SHARE if shifted else WHOLE_SHARE
    for threads in (128, 256, 384, 512):
        count = -(-vectors // threads)
        if count * shape.vector <= WHOLE_ELEMENTS and vectors >= share * threads * count:
            late = bool(shape.shared)
            return [Schedule("registers", shape.vector, threads, 1, count, 0, late=late)]
    return []


def _clusters(shape: Shape, device: Device) -> list[Schedule]:
    """Rows too long for the registers of a block, in those of several: from sm_90 on, and on the host.

    256 threads a block with 64 elements each, three blocks a multiprocessor: 0.91 and 0.88 of a copy at 65536
    and 131072 columns of two operands, where a ring reaches 0.84 and 0.85.
    """
    if not has_clusters(device) or not shape.rewalked:
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


def _long(shape: Shape, device: Device) -> list[Schedule]:
    """For long rows of a kernel without sums over rows, in registers or a ring.

    None where passes over a copy in shared memory do better: with one exchange, 0.89 to 0.99 of a copy. Other
    long rows come through a ring where a thread keeps 64 elements: 0.84 at 262144 columns, in registers 0.80.
    With 32 of them registers do better, 0.85 to 0.91 against 0.82; and where functions are called, memory.
    """
    skewed = [] if shape.functions else _skewed(shape, device)
    if is_deep(shape):
        alone, rings = _rings_alone(shape), _long_rings(shape, device)
        return [*alone, *skewed, *rings]
    if _copies(shape, device):
        return []
    rings = [] if shape.functions else [*_rings_alone(shape), *_long_rings(shape, device)]
    clusters = _clusters(shape, device)
    return [*skewed, *rings, *clusters] if shape.walked <= 2 else [*skewed, *clusters, *rings]


def _copies(shape: Shape, device: Device) -> int:
    """How many rows, as far as a later pass reads them again, fit the shared memory of a multiprocessor."""
    row = shape.length * max(1, shape.rewalked) + STATIC_SHARED
    if row > device.shared_per_block:
        return 0
    return device.shared_per_multiprocessor // (row + RESERVED_SHARED)


def _skewed(shape: Shape, device: Device) -> list[Schedule]:
    """Clusters whose exchange of a row is on its way while the row before it is finished: of hand-written
    kernels, 0.92 of a triad at 32768 and 65536 columns (two sums over rows 0.91), where clusters that wait
    for each exchange are at 0.80 (0.75); without sums over rows 0.90 of a copy at 131072 columns, not 0.84.
    """
    if not (shape.skews and shape.whole_words and shape.walked and has_clusters(device)):
        return []
    vectors = -(-shape.length // shape.vector)
    cluster = power_of_two(-(-shape.length * shape.walked * SKEWED_STAGES // SKEWED_RING))
    threads = 256 if shape.wide_columns > 1 else 512
    if shape.narrow_moments or not 2 <= cluster <= 16:
        return []
    team = cluster * threads
    return [
        Schedule(
            "skewed", shape.vector, team, 1, -(-vectors // team), 0,
            reload=True, late=late, cluster=cluster, bulk=True,
        )
        for late in ((False, True) if shape.shared else (False,))
    ]  # fmt: skip


def _long_ring(
    shape: Shape, threads: int, cluster: int, reload: bool = False, late: bool = False
) -> Schedule:
    team, vectors = threads * cluster, -(-shape.length // shape.vector)
    return Schedule(
        "ring", shape.vector, team, 1, -(-vectors // team), 0,
        reload=reload, late=late, cluster=cluster, bulk=reload and cluster > 1 and shape.whole_words,
    )  # fmt: skip


def _rings_alone(shape: Shape) -> list[Schedule]:
    """A thread keeps as much of a row as goes into its registers. One block does better than a cluster, even
    if it loads the params for each row: 0.88 against 0.82 at 32768."""
    if not shape.exchanges or not shape.walked:
        return []
    elements = HELD_BYTES // shape.walked
    return [
        _long_ring(shape, threads, 1, late=late)
        for threads in (512, 1024)
        if shape.length <= threads * elements
        for late in ((False, True) if shape.shared else (False,))
    ]


def _long_rings(shape: Shape, device: Device) -> list[Schedule]:
    """In clusters. What an exchange costs depends on how many warps take part: moments reach 0.85 of a copy
    at 131072 columns with 64 elements in each of 8 x 256 threads, 0.73 with 32 in 8 x 512, 0.61 in 16 x 256.
    """
    if not shape.exchanges or not shape.walked or not has_clusters(device):
        return []
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(HELD_BYTES // (shape.vector * shape.walked))
    out = []
    # values that are kept from one pass to the next leave no room for the row: 0.75 at 262144 f32, kept 0.70
    wide = (512, items, bool(shape.held))
    for threads, each, reload in ((256, items, False), wide, (256, 2 * items, True), (512, 2 * items, True)):
        cluster = power_of_two(-(-vectors // (threads * each)))
        if 2 <= cluster <= 16:
            out.append(_long_ring(shape, threads, cluster, reload))
    return out


def _pairs(shape: Shape, device: Device) -> list[Schedule]:
    """Two blocks a row with 16 elements a thread: more of them find place on a multiprocessor than of one
    that has a row alone (two sums over rows of 5120 columns: 0.87 of a triad against 0.75)."""
    if not has_clusters(device) or shape.narrow_moments or not shape.exchanges:
        return []
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(16 // shape.vector)
    threads = _warps(-(-vectors // 2), items)
    if threads < 128:
        return []
    return [Schedule("ring", shape.vector, 2 * threads, 1, -(-vectors // (2 * threads)), 0, cluster=2)]


def _cluster_rings(shape: Shape, device: Device) -> list[Schedule]:
    """256 threads with 32 elements each: 0.75 of a triad where 16 reach 0.52 (two sums, 65536 columns),
    and as good elsewhere; but 16 where an element has 4 bytes, of which no more fit the registers beside the
    sums.

    Slices that are read again in every pass come as bulk copies, 0.71 against 0.47 at 262144 columns; those
    that are kept in registers come thread by thread, 0.86 against 0.80 at 16384.
    """
    if not has_clusters(device) or shape.narrow_moments or not shape.exchanges:
        return []
    vectors = -(-shape.length // shape.vector)
    kept = ((16, 256), (32, 256)) if shape.whole and shape.wide_columns else ((32, 256), (16, 256))
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


def _shifted_first(shape: Shape, device: Device) -> list[Schedule]:
    """Shifted rows of 2-byte elements with one sum over rows are better off with 32 elements a thread: 5119
    columns 0.77 of a triad, in pairs of blocks 0.64. With two it is the other way round: 0.51 and 0.55."""
    vectors = -(-shape.length // shape.vector)
    if shape.whole or not shape.exchanges or vectors <= 512:
        return []
    if shape.wide_columns > 1 or shape.walked > 4:
        return _pairs(shape, device)
    team = _warps(vectors, at_least_one(32 // shape.vector))
    return [_ring(shape, team, max(1, 256 // team))]


def _rings(shape: Shape) -> list[Schedule]:
    """Two sums over rows of 2-byte elements have two rows a block, which share a barrier: 0.91 of a triad at
    4096 columns, where two blocks of one row reach 0.77.

    Rows of bytes of which little is accumulated are bound by their instructions: 12.3 an element where a
    thread has 16 of them, 9.9 where it has 32.
    """
    vectors = -(-shape.length // shape.vector)
    out = []
    choices = [(16, False, False), (8, False, False), (32, False, False), (32, True, False), (32, True, True)]
    if is_narrow(shape):
        choices.insert(0, (32, False, False))
    for elements, reload, late in choices:
        items = at_least_one(elements // shape.vector)
        team = power_of_two(-(-vectors // items)) if vectors <= 32 * items else _warps(vectors, items)
        # neighbours read whole lines of memory, or sectors: 64 channels last 242 us where others took 184
        run = (LINE if shape.wide_columns else 64) // (shape.vector * at_least_one(shape.narrowest))
        team = max(team, min(32, power_of_two(vectors), power_of_two(at_least_one(run))))
        threads = 512 if shape.wide_columns > 1 and not shape.whole and team > 128 else 256
        threads = 128 if is_narrow(shape) else threads
        out.append(_ring(shape, team, max(1, threads // team), reload, late))
    return out


def _ring(shape: Shape, team: int, teams: int, reload: bool = False, late: bool = False) -> Schedule:
    items = -(-shape.length // (shape.vector * team))
    return Schedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late)


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
    # where there is room for one copy only: 0.89 of a copy at 65536 columns, with 512 threads 0.79
    wide = vectors > 8192 or (vectors > 2048 and _copies(shape, device) == 1)
    threads = 1024 if wide else 512 if vectors >= 512 else 256
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
