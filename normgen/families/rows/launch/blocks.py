"""How the rows of a call are dealt out to blocks, and what those leave."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from normgen.families.rows.launch.forms import form_of, store_quantum
from normgen.families.rows.launch.schedule import RowSchedule
from normgen.launching.accumulating import wanted_columns, words_of
from normgen.launching.call import INT_LIMIT, Call
from normgen.launching.machine import bandwidth_of
from normgen.package.kernels import RowsRecord
from normgen.package.operands import AccumulatorRecord

_LEAVE = 0.6  # rows that take as long as to leave what was accumulated over a share of a segment
_MOST_SHARES = 64  # of a segment
_TURN = 0.6  # microseconds that one more row takes a block, beside those that its bytes take


class RowBlocks:
    """One kernel of the rows family, its schedule, and the arrays of one call.

    `segments`, and `rows` of one; `blocks`, or clusters, in all and for a segment, and how many of them are
    `resident` where each `walks` from one segment to the next.
    `partials`: how many the blocks leave of each accumulator; `run` and `runs`: vectors that are summed
    together where parts of rows are, and how many such runs a part has. `words` and `published`: of bits, and
    floats, by which blocks that share a row meet. `launches`: of the kernel. `finishes`: whether blocks store
    what partials would be added up for, where there is one; `leaves`: whether they leave anything there.
    `wide`: whether indices need 64 bits, or are to have them. `far`: row offsets always have 64 bits. (Others
    may lack the registers, and have a text for far rows.)
    """

    def __init__(
        self, kernel: RowsRecord, schedule: RowSchedule, call: Call, wide: bool | None = None
    ) -> None:
        self.kernel, self.schedule, self.call = kernel, schedule, call
        self.length = call.size(kernel.inner)
        self.form = form = form_of(schedule)
        self.segments = 1 if form.across_segments else call.size(kernel.segment)
        self.rows = call.size(kernel.kept) // self.segments
        self.columns = wanted_columns(kernel, call)
        self.run, self.runs = self._runs()
        # a cluster goes from one segment to the next, with the rows to come on their way
        self.walks = bool(kernel.segment) and form.in_order and schedule.cluster > 1
        able = kernel.finishes and form.finishes and call.aligned(call.present(kernel.finals))
        self.blocks_per_segment = 1 if able and self._alone() else self._blocks_per_segment()
        self.blocks = self.segments * self.blocks_per_segment
        together = schedule.together(call.device.multiprocessors)
        self.resident = min(self.blocks, together) if self.walks else self.blocks
        self.partials = self.rows * self.runs if kernel.part else self.blocks
        self.launches, self.words, self.published = self._exchanged()
        self.finishes = able and self.partials == 1
        self.leaves = not self.finishes or (form.streams and self.rows > 1)

        self.far = not kernel.pieces and self._always_far()
        self.wide = any(each >= INT_LIMIT for each in self._reaches()) if wide is None else wide

    def _runs(self) -> tuple[int, int]:
        """Vectors side by side that are summed together, and how many such runs a part of a row has."""
        kernel, s = self.kernel, self.schedule
        if kernel.adds_pieces:  # each block leaves what it has of all pieces
            return 0, s.cluster
        if not kernel.part:
            return 0, 0
        vectors = self.call.size(kernel.inside) // s.vector
        run = gcd(vectors, min(32, s.team))
        return run, vectors // run

    def _exchanged(self) -> tuple[int, int, int]:
        """Launches of the kernel, and words and floats by which the blocks of a row exchange."""
        kernel, members, form = self.kernel, self.schedule.members, self.form
        if members > 1 and form.meets:
            return 1, self.blocks * words_of(members), members * self.blocks * kernel.cooperative
        if members > 1 and form.streams:
            return kernel.launches, 0, members * kernel.left * self.rows * self.segments
        return 1, 0, 0

    def _always_far(self) -> bool:
        """Whether row offsets have 64 bits in any case."""
        by_segment = bool(self.columns) and all(c.wide and c.kept for c in self.columns)
        # (moments that load gains late have no registers to spare, and a third text beyond 2^31 elements)
        full = self.schedule.late and self.kernel.moments and self.schedule.cluster == 1
        return by_segment or (self.form.far and not full)

    def partials_of(self, column: AccumulatorRecord) -> tuple[int, int]:
        """What the blocks leave of an accumulator: how many partials, of how many floats."""
        width = self.length // self.call.size(column.folded)
        if not (column.wide or column.part) and self.form.streams:  # each of the blocks that share a row
            return self.partials * self.schedule.members, column.partial(width)
        return self.partials, self.call.size(column.part) if column.part else column.partial(width)

    def most_partials(self) -> int:
        """How many there are of many rows, so that batches share the kernel that combines them."""
        if self.kernel.part or self.walks or not self.kernel.accumulates:
            return self.partials
        return self.segments * self._room(self.form.rounds)

    def most_of_segment(self) -> int:
        """How many there would be of many rows in one segment, where rows are in segments; else 0."""
        if not self.kernel.segment or not self.kernel.accumulates:
            return 0
        if self.walks:
            return max(_MOST_SHARES, self.schedule.together(self.call.device.multiprocessors))
        return self._room(self.form.rounds, segments=1)

    def _blocks_per_segment(self) -> int:
        """How many blocks share a segment's rows: all rows at once, or as many as are resident together."""
        s, form = self.schedule, self.form
        tiles = -(-self.rows // (s.teams * s.batch))
        together = s.together(self.call.device.multiprocessors)
        if not self.kernel.accumulates:
            if form.in_order:
                return min(tiles, together)
            return min(tiles, self._room(form.rounds)) if s.walks else tiles
        return self._in_turns(tiles, together) if self.walks else min(tiles, self._room(form.rounds))

    def _alone(self) -> bool:
        """Whether one block, or cluster, that holds rows takes all of them: where they take it less time than
        passes before a second stage is under way."""
        s, call, kernel, device = self.schedule, self.call, self.kernel, self.call.device
        if not self.form.in_order:
            return False
        moving = [o for o in call.touched(kernel.reads, kernel.writes) if o.kept and o.inner == kernel.inner]
        row = sum(map(call.itemsize, moving)) * self.length * s.teams
        turn = _TURN + row * call.device.multiprocessors / (bandwidth_of(device) * s.cluster)
        return 0 < self.rows <= s.teams * (1 + int(device.launch_latency / turn))

    def _in_turns(self, tiles: int, together: int) -> int:
        """How many shares the rows of a segment are dealt out in, to clusters that go from one share to the
        next: none of them then has much more to do than the others.
        """

        def longest(shares: int) -> float:
            return -(-self.segments * shares // together) * (-(-tiles // shares) + _LEAVE)

        most = max(_MOST_SHARES, together // self.segments)
        return min(range(1, min(tiles, most) + 1), key=longest)

    def _room(self, rounds: int, segments: int = 0) -> int:
        """How many blocks to give a segment, `rounds` of them for each that is resident. Of word-aligned
        rows so many that those of a thread group are a multiple of a word's elements apart: all begin at
        the same one."""
        quantum = store_quantum(self.schedule)
        blocks = (
            rounds * self.schedule.together(self.call.device.multiprocessors) // (segments or self.segments)
        )
        return max(1, blocks // quantum) * quantum

    def _reaches(self) -> Iterator[int]:
        """Numbers that an index must hold."""
        kernel = self.kernel
        operands = (*kernel.reads, *kernel.writes, *kernel.final_reads, *kernel.finals)
        rows, teams = self.rows * self.segments, self.schedule.teams * self.schedule.batch
        if 2 * rows + teams >= INT_LIMIT:  # blocks that walk look ahead
            yield rows + min(64 * teams * self.blocks_per_segment, rows + teams)
        yield from (prod(self.partials_of(c)) for c in self.columns)
        yield self.published
        yield self.call.reach_of_rows(operands, kernel.kept[-1:]) if self.far else self.call.reach()
