"""Expressions and programs as text, in normgen's own syntax where it has one; golden tests compare it.

show(...)          rstd * w * x
show_program(...)  one declaration a line; values by the user's names; what is shared by the names s0, s1, ...

A value used twice stands twice in the text of what uses it. So that texts do not double with each line of a
spec, `show` leaves out what is long, and `show_program` gives what is long and shared a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import inf
from typing import NamedTuple

from normgen.ir.nodes import (
    Add,
    Axes,
    Call,
    Const,
    Expr,
    Extent,
    Load,
    Mul,
    Reduce,
    Round,
    Scalar,
    Select,
    Window,
    children,
    walk,
)
from normgen.ir.primitives import PRIMITIVES
from normgen.ir.program import Program, Tensor
from normgen.ir.work import spend

# How tightly an expression holds together, loosest first.
_SELECT, _OR, _AND, _COMPARE, _SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(9)
_HALF = Fraction(1, 2)
Pairs = tuple[tuple[Expr, Fraction], ...]
_LONGEST = 1000
LONGEST_PART = 1000  # characters of an operand in `show`
LARGEST_REPEATED = 60  # nodes of a value that `show_program` writes out wherever it is used


class _Text(NamedTuple):
    text: str
    level: int

    def at(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


def show(node: Expr, names: Mapping[Expr, str] | None = None) -> str:
    """The expression as text; a node in `names` by its name, and an operand that is very long as `...`."""
    return _written(node, names or {}, LONGEST_PART)


def _written(node: Expr, names: Mapping[Expr, str], longest: float = inf) -> str:
    done: dict[Expr, _Text] = {n: _Text(name, _ATOM) for n, name in names.items()}
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [] if top in done else [c for c in children(top) if c not in done]
        if missing:
            stack.extend(missing)
        else:
            stack.pop()
            if top not in done:
                text = _show(top, done)
                done[top] = text if len(text.text) <= longest or top is node else _Text("...", _ATOM)
    return done[node].text


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


def _show(node: Expr, done: Mapping[Expr, _Text]) -> _Text:
    match node:
        case Const(value=value):
            text = number(value)
            return _Text(text, _UNARY if value < 0 else _PRODUCT if "/" in text else _ATOM)
        case Scalar(name=name) | Load(tensor=name):
            return _Text(name, _ATOM)
        case Extent(axis=axis):
            return _Text(f"size[{axis}]", _ATOM)
        case Add(terms=terms):
            return _show_sum(terms, done)
        case Mul(coefficient=coefficient, factors=factors):
            return _show_product(coefficient, factors, done)
        case Call(op=op, args=(left, right)) if sign := PRIMITIVES[op].sign:
            level = {"and": _AND, "or": _OR}.get(op, _COMPARE)
            return _Text(f"{done[left].at(level + 1)} {sign} {done[right].at(level + 1)}", level)
        case Call(op="not", args=(arg,)):
            return _Text(f"not {done[arg].at(_COMPARE)}", _COMPARE)
        case Call(op="pow", args=(base, exponent)):
            return _Text(f"{done[base].at(_ATOM)}^{done[exponent].at(_UNARY)}", _POWER)
        case Call(op=op, args=args):
            return _Text(f"{op}({', '.join(done[a].text for a in args)})", _ATOM)
        case Round(arg=arg, to=to):
            like = to.removeprefix("like ")
            text = f"cast({done[arg].text}, {like})" if like != to else f"{to}({done[arg].text})"
            return _Text(text, _ATOM)
        case Reduce(op=op, over=over, window=window, arg=arg):
            return _Text(f"{op}[{window_text(window) or axes_text(over)}]({done[arg].text})", _ATOM)
        case Select(condition=condition, then=then, otherwise=otherwise):
            parts = done[then].at(_OR), done[condition].at(_OR), done[otherwise].at(_SELECT)
            return _Text("{} if {} else {}".format(*parts), _SELECT)
        case _:
            raise AssertionError(type(node))


def _show_sum(terms: Pairs, done: Mapping[Expr, _Text]) -> _Text:
    # What is subtracted comes last; full-size terms before rows, numbers after both.
    ordered = sorted(terms, key=lambda pair: (pair[1] < 0, isinstance(pair[0], Const), -len(pair[0].axes)))
    text = ""
    for term, c in ordered:
        if isinstance(term, Const):
            piece = _Text(number(c), _ATOM)
        elif isinstance(term, Mul) and term.coefficient == 1 and done[term].level < _ATOM:
            piece = _show_product(c, term.factors, done)
        else:
            piece = _show_product(c, ((term, Fraction(1)),), done)
        part = piece.at(_PRODUCT)
        if text and part.startswith("-"):
            text += f" - {part[1:]}"
        else:
            text += f" + {part}" if text else part
    return _Text(text, _SUM)


def _flipped(terms: Pairs) -> Pairs | None:
    """The negated sum, if what is subtracted is then the less simple part: `w * dy - (...)`, `1 - s`."""
    size = {1: -1, -1: -1}
    for term, c in terms:
        sign = 1 if c > 0 else -1
        complexity = 0 if isinstance(term, Const) else len(term.factors) if isinstance(term, Mul) else 1
        size[sign] = max(size[sign], complexity)
    return tuple((t, -c) for t, c in terms) if size[1] > size[-1] >= 0 else None


def _covered(factors: Pairs, done: Mapping[Expr, _Text]) -> Pairs:
    """The factors with products that have a name in place of what they are made of."""
    spend(len(done) // 8)
    left = dict(factors)
    out: list[tuple[Expr, Fraction]] = []
    for node, shown in done.items():
        if not (isinstance(node, Mul) and shown.level == _ATOM and node.coefficient == 1):
            continue
        ratios = {left.get(b, Fraction(0)) / e for b, e in node.factors}
        ratio = ratios.pop()
        if not ratios and ratio.denominator == 1 and ratio != 0 and node.factors != factors:
            for b, _ in node.factors:
                del left[b]
            out.append((node, ratio))
    return (*((b, e) for b, e in left.items()), *out) if out else factors


def _show_product(coefficient: Fraction, factors: Pairs, done: Mapping[Expr, _Text]) -> _Text:
    above: list[str] = []
    below: list[str] = []
    flip: Expr | None = None
    if coefficient < 0:
        for base, exponent in factors:
            if exponent == 1 and isinstance(base, Add) and done[base].level < _ATOM and _flipped(base.terms):
                flip, coefficient = base, -coefficient
                break
    size = abs(coefficient)
    if size.denominator <= _LONGEST and size.numerator <= _LONGEST:
        above += [str(size.numerator)] if size.numerator != 1 else []
        below += [str(size.denominator)] if size.denominator != 1 else []
    else:
        text = number(size)
        above.append(f"({text})" if "/" in text else text)
    for base, exponent in _covered(factors, done):
        side = below if exponent < 0 and exponent.denominator == 1 else above
        shown = done[base]
        if base is flip and isinstance(base, Add):
            shown = _show_sum(tuple((t, -c) for t, c in base.terms), done)
        side.append(_show_power(shown, abs(exponent) if side is below else exponent))
    top = " * ".join(above) or "1"
    bottom = below[0] if len(below) == 1 else f"({' * '.join(below)})"
    text = f"{top} / {bottom}" if below else top
    level = _PRODUCT if below or len(above) > 1 else _POWER
    if level == _POWER and "^" not in top.replace("(", "^"):
        level = _ATOM
    return (
        _Text(f"-{text}", _UNARY if level > _PRODUCT else _PRODUCT) if coefficient < 0 else _Text(text, level)
    )


def _show_power(base: _Text, exponent: Fraction) -> str:
    if exponent == 1:
        return base.at(_UNARY)
    if exponent == _HALF:
        return f"sqrt({base.text})"
    if exponent == -_HALF:
        return f"rsqrt({base.text})"
    power = number(exponent)
    return f"{base.at(_ATOM)}^{power if '/' not in power else f'({power})'}"


# --------------------------------------------------------------------------- programs


def show_program(program: Program) -> str:
    """The whole program: what it reads, the values that have or need a name, what it writes, its notes."""
    lines = [f"norm {program.name}"]
    lines += [f"attr {_attr(a.name, a.value)}" for a in program.attrs if not a.folded]
    lines += [f"axis {axis.name} = {axis.extent}" for axis in program.axes if axis.extent is not None]
    lines += [_declaration(tensor) for tensor in program.operands]
    return "\n".join(lines) + "\n" + show_results(program)


def show_results(program: Program) -> str:
    """What a program computes: values that have or need a name, results, notes."""
    names: dict[Expr, str] = {}
    lines: list[str] = []
    roots = [r.expr for r in program.results] + [u.expr for u in program.updates]
    lines += _lets(program, roots, names)
    for result in program.results:
        lines.append(f"{_declaration(result.tensor, result.kept)} = {_definition(result.expr, names)}")
        if result.expr not in names and children(result.expr):
            names[result.expr] = result.tensor.name
    lines += [f"update {u.state} = {_written(u.expr, names)}" for u in program.updates]
    lines += [f"note: {note}" for note in program.notes]
    return "\n".join(lines) + "\n"


def _attr(name: str, value: object) -> str:
    if value is None:
        return name
    return f"{name} = {number(value) if isinstance(value, Fraction) else value}"


def _declaration(tensor: Tensor, kept: bool = False) -> str:
    dims = ", ".join(f"({' '.join(dim)})" if len(dim) > 1 else dim[0] for dim in tensor.dims)
    role = "save output" if kept and tensor.role == "output" else tensor.role
    kind = f": {tensor.dtype}" if tensor.dtype else f": like {tensor.like}" if tensor.like else ""
    return f"{role} {tensor.name}[{dims}]{kind}"


def _definition(node: Expr, names: Mapping[Expr, str]) -> str:
    """The node's own structure, even where it has a name."""
    return (
        _written(node, {n: name for n, name in names.items() if n is not node})
        if node not in names
        else names[node]
    )


def _lets(program: Program, roots: list[Expr], names: dict[Expr, str]) -> list[str]:
    """Lines for values with a user's name, or used twice and costly or long, in order of definition."""
    uses: dict[Expr, int] = {}
    nodes = list(walk(*roots))
    for node in nodes:
        for child in children(node):
            uses[child] = uses.get(child, 0) + 1
    results = {r.expr: r.tensor.name for r in reversed(program.results)}
    given: dict[Expr, str] = {}
    for binding in program.bindings:
        if children(binding.expr):
            given.setdefault(binding.expr, binding.name)
    lines, count = [], 0
    size: dict[Expr, int] = {}  # of the text, in nodes
    for node in nodes:
        size[node] = 1 + sum(size[child] for child in children(node))
        if not children(node):
            continue
        own = node not in results
        if own and node in given:
            name = given[node]
        elif uses.get(node, 0) > 1 and (size[node] > LARGEST_REPEATED or (own and isinstance(node, Reduce))):
            name, count = f"s{count}", count + 1
        else:
            continue
        lines.append(f"let {name} = {_written(node, names)}")
        names[node], size[node] = name, 1
    return lines
