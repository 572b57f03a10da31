"""Identifiers of a kernel's own values, made of their expressions: `sum_x2` for `sum[D](x^2)`.

An identifier spells the expression out: `w_dy` is a product, `x_minus_mu` a difference, `x2` a square. What
the spec names is called by that name. An expression that would take more than `LONGEST` characters has none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from normgen.ir.expr import power
from normgen.ir.nodes import (
    Add,
    Call,
    Const,
    Expr,
    Extent,
    Load,
    Mul,
    Reduce,
    Round,
    Scalar,
    is_condition,
)

LONGEST = 28
_STEM = re.compile(r"\(?(?:if_finite\()?([^\W\d][\w.]*)")
_HALF = Fraction(1, 2)
_SPOKEN = re.compile(r"[A-Za-z]\w*", re.ASCII)
_POWERS = {2: "squared", 3: "cubed"}
_NUMBERS = {Fraction(0): "zero", Fraction(1): "one", Fraction(2): "two", Fraction(3): "three"}

# What the spec, or the text so far, calls a value; nothing where it has no name.
Known = Callable[[Expr], str]


class _TooLong(Exception):
    """An expression has no identifier."""


def identifier(node: Expr, known: Known) -> str:
    """The identifier of a value; empty where that would be too long, or no word."""
    try:
        found = _Reader(known).name(node)
    except _TooLong:
        return ""
    return found if _SPOKEN.fullmatch(found) and len(found) <= LONGEST else ""


class _Reader:
    """Reads one expression. It stops where the identifier is too long, however large the expression is."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._left = 2 * LONGEST  # nodes to read, at most

    def name(self, node: Expr) -> str:
        """The value itself, whatever it is called."""
        self._left -= 1
        if self._left < 0:
            raise _TooLong
        found = self._of(node)
        if len(found) > LONGEST:
            raise _TooLong
        return found

    def _operand(self, node: Expr) -> str:
        """A value as a part of another."""
        return self._known(node) or self.name(node)

    def _of(self, node: Expr) -> str:
        match node:
            case Load(tensor=name) | Scalar(name=name) if _SPOKEN.fullmatch(name):
                return name
            case Const(value=value):
                return _NUMBERS.get(value, "const")
            case Extent(axis=axis) if _SPOKEN.fullmatch(axis):
                return f"size_{axis}"
            case Reduce(op=op, arg=arg):
                return f"{op}_{self._operand(arg)}"
            case Round(arg=arg):
                return f"rounded_{self._operand(arg)}"
            case Call(op="stop", args=(arg,)):
                return self._operand(arg)
            case Call(op="minus", args=(left, right)):
                return f"{self._operand(left)}_minus_{self._operand(right)}"
            case Call(op=op, args=args) if not is_condition(node):
                return "_".join((op, *map(self._operand, args)))
            case Add():
                return self._sum(node)
            case Mul():
                return self._product(node)
        raise _TooLong

    def _sum(self, node: Add) -> str:
        """Its terms without their coefficients; numbers and what is subtracted come last."""
        terms = sorted(node.terms, key=lambda pair: (pair[1] < 0, *_place(pair[0])))
        out = ""
        for term, c in terms:
            word = _NUMBERS.get(abs(c), "const") if isinstance(term, Const) else self._operand(term)
            joint = "_minus_" if c < 0 else "_plus_"
            out += f"{joint}{word}" if out else f"{'neg_' if c < 0 else ''}{word}"
        return out

    def _product(self, node: Mul) -> str:
        """Its factors, and of the coefficient the sign; of a sum and the number of its terms, the mean."""
        mean = _averaged(node)
        above = [f"mean_{self._operand(mean.arg)}"] if mean else []
        below: list[str] = []
        for base, e in node.factors:
            if base is mean or isinstance(base, Extent):
                continue
            (below if e < 0 and e.denominator == 1 else above).append(self._power(base, e))
        over = f"_over_{'_'.join(below)}" if below else ""
        found = "_".join(above) + over if above else f"inv_{'_'.join(below) or 'size'}"
        return f"neg_{found}" if node.coefficient < 0 else found

    def _power(self, base: Expr, exponent: Fraction) -> str:
        """A factor, as a power of what has a name: `rstd3` where `rstd` is a root."""
        for times in (1, 2, 3):
            named = self._known(power(base, exponent / times)) if exponent != times else ""
            if named:
                return _to(named, times)
        word = self._operand(base)
        if exponent in (_HALF, -_HALF):
            return f"{'r' if exponent < 0 else ''}sqrt_{word}"
        if exponent.denominator != 1:
            raise _TooLong
        return _to(word, abs(int(exponent)))


def _averaged(node: Mul) -> Reduce | None:
    """The sum of a product that divides it by the number of its terms."""
    sums = [b for b, e in node.factors if isinstance(b, Reduce) and b.op == "sum" and e == 1]
    lengths = {b.axis for b, e in node.factors if isinstance(b, Extent) and e == -1}
    return sums[0] if sums and not sums[0].window and lengths == sums[0].over else None


def _to(word: str, exponent: int) -> str:
    """A word to a power: `x2`, but `x_minus_mu_squared`."""
    if exponent == 1:
        return word
    return f"{word}_{_POWERS[exponent]}" if "_" in word and exponent in _POWERS else f"{word}{exponent}"


def _place(term: Expr) -> tuple[bool, bool, bool]:
    """Where a term of a sum comes: what is summed up first, numbers last."""
    return isinstance(term, Const), isinstance(term, Scalar), not term.reduces


class Numbered:
    """Identifiers of one text, each given once: those that were given already, and values without one, get
    numbers."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()

    def of(self, wanted: str, otherwise: str) -> str:
        """`wanted`, or `otherwise` with a number."""
        name = wanted or otherwise
        self._given[name] += 1
        number = self._given[name]
        return name if wanted and number == 1 else f"{name}_{number}"


def stem_of(text: str) -> str:
    """What stands in a name for a value that a text has as `x[i]`, `moments.mean` or `if_finite(sum)`."""
    found = _STEM.match(text)
    return found[1].replace(".", "_") if found else ""
