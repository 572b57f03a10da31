"""Launches of kernels that accumulate over what they number: the kernel itself, and the second-stage
reduction.

Each block leaves a partial of every accumulator in the workspace; the second-stage kernel combines them.
Blocks that share a row leave what they found of it there too, and a kernel ahead of theirs clears what
tells of it, unless that is known to be clear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from normgen.launching.call import Call
from normgen.launching.facts import power_of_two
from normgen.launching.launch import Launch, Slot
from normgen.package.kernels import AccumulatingKernel
from normgen.package.operands import PARTIAL_VECTOR, AccumulatorRecord, FormRecord

# A tile's columns: narrow ones where wide ones would leave most multiprocessors idle; a vector of them for
# each thread of a warp where every multiprocessor has such a tile.
_NARROW, _WIDE, _BROAD = 8, 32, 128
_SIZED_SHARES = 4  # warps that share such a tile, where one text serves batches of any size
_MOST_WARPS = 16  # of a block of the second stage
_CLEARING = 256  # threads of a block that clears
_BATCH = 8  # loads that a thread has on their way together (FINAL_BATCH)
BIT_WORD = 8  # bytes of a word of bits (word_t), which is cleared, written and read


class Accumulating:
    """One kernel of the rows or columns family, and the accumulators that a call wants of it.

    `reduced`: the axes of a row, or along a column. `own`: values of the family's own parameters. `wide`:
    offsets take 64 bits; `far`: axes along which strides always do, where offsets of rows have 64 bits.
    `partials`: how many of each accumulator many rows leave. `runs`: the partials of a part of a row, where
    accumulators keep parts. `words`: how many there are that tell blocks which share a row what is there, and
    `published`: floats that they leave there. `members`: of one row.
    `of_segment`: the partials that there would be of a single segment of rows, where there are several; else
    0. `sized`: whether the kernel that adds up partials is the same for any number of them. `finishes`:
    whether the kernel of the rows stores what partials would be added up for, so that no second stage
    follows; None where its text says so; `left`: whether it leaves something of rows in their memory.
    """

    def __init__(
        self,
        record: AccumulatingKernel,
        call: Call,
        reduced: tuple[str, ...],
        own: Mapping[str, int],
        wide: bool,
        partials: int,
        runs: int = 0,
        words: int = 0,
        published: int = 0,
        members: int = 1,
        of_segment: int = 0,
        far: tuple[str, ...] | None = None,
        sized: bool = False,
        finishes: bool | None = None,
        left: bool = True,
    ) -> None:
        self.record, self.call, self.reduced = record, call, reduced
        self.partials, self.runs, self.words, self.of_segment = partials, runs, words, of_segment
        self.members, self.sized, self.finishes = members, sized, finishes
        self.columns = wanted_columns(record, call)
        self.partials_left = tuple(partial_name(record, c) for c in self.columns if left)
        self.published = words_name(record), published_name(record)
        known: dict[tuple[str, str], int | Slot] = {(kind, ""): value for kind, value in own.items()}
        known |= {("partial", c.name): 0 for c in record.columns}
        if left:
            known |= {("partial", c.name): Slot("pointer", partial_name(record, c)) for c in self.columns}
        known |= {
            ("words", ""): Slot("pointer", self.published[0]),
            ("published", ""): Slot("pointer", self.published[1]) if published else 0,
        }
        known[("count", "")] = words
        self._known = known
        self._launch = partial(call.launch, sizes=reduced, wide=wide, far=far)

    def launch(
        self,
        form: str,
        constants: Mapping[str, int | bool],
        blocks: int,
        threads: int,
        *,
        shared: int = 0,
        cluster: int = 1,
        results: bool = True,
    ) -> Launch:
        """The launch of the kernel in one of its forms; or one ahead of it without `results`, which leaves
        what blocks find for the next."""
        return self._launch(
            self._form(form),
            blocks,
            threads,
            constants,
            own=self._known | self._nowhere(results),
            reads=self.record.reads,
            writes=(*self.record.writes, *self.record.finals),
            scratch=(self.published, (*self.partials_left, *self.published)),
            shared=shared,
            cluster=cluster,
        )

    def _nowhere(self, results: bool) -> dict[tuple[str, str], int]:
        """The pointers to what a launch does not write: where it has no `results`, to these and to what is
        left of sums; else to what a second stage makes of that, but for states that rows read."""
        read = {o.tensor for o in self.record.reads}
        finals = {("pointer", o.tensor): 0 for o in self.record.finals if o.tensor not in read}
        if results:
            return finals if self.finishes is False else {}
        partials = {("partial", c.name): 0 for c in self.record.columns}
        return finals | partials | {("pointer", o.tensor): 0 for o in self.record.writes}

    def clear(self) -> tuple[Launch, ...]:
        """The launch that says of no part of a row that it is there, where blocks share rows. They leave the
        words so."""
        if not self.words:
            return ()
        form, blocks = self._form("clear"), -(-self.words // _CLEARING)
        scratch = ((), self.published[:1])
        launch = self._launch(
            form,
            blocks,
            _CLEARING,
            {"THREADS": _CLEARING},
            own=self._known,
            reads=(),
            writes=(),
            scratch=scratch,
        )
        return (replace(launch, clears=self.published[0]),)

    def second_stage(self, few: bool | None = None) -> tuple[Launch, ...]:
        """The launch that combines the partials of all blocks, if there are any. `few`: with the text for few
        segments of rows, or many, however many there are."""
        if not self.columns or self.finishes:
            return ()
        tile, shares, together = self._tiling(few)
        tiles = max(self._tiles(c, tile) for c in self.columns)
        threads, length = 32 * shares * together, self.call.size(self.reduced)
        launch = self._launch(
            self._form("second_stage"),
            (-(-tiles // together), self.record.groups, 1),
            threads,
            {
                "THREADS": threads,
                "TILE": tile,
                "SHARES": shares,
                "LENGTH": length,
                "RUNS": self.runs,
                "MEMBERS": self.members,
            },
            own=self._known,
            reads=self.record.final_reads,
            writes=(*self.record.finals, *self.record.writes),
            scratch=(self.partials_left, ()),
        )
        return (launch,)

    def _tiling(self, few: bool | None) -> tuple[int, int, int]:
        """Columns of a tile, warps that share one, and tiles of a block. Rows of segments have two: that of a
        single one where warps have to share its partials, else one for many. Others have one."""
        if self.sized:
            return _NARROW, _SIZED_SHARES, 1
        if not (self.of_segment and all(c.wide and c.kept for c in self.columns)):
            return self._tiling_of(self.partials)
        if few is None:
            few = max(self._shares(c, _WIDE, self.partials) for c in self.columns) > 1
        return self._tiling_of(self.of_segment, single=True) if few else (_WIDE, 1, _MOST_WARPS // 2)

    def _tiling_of(self, partials: int, single: bool = False) -> tuple[int, int, int]:
        multiprocessors = self.call.device.multiprocessors
        tile = self._tile(single)
        tiles = max(self._tiles(c, tile, single) for c in self.columns)
        shares = max(self._shares(c, tile, partials, single) for c in self.columns)
        # where there are many tiles, blocks take several
        together = power_of_two(min(_MOST_WARPS // 2 // shares, tiles // multiprocessors))
        return tile, shares, together

    def _tile(self, single: bool) -> int:
        """The columns of a tile, for partials of every segment, or of a single one."""

        def tiles(tile: int) -> int:
            return max(self._tiles(c, tile, single) for c in self.columns)

        multiprocessors = self.call.device.multiprocessors
        if tiles(_NARROW) <= multiprocessors:
            return _NARROW
        vectors = all(self._in_vectors(c) for c in self.record.columns)
        return _BROAD if vectors and tiles(_BROAD) >= multiprocessors else _WIDE

    def _tiles(self, column: AccumulatorRecord, tile: int, single: bool = False) -> int:
        """Of neighbouring elements of what is reduced, or where there is one value in all, of segments, or of
        a single one."""
        outer = 1 if single else self.call.size(column.kept + column.part)
        return -(-self._width(column) // tile) * outer if column.wide else -(-outer // tile)

    def _width(self, column: AccumulatorRecord) -> int:
        """How many values of it a wide partial has."""
        return self.call.size(self.reduced) // self.call.size(column.folded)

    def _in_vectors(self, column: AccumulatorRecord) -> bool:
        """Whether threads load its partials in vectors."""
        return column.wide and column.op != "moments" and self._width(column) > 1

    def _shares(self, column: AccumulatorRecord, tile: int, partials: int, single: bool = False) -> int:
        """How many warps share a tile: as many as have all partials on their way together."""
        partials //= 1 if single else self.call.size(column.kept)
        partials *= 1 if column.wide else self.members
        at_once = _BATCH * 32 * (PARTIAL_VECTOR if self._in_vectors(column) else 1) // tile
        return power_of_two(min(_MOST_WARPS, -(-partials // at_once)))

    def _form(self, name: str) -> FormRecord:
        return next(f for f in self.record.forms if f.form == name)


def wanted_columns(record: AccumulatingKernel, call: Call) -> list[AccumulatorRecord]:
    """The accumulators from which some wanted result is computed."""
    return [c for c in record.columns if set(call.operands) & set(c.wanted_by)]


def partial_name(record: AccumulatingKernel, column: AccumulatorRecord) -> str:
    """The workspace array of an accumulator's partials, one for each block."""
    return f"{record.name}.{column.name}"


def words_of(members: int) -> int:
    """By how many words so many blocks of a row meet: a bit for each, and a count of those that have."""
    return -(-members // (8 * BIT_WORD)) + 1


def words_name(record: AccumulatingKernel) -> str:
    """The workspace array that tells blocks which share a row what is there."""
    return f"{record.name}.words"


def published_name(record: AccumulatingKernel) -> str:
    """The workspace array of what they leave there."""
    return f"{record.name}.published"
