"""What a pass of a module of one shape launches: formulas of the lengths that its calls leave open, as text.

They are Python's: `rows * 2`, of the names in `open`. Several formulas are parted by commas.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch of a kernel, by its entry, in calls for whose lengths `when` holds.

    `arguments`: of each parameter a formula, `attr eps`, or an array with its access: `in x`, `out y`, `inout
    z`. `format` is of these, and `clears` as in `Launch`. `shared`: bytes. `constants`: definitions that the
    text lacks.
    """

    when: str
    text: str
    entry: str
    grid: str
    block: int
    arguments: str
    format: str
    shared: int = 0
    cluster: int = 1
    programmatic: bool = True
    clears: str = ""
    constants: str = ""


@dataclass(frozen=True, slots=True)
class ScratchRecord:
    """An array that the launches of such calls share. `shape`: formulas."""

    when: str
    name: str
    shape: str
    dtype: str


@dataclass(frozen=True, slots=True)
class MadeRecord:
    """What a pass was made for: contiguous arrays at addresses that 16 divides, of these operands and element
    types; these lengths of axes, with names for the others; an architecture, and so many multiprocessors
    where blocks wait for one another, else 0. `call`: how messages call the pass; `command` compiles the
    spec.
    """

    call: str
    command: str
    sizes: tuple[tuple[str, int], ...]
    open: tuple[tuple[str, str], ...]
    dtype: str
    arch: str
    operands: tuple[tuple[str, str], ...]
    launches: tuple[LaunchRecord, ...]  # in order
    scratch: tuple[ScratchRecord, ...] = ()
    multiprocessors: int = 0
