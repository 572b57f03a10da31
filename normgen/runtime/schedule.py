"""How a kernel of the rows family runs for given sizes, element types and device: form, team, vectors, ring,
blocks.

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

from dataclasses import dataclass, replace

from normgen.runtime.launches import Device

REGISTERS_PER_THREAD = 255
STATIC_SHARED = 2048  # what the exchange scratch may take of a block's shared memory, rounded up
RESERVED_SHARED = 1024  # what the driver takes of every block's shared memory
MAX_BLOCKS = 16
STREAM_REGISTERS = 64  # a thread's share in passes over the row: with 32 nearly every kernel spills
SPLIT_VECTORS = 1024  # of a row that blocks share: enough for each thread of one to have several under way
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a team is a cluster
ALONE = (
    8192  # columns up to which, with sums over rows, one block does better than a cluster: 0.84 against 0.78
)
CLUSTER_RING = 98304  # bytes of a multiprocessor's ring where blocks are in clusters
# The share of multiprocessors that clusters of so many blocks find place on, on an H200: the blocks of one
# are on the same part of the chip.
PLACED = {1: 1.0, 2: 1.0, 4: 120 / 132, 8: 120 / 132, 16: 112 / 132}
HELD_BYTES = 128  # of a row in one thread's registers: beyond, a copy in shared memory measured faster


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule depends on. Bytes are per element of the row, summed over operands.

    `vector`: the widest vector that alignment allows, in elements. `walked`: operands that change from
    row to row; `shared`: those that all rows share; `rewalked`: walked ones that several passes read;
    `whole`: how many have 4-byte elements, which need no unpacking. `columns`: the kernel's accumulators
    over rows; `wide_columns`: the values that those wanted keep for each element; `gathered`: how many the
    teams of a block hand to one another. `functions`: whether exp, tanh and
    the like are called; `held`: how many results of those a later pass uses again; `parts`: how many
    operands have some of the row's axes only, a value for a vector. `splits`: whether blocks may share a
    row; `shared_rows`: whether they do whatever its length. `narrow`: whether an accumulator has one
    value for all elements. `whole_words`: whether every walked operand's vectors have 16 bytes or a multiple.
    """

    length: int
    vector: int
    walked: int
    shared: int
    rewalked: int
    whole: int
    wide_columns: int
    gathered: int
    columns: int
    exchanges: int
    moments: bool
    functions: bool
    held: int
    parts: int = 0
    splits: bool = False
    shared_rows: bool = False
    narrow: bool = False
    whole_words: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to run a kernel. `blocks`: blocks a multiprocessor; `reason` says why it was taken.

    `late`: operands that all rows share are loaded when they are used, not before the reductions. `reload`: a
    row is read from the ring in every pass instead of being kept in registers. `staged`: later passes read a
    copy in shared memory. `cluster`: the blocks that a team has, where it has several. `bulk`: a block's
    slice of a row arrives in the ring as one copy.
    """

    form: str
    vector: int
    team: int
    teams: int
    items: int
    blocks: int
    stages: int = 1
    reload: bool = False
    late: bool = False
    staged: bool = False
    cluster: int = 1
    bulk: bool = False
    registers: int = 0
    shared: int = 0
    reason: str = ""

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.team * self.teams // self.cluster

    def together(self, multiprocessors: int) -> int:
        """How many blocks, or clusters of them, are resident at once."""
        return max(1, int(PLACED[self.cluster] * multiprocessors) * max(1, self.blocks) // self.cluster)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A schedule that was not taken, and why."""

    what: str
    reason: str


