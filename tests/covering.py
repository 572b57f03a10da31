"""Calls of the bundled specs that cover devices, element types, lengths of rows and where rows begin."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from normgen.launching.launch import Binding
from normgen.launching.machine import Machine
from normgen.package.records import Package, PassRecord
from tests.codegen.norms import H200, bound

HOPPER = replace(H200, programmatic=True)
AMPERE = Machine("A100", "sm_80", 108, 166912, 167936, cache=40 << 20)


class Call(NamedTuple):
    """A call with every tensor: contiguous, but for `gap` elements after each run of the last axis."""

    dtype: str
    size: int  # length of the last axis, by name, that the spec leaves open
    rest: int  # length of every other
    gap: int = 0

    def __str__(self) -> str:
        return f"{self.dtype} {self.rest}x{self.size}+{self.gap}"

    def binding(self, made: Package, record: PassRecord) -> Binding:
        """The call of a pass."""
        axes = {a.name for a in made.axes}
        axes |= {a for t in (*record.reads, *record.writes) for group in t.dims for a in group}
        fixed = {axis.name: axis.extent for axis in made.axes if axis.extent}
        last = max(axes - {"...", *fixed}, default="...")
        lengths = {a: fixed.get(a, self.size if a == last else self.rest) for a in sorted(axes)}
        named = {("rest" if a == "..." else a): n for a, n in lengths.items()}
        return bound(record, self.dtype, alignment=2 if self.gap else 16, padding=self.gap, **named)


# Each device has each length, and each element type, but not each of both.
CALLS: tuple[tuple[Machine, Call], ...] = (
    (HOPPER, Call("bf16", 300, 8)),
    (HOPPER, Call("f32", 4096, 8)),
    (HOPPER, Call("bf16", 65536, 8)),
    (AMPERE, Call("f32", 300, 8)),
    (AMPERE, Call("bf16", 4096, 8)),
    (AMPERE, Call("f32", 65536, 8)),
    (HOPPER, Call("bf16", 7, 13)),
    (HOPPER, Call("bf16", 333, 5)),
    (HOPPER, Call("bf16", 4097, 300)),
    (HOPPER, Call("bf16", 20001, 9)),
    (HOPPER, Call("bf16", 4096, 9000)),
    (HOPPER, Call("f16", 1030, 16, 2)),
    (HOPPER, Call("f32", 1025, 6, 7)),
    (AMPERE, Call("f16", 5000, 64, 8)),
)
