"""Formulas as MathML, which browsers and notebooks typeset by themselves: for pages and `_repr_html_`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape
from typing import NamedTuple

from normgen.ir.formula import written
from normgen.ir.lines import lines_of
from normgen.ir.nodes import Axes, Window
from normgen.ir.notation import (
    ATOM,
    COMPARE,
    HALF,
    LONGEST,
    POWER,
    PRODUCT,
    SELECT,
    SUM,
    UNARY,
    Factor,
    Notation,
    Piece,
    axes_text,
    number,
)
from normgen.ir.program import Program, Tensor

_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eps": "ε", "zeta": "ζ",
    "eta": "η", "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "rho": "ρ",
    "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω",
}  # fmt: skip
_SIGNS = {"<": "&lt;", "<=": "≤", "==": "=", "!=": "≠", "and": "∧", "or": "∨"}
_FOLDS = {"sum": "∑"}
_TIMES = "<mo>⋅</mo>"


class Row(NamedTuple):
    """A line of a program, typeset. `role`: let, save, output, gradient, update, ..."""

    role: str
    name: str
    left: str  # MathML of what is defined, with its axes
    right: str  # and of its value
    note: str  # its element type, where that is not the caller's choice


def rows_of(program: Program) -> list[Row]:
    """What a program computes, each line as MathML without the element <math>."""
    notation = MathML(_differentials(program))
    rows = []
    for line in lines_of(program):
        left = notation.declared(line.name, line.tensor)
        role = line.kind if line.tensor is None else _role(line.tensor, line.kept)
        rows.append(Row(role, line.name, left, written(line.expr, line.names, notation), _kind(line.tensor)))
    return rows


def math(markup: str) -> str:
    """MathML as an element of its own."""
    return f'<math><mstyle displaystyle="true">{markup}</mstyle></math>'


_CELLS = ("opacity:.6", "text-align:right", "", "opacity:.6")  # styles


def formulas_html(program: Program) -> str:
    """The formulas of a program as an HTML table that needs no style sheet."""
    lines = []
    for row in rows_of(program):
        cells = (escape(row.role), math(row.left), math(f"<mo>=</mo>{row.right}"), escape(row.note))
        lines.append("".join(map(_cell, _CELLS, cells)))
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    notes = "".join(f'<p style="opacity:.7">{escape(note)}</p>' for note in program.notes)
    scrolled = f'<div style="overflow-x:auto"><table style="border:0">{table}</table></div>'
    return f"<div>{scrolled}{notes}</div>"


def _cell(style: str, content: str) -> str:
    place = "border:0;background:none;text-align:left;white-space:nowrap;padding:.25em .4em"
    place += ";vertical-align:baseline"
    return f'<td style="{place};{style}">{content}</td>'


def _role(tensor: Tensor, kept: bool) -> str:
    return "save output" if kept and tensor.role == "output" else tensor.role


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return ""
    return tensor.dtype or (f"like {tensor.like}" if tensor.like else "")


def _differentials(program: Program) -> frozenset[str]:
    """The names that are a `d` before the name of another tensor."""
    tensors = [*program.operands, *(result.tensor for result in program.results)]
    return frozenset(tensor.name for tensor in tensors if tensor.role in ("cotangent", "gradient"))


class MathML(Notation):
    """Formulas as MathML elements."""

    def __init__(self, differentials: Iterable[str] = ()) -> None:
        """`differentials`: names to write as a d before a name."""
        self._differentials = frozenset(differentials)

    def at(self, piece: Piece, level: int) -> str:
        return piece.text if piece.level >= level else _parenthesised(piece.text)

    def name(self, name: str) -> Piece:
        if name in self._differentials and len(name) > 1:
            return Piece(f'<mrow><mi mathvariant="normal">d</mi>{_name(name[1:])}</mrow>', ATOM)
        return Piece(_name(name), ATOM)

    def declared(self, name: str, tensor: Tensor | None) -> str:
        """A name with the axes of its tensor below."""
        written_name = self.name(name).text
        if tensor is None or not tensor.dims:
            return written_name
        dims = "<mo>,</mo>".join(
            _parenthesised(" ".join(map(_axis, dim))) if len(dim) > 1 else _axis(dim[0])
            for dim in tensor.dims
        )
        return f"<msub>{_row(written_name)}{_row(dims)}</msub>"

    def size(self, axis: str) -> Piece:
        return Piece(
            f'<mrow><mo stretchy="false">|</mo>{_axis(axis)}<mo stretchy="false">|</mo></mrow>', ATOM
        )

    def number(self, value: Fraction) -> Piece:
        size = _magnitude(abs(value))
        return Piece(f"<mrow><mo>−</mo>{size}</mrow>", UNARY) if value < 0 else Piece(size, ATOM)

    def left_out(self) -> Piece:
        return Piece("<mo>…</mo>", ATOM)

    def sum(self, terms: Sequence[tuple[bool, Piece]]) -> Piece:
        parts: list[str] = []
        for negative, piece in terms:
            sign = "<mo>−</mo>" if negative else "<mo>+</mo>" if parts else ""
            parts.append(sign + self.at(piece, PRODUCT))
        return Piece(_row("".join(parts)), SUM)

    def negated(self, piece: Piece) -> Piece:
        return Piece(_row(f"<mo>−</mo>{piece.text}"), UNARY if piece.level > PRODUCT else PRODUCT)

    def product(self, coefficient: Fraction, factors: Sequence[Factor]) -> Piece:
        above, below = self._split(coefficient, factors)
        if not below:
            if len(above) == 1:
                return above[0]
            return Piece(self._joined(above) if above else "<mn>1</mn>", PRODUCT)
        top = self._joined(above) if above else "<mn>1</mn>"
        return Piece(f"<mfrac>{_row(top)}{_row(self._joined(below))}</mfrac>", UNARY)

    def _split(self, coefficient: Fraction, factors: Sequence[Factor]) -> tuple[list[Piece], list[Piece]]:
        """What stands above and below the line of a fraction: negative powers below."""
        above: list[Piece] = []
        below: list[Piece] = []
        if max(coefficient.numerator, coefficient.denominator) <= LONGEST:
            above += [Piece(_magnitude(Fraction(n)), ATOM) for n in (coefficient.numerator,) if n != 1]
            below += [Piece(_magnitude(Fraction(n)), ATOM) for n in (coefficient.denominator,) if n != 1]
        else:
            above.append(Piece(_magnitude(coefficient), ATOM))
        for piece, exponent in factors:
            low = exponent < 0 and (exponent.denominator == 1 or exponent == -HALF)
            (below if low else above).append(self._raised(piece, abs(exponent) if low else exponent))
        return above, below

    def _joined(self, factors: list[Piece]) -> str:
        """A product. A sum over axes goes last, so that it needs no parentheses, and nor does anything that
        stands alone."""
        if len(factors) == 1:
            return factors[0].text
        ordered = sorted(factors, key=_is_reduction)
        *first, last = ordered
        tail = last.text if _is_reduction(last) else self.at(last, UNARY)
        return _row(_TIMES.join([*(self.at(each, UNARY) for each in first), tail]))

    def _raised(self, base: Piece, exponent: Fraction) -> Piece:
        if exponent == 1:
            return base
        if exponent == HALF:
            return Piece(f"<msqrt>{_row(base.text)}</msqrt>", ATOM)
        sign = "<mo>−</mo>" if exponent < 0 else ""
        return Piece(
            f"<msup>{_row(self.at(base, ATOM))}{_row(sign + _magnitude(abs(exponent)))}</msup>", POWER
        )

    def power(self, base: Piece, exponent: Piece) -> Piece:
        return Piece(f"<msup>{_row(self.at(base, ATOM))}{_row(exponent.text)}</msup>", POWER)

    def compared(self, sign: str, level: int, left: Piece, right: Piece) -> Piece:
        shown = _SIGNS.get(sign, sign)
        return Piece(_row(f"{self.at(left, level + 1)}<mo>{shown}</mo>{self.at(right, level + 1)}"), level)

    def inverted(self, condition: Piece) -> Piece:
        return Piece(_row(f"<mo>¬</mo>{self.at(condition, ATOM)}"), COMPARE)

    def call(self, op: str, args: Sequence[Piece]) -> Piece:
        if op == "abs":
            return Piece(_row(f'<mo stretchy="true">|</mo>{args[0].text}<mo stretchy="true">|</mo>'), ATOM)
        if op == "minus":
            return self.sum([(False, args[0]), (True, args[1])])
        inside = "<mo>,</mo>".join(arg.text for arg in args)
        if op == "exp":
            return Piece(f"<msup><mi>e</mi>{_row(inside)}</msup>", POWER)
        return Piece(_row(f"<mi>{escape(op)}</mi><mo>&#x2061;</mo>{_parenthesised(inside)}"), ATOM)

    def rounded(self, arg: Piece, dtype: str) -> Piece:
        return self.call(dtype, [arg])

    def rounded_like(self, arg: Piece, tensor: str) -> Piece:
        kind = f"<msub><mi>round</mi>{self.name(tensor).text}</msub>"
        return Piece(_row(f"{kind}<mo>&#x2061;</mo>{_parenthesised(arg.text)}"), ATOM)

    def reduction(self, op: str, over: Axes, window: Window, arg: Piece) -> Piece:
        """The least that is said of axes: their names below the sign."""
        below = _axes(over, window)
        sign = f"<mo>{_FOLDS[op]}</mo>" if op in _FOLDS else f"<mi>{op}</mi>"
        return Piece(f"{_REDUCTION}<munder>{sign}{_row(below)}</munder>{self.at(arg, UNARY)}</mrow>", PRODUCT)

    def choice(self, condition: Piece, then: Piece, otherwise: Piece) -> Piece:
        cells = (
            (then.text, f"<mtext>if&#xa0;</mtext>{condition.text}"),
            (otherwise.text, "<mtext>otherwise</mtext>"),
        )
        column = '<mtd style="text-align:left">'
        rows = (f"{column}{_row(value)}</mtd>{column}{_row(when)}</mtd>" for value, when in cells)
        table = "".join(f"<mtr>{row}</mtr>" for row in rows)
        return Piece(_row(f'<mo stretchy="true">{{</mo><mtable>{table}</mtable>'), SELECT)


_REDUCTION = '<mrow class="reduction">'


def _is_reduction(piece: Piece) -> bool:
    return piece.text.startswith(_REDUCTION) and piece.level == PRODUCT


def _row(markup: str) -> str:
    return f"<mrow>{markup}</mrow>"


def _parenthesised(markup: str) -> str:
    return f"<mrow><mo>(</mo>{markup}<mo>)</mo></mrow>"


def _magnitude(value: Fraction) -> str:
    """A number that is not negative: a power of ten as such."""
    text = number(value)
    if "/" in text:
        top, bottom = text.split("/")
        return f"<mfrac><mn>{top}</mn><mn>{bottom}</mn></mfrac>"
    if "e" not in text:
        return f"<mn>{text}</mn>"
    digits, power = text.split("e")
    sign, power = ("<mo>−</mo>", power[1:]) if power.startswith("-") else ("", power)
    ten = f"<msup><mn>10</mn>{_row(f'{sign}<mn>{power}</mn>')}</msup>"
    return ten if digits == "1" else _row(f"<mn>{digits}</mn>{_TIMES}{ten}")


def _name(name: str) -> str:
    """A name as mathematics has it: Greek letters, hats and bars, and the rest of a name below its first
    part."""
    first, _, rest = name.partition("_")
    if rest in ("hat", "bar"):
        return f'<mover accent="true">{_symbol(first)}<mo>{"^" if rest == "hat" else "¯"}</mo></mover>'
    if first and rest:
        return f"<msub>{_symbol(first)}<mi>{escape(rest)}</mi></msub>"
    stem = name.rstrip("0123456789")
    if stem and stem != name and (len(stem) == 1 or stem in _GREEK):
        return f"<msub>{_symbol(stem)}<mn>{name[len(stem) :]}</mn></msub>"
    return _symbol(name)


def _symbol(name: str) -> str:
    return f"<mi>{_GREEK.get(name) or escape(name)}</mi>"


def _axis(axis: str) -> str:
    return "<mo>…</mo>" if axis == "..." else _name(axis)


def _axes(over: Axes, window: Window) -> str:
    if window:
        parts = (
            f"{_axis(axis)}<mo>:</mo><mn>{low}</mn><mo>…</mo><mn>{high}</mn>" for axis, low, high in window
        )
        return "<mo>,</mo>".join(parts).replace("<mn>-", "<mo>−</mo><mn>")
    return "<mo>,</mo>".join(map(_axis, axes_text(over).split(", ")))
