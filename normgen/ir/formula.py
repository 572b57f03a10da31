"""What stands where in a formula: the order of terms, what goes below the line, which sum takes a sign.

How it is then written is up to a `Notation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import inf

from normgen.ir.nodes import (
    Add,
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
    children,
)
from normgen.ir.notation import (
    AND,
    ATOM,
    COMPARE,
    OR,
    TEXT,
    Factor,
    Notation,
    Piece,
)
from normgen.ir.primitives import PRIMITIVES
from normgen.ir.work import spend

Pairs = tuple[tuple[Expr, Fraction], ...]


def written(node: Expr, names: Mapping[Expr, str], notation: Notation = TEXT, longest: float = inf) -> str:
    """The expression in a notation; nodes in `names` by their names. `longest`: characters of an operand."""
    done: dict[Expr, Piece] = {n: notation.name(name) for n, name in names.items()}
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [] if top in done else [c for c in shown_parts(top) if c not in done]
        if missing:
            stack.extend(missing)
        else:
            stack.pop()
            if top not in done:
                piece = _write(top, done, notation)
                fits = len(piece.text) <= longest or top is node
                done[top] = piece if fits else notation.left_out()
    return done[node].text


def shown_parts(node: Expr) -> tuple[Expr, ...]:
    """The operands that the text of a node is made of."""
    found = sign_of(node)
    return found if found is not None else children(node)


def sign_of(node: Expr) -> tuple[Expr, Expr] | None:
    """(x, value) of what is -value, 0 or value as x is below, at or above 0: sign(x) * value."""
    match node:
        case Select(
            condition=Call(op="lt", args=(x, Const(value=0))),
            then=below,
            otherwise=Select(condition=Call(op="eq", args=at), then=Const(value=0), otherwise=above),
        ) if x in at and any(isinstance(a, Const) and a.value == 0 for a in at) and _opposite(below, above):
            return x, above
    return None


def _opposite(left: Expr, right: Expr) -> bool:
    """Whether one is minus the other, as far as coefficients tell."""
    (a, left_factors), (b, right_factors) = _factors(left), _factors(right)
    return a == -b and left_factors == right_factors


def _factors(node: Expr) -> tuple[Fraction, Pairs]:
    if isinstance(node, Mul):
        return node.coefficient, node.factors
    return Fraction(1), ((node, Fraction(1)),)


def _write(node: Expr, done: Mapping[Expr, Piece], to: Notation) -> Piece:
    match node:
        case Const(value=value):
            return to.number(value)
        case Told(values=values, which=which, rank=rank):
            return to.call(f"rank{rank}", [done[values[which]]])
        case InOrder(terms=values):
            return to.sum([(False, done[each]) for each in values])
        case Scalar(name=name) | Load(tensor=name):
            return to.name(name)
        case Extent(axis=axis):
            return to.size(axis)
        case Add(terms=terms):
            return _sum(terms, done, to)
        case Mul(coefficient=coefficient, factors=factors):
            return _signed(_product(coefficient, factors, done, to), to)
        case Call(op=op, args=(left, right)) if sign := PRIMITIVES[op].sign:
            return _compared(op, sign, left, right, done, to)
        case Call(op="not", args=(arg,)):
            return to.inverted(done[arg])
        case Call(op="pow", args=(base, exponent)):
            return to.power(done[base], done[exponent])
        case Call(op=op, args=args):
            return to.call(op, [done[a] for a in args])
        case Round(arg=arg, to=dtype):
            like = dtype.removeprefix("like ")
            return to.rounded_like(done[arg], like) if like != dtype else to.rounded(done[arg], dtype)
        case Reduce(op=op, over=over, window=window, arg=arg):
            return to.reduction(op, over, window, done[arg])
        case Select(condition=condition, then=then, otherwise=otherwise):
            if (found := sign_of(node)) is not None:
                return _signed(_with_sign(Fraction(1), *found, done, to), to)
            return to.choice(done[condition], done[then], done[otherwise])
        case _:
            raise AssertionError(type(node))


def _compared(op: str, sign: str, left: Expr, right: Expr, done: Mapping[Expr, Piece], to: Notation) -> Piece:
    if op in ("eq", "ne") and isinstance(left, Const):
        left, right = right, left
    return to.compared(sign, {"and": AND, "or": OR}.get(op, COMPARE), done[left], done[right])


def _with_sign(
    c: Fraction, x: Expr, value: Expr, done: Mapping[Expr, Piece], to: Notation
) -> tuple[bool, Piece]:
    """c * sign(x) * value: whether it is subtracted, and its magnitude."""
    sign = (to.call("sign", [done[x]]), Fraction(1))
    coefficient, factors = (
        _factors(value) if done[value].level < ATOM else (Fraction(1), ((value, Fraction(1)),))
    )
    return _product(c * coefficient, factors, done, to, [sign])


def _signed(signed: tuple[bool, Piece], to: Notation) -> Piece:
    negative, piece = signed
    return to.negated(piece) if negative else piece


def _sum(terms: Pairs, done: Mapping[Expr, Piece], to: Notation) -> Piece:
    # What is subtracted comes last; full-size terms before rows, numbers after both.
    ordered = sorted(terms, key=lambda pair: (pair[1] < 0, isinstance(pair[0], Const), -len(pair[0].axes)))
    return to.sum([_term(term, c, done, to) for term, c in ordered])


def _term(term: Expr, c: Fraction, done: Mapping[Expr, Piece], to: Notation) -> tuple[bool, Piece]:
    """A term of a sum, and whether it is subtracted."""
    if isinstance(term, Const):
        size = to.number(abs(c))
        return c < 0, size._replace(level=ATOM)
    if isinstance(term, Mul) and term.coefficient == 1 and done[term].level < ATOM:
        return _product(c, term.factors, done, to)
    if done[term].level < ATOM and (found := sign_of(term)) is not None:
        return _with_sign(c, *found, done, to)
    return _product(c, ((term, Fraction(1)),), done, to)


def _flipped(terms: Pairs) -> Pairs | None:
    """The negated sum, if what is subtracted is then the less simple part: `w * dy - (...)`, `1 - s`."""
    size = {1: -1, -1: -1}
    for term, c in terms:
        sign = 1 if c > 0 else -1
        complexity = 0 if isinstance(term, Const) else len(term.factors) if isinstance(term, Mul) else 1
        size[sign] = max(size[sign], complexity)
    return tuple((t, -c) for t, c in terms) if size[1] > size[-1] >= 0 else None


def covered(factors: Pairs, products: Iterable[Expr]) -> Pairs:
    """The factors with those products, which have a name, in place of what they are made of."""
    left = dict(factors)
    out: list[tuple[Expr, Fraction]] = []
    for node in products:
        if not (isinstance(node, Mul) and node.coefficient == 1):
            continue
        ratios = {left.get(b, Fraction(0)) / e for b, e in node.factors}
        ratio = ratios.pop()
        if not ratios and ratio.denominator == 1 and ratio != 0 and node.factors != factors:
            for b, _ in node.factors:
                del left[b]
            out.append((node, ratio))
    return (*((b, e) for b, e in left.items()), *out) if out else factors


def _product(
    coefficient: Fraction,
    factors: Pairs,
    done: Mapping[Expr, Piece],
    to: Notation,
    first: list[Factor] | None = None,
) -> tuple[bool, Piece]:
    """Whether a product is subtracted, and its magnitude. A sum among its factors may take the sign."""
    flip: Expr | None = None
    if coefficient < 0:
        for base, exponent in factors:
            if exponent == 1 and isinstance(base, Add) and done[base].level < ATOM and _flipped(base.terms):
                flip, coefficient = base, -coefficient
                break
    pieces = list(first or ())
    spend(len(done) // 8)
    named = (node for node, piece in done.items() if piece.level == ATOM)
    for base, exponent in covered(factors, named):
        piece = done[base]
        if base is flip and isinstance(base, Add):
            piece = _sum(tuple((t, -c) for t, c in base.terms), done, to)
        pieces.append((piece, exponent))
    return coefficient < 0, to.product(abs(coefficient), pieces)
