"""Launches of kernels that accumulate over what they number: the kernel itself, and the finalising one.

Each block leaves a partial of every accumulator in the workspace; the finalising kernel combines them.
"""

from __future__ import annotations

from collections.abc import Mapping

from normgen.runtime.calling import Call
from normgen.runtime.launches import Launch, Slot
from normgen.runtime.records import ColumnRecord, ColumnsRecord, FormRecord, KernelRecord, OperandRecord

_FINAL_THREADS = 512
_FINAL_COLUMNS = 32  # of a block


class Accumulating:
    """One kernel of the rows or columns family, and the accumulators that a call wants of it.

    `reduced`: the axes of a row, or along a column. `own`: values of the family's own parameters. `wide`:
    offsets take 64 bits. `runs`: the partials of a part of a row, where accumulators keep parts.
    """

    def __init__(
        self,
        record: KernelRecord | ColumnsRecord,
        call: Call,
        reduced: tuple[str, ...],
        own: Mapping[str, int],
        wide: bool,
        runs: int = 0,
    ) -> None:
        self.record, self.call, self.reduced, self.wide, self.runs = record, call, reduced, wide, runs
        self.columns = wanted_columns(record, call)
        self.own: dict[tuple[str, str], int | Slot] = {(kind, ""): value for kind, value in own.items()}
        self.own |= {("partial", c.name): 0 for c in record.columns}
        self.own |= {("partial", c.name): Slot("pointer", partial_name(record, c)) for c in self.columns}

    def launch(
        self,
        form: str,
        reason: str,
        knobs: Mapping[str, int],
        switches: Mapping[str, bool],
        blocks: int,
        threads: int,
        *,
        shared: int = 0,
        cluster: int = 1,
    ) -> Launch:
        """The launch of the kernel in one of its forms."""
        return self._launch(
            self._form(form),
            f"{form}: {reason}",
            self.record.reads,
            (*self.record.writes, *self.record.finals),
            knobs,
            switches,
            (blocks, 1, 1),
            threads,
            shared,
            cluster,
        )

    def finalise(self) -> tuple[Launch, ...]:
        """The launch that combines the partials of all blocks, if there are any."""
        if not self.columns:
            return ()
        grid = max(map(self._final_blocks, self.columns))
        launch = self._launch(
            self._form("finalise"),
            "finalise: the partials of all blocks",
            self.record.final_reads,
            (*self.record.finals, *self.record.writes),
            {"THREADS": _FINAL_THREADS, "LENGTH": self.call.size(self.reduced), "RUNS": self.runs},
            {},
            (grid, self.record.groups, 1),
            _FINAL_THREADS,
        )
        return (launch,)

    def _final_blocks(self, column: ColumnRecord) -> int:
        """For neighbouring elements of what is reduced, or where there is one value in all, for segments."""
        outer, length = self.call.size(column.kept + column.part), self.call.size(self.reduced)
        return -(-length // _FINAL_COLUMNS) * outer if column.wide else -(-outer // _FINAL_COLUMNS)

    def _form(self, name: str) -> FormRecord:
        return next(f for f in self.record.forms if f.form == name)

    def _launch(
        self,
        form: FormRecord,
        title: str,
        reads: tuple[OperandRecord, ...],
        writes: tuple[OperandRecord, ...],
        knobs: Mapping[str, int],
        switches: Mapping[str, bool],
        grid: tuple[int, int, int],
        threads: int,
        shared: int = 0,
        cluster: int = 1,
    ) -> Launch:
        partials = [partial_name(self.record, c) for c in self.columns]
        final = form.form == "finalise"
        preamble = self.call.preamble(
            form,
            title,
            reads,
            writes,
            wide=self.wide,
            knobs=knobs,
            switches=switches,
            sizes=self.reduced,
            cluster=cluster,
        )
        return self.call.launch(
            form,
            preamble,
            grid,
            threads,
            shared=shared,
            own=self.own,
            wide=self.wide,
            reads=[*(o.tensor for o in reads), *(partials if final else ())],
            writes=[*(o.tensor for o in writes), *(() if final else partials)],
            cluster=cluster,
        )


def wanted_columns(record: KernelRecord | ColumnsRecord, call: Call) -> list[ColumnRecord]:
    """The accumulators from which some wanted result is computed."""
    return [c for c in record.columns if set(call.operands) & set(c.wanted_by)]


def partial_name(record: KernelRecord | ColumnsRecord, column: ColumnRecord) -> str:
    """The workspace array of an accumulator's partials, one for each block."""
    return f"{record.name}.{column.name}"
