"""Expressions and programs as text, in normgen's own syntax where it has one; golden tests compare it.

show(...)          rstd * w * x
show_program(...)  one declaration a line; values by the user's names; what is shared by the names s0, s1, ...

A value used twice stands twice in the text of what uses it. So that texts do not double with each line of a
spec, `show` leaves out what is long, and `show_program` gives what is shared a line of its own where it is
long, or has a reduction in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from normgen.ir.formula import written
from normgen.ir.lines import lines_of
from normgen.ir.nodes import Expr
from normgen.ir.notation import number
from normgen.ir.program import Program, Tensor, dims_text

LONGEST_PART = 1000  # characters of an operand in `show`


def show(node: Expr, names: Mapping[Expr, str] | None = None) -> str:
    """The expression as text; a node in `names` by its name, and an operand that is very long as `...`."""
    return written(node, names or {}, longest=LONGEST_PART)


def show_program(program: Program) -> str:
    """The whole program: what it reads, the values that have or need a name, what it writes, its notes."""
    lines = [f"norm {program.name}"]
    lines += [f"attr {_attr(a.name, a.value)}" for a in program.attrs if not a.folded]
    lines += [f"axis {axis.name} = {axis.extent}" for axis in program.axes if axis.extent is not None]
    lines += [_declaration(tensor) for tensor in program.operands]
    return "\n".join(lines) + "\n" + show_results(program)


def show_results(program: Program) -> str:
    """What a program computes: values that have or need a name, results, notes."""
    lines = []
    for line in lines_of(program):
        head = f"{line.kind} {line.name}" if line.tensor is None else _declaration(line.tensor, line.kept)
        lines.append(f"{head} = {written(line.expr, line.names)}")
    lines += [f"note: {note}" for note in program.notes]
    return "\n".join(lines) + "\n"


def _attr(name: str, value: object) -> str:
    if value is None:
        return name
    return f"{name} = {number(value) if isinstance(value, Fraction) else value}"


def _declaration(tensor: Tensor, kept: bool = False) -> str:
    role = "save output" if kept and tensor.role == "output" else tensor.role
    kind = f": {tensor.dtype}" if tensor.dtype else f": like {tensor.like}" if tensor.like else ""
    return f"{role} {tensor.name}[{dims_text(tensor.dims)}]{kind}"
