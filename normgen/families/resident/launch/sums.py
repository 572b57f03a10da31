"""Launches of resident kernels of sums: one that clears what tells blocks which parts are there, where that
is not known to be clear, the kernel, and the one that adds up what blocks leave of sums over segments."""

from __future__ import annotations

from normgen.dtypes import DTYPES
from normgen.families.resident.launch.moments import (
    efficiency_of,
    lines_of,
    numbers_of,
    offers_of,
    segment_rows,
    text_of,
)
from normgen.families.resident.launch.residence import Residence, is_contiguous
from normgen.families.resident.launch.sums_space import SumsSegment, find, found, segment_of
from normgen.families.rows.launch.blocks import BIT_WORD, words_of
from normgen.launching.accumulating import Accumulating, met_name, partial_name, words_name
from normgen.launching.call import INT_LIMIT, Call, Planned
from normgen.launching.offers import Offer
from normgen.package.kernels import ResidentSumsRecord

# Microseconds for the blocks that run at once to begin, meet and end; the rest as for statistics that are
# moments. So estimates are 5 % less to 14 % more than what eleven sizes took.
_MEETING = 3.0
_IN_STEP = 2.0  # of that where bands follow others, which all begin, meet and end at once


def resident_sums_launches(
    record: ResidentSumsRecord, call: Call, residence: Residence | None = None
) -> Planned:
    """The launches of one kernel; `residence` in place of the one that should be fastest."""
    segment = segment_of(record, call)
    chosen = residence or find(segment, call.device)
    assert chosen is not None, "a call takes the kernel where it fits"
    return _ResidentSums(record, call, segment, chosen).planned()


def resident_sums_fit(record: ResidentSumsRecord, call: Call) -> bool:
    """Whether the segments of a call find place on the chip, and all of what rows write is wanted."""
    needed = (*record.held, *(o.tensor for o in record.writes))
    if not all(name in call.operands for name in needed) or not is_contiguous(record, call):
        return False
    return find(segment_of(record, call), call.device) is not None


def resident_sums_offers(record: ResidentSumsRecord, call: Call) -> tuple[Offer, ...]:
    """Every way to keep the segments of a call: the usual one first."""
    segment = segment_of(record, call)
    return offers_of(segment, found(segment, call.device))


class _ResidentSums:
    """One kernel, how it runs, and the arrays of one call. `words` and `met`: of bits, and floats, by which
    blocks meet."""

    def __init__(
        self, record: ResidentSumsRecord, call: Call, segment: SumsSegment, residence: Residence
    ) -> None:
        self.record, self.call, self.segment, self.residence = record, call, segment, residence
        self.segments = call.size(record.segment) * (segment.bands or 1)
        self.blocks = self.segments * residence.members
        self.words = self.segments * words_of(residence.members)
        self.met = self.blocks * record.left * segment.groups
        rows = self.segments * (segment_rows(residence) + segment.rows)
        wide = max(call.reach(), self.met, self.blocks * segment.length, rows) >= INT_LIMIT
        own = {"rows": segment.rows, "blocks": residence.members}
        self.launches = Accumulating(record, call, record.inner, own, wide, self.blocks, words=self.words)

    def planned(self) -> Planned:
        """Everything about the launches."""
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
        moved, width = self._moved(), r.vector * min(self.segment.itemsizes)
        partials = [partial_name(record, c) for c in self.launches.columns]
        return Planned(
            (*self.launches.clear(), launch, *self.launches.finalise()),
            (
                (words_name(record), (self.words * BIT_WORD // 4,), "f32"),
                (met_name(record), (self.met,), "f32"),
                *((name, (self.blocks * length,), "f32") for name in partials),
            ),
            f"{record.name}: resident: {text_of(r, self.segment)}",
            moved,
            efficiency_of(self.call, r, self.blocks, sum(moved.values()), width, _MEETING, self._later()),
            lines_of(record, r, self.segment),
        )

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
