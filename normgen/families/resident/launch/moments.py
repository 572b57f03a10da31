"""Launches of the resident family: one that clears what tells blocks which parts are there, and the
kernel."""

from __future__ import annotations

from math import ceil

from normgen.dtypes import DTYPES
from normgen.families.resident.launch.moments_space import Segment, find, found, segment_of
from normgen.families.resident.launch.residence import Kept, Residence, is_contiguous
from normgen.families.rows.launch.blocks import BIT_WORD, words_of
from normgen.launching.accumulating import Accumulating, met_name, words_name
from normgen.launching.call import INT_LIMIT, Call, Planned
from normgen.launching.offers import Offer, distinct
from normgen.package.kernels import ResidentRecord, ResidentSumsRecord

# Bytes a microsecond; microseconds for the blocks that run at once to begin, meet and end, and what each
# member of a segment adds to that. Measured: 5.4 to 5.8 with 16 members, 7.1 with 64, 8 to 9 with 128; where
# others run beside them, and more follow, 3.1 to 4.6.
_SPEED, _MEETING, _MEMBER, _BESIDE = 4.1e6, 5.5, 0.025, 0.6
# As the first, for bands: measured 36.4 us, expected 38.0; 14.7, 14.5; 149, 145; 291, 271.
_MEETING_BANDS = 3.5
_SHARE = 2.1  # of the memory's speed that a multiprocessor takes alone, of its share of it
_WIDTH_EFFICIENCY = {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.3}


def resident_launches(record: ResidentRecord, call: Call, residence: Residence | None = None) -> Planned:
    """The launches of one kernel; `residence` in place of the one that should be fastest."""
    segment = segment_of(record, call)
    chosen = residence or find(segment, call.device)
    assert chosen is not None, "a call takes the kernel where it fits"
    return _Resident(record, call, segment, chosen).planned()


def resident_fits(record: ResidentRecord, call: Call) -> bool:
    """Whether the segments of a call find place on the chip."""
    return is_contiguous(record, call) and find(segment_of(record, call), call.device) is not None


def resident_offers(record: ResidentRecord, call: Call) -> tuple[Offer, ...]:
    """Every way to keep the segments of a call: the usual one first."""
    segment = segment_of(record, call)
    return offers_of(segment, found(segment, call.device))


def offers_of(segment: Kept, ways: list[Residence]) -> tuple[Offer, ...]:
    """Ways to keep segments, to choose from."""
    return distinct([Offer(r, text_of(r, segment), fine=("places", "shared", "blocks")) for r in ways])


def text_of(r: Residence, segment: Kept) -> str:
    """A way to keep a segment, in a few words."""
    rows = f"{r.depth} rows a team"
    rows += f", {r.places} of them in shared memory" if r.places else ""
    rows += f", {r.again} of them read twice" if r.again else ""
    return f"a {'band' if segment.bands else 'segment'} in {r.members} blocks of {r.threads} threads, {rows}"


class _Resident:
    """One kernel, how it runs, and the arrays of one call. `words` and `met`: of bits, and floats, by which
    blocks meet."""

    def __init__(self, record: ResidentRecord, call: Call, segment: Segment, residence: Residence) -> None:
        self.record, self.call, self.segment, self.residence = record, call, segment, residence
        self.segments = call.size(record.segment) * (segment.bands or 1)
        self.blocks = self.segments * residence.members
        self.words = self.segments * words_of(residence.members)
        self.met = self.blocks * 4 * segment.groups

    def planned(self) -> Planned:
        """Everything about the launches."""
        r, record = self.residence, self.record
        wide = (
            max(self.call.reach(), self.met, self.segments * (segment_rows(r) + self.segment.rows))
            >= INT_LIMIT
        )
        own = {"rows": self.segment.rows}
        launches = Accumulating(record, self.call, record.inner, own, wide, 0, words=self.words)
        knobs, switches = numbers_of(r, self.segment)
        launch = launches.launch(
            "resident", text_of(r, self.segment), knobs, switches, self.blocks, r.threads, shared=r.shared
        )
        moved, width = self._moved(), r.vector * self.segment.itemsize
        return Planned(
            (*launches.clear(), launch),
            (
                (words_name(record), (self.words * BIT_WORD // 4,), "f32"),
                (met_name(record), (self.met,), "f32"),
            ),
            f"{record.name}: resident: {text_of(r, self.segment)}",
            moved,
            efficiency_of(self.call, r, self.blocks, sum(moved.values()), width, self._meeting(), 1.0),
            lines_of(record, r, self.segment),
        )

    def _meeting(self) -> float:
        return _MEETING_BANDS if self.segment.bands else _MEETING

    def _moved(self) -> dict[str, int]:
        touched = (
            *self.call.read(self.record.reads),
            *self.call.present((*self.record.writes, *self.record.finals)),
        )
        found = {o.tensor: self.call.bytes_of(o.tensor) for o in touched}
        found[self.record.operand] += (
            found[self.record.operand] * self.residence.again // self.residence.depth
        )
        found[words_name(self.record)] = 3 * self.words * BIT_WORD
        found[met_name(self.record)] = 2 * self.met * DTYPES["f32"].bytes
        return found


def numbers_of(r: Residence, segment: Kept) -> tuple[dict[str, int], dict[str, bool]]:
    """The knobs and switches of a text."""
    knobs = {
        "VEC": r.vector, "TEAM": r.team, "TEAMS": r.teams, "THREADS": r.threads, "ITEMS": r.items,
        "DEPTH": r.depth, "SLOTS": r.places, "AGAIN": r.again, "MEMBERS": r.members,
        "MIN_BLOCKS": r.blocks, "LENGTH": segment.length,
    }  # fmt: skip
    return knobs, {"SHIFTED": False, "WHOLE": segment.rows % (r.teams * r.depth) == 0}


def efficiency_of(
    call: Call, r: Residence, blocks: int, moved: int, width: int, meeting: float, later: float
) -> float:
    """What share of the memory's speed a kernel reaches that moves so many bytes: by its narrowest access, of
    `width` bytes, by busy multiprocessors, and by the microseconds that blocks take to begin, meet and end.
    `later`: of these, what is to be added for blocks that follow others.
    """
    busy = min(1.0, _SHARE * blocks / call.multiprocessors)
    moving = moved / (_SPEED * busy * _WIDTH_EFFICIENCY[min(16, width)])
    rounds = ceil(blocks / (call.multiprocessors * r.blocks))
    share = _BESIDE if r.blocks > 1 else later
    whole = moving + (1 + (rounds - 1) * share) * (meeting + _MEMBER * r.members)
    return moved / (_SPEED * whole)


def lines_of(record: ResidentRecord | ResidentSumsRecord, r: Residence, segment: Kept) -> tuple[str, ...]:
    """A kernel and how it runs, for those who ask."""
    axes, row = ", ".join(record.segment), ", ".join(record.inner)
    parts = f"bands of {segment.length} elements" if segment.bands else f"segments of [{axes}]"
    return (
        f"kernel {record.name}: rows of [{row}], in {parts} that stay on chip",
        f"  resident: {text_of(r, segment)}, {r.team} threads a row, {r.vector} elements a load, "
        f"{r.blocks} blocks a multiprocessor, {r.shared} bytes of shared memory",
    )


def segment_rows(r: Residence) -> int:
    """The rows that the blocks of a segment have place for."""
    return r.members * r.teams * r.depth
