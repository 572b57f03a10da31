"""How the parts of a formula are written, once `ir.formula` has put them in order: here as text in the syntax
of specs. `ir.mathml` writes the same parts as MathML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from normgen.ir.nodes import Axes, Window

# How tightly an expression holds together, loosest first.
SELECT, OR, AND, COMPARE, SUM, PRODUCT, UNARY, POWER, ATOM = range(9)
HALF = Fraction(1, 2)
LONGEST = 1000  # what a coefficient's numerator and denominator are written out up to


class Piece(NamedTuple):
    """A written part of a formula, and how tightly it holds together."""

    text: str
    level: int


Factor = tuple[Piece, Fraction]  # with its exponent


def number(value: Fraction) -> str:
    """An exact number: a decimal where it has a short one, else a quotient."""
    if value.denominator == 1 and abs(value) < 10**7:
        return str(value.numerator)
    for digits in range(1, 18):
        text = f"{float(value):.{digits}g}"
        if Fraction(text) == value:
            return re.sub(r"e\+?(-?)0*", r"e\1", text)
    return f"{value.numerator}/{value.denominator}"


def axes_text(axes: Axes | tuple[str, ...]) -> str:
    """Axes separated by commas, `...` where the text order puts it: first."""
    return ", ".join(sorted(axes, key=lambda a: (a == "...", a)))


def window_text(window: Window) -> str:
    """A window as in `sum[C: -2..1]`."""
    return ", ".join(f"{axis}: {low}..{high}" for axis, low, high in window)


class Notation:
    """Formulas as text that normgen reads back."""

    def at(self, piece: Piece, level: int) -> str:
        """A part where something of this level or tighter is needed: in parentheses if it is looser."""
        return piece.text if piece.level >= level else f"({piece.text})"

    def name(self, name: str) -> Piece:
        """A tensor, an attr or a shared value."""
        return Piece(name, ATOM)

    def size(self, axis: str) -> Piece:
        """The length of an axis."""
        return Piece(f"size[{axis}]", ATOM)

    def number(self, value: Fraction) -> Piece:
        """A number, which may be negative."""
        text = number(value)
        return Piece(text, UNARY if value < 0 else PRODUCT if "/" in text else ATOM)

    def left_out(self) -> Piece:
        """In place of an operand that is too long."""
        return Piece("...", ATOM)

    def sum(self, terms: Sequence[tuple[bool, Piece]]) -> Piece:
        """Terms, each with whether it is subtracted."""
        text = ""
        for negative, piece in terms:
            part = self.at(piece, PRODUCT)
            if text:
                text += f" - {part}" if negative else f" + {part}"
            else:
                text = f"-{part}" if negative else part
        return Piece(text, SUM)

    def negated(self, piece: Piece) -> Piece:
        """Minus a product."""
        return Piece(f"-{piece.text}", UNARY if piece.level > PRODUCT else PRODUCT)

    def product(self, coefficient: Fraction, factors: Sequence[Factor]) -> Piece:
        """A positive coefficient and factors; whole negative exponents go below the line."""
        above, below = self._coefficient(coefficient)
        for piece, exponent in factors:
            side = below if exponent < 0 and exponent.denominator == 1 else above
            side.append(self._power(piece, abs(exponent) if side is below else exponent))
        top = " * ".join(above) or "1"
        bottom = below[0] if len(below) == 1 else f"({' * '.join(below)})"
        level = PRODUCT if below or len(above) > 1 else POWER
        if level == POWER and "^" not in top.replace("(", "^"):
            level = ATOM
        return Piece(f"{top} / {bottom}" if below else top, level)

    def _coefficient(self, size: Fraction) -> tuple[list[str], list[str]]:
        """A coefficient above and below the line; 1 is left out."""
        if max(size.numerator, size.denominator) <= LONGEST:
            return [str(n) for n in (size.numerator,) if n != 1], [
                str(n) for n in (size.denominator,) if n != 1
            ]
        text = number(size)
        return [f"({text})" if "/" in text else text], []

    def _power(self, base: Piece, exponent: Fraction) -> str:
        if exponent == 1:
            return self.at(base, UNARY)
        if exponent == HALF:
            return f"sqrt({base.text})"
        if exponent == -HALF:
            return f"rsqrt({base.text})"
        power = number(exponent)
        return f"{self.at(base, ATOM)}^{power if '/' not in power else f'({power})'}"

    def power(self, base: Piece, exponent: Piece) -> Piece:
        """A power whose exponent is a value."""
        return Piece(f"{self.at(base, ATOM)}^{self.at(exponent, UNARY)}", POWER)

    def compared(self, sign: str, level: int, left: Piece, right: Piece) -> Piece:
        """A comparison, or conditions joined by `and` or `or`."""
        return Piece(f"{self.at(left, level + 1)} {sign} {self.at(right, level + 1)}", level)

    def inverted(self, condition: Piece) -> Piece:
        """The opposite of a condition."""
        return Piece(f"not {self.at(condition, COMPARE)}", COMPARE)

    def call(self, op: str, args: Sequence[Piece]) -> Piece:
        """A function of values."""
        return Piece(f"{op}({', '.join(a.text for a in args)})", ATOM)

    def rounded(self, arg: Piece, dtype: str) -> Piece:
        """A value in an element type."""
        return Piece(f"{dtype}({arg.text})", ATOM)

    def rounded_like(self, arg: Piece, tensor: str) -> Piece:
        """A value in the element type of a tensor."""
        return Piece(f"cast({arg.text}, {tensor})", ATOM)

    def reduction(self, op: str, over: Axes, window: Window, arg: Piece) -> Piece:
        """A sum, a maximum or a minimum over axes, or over a window of one."""
        return Piece(f"{op}[{window_text(window) or axes_text(over)}]({arg.text})", ATOM)

    def choice(self, condition: Piece, then: Piece, otherwise: Piece) -> Piece:
        """One of two values."""
        parts = self.at(then, OR), self.at(condition, OR), self.at(otherwise, SELECT)
        return Piece("{} if {} else {}".format(*parts), SELECT)


TEXT = Notation()
