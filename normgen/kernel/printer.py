"""Expressions as C++ text, with no more parentheses than precedence asks for.

`Printer.names` holds what is already a variable; everything below it prints as that name. Division and roots
are exponents in the IR and become divisions, `sqrtf` and `rsqrtf` here. `inner`: the axes of the elements
that a thread visits together.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from normgen.dtypes import DTYPES
from normgen.ir.algebra import negated
from normgen.ir.expr import ONE, Add, mul, power, walk
from normgen.ir.nodes import (
    Axes,
    Call,
    Const,
    Expr,
    Extent,
    InOrder,
    Load,
    Mul,
    Reduce,
    Round,
    Scalar,
    Select,
    Told,
    make,
)
from normgen.ir.primitives import PRIMITIVES
from normgen.kernel.powers import HIGH, repeated
from normgen.package.operands import axis_name

# Precedence, loosest first.
_SELECT, _OR, _AND, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(8)


def literal(value: Fraction | float) -> str:
    """The shortest float literal that reads back as the nearest float32."""
    with np.errstate(over="ignore"):
        single = np.float32(float(value))
    if np.isinf(single):
        return "-INFINITY" if single < 0 else "INFINITY"
    text = str(single)
    if "e" in text:
        return text + "f"
    return text.removesuffix("0") + "f" if text.endswith(".0") else text + "f"


class Printer:
    """Prints nodes given the names of those that are variables already."""

    def __init__(
        self, names: Mapping[Expr, str], types: Mapping[str, str], inner: Axes = frozenset()
    ) -> None:
        self.names = dict(names)
        # What stands for sums here: products begin with them.
        self.first: frozenset[Expr] = frozenset()
        self._types = types
        self._inner = inner

    def text(self, node: Expr, level: int = _SELECT) -> str:
        """The node, parenthesised where it binds less tightly than `level`."""
        if (name := self.names.get(node)) is not None:
            return name
        precedence, text = self._print(node)
        return f"({text})" if precedence < level else text

    def c_type(self, to: str) -> str:
        """The element type that a rounding is to."""
        return self._types[to.removeprefix("like ")] if to.startswith("like ") else DTYPES[to].c_type

    def _print(self, node: Expr) -> tuple[int, str]:
        match node:
            case Const(value=value):
                return (_UNARY if value < 0 else _ATOM), literal(value)
            case Extent(axis=axis):
                return _ATOM, f"float(size_{axis_name(axis)})"
            case Add():
                return _SUM, self._sum(node)
            case Mul():
                return self._product(node)
            case Call(op="minus", args=(left, right)):
                return _SUM, f"{self.text(left, _SUM)} - {self.text(right, _PRODUCT)}"
            case Call(op="stop", args=(arg,)):
                return self._print(arg) if arg not in self.names else (_ATOM, self.names[arg])
            case Call(op="and", args=(left, right)):
                return _AND, f"{self.text(left, _AND)} && {self.text(right, _COMPARE)}"
            case Call(op="or", args=(left, right)):
                # compilers warn of `a && b || c`
                return _OR, f"{self.text(left, _COMPARE)} || {self.text(right, _COMPARE)}"
            case Call(op="not", args=(arg,)):
                return _UNARY, f"!{self.text(arg, _ATOM)}"
            case Call(op=op, args=(left, right)) if sign := PRIMITIVES[op].sign:
                return _COMPARE, f"{self.text(left, _SUM)} {sign} {self.text(right, _SUM)}"
            case Call(op=op, args=args):
                return _ATOM, f"{PRIMITIVES[op].cuda}({', '.join(map(self.text, args))})"
            case Round(arg=arg, to=to):
                return _ATOM, f"round_to<{self.c_type(to)}>({self.text(arg)})"
            case Select(condition=condition, then=then, otherwise=otherwise):
                return (
                    _SELECT,
                    f"{self.text(condition, _OR)} ? {self.text(then, _OR)} : {self.text(otherwise)}",
                )
            case InOrder(terms=terms):
                return _SUM, " + ".join(self.text(term, _PRODUCT) for term in terms)
            case Load() | Scalar() | Reduce() | Told():
                raise AssertionError(f"{node!r} has no name here")
        raise AssertionError(type(node))

    def _sum(self, node: Add) -> str:
        positive = [p for p in node.terms if p[1] > 0 and p[0] is not ONE]
        rest = [p for p in node.terms if p not in positive]
        out = ""
        for term, c in positive + rest:
            flipped = self._flippable(term) if c < 0 else None
            sign = "-" if c < 0 and flipped is None else "+"
            if flipped is not None:
                body, c = self._scaled(term, -c, flipped), -c
            else:
                body = literal(abs(c)) if term is ONE else self._scaled(term, abs(c))
            out = f"{out} {sign} {body}" if out else f"-{body}" if c < 0 else body
        return out

    def _flippable(self, term: Expr) -> Add | None:
        """A difference among the factors of a term: -(a - b) * c reads better as (b - a) * c."""
        found = (
            [b for b, e in term.factors if e == 1]
            if isinstance(term, Mul) and term not in self.names
            else [term]
        )
        return next(
            (b for b in found if isinstance(b, Add) and b not in self.names and _is_difference(b)), None
        )

    def _scaled(self, term: Expr, c: Fraction, flipped: Add | None = None) -> str:
        if flipped is not None:
            name = f"({self._sum(negated(flipped))})"
            self.names[flipped] = name
            text = self._scaled(term, c)
            del self.names[flipped]
            return text
        return self.text(term, _PRODUCT) if c == 1 else f"{literal(c)} * {self.text(term, _UNARY)}"

    def _product(self, node: Mul) -> tuple[int, str]:
        if node.coefficient < 0 and (flipped := self._flippable(node)):
            self.names[flipped] = f"({self._sum(negated(flipped))})"
            out = self._product(make(Mul, node.axes, -node.coefficient, node.factors))
            del self.names[flipped]
            return out
        ordered = self._ordered(node)
        above = [self._power(b, e) for b, e in ordered if not _is_divisor(b, e)]
        below = [self._power(b, -e) for b, e in ordered if _is_divisor(b, e)]
        sign, c = ("-" if node.coefficient < 0 else ""), abs(node.coefficient)
        if c != 1 or not above:
            above.insert(0 if below or not above else len(above), literal(c))
        text = " * ".join(above)
        for divisor in below:
            text += f" / {divisor}"
        if sign:
            return _UNARY if len(above) == 1 and not below else _PRODUCT, sign + text
        return _PRODUCT if len(above) + len(below) > 1 else _ATOM, text

    def _ordered(self, node: Mul) -> list[tuple[Expr, Fraction]]:
        """The factors in an order in which products stay in range where the whole does.

        Sums and lengths first: sum / N is of the size of one element. Then what several elements of a vector
        share, so that its product is computed once. A high power of a value that may be of any size leaves
        range long before the value does: it is taken factor by factor, in turn with the others.
        """

        def rank(base: Expr) -> int:
            if isinstance(base, Extent):
                return 1
            if self.first and not self.first.isdisjoint(walk(base)):
                return 0
            summed = isinstance(base, Reduce) if base in self.names else base.reduces
            return 0 if summed else 2 + len(base.axes & self._inner)

        ordered = sorted(node.factors, key=lambda pair: rank(pair[0]))
        if len(ordered) == 1 or not any(self._is_high(b, e) for b, e in ordered):
            return ordered
        # What a vector shares has powers of its own only where it has a sum that balances them.
        shared = [p for p in ordered if rank(p[0]) <= 2]
        sums = [(b, e) for b, e in shared if rank(b) == 0 and e > 0]
        if not sums:
            return self._in_turn(ordered)
        first, later = sums[:1], sums[1:]
        lengths = [p for p in shared if rank(p[0]) == 1]
        powers = self._in_turn([p for p in shared if p not in sums + lengths])
        while later and powers:  # neither two sums before a power that balances one, nor all powers at once
            first += [powers.pop(0), later.pop(0)]
        rest = [p for p in ordered if p not in shared]
        return first[:1] + lengths + first[1:] + later + powers + self._in_turn(rest)

    def _is_high(self, base: Expr, exponent: Fraction) -> bool:
        """Whether a power leaves range long before its base does: a cube, or more."""
        return self._repeated(base, exponent)[1] >= HIGH

    def _repeated(self, base: Expr, exponent: Fraction) -> tuple[Expr, int]:
        """A power as a value that is multiplied with itself so many times: one that has a name, or a root."""
        for times in (1, 2, 3):  # rstd where it is cubed
            if exponent != times and (root := power(base, exponent / times)) in self.names:
                return root, times
        return repeated(base, exponent)

    def _in_turn(self, pairs: list[tuple[Expr, Fraction]]) -> list[tuple[Expr, Fraction]]:
        """The factors without high powers of one value: S, r, r, r for S r^3, but (x r)^3 for x^3 r^3."""
        if not any(self._is_high(b, e) for b, e in pairs):
            return pairs
        left = [self._repeated(b, e) for b, e in pairs]
        out: list[tuple[Expr, Fraction]] = []
        while left:
            times = min(t for _, t in left)
            if times > 1 and len(left) > 1:
                out.append((mul(*(b for b, _ in left)), Fraction(times)))
            else:
                out += [(b, Fraction(1)) for b, _ in left] * times
            left = [(b, t - times) for b, t in left if t > times]
        return out

    def _power(self, base: Expr, exponent: Fraction) -> str:
        """A factor of a product; binds as tightly as an operand of `*` must, or of `/` if it is a divisor."""
        for times in (1, 2, 3):  # a power of it may have a name already: rstd where it is cubed
            named = self.names.get(power(base, exponent / times)) if exponent != times else None
            if named is not None:
                return _integer_power(named, times)
        if isinstance(base, Extent) and exponent == -1:
            return f"(1.f / {self.text(base)})"
        if exponent == 1:
            return self.text(base, _UNARY)
        inner = self.text(base)
        magnitude = abs(exponent)
        if magnitude.denominator == 1:
            whole = _integer_power(inner, int(magnitude))
            return whole if exponent > 0 else f"(1.f / {whole})"
        if magnitude.denominator == 2:
            return _integer_power(f"{'sqrtf' if exponent > 0 else 'rsqrtf'}({inner})", magnitude.numerator)
        if magnitude.denominator == 4:
            return f"quarter_power<{exponent.numerator}>({inner})"
        return f"powf({inner}, {literal(exponent)})"


def _is_difference(node: Add) -> bool:
    return len(node.terms) == 2 and node.terms[0][1] > 0 > node.terms[1][1]


def _is_divisor(base: Expr, exponent: Fraction) -> bool:
    return exponent < 0 and exponent.denominator == 1 and not isinstance(base, Extent)


def _integer_power(text: str, exponent: int) -> str:
    match exponent:
        case 1:
            return text
        case 2:
            return f"square({text})"
        case 3:
            return f"cube({text})"
        case _:
            return f"integer_power<{exponent}>({text})"
