"""Operations of reductions as kernel text: where they start, how they take a value in, what combines them."""

from __future__ import annotations

from normgen.ir.primitives import PRIMITIVES

# The value of no elements at all.
START = {"sum": "0.f", "max": "-INFINITY", "min": "INFINITY"}
# The device functions' name for the operation.
FUNCTOR = {"sum": "Sum", "max": "Max", "min": "Min"}


def combined(op: str, first: str, second: str) -> str:
    """The expression of two values combined."""
    return f"{first} + {second}" if op == "sum" else f"{PRIMITIVES[op].cuda}({first}, {second})"


def taken(op: str, into: str, value: str) -> str:
    """The statement that takes a value in."""
    return f"{into} += {value};" if op == "sum" else f"{into} = {combined(op, into, value)};"
