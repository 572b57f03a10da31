"""Launches of the rows family: a team of threads owns a row; see `schedule` for how it runs."""

from __future__ import annotations

from math import gcd, prod, sqrt

from normgen.dtypes import DTYPES
from normgen.runtime.accumulating import Accumulating, met_name, partial_name, wanted_columns, words_name
from normgen.runtime.calling import INT_LIMIT, WORD, Call, Planned
from normgen.runtime.candidates_any_length import BATCH_ROUNDS
from normgen.runtime.fitting import choose, find
from normgen.runtime.launches import Launch
from normgen.runtime.records import ColumnRecord, KernelRecord
from normgen.runtime.rows_shape import shape_of
from normgen.runtime.schedule import Rejected, Schedule

# What must be on its way from memory for its full speed: about 1 us at 4.8 TB/s.
_IN_FLIGHT = 4e6
_SHARE = 1.2
_SPEED = 4e6  # bytes a microsecond
_LINE, _SECTOR = 128, 32  # bytes
_BIT_WORD = 8  # bytes of a word of bits (word_t), which is cleared, written and read
_LEAVE = 0.6  # rows that take as long as to leave what was accumulated over a share of a segment
_MOST_SHARES = 64  # of a segment
_START = 2.0  # microseconds that a block with a ring or sums of its own takes to begin and end
_SHIFTED_EFFICIENCY = 0.9
# Of rings in clusters: where the rows of a segment are apart 0.7 to 0.9; else the model with 0.8 was 1.2 to
# 1.5 times what most of 350 such took.
_CLUSTER_EFFICIENCY, _CLUSTER_ROWS = 0.8, 0.95
# Forms whose blocks take rows in order.
_ONE_AFTER_ANOTHER = ("registers", "batch", "split", "stream", "spread")
# Of spread rows, with blocks of so many at once: those that wait read nothing.
_SPREAD_EFFICIENCY, _SPREAD_TOGETHER = 0.8, 2.7
_ATOM, _SPREAD_ATOMS = 64, 0.88  # bytes that memory delivers together; of spread rows in pieces of as many
_WIDTH_EFFICIENCY = {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.3}


def rows_launches(kernel: KernelRecord, call: Call, schedule: Schedule | None = None) -> Planned:
    """The launches of one kernel: that of the rows, then the finalising one if it has column sums.
    `schedule` in place of the one that should be fastest."""
    if schedule is not None:
        return _Rows(kernel, schedule, call).planned(())
    schedule, rejected = schedule_rows(kernel, call)
    return _Rows(kernel, schedule, call).planned(rejected)


def rows_fit(kernel: KernelRecord, call: Call) -> bool:
    """Whether a team can hold the rows of this call, where it must: as they lie in memory, and as long as
    they are."""
    if not kernel.one_shot:
        return True
    contiguous = all(map(call.contiguous, call.read(kernel.reads)))
    return contiguous and find(shape_of(kernel, call), call.device)[0] is not None


def schedule_rows(kernel: KernelRecord, call: Call) -> tuple[Schedule, tuple[Rejected, ...]]:
    """How the kernel is to run, and what was rejected."""
    return choose(shape_of(kernel, call), call.device)


