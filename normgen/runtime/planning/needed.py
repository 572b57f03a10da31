"""Which kernels of a strategy run in a call: those with something to write that is wanted."""

from __future__ import annotations

from normgen.launching.launch import Binding
from normgen.package.kernels import Kernel
from normgen.package.records import Strategy


def warm(kernels: list[Kernel]) -> dict[str, set[str]]:
    """By kernel, the arrays that those before it read."""
    found: dict[str, set[str]] = {}
    read: set[str] = set()
    for kernel in kernels:
        found[kernel.name] = set(read)
        read |= {o.tensor for o in kernel.reads}
    return found


def _with_elements(strategy: Strategy, binding: Binding) -> list[Kernel]:
    """The kernels that no empty axis concerns, neither their own nor that of something handed on to them."""
    empty = {axis for axis, length in binding.extents if length == 0}
    if not empty:
        return [*strategy.kernels]
    temporaries, missing = {t.name for t in strategy.temporaries}, set[str]()
    found: list[Kernel] = []
    for kernel in strategy.kernels:
        read = {o.tensor for o in (*kernel.reads, *kernel.final_reads)}
        if empty.isdisjoint((*kernel.kept, *kernel.inner)) and missing.isdisjoint(read):
            found.append(kernel)
        else:
            missing |= temporaries & {o.tensor for o in (*kernel.writes, *kernel.finals)}
    return found


def made_of(strategy: Strategy, result: str) -> set[str]:
    """A result with all that kernels read for it, directly or by what they hand on."""
    found = {result}
    for kernel in reversed(strategy.kernels):
        if any(o.tensor in found for o in (*kernel.writes, *kernel.finals)):
            read = (*kernel.reads, *kernel.final_reads)
            found |= {o.tensor for o in read if found & set(o.wanted_by)}
    return found


def needed(strategy: Strategy, binding: Binding) -> tuple[list[Kernel], set[str]]:
    """The kernels with something to write that is wanted, and the temporaries that they hand on."""
    temporaries = {t.name for t in strategy.temporaries}
    wanted = {name for name, _ in binding.operands}
    running: list[Kernel] = []
    for kernel in reversed(_with_elements(strategy, binding)):
        if not any(o.tensor in wanted for o in (*kernel.writes, *kernel.finals)):
            continue
        running.insert(0, kernel)
        for o in (*kernel.reads, *kernel.final_reads):
            if o.tensor in temporaries and wanted & set(o.wanted_by):
                wanted.add(o.tensor)
    return running, wanted & temporaries
