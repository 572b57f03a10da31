"""Launches of resident kernels of sums: one that clears what tells blocks which parts are there, where that
is not known to be clear, the kernel, and the one that adds up what blocks leave of sums over segments."""

from __future__ import annotations

from collections.abc import Iterator

from normgen.dtypes import DTYPES
from normgen.families.resident.launch.moments import (
    NO_PLACE,
    efficiency_of,
    lines_of,
    numbers_of,
    segment_rows,
    text_of,
)
from normgen.families.resident.launch.residence import Residence, is_contiguous
from normgen.families.resident.launch.sums_space import found, segment_of
from normgen.families.rows.launch.blocks import BIT_WORD, words_of
from normgen.launching.accumulating import Accumulating, met_name, partial_name, words_name
from normgen.launching.call import INT_LIMIT, Call, once
from normgen.launching.family import SUPPORTED, Cost, LaunchFamily, Lines, Lowered, Support
from normgen.launching.knobs import distinct
from normgen.package.kernels import ResidentSumsRecord

# Microseconds for the blocks that run at once to begin, meet and end; the rest as for statistics that are
# moments. So estimates are 5 % less to 14 % more than what eleven sizes took.
_MEETING = 3.0
_IN_STEP = 2.0  # of that where bands follow others, which all begin, meet and end at once


class ResidentSums(LaunchFamily[ResidentSumsRecord, Residence]):
    """The launch half of resident kernels whose statistics are sums."""

    def fits(self, kernel: ResidentSumsRecord, call: Call) -> Support:
        """Whether the segments of a call find place on the chip, and all of what rows write is wanted."""
        needed = (*kernel.held, *(o.tensor for o in kernel.writes))
        whole = all(name in call.operands for name in needed) and is_contiguous(kernel, call)
        return SUPPORTED if whole and _found(kernel, call) else NO_PLACE

    def space(self, kernel: ResidentSumsRecord, call: Call) -> Iterator[Residence]:
        """Every way to keep the segments of a call: the usual one first."""
        return distinct(_found(kernel, call))

    def cost(self, kernel: ResidentSumsRecord, call: Call, schedule: Residence) -> Cost:
        return _ResidentSums(kernel, call, schedule).cost()

    def lower(self, kernel: ResidentSumsRecord, call: Call, schedule: Residence) -> Lowered:
        return _ResidentSums(kernel, call, schedule).lowered()

    def describe(self, kernel: ResidentSumsRecord, call: Call, schedule: Residence) -> str:
        return text_of(schedule, segment_of(kernel, call))

    def explain(self, kernel: ResidentSumsRecord, call: Call, schedule: Residence) -> Lines:
        return lines_of(kernel, schedule, segment_of(kernel, call))


@once
def _found(record: ResidentSumsRecord, call: Call) -> list[Residence]:
    return found(segment_of(record, call), call.device)


class _ResidentSums:
    """One kernel, how it runs, and the arrays of one call. `words` and `met`: of bits, and floats, by which
    blocks meet."""

    def __init__(self, record: ResidentSumsRecord, call: Call, residence: Residence) -> None:
        self.record, self.call, self.residence = record, call, residence
        self.segment = segment = segment_of(record, call)
        self.segments = call.size(record.segment) * (segment.bands or 1)
        self.blocks = self.segments * residence.members
        self.words = self.segments * words_of(residence.members)
        self.met = self.blocks * record.left * segment.groups
        rows = self.segments * (segment_rows(residence) + segment.rows)
        wide = max(call.reach(), self.met, self.blocks * segment.length, rows) >= INT_LIMIT
        own = {"rows": segment.rows, "blocks": residence.members}
        self.launches = Accumulating(record, call, record.inner, own, wide, self.blocks, words=self.words)

    def lowered(self) -> Lowered:
        """The launches, and the arrays that blocks meet by and leave sums in."""
        r, record, length = self.residence, self.record, self.segment.length
        knobs, switches = numbers_of(r, self.segment)
        launch = self.launches.launch(
            "resident_sums",
            text_of(r, self.segment),
            knobs,
            switches,
            self.blocks,
            r.threads,
            shared=r.shared,
        )
        partials = [partial_name(record, c) for c in self.launches.columns]
        return Lowered(
            (*self.launches.clear(), launch, *self.launches.finalise()),
            (
                (words_name(record), (self.words * BIT_WORD // 4,), "f32"),
                (met_name(record), (self.met,), "f32"),
                *((name, (self.blocks * length,), "f32") for name in partials),
            ),
        )

    def cost(self) -> Cost:
        """What the launches move, and how fast."""
        moved, width = self._moved(), self.residence.vector * min(self.segment.itemsizes)
        total, finalises = sum(moved.values()), bool(self.launches.columns)
        speed = efficiency_of(self.call, self.residence, self.blocks, total, width, _MEETING, self._later())
        return Cost(moved, speed, launches=2 + finalises, finalises=finalises)

    def _later(self) -> float:
        return _IN_STEP if self.segment.bands else 1.0

    def _moved(self) -> dict[str, int]:
        record, r, word = self.record, self.residence, DTYPES["f32"].bytes
        touched = (
            *self.call.read((*record.reads, *record.final_reads)),
            *self.call.present((*record.writes, *record.finals)),
        )
        found = {o.tensor: self.call.bytes_of(o.tensor) for o in touched}
        for name in record.held:
            found[name] += found[name] * r.again // r.depth
        found[words_name(record)] = 3 * self.words * BIT_WORD
        found[met_name(record)] = 2 * self.met * word
        partial = 2 * self.blocks * self.segment.length * word
        return found | {partial_name(record, c): partial for c in self.launches.columns}
