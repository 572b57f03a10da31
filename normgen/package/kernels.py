"""The kernels of each family, as plain frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from normgen.package.operands import ColumnRecord, FormRecord, OperandRecord


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel of the rows family: a team owns a row of `inner` elements; `kept` axes number the rows.

    `reads` and `writes` belong to the rows, `final_reads` and `finals` to the kernel that adds the partials
    of `columns`.
    `segment`: the kept axes that some column sum keeps. `exchanges`: team reductions a row; `moments`:
    whether the first of them merges mean and variance. `functions`: whether exp, tanh and the like are
    called, which take registers;
    `held`: results of those that the registers form keeps from one pass to the next. `groups`: how many
    groups of finals there are, each computed by blocks of its own. `splits`: whether blocks may share a row.
    `pieces`: the outermost axes of a row where they lie outside the kept ones in memory; operands have them
    among their kept axes. `rolls`: whether a ring may hold vectors of whatever row. `spread`: values of its
    slice that each of the blocks leaves which share a row, 0 where none do. `marks`: whether blocks can tell
    where rows of earlier ones are, whose marks in the cache they take back.
    """

    owns: ClassVar[bool] = True  # one thread alone touches an element of an operand with all axes

    name: str
    kept: tuple[str, ...]
    inner: tuple[str, ...]
    reads: tuple[OperandRecord, ...]
    writes: tuple[OperandRecord, ...]
    final_reads: tuple[OperandRecord, ...]
    finals: tuple[OperandRecord, ...]
    columns: tuple[ColumnRecord, ...]
    segment: tuple[str, ...]
    exchanges: int
    moments: bool
    functions: bool
    held: int
    forms: tuple[FormRecord, ...]
    groups: int = 0
    splits: bool = False
    pieces: tuple[str, ...] = ()
    rolls: bool = False
    spread: int = 0
    marks: bool = False

    @property
    def piece(self) -> tuple[str, ...]:
        """The axes of a row that are contiguous: all of them, unless it is in pieces."""
        return self.inner[len(self.pieces) :]

    @property
    def one_shot(self) -> bool:
        """Whether only a team that holds its row has it."""
        return bool(self.part or self.pieces)

    @property
    def folded(self) -> tuple[str, ...]:
        """The innermost axes of a row, where blocks merge what they accumulate of these."""
        return self.columns[0].folded if self.columns else ()

    @property
    def selective(self) -> bool:
        """Whether it has no form for rows of any length."""
        return self.one_shot or bool(self.folded)

    @property
    def part(self) -> tuple[str, ...]:
        """The axes of a row that accumulators keep, the outer ones or those of a piece, where they keep some:
        teams then hold rows."""
        return self.columns[0].part if self.columns else ()

    @property
    def adds_pieces(self) -> bool:
        """Whether the pieces of a row are added up."""
        return bool(self.part and self.pieces)

    @property
    def inside(self) -> tuple[str, ...]:
        """The other axes of a row."""
        return tuple(axis for axis in self.inner if axis not in self.part)

    @property
    def accumulates(self) -> bool:
        """Whether blocks accumulate over rows: what is summed in parts leaves with each row."""
        return bool(self.columns) and not self.part


