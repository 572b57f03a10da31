"""What a family of kernels answers about one of its kernels in a call.

Planning a call takes `fits`, the first schedule of `space`, and `lower`; and where strategies are to be
compared, `quantities`. A schedule that comes from elsewhere takes `settle` and
`lower`. Everything else is for those who tune, or want to know what was passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from normgen.launching.call import Call
from normgen.launching.knobs import Knobs, bits_of
from normgen.launching.launch import Launch
from normgen.launching.quantities import Array
from normgen.launching.support import SUPPORTED, Support

K = TypeVar("K", contravariant=True)  # the record of a kernel
S = TypeVar("S")  # a schedule: a frozen dataclass with knobs (see `knobs`)

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel with a schedule, as it is launched."""

    launches: tuple[Launch, ...]  # in order
    workspace: tuple[tuple[str, tuple[int, ...], str], ...] = ()  # (name, shape, dtype) of its scratch arrays


class LaunchFamily(Protocol[K, S]):
    """The launch half of a family. Pure functions of a kernel's record, a call, and a schedule."""

    uses: Mapping[str, str]  # what each form is for, in a few words
    schedule: type[S]  # of which class schedules are

    def fits(self, kernel: K, call: Call) -> Support:
        """Whether there is a schedule."""
        return SUPPORTED

    def space(self, kernel: K, call: Call) -> Iterator[S]:
        """Every schedule that fits, each once and no earlier than it is asked for: the default first."""
        ...

    def of_form(self, kernel: K, call: Call, form: str) -> Iterator[S]:
        """Schedules that fit and have a launch of this form, however long they take."""
        return self.space(kernel, call)

    def settle(self, kernel: K, call: Call, schedule: S) -> S | Support:
        """The schedule with what is estimated filled in, or why the kernel cannot run so in this call. Its
        knobs may be anything that `schedule_of` lets pass; what settles gives right results. Schedules of the
        space settle to themselves."""
        ...

    def quantities(self, kernel: K, call: Call, schedules: Sequence[S]) -> Mapping[str, Array]:
        """What is known of schedules before anything runs, an array a quantity (see `launching.model`). A
        family that has trees of its own, or no timings yet, names itself by a quantity `is of ...`."""
        ...

    def measured_as(self, kernel: K, call: Call) -> tuple[str, int] | None:
        """The key by which a table keeps what was measured of such calls, and how many rows, columns or
        segments there are; None where a family has no table."""
        return None

    def moved(self, kernel: K, call: Call, schedule: S) -> Mapping[str, int]:
        """The bytes that its launches read and write, by array, the workspace included."""
        ...

    def bits(self, schedule: S) -> Knobs:
        """What of a schedule decides the bits of results that each row, column or image has of its own: where
        schedules agree in it, they are the same in any call. Sums over rows may differ."""
        return bits_of(schedule)

    def lower(self, kernel: K, call: Call, schedule: S) -> Lowered:
        """Its launches, in order, with their texts."""
        ...

    def describe(self, kernel: K, call: Call, schedule: S) -> str:
        """The schedule in a few words."""
        ...

    def explain(self, kernel: K, call: Call, schedule: S) -> Lines:
        """The kernel and its schedule, and of the default what was passed over and why."""
        ...

    def texts(self, kernel: K, call: Call) -> tuple[Launch, ...]:
        """Launches with every text of calls that differ from this one in the number of their rows, where it
        is known what these are."""
        return ()