class _Rows:
    """One kernel, its schedule, and the arrays of one call."""

    def __init__(self, kernel: KernelRecord, schedule: Schedule, call: Call) -> None:
        self.kernel, self.schedule, self.call = kernel, schedule, call
        self.length = call.size(kernel.inner)
        self.segments = call.size(kernel.segment)
        self.rows = call.size(kernel.kept) // self.segments
        self.columns = wanted_columns(kernel, call)
        self.split = self.length
        # vectors side by side that are summed together, and how many such runs a part of a row has
        span = call.size(kernel.inside)
        self.run = gcd(span // schedule.vector, min(32, schedule.team)) if kernel.part else 0
        self.runs = span // (self.run * schedule.vector) if kernel.part else 0
        # a cluster goes from one segment to the next, with the rows to come on their way
        self.walks = bool(kernel.segment) and schedule.form == "ring" and schedule.cluster > 1
        self.blocks_per_segment = self._blocks_per_segment()
        self.blocks = self.segments * self.blocks_per_segment
        together = schedule.together(call.multiprocessors)
        self.resident = min(self.blocks, together) if self.walks else self.blocks
        self.partials = self.rows * self.runs if kernel.part else self.blocks
        spread = self.blocks if schedule.form == "spread" else 0
        self.words = spread * -(-schedule.members // (8 * _BIT_WORD))
        self.met = spread * schedule.members * kernel.spread
        self.wide = self._reach() >= INT_LIMIT

    def planned(self, rejected: tuple[Rejected, ...]) -> Planned:
        """Everything about the launches."""
        s = self.schedule
        return Planned(
            self._launches(),
            (
                *((partial_name(self.kernel, c), self._partials(c), "f32") for c in self.columns),
                *([(words_name(self.kernel), (self.words * _BIT_WORD // 4,), "f32")] if self.words else []),
                *([(met_name(self.kernel), (self.met,), "f32")] if self.met else []),
            ),
            f"{self.kernel.name}: {s.form}: {s.reason}",
            self._moved(),
            self._efficiency(),
            tuple(_describe(self.kernel, s, rejected)),
        )

    def _partials(self, column: ColumnRecord) -> tuple[int, int]:
        """What the blocks leave of an accumulator: how many partials, of how many floats."""
        return self.partials, self.call.size(column.part) if column.part else column.partial(self.length)

    def _most_partials(self) -> int:
        """How many there are of many rows, so that batches share the kernel that combines them."""
        if self.kernel.part or self.walks or not self.kernel.accumulates or self.schedule.form == "split":
            return self.partials
        return self.segments * self._room(BATCH_ROUNDS if self.schedule.form == "batch" else 1)

    def _blocks_per_segment(self) -> int:
        """How many blocks share a segment's rows: all rows at once, or as many as are resident together."""
        s = self.schedule
        tiles = -(-self.rows // (s.teams * s.batch))
        together = s.together(self.call.multiprocessors)
        if not self.kernel.accumulates:
            if s.form == "split":  # each block has what its threads hold at a time
                self.split = s.items * s.threads * s.vector
                return self.rows * -(-self.length // self.split)
            if s.form in ("ring", "skewed"):
                return min(tiles, together)
            return min(tiles, self._room(BATCH_ROUNDS)) if s.walks else tiles
        room = self._room(BATCH_ROUNDS if s.form == "batch" else 1)
        if s.form != "split":
            return self._in_turns(tiles, together) if self.walks else min(tiles, room)
        row_blocks, splits = self._shared_rows(room)
        self.split = -(-self._chunks() // splits) * s.threads * s.vector
        return row_blocks * -(-self.length // self.split)

    def _in_turns(self, tiles: int, together: int) -> int:
        """How many shares the rows of a segment are dealt out in, to clusters that go from one share to the
        next: none of them then has much more to do than the others.
        """

        def longest(shares: int) -> float:
            return -(-self.segments * shares // together) * (-(-tiles // shares) + _LEAVE)

        most = max(_MOST_SHARES, together // self.segments)
        return min(range(1, min(tiles, most) + 1), key=longest)

    def _room(self, rounds: int) -> int:
        """How many blocks to give a segment, `rounds` of them for each that is resident."""
        return max(1, rounds * self.schedule.together(self.call.multiprocessors) // self.segments)

    def _chunks(self) -> int:
        """How many times a row fills the vectors of a block."""
        return -(-self.length // (self.schedule.threads * self.schedule.vector))

    def _shared_rows(self, room: int) -> tuple[int, int]:
        """How many blocks share a segment's rows, and how many of them a row: no block then has much more to
        do than the others.
        """

        def longest(row_blocks: int) -> int:
            return -(-self.rows // row_blocks) * -(-self._chunks() // (room // row_blocks))

        row_blocks = min(range(1, min(self.rows, room) + 1), key=longest)
        return row_blocks, min(room // row_blocks, self._chunks())

    def _reach(self) -> int:
        """The largest number that an index must hold."""
        rows = self.rows * self.segments + 64 * self.schedule.teams * self.blocks_per_segment
        return max(
            rows,
            max((prod(self._partials(c)) for c in self.columns), default=0),
            self.met,
            self.call.reach(),
        )

    # -------------------------------------------------------------------------------------------- launches

    def _launches(self) -> tuple[Launch, ...]:
        s = self.schedule
        knobs = {
            "VEC": s.vector, "TEAM": s.team, "TEAMS": s.teams, "THREADS": s.threads, "ITEMS": s.items,
            "MIN_BLOCKS": max(1, s.blocks), "LENGTH": self.length,
        }  # fmt: skip
        switches = {"COVERS": s.items * s.team == -(-self.length // s.vector), "SHIFTED": s.shifted}
        if s.form in _ONE_AFTER_ANOTHER:
            switches["BACKWARDS"] = self._backwards()
        if s.form == "registers":
            switches["LATE"] = s.late
        if s.form in ("registers", "spread"):
            knobs["RUN"] = self.run
        if s.form == "spread":
            knobs |= {"MEMBERS": s.members, "SLOTS": s.places}
        if s.form in ("ring", "skewed"):
            spare = s.stages * s.slices * WORD if s.shifted else 0
            knobs |= {"STAGES": s.stages, "SLOTS": s.places or s.stages * s.items, "SPARE": spare}
            switches |= {"RELOAD": s.reload, "LATE": s.late, "BULK": s.bulk}
        if s.form == "ring":
            switches["ROLLING"] = s.places > 0
        if s.form == "stream":
            knobs["SLOTS"] = s.items
            switches["STAGED"] = s.staged
        if s.form == "split":
            knobs["BATCH"] = s.items
        if s.form == "batch":
            knobs["BATCH"] = s.batch
        own = {"rows": self.rows, "blocks": self.blocks_per_segment, "split": self.split}
        accumulating = Accumulating(
            self.kernel,
            self.call,
            self.kernel.inner,
            own,
            self.wide,
            self._most_partials(),
            self.runs,
            self.words,
        )
        launch = accumulating.launch(
            s.form,
            s.reason,
            knobs,
            switches,
            self.resident * s.cluster * s.members,
            s.threads,
            shared=s.shared,
            cluster=s.cluster,
        )
        return (*accumulating.clear(), launch, *accumulating.finalise())

    def _backwards(self) -> bool:
        """Whether the last rows come first: a kernel before has read them, and they may be in the cache."""
        warm = self.call.warm.get(self.kernel.name, ())
        rows = [o for o in self.call.read(self.kernel.reads) if o.kept and o.inner == self.kernel.piece]
        return not self.columns and any(o.tensor in warm for o in rows)

    # -------------------------------------------------------------------------------------------- estimates

    def _moved(self) -> dict[str, int]:
        """Bytes by array. What rows share is counted once, since it stays in the cache."""
        call, streams = self.call, self.schedule.form == "stream"
        moved: dict[str, int] = {}

        def add(name: str, count: int) -> None:
            moved[name] = moved.get(name, 0) + count

        for o in call.read(self.kernel.reads):
            whole = o.inner == self.kernel.piece and set(o.kept) >= set(self.kernel.kept)
            again = streams and not self.schedule.staged and whole
            add(o.tensor, (o.passes if again else 1) * call.bytes_of(o.tensor))
        for o in (*self.kernel.writes, *self.kernel.finals, *call.read(self.kernel.final_reads)):
            if o.tensor in call.operands:
                add(o.tensor, call.bytes_of(o.tensor))
        if self.words:
            add(words_name(self.kernel), 3 * self.words * _BIT_WORD)
            add(met_name(self.kernel), 2 * self.met * DTYPES["f32"].bytes)
        for column in self.columns:
            name = partial_name(self.kernel, column)
            scratch = prod(self._partials(column)) * DTYPES["f32"].bytes
            add(name, 2 * scratch)
            if streams and column.wide:
                # Too long for registers, it is in memory: read and written again by each further row, and
                # moments once more when they are settled.
                settled = self.blocks if column.op == "moments" else 0
                visits = self.rows * self.segments - self.blocks + settled
                add(
                    name,
                    2 * visits * column.registers * self.length * DTYPES["f32"].bytes,
                )
        return moved

    def _fetched(self, run: int) -> float:
        """The share of what is fetched that belongs to the row, in runs of so many bytes. What is beside a
        piece of a row is in the cache when another team reads it."""
        if run >= _LINE:
            return 1.0
        if self.schedule.form == "spread" and run >= _ATOM:
            return _SPREAD_ATOMS
        return _in_sectors(run) if self.kernel.pieces else run / _LINE

    def _efficiency(self) -> float:
        """By bytes in flight, width of accesses, lines that are read in part, and waves of short blocks."""
        s, call = self.schedule, self.call
        wide = [o for o in call.read(self.kernel.reads) if o.inner == self.kernel.piece and o.inner]
        each = sum(map(call.itemsize, wide)) or 1
        widest = max(map(call.itemsize, wide), default=16)
        deep = {
            "registers": s.items, "batch": s.items * s.batch, "ring": s.places or s.items * s.stages,
            "skewed": s.items * (s.stages - 3), "stream": 4, "split": s.items, "spread": s.items,
        }[s.form]  # fmt: skip
        together = s.together(call.multiprocessors)
        resident = min(self.blocks, together)
        in_flight = resident * s.threads * s.cluster * s.members * deep * s.vector * each
        # a multiprocessor alone takes little more than its share of the memory's speed
        busy = _SHARE * min(1.0, self.blocks * s.cluster * s.members / call.multiprocessors)
        # rows of a segment are apart, and their neighbours in a line are another block's
        apart = self.kernel.segment or self.kernel.pieces
        lines = self._fetched(call.size(self.kernel.piece) * widest) if apart else 1.0
        speed = min(1.0, busy, in_flight / _IN_FLIGHT) * _WIDTH_EFFICIENCY[min(16, s.vector * widest)] * lines
        speed *= _SHIFTED_EFFICIENCY if s.shifted else 1.0
        if s.cluster > 1 and s.form in ("ring", "skewed"):
            speed *= _CLUSTER_EFFICIENCY if apart else _CLUSTER_ROWS
        if s.form == "spread":
            at_once = s.blocks * call.multiprocessors / s.members
            return speed * _SPREAD_EFFICIENCY * sqrt(min(1.0, at_once / _SPREAD_TOGETHER))
        once = s.form == "stream" and all(o.passes <= 1 for o in wide)
        if not self.kernel.accumulates and (once or s.form in ("registers", "batch", "split")):
            return speed
        moving = sum(self._moved().values()) / (_SPEED * max(speed, 1e-3))
        return speed * moving / (moving + _START * self.resident / together) if moving else speed


def _in_sectors(run: int) -> float:
    """The share of what is fetched in sectors that runs of so many bytes, side by side, have of it. (Those of
    20 to 80 bytes took 1.2 to 1.5 times what that says, of 32 twice that.)"""
    return 0.7 * run / (run + _SECTOR - gcd(run, _SECTOR))


def _describe(kernel: KernelRecord, s: Schedule, rejected: tuple[Rejected, ...]) -> list[str]:
    rows, row = ", ".join(kernel.kept), ", ".join(kernel.inner)
    exchanges = f"{kernel.exchanges} exchange{'s' if kernel.exchanges != 1 else ''} a row"
    columns = f", {len(kernel.columns)} accumulators over rows" if kernel.columns else ""
    per_row = f"{s.team} threads a row, {s.vector} elements a load, {s.items * s.vector} elements a thread"
    several = s.cluster * s.members
    rows_of = f"a row {several} blocks" if several > 1 else f"{s.teams} rows a block"
    block = f"{rows_of} of {s.threads} threads, {s.shared} bytes of shared memory"
    return [
        f"kernel {kernel.name}: rows [{rows}] of [{row}], {exchanges}{columns}",
        f"  {s.form}: {per_row}, {block}",
        f"    because {s.reason}",
        *(f"  not {each.what}: {each.reason}" for each in rejected),
    ]
