"""Launches of the resident family: one that clears what tells blocks which parts are there, and the
kernel."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from normgen.dtypes import DTYPES
from normgen.families.resident.launch.moments_space import found, segment_of
from normgen.families.resident.launch.residence import Kept, Residence, is_contiguous
from normgen.families.rows.launch.blocks import BIT_WORD, words_of
from normgen.launching.accumulating import Accumulating, met_name, words_name
from normgen.launching.call import INT_LIMIT, Call, once
from normgen.launching.family import SUPPORTED, Cost, LaunchFamily, Lines, Lowered, Support
from normgen.launching.knobs import distinct
from normgen.package.kernels import ResidentRecord, ResidentSumsRecord

# Bytes a microsecond; microseconds for the blocks that run at once to begin, meet and end, and what each
# member of a segment adds to that. Measured: 5.4 to 5.8 with 16 members, 7.1 with 64, 8 to 9 with 128; where
# others run beside them, and more follow, 3.1 to 4.6.
_SPEED, _MEETING, _MEMBER, _BESIDE = 4.1e6, 5.5, 0.025, 0.6
# As the first, for bands: measured 36.4 us, expected 38.0; 14.7, 14.5; 149, 145; 291, 271.
_MEETING_BANDS = 3.5
_SHARE = 2.1  # of the memory's speed that a multiprocessor takes alone, of its share of it
NO_PLACE = Support(False, "its blocks cannot keep what they read")
_WIDTH_EFFICIENCY = {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.3}


class ResidentMoments(LaunchFamily[ResidentRecord, Residence]):
    """The launch half of resident kernels whose statistics are moments."""

    def fits(self, kernel: ResidentRecord, call: Call) -> Support:
        """Whether the segments of a call find place on the chip."""
        fits = is_contiguous(kernel, call) and bool(_found(kernel, call))
        return SUPPORTED if fits else NO_PLACE

    def space(self, kernel: ResidentRecord, call: Call) -> Iterator[Residence]:
        """Every way to keep the segments of a call: the usual one first."""
        return distinct(_found(kernel, call))

    def cost(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> Cost:
        return _Resident(kernel, call, schedule).cost()

    def lower(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> Lowered:
        return _Resident(kernel, call, schedule).lowered()

    def describe(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> str:
        return text_of(schedule, segment_of(kernel, call))

    def explain(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> Lines:
        return lines_of(kernel, schedule, segment_of(kernel, call))


@once
def _found(record: ResidentRecord, call: Call) -> list[Residence]:
    return found(segment_of(record, call), call.device)


def text_of(r: Residence, segment: Kept) -> str:
    """A way to keep a segment, in a few words."""
    rows = f"{r.depth} rows a team"
    rows += f", {r.places} of them in shared memory" if r.places else ""
    rows += f", {r.again} of them read twice" if r.again else ""
    return f"a {'band' if segment.bands else 'segment'} in {r.members} blocks of {r.threads} threads, {rows}"


class _Resident:
    """One kernel, how it runs, and the arrays of one call. `words` and `met`: of bits, and floats, by which
    blocks meet."""

    def __init__(self, record: ResidentRecord, call: Call, residence: Residence) -> None:
        self.record, self.call, self.residence = record, call, residence
        self.segment = segment = segment_of(record, call)
        self.segments = call.size(record.segment) * (segment.bands or 1)
        self.blocks = self.segments * residence.members
        self.words = self.segments * words_of(residence.members)
        self.met = self.blocks * 4 * segment.groups

    def lowered(self) -> Lowered:
        """The launches, and the arrays that blocks meet by."""
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
        words, met = (self.words * BIT_WORD // 4,), (self.met,)
        return Lowered(
            (*launches.clear(), launch),
            ((words_name(record), words, "f32"), (met_name(record), met, "f32")),
        )

    def cost(self) -> Cost:
        """What the launches move, and how fast."""
        moved, width = self._moved(), self.residence.vector * self.segment.itemsize
        speed = efficiency_of(
            self.call, self.residence, self.blocks, sum(moved.values()), width, self._meeting(), 1.0
        )
        return Cost(moved, speed, launches=2)

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
