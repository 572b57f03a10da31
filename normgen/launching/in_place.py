"""Which results may be written over which operands: a rule on the records of kernels.

A result may lie exactly over an operand where the kernel maps both in the same way: the same element type,
all axes of the kernel, the same strides, the same address. Why that is sound:

- A thread owns the same columns of the same rows of every operand and result with all axes. It reads an
  element of its own, in whatever pass over the row, before it stores the result there, and never after.
- No other thread touches that element, but those of a block that helps: it adds up another's part of a row
  or segment, and what it found of a part that came in the meantime is nothing (cooperative.cuh). Thread
  groups beyond the last row read no elements. What the pipeline fetches ahead is of the thread group's own
  rows to come, and is taken from shared memory from then on.
- Misaligned rows are read by aligned words, in which neighbours have elements too, of this row or the next.
  These may have been stored by then: their values are read and not used, and stores leave the elements
  between them as they are. (The host executor reads the elements that are used, one by one.)
- A multiprocessor's cache is not told of what others store. A copy that was fetched before the element's only
  store holds the old value, which is the one that all reads before that store want; after it there are none.
  Other elements of the same cache line do not matter either: until their own store their old value is the
  right one.
- A compiler takes the __restrict__ of a result as leave to move a load past its stores. It cannot where the
  stored value needs what was loaded, hence: the result must be one that the operand is read for. Where the
  need is by way of a sum alone, the forms that read the row once are as safe; in the streaming form the last
  pass loads the element anew for another result, above the store in the text.

Kernels that ran before may have read the operand: they are done. Everything else is refused: a later kernel,
or the second-stage reduction, would read what was overwritten; where kernels are of another kind (windows,
transposed results), other threads read the element; params and statistics are read by many threads; a sum
onto what `out` holds reads it too; a copy lies somewhere else.
"""

from __future__ import annotations

from collections.abc import Collection

from normgen.launching.launch import Binding
from normgen.package.kernels import Kernel
from normgen.package.operands import OperandRecord
from normgen.package.records import PassRecord, Strategy


def pairs_in_place(
    record: PassRecord, binding: Binding, outputs: Collection[str], copied: Collection[str]
) -> frozenset[tuple[str, str]]:
    """Every (result, operand) of a call of which the one may take the other's memory."""
    present = [name for name, _ in binding.operands]
    return frozenset(
        (output, operand)
        for output in present
        for operand in present
        if output in outputs and operand not in copied and may_overlie(record, binding, output, operand)
    )


def may_overlie(record: PassRecord, binding: Binding, output: str, operand: str) -> bool:
    """Whether the result `output` may be written exactly over `operand`."""
    operands = dict(binding.operands)
    over, under = operands[output], operands[operand]
    if (over.dtype, dict(over.strides)) != (under.dtype, dict(under.strides)):
        return False
    return all(_in_strategy(strategy, output, operand) for strategy in record.strategies)


def _in_strategy(strategy: Strategy, output: str, operand: str) -> bool:
    touching = [k for k in strategy.kernels if {output, operand} & _touched(k)]
    if not touching or any(output in _touched(k) for k in touching[:-1]):
        return False
    kernel = touching[-1]
    if not kernel.owns or operand in {
        o.tensor for o in (*kernel.final_reads, *kernel.writes, *kernel.finals)
    }:
        return False
    read = next((o for o in kernel.reads if o.tensor == operand and output in o.wanted_by), None)
    written = next((o for o in kernel.writes if o.tensor == output), None)
    return read is not None and written is not None and _whole(kernel, read) and _whole(kernel, written)


def _touched(kernel: Kernel) -> set[str]:
    return {o.tensor for o in (*kernel.reads, *kernel.writes, *kernel.final_reads, *kernel.finals)}


def _whole(kernel: Kernel, operand: OperandRecord) -> bool:
    """Whether a kernel's operand has an element for each element of each row, and only one."""
    return bool(operand.inner) and {*operand.kept, *operand.inner} == {*kernel.kept, *kernel.inner}
