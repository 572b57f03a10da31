"""The kernels of each family, as plain frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from normgen.package.operands import AccumulatorRecord, FormRecord, OperandRecord

IMAGE = "..."  # the axis that stands for all dimensions of an image, of which calls have many sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What there is of every kernel, whatever its family.

    `reads` and `writes` belong to the kernel itself, `final_reads` and `finals` to the one that combines what
    its blocks leave.
    """

    family: ClassVar[str]  # the folder of its family
    owns: ClassVar[bool] = True  # one thread alone touches an element of an operand with all axes

    name: str
    kept: tuple[str, ...]  # the axes that number what a thread group, a tile or an image has
    inner: tuple[str, ...]  # the others
    reads: tuple[OperandRecord, ...]
    writes: tuple[OperandRecord, ...]
    final_reads: tuple[OperandRecord, ...] = ()
    finals: tuple[OperandRecord, ...] = ()
    forms: tuple[FormRecord, ...]

    @property
    def selective(self) -> bool:
        """Whether it may not fit a call, for its lengths or strides."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatingKernel(Kernel):
    """A kernel that walks rows, or along columns, and may accumulate over what it numbers.

    `segment`: the kept axes that some accumulator keeps, or whose rows have statistics of their own.
    """

    segment: tuple[str, ...]
    columns: tuple[AccumulatorRecord, ...]  # the accumulators
    groups: int = 0  # of finals, each computed by blocks of its own


class RowAxes:
    """What the axes of a row are to a kernel of the rows family, in its plan and in its record."""

    __slots__ = ()
    inner: tuple[str, ...]
    pieces: tuple[str, ...]
    columns: tuple[Any, ...]

    @property
    def piece(self) -> tuple[str, ...]:
        """Those that are contiguous: all of them, unless a row is in pieces."""
        return self.inner[len(self.pieces) :]

    @property
    def part(self) -> tuple[str, ...]:
        """Those that accumulators keep, the outer ones or those of a piece, where they keep some: thread
        groups then hold rows."""
        return self.columns[0].part if self.columns else ()

    @property
    def inside(self) -> tuple[str, ...]:
        """The others: of the elements that each value of a part is summed over."""
        return tuple(axis for axis in self.inner if axis not in self.part)

    @property
    def adds_pieces(self) -> bool:
        """Whether the pieces of a row are added up: accumulators keep the axes of a piece."""
        return bool(self.part and self.pieces)

    @property
    def folded(self) -> tuple[str, ...]:
        """The innermost ones, where blocks merge what they accumulate of these."""
        return self.columns[0].folded if self.columns else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRecord(AccumulatingKernel, RowAxes):
    """One kernel of the rows family: a thread group owns a row of `inner` elements; `kept` axes number the
    rows.

    `exchanges`: group-wide reductions per row; `moments`: whether the first of them merges mean and
    variance. `functions`: whether exp, tanh and the like are called, which take registers; `held`: results
    of those that the registers form keeps from one pass to the next. `splits`: whether nothing is exchanged
    in a row. `pieces`: the outermost axes of a row where they lie outside the kept ones in memory; operands
    have them among their kept axes. `refills`: whether a pipeline may hold vectors of whatever row.
    `cooperative`: values of its slice that each of the blocks leaves which share a row, 0 where none do.
    `launches`: how many there are of a row that blocks share so, one a level and a last one, 0 where they may
    not; `left`: values that each of the blocks then leaves of its share, those of all levels.
    `tags`: whether blocks can tell where rows of earlier ones are, whose lines they demote. `finishes`:
    whether accumulators are results as they stand, so that blocks that have all rows may store these.
    """

    family: ClassVar[str] = "rows"

    exchanges: int
    moments: bool
    functions: bool
    held: int
    splits: bool = False
    pieces: tuple[str, ...] = ()
    refills: bool = False
    cooperative: int = 0
    launches: int = 0
    left: int = 0
    tags: bool = False
    finishes: bool = False

    @property
    def one_shot(self) -> bool:
        """Whether only a thread group that holds its row has it."""
        return bool(self.part or self.pieces)

    @property
    def selective(self) -> bool:
        """Whether it has no form for rows of any length."""
        return self.one_shot or bool(self.folded) or self.tells

    @property
    def tells(self) -> bool:
        """Whether ranks that share a row tell each other of it, in the kernel itself."""
        return "channel" in [p.kind for form in self.forms for p in form.parameters]

    @property
    def accumulates(self) -> bool:
        """Whether blocks accumulate over rows: what is summed in parts leaves with each row."""
        return bool(self.columns) and not self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class TilesRecord(Kernel):
    """One kernel of the tiles family: elementwise over matrices of `rows` by `columns`, numbered by `batch`
    axes.

    An operand's `inner` axes are all columns (straight) or all rows (turned: it passes through shared
    memory), in contiguous runs; none where it is read element by element. `kept` are its other axes.
    """

    family: ClassVar[str] = "tiles"
    owns: ClassVar[bool] = False

    rows: tuple[str, ...]  # the last of the kept axes

    @property
    def batch(self) -> tuple[str, ...]:
        """The axes that number the matrices."""
        return self.kept[: len(self.kept) - len(self.rows)]

    @property
    def columns(self) -> tuple[str, ...]:
        """The axes of a row."""
        return self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsRecord(AccumulatingKernel):
    """One kernel of the columns family: threads own neighbouring columns and walk along the axes `reduced`.

    `inner` are the innermost axes, kept and contiguous; `kept` the others, which any stride may step along,
    those of `reduced` last. In `final_reads` and `finals` the axes of `reduced` are the inner ones. `columns`
    are sums over columns, `wide` where there is one for each element of `reduced`. `exchanged`: the most
    values of a column in one exchange; `arrays`: values of each column that the last pass needs; the rest as
    in `RowsRecord`.
    """

    family: ClassVar[str] = "columns"

    reduced: tuple[str, ...]
    exchanges: int
    exchanged: int
    moments: bool
    arrays: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsRecord(Kernel):
    """One kernel of the windows family: elementwise but for sums over neighbours along `windowed` axes.

    `image`: where there is one, the axis of all windows and those inside it, or the two innermost axes where
    windows run along both. `inner` is the image, or the innermost axis where there is none, and an operand's
    `inner` axes are those that it has of these. `reaches`: for each
    level of nested windows how far they reach back (0 or less) and ahead; `across`: how far along the rows of
    an image of two axes, to either side. `sums`: how many windowed sums each level has. `early`: how many
    parts of the results a march computes before the last sums are there. `functions`: whether what is summed
    takes roots, powers or the like.
    """

    family: ClassVar[str] = "windows"
    owns: ClassVar[bool] = False

    image: tuple[str, ...]
    windowed: tuple[str, ...]
    reaches: tuple[tuple[int, int], ...]
    across: tuple[int, ...]
    sums: tuple[int, ...]
    early: int
    functions: bool

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes, in the memory order of the results."""
        return self.kept + self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentRecord(AccumulatingKernel):
    """One kernel of the resident family: the rows of a segment are dealt out to blocks, which keep what they
    read on chip until the statistics of the whole segment are there, and then apply them; and the kernel that
    adds up what blocks leave of sums over segments.

    `final_reads`, `finals` and `columns` are those of sums over segments, but for `finals` that one block of
    each segment writes. The rest as in `RowsRecord`.
    """

    family: ClassVar[str] = "resident"

    folded: tuple[str, ...]  # the innermost axes of a row, where statistics are of all neighbours along these
    moments: bool  # whether statistics are the moments of one operand; else they are sums
    functions: bool  # whether exponentials and their like are applied
    held: tuple[str, ...]  # the operands that blocks keep on chip
    sums: int  # of each element of a row, 0 where statistics are moments
    left: int  # values of each group of neighbours that a block leaves for the others
    made: int  # values of each group that a block makes of what all have left
    factors: int  # values of each element of a row that results are made of
    beside: int  # values of each element that a thread has in either pass beside what it holds

    @property
    def selective(self) -> bool:
        """It fits where blocks have room for what they keep."""
        return True


@cache
def records() -> Mapping[str, type[Kernel]]:
    """By family, the record of its kernels."""
    found: dict[str, type[Kernel]] = {}
    left: list[type[Kernel]] = [Kernel]
    while left:
        record = left.pop(0)
        left += record.__subclasses__()
        if "family" in vars(record):
            found[record.family] = record  # slots make a class anew: the later one counts
    return dict(sorted(found.items()))
