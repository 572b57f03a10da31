"""What is known of a value without knowing its operands: the licences for canonical rewriting.

"Non-negative" means at least 0 or NaN; "finite" means neither infinite nor NaN whatever the tensors hold
(overflow of the arithmetic itself left aside); "positive" implies finite.
"""

from __future__ import annotations

from functools import cache

from normgen.ir.nodes import Add, Call, Const, Expr, Extent, Mul, Reduce, Round, Scalar, Select
from normgen.ir.primitives import PRIMITIVES


@cache
def is_positive(node: Expr) -> bool:
    """Finite and above zero."""
    match node:
        case Const(value=value):
            return value > 0
        case Extent():
            return True
        case Mul(coefficient=c, factors=factors):
            return c > 0 and all(is_positive(b) for b, _ in factors)
        case Add(terms=terms):
            return all(c > 0 and is_positive(t) for t, c in terms)
        case _:
            return False


@cache
def is_finite(node: Expr) -> bool:
    """Neither infinite nor NaN."""
    match node:
        case Const() | Extent() | Scalar():
            return True
        case Mul(factors=factors):
            return all(is_positive(b) or (is_finite(b) and e > 0 and e.denominator == 1) for b, e in factors)
        case Add(terms=terms):
            return all(is_finite(t) for t, _ in terms)
        case _:
            return False


@cache
def is_nonnegative(node: Expr) -> bool:
    """At least zero, or NaN."""
    match node:
        case Const(value=value):
            return value >= 0
        case Extent():
            return True
        case Mul(coefficient=c, factors=factors):
            # A fractional power is a root: non-negative where it is not NaN.
            return c >= 0 and all(e.denominator != 1 or e % 2 == 0 or is_nonnegative(b) for b, e in factors)
        case Add(terms=terms):
            return all(c >= 0 and is_nonnegative(t) for t, c in terms)
        case Call(op=op, args=args):
            return PRIMITIVES[op].nonnegative(map(is_nonnegative, args))
        case Round(arg=arg) | Reduce(arg=arg):
            return is_nonnegative(arg)
        case Select(then=then, otherwise=otherwise):
            return is_nonnegative(then) and is_nonnegative(otherwise)
        case _:
            return False
