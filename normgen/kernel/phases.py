"""What a kernel's statements are collected in: one phase for each pass over the elements of a row."""

from __future__ import annotations

from dataclasses import dataclass, field

from normgen.diagnostics import Source
from normgen.ir.expr import Call, Expr
from normgen.ir.primitives import PRIMITIVES
from normgen.ir.program import Binding

# Of each reduction the value of no elements at all, and the device functions' name for the operation.
START = {"sum": "0.f", "max": "-INFINITY", "min": "INFINITY"}
FUNCTOR = {"sum": "Sum", "max": "Max", "min": "Min"}


def combined(op: str, first: str, second: str) -> str:
    """The expression of two values combined."""
    return f"{first} + {second}" if op == "sum" else f"{PRIMITIVES[op].cuda}({first}, {second})"


def taken(op: str, into: str, value: str) -> str:
    """The statement that takes a value in."""
    return f"{into} += {value};" if op == "sum" else f"{into} = {combined(op, into, value)};"


@dataclass(frozen=True, slots=True)
class Sum:
    """An accumulator of a level: its name, first value, and operation of the exchange."""

    name: str
    start: str
    operation: str


@dataclass(frozen=True, slots=True)
class Rounded:
    """A value that is rounded to an element type in one pass and used again in later ones: between them it is
    kept packed, in `words`. `value`: its elements of a vector."""

    value: str
    type: str


def is_function(node: Expr) -> bool:
    """Whether a value is an exponential or another function that takes many instructions."""
    return isinstance(node, Call) and PRIMITIVES[node.op].costly


@dataclass
class Phase:
    """One pass over the elements of the row, and the values of the row that follow it. `packed`: what it
    keeps for later passes, as elements of the type that it is rounded to. `vector`: what follows the elements
    of a vector. `own`: accumulators that a thread keeps to itself. `after`: what follows all vectors, for
    each element of one, and `after_loads` what that reads.
    """

    statements: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    own: list[Sum] = field(default_factory=list)
    packed: list[Rounded] = field(default_factory=list)
    vector: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    after_loads: list[str] = field(default_factory=list)
    moments: dict[str, object] | None = None
    exponentials: dict[str, str] | None = None


def line_comment(binding: Binding | None, source: Source) -> str:
    """Where the spec gives a value its name, if it does, as the end of a statement."""
    if binding is None or binding.span is None:
        return ""
    line = source.text.count("\n", 0, binding.span.start) + 1
    return f"  // {source.file}:{line}"