@dataclass(frozen=True, slots=True)
class TilesRecord:
    """One kernel of the tiles family: elementwise over matrices of `rows` by `columns`, numbered by `batch`
    axes.

    An operand's `inner` axes are all columns (straight) or all rows (turned: it passes through shared
    memory), in contiguous runs; none where it is read element by element. `kept` are its other axes.
    """

    owns: ClassVar[bool] = False  # one thread alone touches an element of an operand with all axes
    selective: ClassVar[bool] = False  # it may not fit a call, for its lengths or strides

    name: str
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    reads: tuple[OperandRecord, ...]
    writes: tuple[OperandRecord, ...]
    forms: tuple[FormRecord, ...]
    final_reads: tuple[OperandRecord, ...] = ()
    finals: tuple[OperandRecord, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes that number the rows of all matrices."""
        return self.batch + self.rows

    @property
    def inner(self) -> tuple[str, ...]:
        """The axes of a row."""
        return self.columns


@dataclass(frozen=True, slots=True)
class ColumnsRecord:
    """One kernel of the columns family: threads own neighbouring columns and walk along the axes `reduced`.

    `inner` are the innermost axes, kept and contiguous; `kept` the others, which any stride may step along,
    those of `reduced` last. In `final_reads` and `finals` the axes of `reduced` are the inner ones. `columns`
    are sums over columns, `wide` where there is one for each element of `reduced`. `exchanged`: the most
    values of a column in one exchange; `arrays`: values of each column that the last pass needs; the rest as
    in `KernelRecord`.
    """

    owns: ClassVar[bool] = True  # one thread alone touches an element of an operand with all axes
    selective: ClassVar[bool] = False  # it may not fit a call, for its lengths or strides

    name: str
    kept: tuple[str, ...]
    inner: tuple[str, ...]
    reduced: tuple[str, ...]
    reads: tuple[OperandRecord, ...]
    writes: tuple[OperandRecord, ...]
    final_reads: tuple[OperandRecord, ...]
    finals: tuple[OperandRecord, ...]
    columns: tuple[ColumnRecord, ...]
    segment: tuple[str, ...]
    exchanges: int
    exchanged: int
    moments: bool
    arrays: int
    held: int
    groups: int
    forms: tuple[FormRecord, ...]


@dataclass(frozen=True, slots=True)
class WindowsRecord:
    """One kernel of the windows family: elementwise but for sums over neighbours along `windowed` axes.

    `axes`: all of them, in the memory order of the results. `image`: where there is one, the axis of all
    windows and those inside it, or the two innermost axes where windows run along both; an operand's `inner`
    axes are those that it has of these, or the innermost one where there is no image. `reaches`: for each
    level of nested windows how far they reach back (0 or less) and ahead; `across`: how far along the rows of
    an image of two axes, to either side. `sums`: how many windowed sums each level has. `early`: how many
    parts of the results a march computes before the last sums are there. `functions`: whether what is summed
    takes roots, powers or the like.
    """

    owns: ClassVar[bool] = False  # one thread alone touches an element of an operand with all axes
    selective: ClassVar[bool] = False  # it may not fit a call, for its lengths or strides

    name: str
    axes: tuple[str, ...]
    image: tuple[str, ...]
    windowed: tuple[str, ...]
    reaches: tuple[tuple[int, int], ...]
    across: tuple[int, ...]
    sums: tuple[int, ...]
    early: int
    functions: bool
    reads: tuple[OperandRecord, ...]
    writes: tuple[OperandRecord, ...]
    forms: tuple[FormRecord, ...]
    final_reads: tuple[OperandRecord, ...] = ()
    finals: tuple[OperandRecord, ...] = ()

    @property
    def inner(self) -> tuple[str, ...]:
        """The axes of an image; the innermost one where there is none."""
        return self.image or self.axes[-1:]

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes that number the images."""
        return self.axes[: len(self.axes) - len(self.inner)]


@dataclass(frozen=True, slots=True)
class ResidentRecord:
    """One kernel of the resident family: the rows of a segment are dealt out to blocks, which keep what they
    read on chip until the statistics of the whole segment are there, and then apply them; and the kernel that
    adds up what blocks leave of sums over segments.

    `final_reads`, `finals` and `columns` are those of sums over segments, but for `finals` that one block of
    each segment writes. The rest as in `KernelRecord`.
    """

    owns: ClassVar[bool] = True  # one thread alone touches an element of an operand with all axes
    selective: ClassVar[bool] = True  # it may not fit a call, for its lengths or strides

    name: str
    kept: tuple[str, ...]
    inner: tuple[str, ...]
    segment: tuple[str, ...]  # the kept axes whose rows have statistics of their own
    folded: tuple[str, ...]  # the innermost axes of a row, where statistics are of all neighbours along these
    moments: bool  # whether statistics are the moments of one operand; else they are sums
    functions: bool  # whether exponentials and their like are applied
    held: tuple[str, ...]  # the operands that blocks keep on chip
    sums: int  # of each element of a row, 0 where statistics are moments
    left: int  # values of each group of neighbours that a block leaves for the others
    made: int  # values of each group that a block makes of what all have left
    factors: int  # values of each element of a row that results are made of
    beside: int  # values of each element that a thread has in either pass beside what it holds
    reads: tuple[OperandRecord, ...]
    writes: tuple[OperandRecord, ...]
    final_reads: tuple[OperandRecord, ...]
    finals: tuple[OperandRecord, ...]
    columns: tuple[ColumnRecord, ...]
    groups: int
    forms: tuple[FormRecord, ...]


# A kernel of any family.
Kernel = KernelRecord | ColumnsRecord | TilesRecord | WindowsRecord | ResidentRecord