def choose(shape: Shape, device: Device) -> tuple[Schedule, tuple[Rejected, ...]]:
    """The first candidate that fits, in order of preference, and the reasons against those before it."""
    rejected: list[Rejected] = []
    long = shape.columns and shape.length >= SPLIT_VECTORS * shape.vector
    if shape.shared_rows or (shape.splits and long):
        return _split(shape, device), ()
    candidates = (
        _with_columns(shape, device) if shape.columns else [*_one_shot(shape), *_clusters(shape, device)]
    )
    for candidate in candidates:
        outcome = _fit(candidate, shape, device)
        if isinstance(outcome, Schedule):
            return outcome, tuple(rejected)
        rejected.append(Rejected(_describe(candidate), outcome))
    if shape.splits:
        return _split(shape, device), tuple(rejected)
    return _stream(shape, device), tuple(rejected)


# ------------------------------------------------------------------------------------------------ candidates


def _one_shot(shape: Shape) -> list[Schedule]:
    vectors = -(-shape.length // shape.vector)
    deep = _is_deep(shape)
    items = _at_least_one((32 if deep else 16) // shape.vector)
    if vectors <= 32 * items:
        team = min(32, _power_of_two(vectors))
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
    if not _has_clusters(device) or not shape.rewalked or (copies >= 2 and not _is_deep(shape)):
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


def _with_columns(shape: Shape, device: Device) -> list[Schedule]:
    alone, clusters = _rings(shape), _cluster_rings(shape, device)
    return [*clusters, *alone] if shape.length > ALONE else [*alone, *clusters]


def _cluster_rings(shape: Shape, device: Device) -> list[Schedule]:
    """256 threads with 32 elements each: 0.75 of a triad where 16 reach 0.52 (two sums, 65536 columns),
    and as good elsewhere; but 16 where an element has 4 bytes, of which no more fit the registers.

    Slices that are read again in every pass come as bulk copies, 0.71 against 0.47 at 262144 columns; those
    that are kept in registers come thread by thread, 0.86 against 0.80 at 16384.
    """
    if not _has_clusters(device) or shape.narrow or not shape.exchanges:
        return []
    vectors = -(-shape.length // shape.vector)
    kept = ((16, 256), (32, 256)) if shape.whole else ((32, 256), (16, 256))
    out = []
    for elements, threads, reload in (*((*each, False) for each in kept), (32, 256, True), (32, 512, True)):
        items = _at_least_one(elements // shape.vector)
        cluster = _power_of_two(-(-vectors // (items * threads)))
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
        items = _at_least_one(elements // shape.vector)
        team = _power_of_two(-(-vectors // items)) if vectors <= 32 * items else _warps(vectors, items)
        if not shape.wide_columns:  # neighbours read whole sectors of memory
            sector = _at_least_one(64 // (shape.vector * _at_least_one(shape.walked)))
            team = max(team, min(32, _power_of_two(vectors), _power_of_two(sector)))
        items = -(-vectors // team)
        teams = max(1, 256 // team)
        out.append(Schedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late))
    return out


def _split(shape: Shape, device: Device) -> Schedule:
    threads = 256
    by_registers = device.registers_per_multiprocessor // (threads * STREAM_REGISTERS)
    blocks = max(1, min(device.threads_per_multiprocessor // threads, by_registers))
    # 64 bytes under way in each thread; the elements of narrow vectors take a register each
    items = min(16, _at_least_one(64 // max(1, (shape.walked + shape.shared) * shape.vector)))
    reason = "the row is long and nothing in it is exchanged; blocks share it"
    return Schedule("split", shape.vector, threads, 1, items, blocks, reason=reason)


def _stream(shape: Shape, device: Device) -> Schedule:
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


# ------------------------------------------------------------------------------------------------ fitting


def _fit(s: Schedule, shape: Shape, device: Device) -> Schedule | str:
    """The candidate with registers, stages and blocks filled in, or the reason why it cannot run well."""
    if s.threads > 1024:
        return f"needs {s.threads} threads a block"
    held = s.items * s.vector * shape.walked
    if s.form == "registers" and held > HELD_BYTES:
        return f"{held} bytes of the row a thread are more than {HELD_BYTES}"
    registers = _registers(s, shape)
    limit = min(REGISTERS_PER_THREAD, device.registers_per_multiprocessor // s.threads // 8 * 8)
    if registers > limit:
        return f"needs about {registers} registers a thread, {limit} are there"
    # registers are handed out to the four quarters of a multiprocessor alike
    even = -(-s.threads // 128) * 128
    blocks = min(
        device.registers_per_multiprocessor // (even * registers),
        device.threads_per_multiprocessor // s.threads,
        MAX_BLOCKS,
    )
    if s.form == "registers":
        if blocks * s.threads < 1024 and s.threads > 256:
            # one block a multiprocessor: 0.72 of a copy at 16384 columns, where two reach 0.98
            return f"{blocks} blocks of {s.threads} threads a multiprocessor leave too little in flight"
        where = f" in {s.cluster} blocks" if s.cluster > 1 else ""
        reason = f"the row fits the registers of {s.team} threads{where}"
        return replace(s, blocks=blocks, registers=registers, reason=reason)
    stage = s.items * s.vector * s.threads * shape.walked
    gather = s.threads * 4
    if s.teams > 1:
        gather = max(gather, s.items * s.vector * s.threads * shape.gathered * 4)
    blocks = max(1, min(blocks, 4 if s.threads < 256 else 2))
    if s.cluster == 1:
        stages = max(3 if blocks == 1 else 2, min(8, -(-65536 // max(1, blocks * stage))))
    else:
        stages = max(3, min(8, CLUSTER_RING // max(1, blocks * stage)))
    room = device.shared_per_block - STATIC_SHARED
    stages = min(stages, max(1, room // max(1, stage)))
    if stages < 2 and stage and s.cluster == 1:
        return f"two rows of {stage} bytes do not fit {room} bytes of shared memory"
    shared = max(stages * stage, gather)
    if shared > room:
        return f"needs {shared} bytes of shared memory, {room} are there"
    blocks = max(
        1, min(blocks, device.shared_per_multiprocessor // (shared + STATIC_SHARED + RESERVED_SHARED))
    )
    kept = "re-read from the ring" if s.reload else "kept in registers"
    where = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    reason = f"column sums fit the registers of {s.team} threads{where}, the row is {kept}"
    return replace(s, blocks=blocks, stages=stages, registers=registers, shared=shared, reason=reason)


def _registers(s: Schedule, shape: Shape) -> int:
    """Registers a thread: fitted to what the compiler reported for hand-written kernels of both forms."""
    elements = s.items * s.vector
    columns = elements * shape.wide_columns
    walked, shared = elements * shape.walked / 4, elements * shape.shared / 4
    whole = elements * shape.whole
    if s.form == "registers":
        masked = 0 if s.items * s.team * s.vector == shape.length else 24
        functions = 8 if shape.functions else 0
        unpacking = 0 if shape.whole else 0.3 * walked
        row = max(walked + unpacking, elements * shape.held)
        parts = s.items * shape.parts
        return _round8(24 + row + parts + (0 if s.late else 1.05 * shared) + masked + functions)
    packed = walked + shared - whole
    functions = 8 if shape.functions else 0
    if s.reload:
        kept = 0 if s.late else elements * shape.shared / 4
        return _round8(44 + functions + 1.05 * (columns + kept))
    return _round8(30 + 1.6 * (columns + packed) + 1.1 * whole + 2 * s.items * shape.parts)


def _describe(s: Schedule) -> str:
    reload = ", row re-read" if s.reload else ""
    cluster = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    return f"{s.form}, {s.team} threads a row{cluster}, {s.items * s.vector} elements a thread{reload}"


def _round8(value: float) -> int:
    return -(-int(value) // 8) * 8


def _is_deep(shape: Shape) -> bool:
    """Whether the elements of a row are visited three times."""
    return shape.moments or shape.exchanges > 1


def _has_clusters(device: Device) -> bool:
    return device.arch == "host" or int(device.arch[3:].rstrip("af")) >= 90


def _at_least_one(value: int) -> int:
    return max(1, value)


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def _warps(vectors: int, items: int) -> int:
    threads = -(-vectors // items)
    return -(-threads // 32) * 32
