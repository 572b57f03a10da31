"""Builds the syntax tree: one method for each rule of the grammar, called as the parser reduces it.

Every token of a rule arrives among the children, so that a node covers its brackets and keywords too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lark import Token, Transformer

from normgen.diagnostics import Span
from normgen.dsl import ast


def _cover(children: Sequence[Any]) -> Span:
    """From the first to the last of the children that has a place."""
    spans = [span for child in children if (span := _span(child)) is not None]
    return Span(spans[0].start, max(span.end for span in spans)) if spans else ast.NOWHERE


def _span(part: Any) -> Span | None:
    match part:
        case Token(start_pos=int(start), end_pos=int(end)):
            return Span(start, end)
        case ast.Node(span=span):
            return span
        case (_, *_):
            return _cover(part)
        case _:
            return None


def _identifier(token: Token) -> ast.Identifier:
    return ast.Identifier(str(token), span=_cover([token]))


def _identifiers(children: Sequence[Any]) -> tuple[ast.Identifier, ...]:
    return tuple(_identifier(c) for c in children if c.type in ("NAME", "AXIS", "ELLIPSIS"))


def _doc(token: Token | None) -> str:
    return "" if token is None else re.sub(r"\\(.)", r"\1", token[1:-1])


def _listed(children: Sequence[Any]) -> tuple[Any, ...]:
    """A list without its commas."""
    return tuple(c for c in children if not isinstance(c, Token))


class Builder(Transformer[Token, Any]):
    """Children to node, rule by rule."""

    def spec(self, c: list[Any]) -> ast.Spec:
        _, name, doc, *statements = c
        return ast.Spec(_identifier(name), _doc(doc), tuple(statements), span=_cover(c))

    def prelude(self, c: list[Any]) -> tuple[ast.Function, ...]:
        return tuple(c)

    # Statements.

    def attr(self, c: list[Any]) -> ast.Attr:
        _, name, kind, bound, default, doc = c
        return ast.Attr(_identifier(name), kind, bound, default, _doc(doc), span=_cover(c))

    def axis(self, c: list[Any]) -> ast.Axis:
        _, name, extent, doc = c
        return ast.Axis(_identifier(name), extent, _doc(doc), span=_cover(c))

    def tensor(self, c: list[Any]) -> ast.Tensor:
        role, name, _, dimensions, close, dtype, value, doc = c
        head = _cover([name, close])
        spans = {"span": _cover(c), "head": head}
        words = " ".join(role)
        return ast.Tensor(words, _identifier(name), dimensions or (), dtype, value, _doc(doc), **spans)

    def let(self, c: list[Any]) -> ast.Let:
        _, name, declared, value, doc = c
        dimensions, close = declared or (None, name)
        spans = {"span": _cover(c), "head": _cover([name, close])}
        return ast.Let(_identifier(name), dimensions, value, _doc(doc), **spans)

    def update(self, c: list[Any]) -> ast.Update:
        _, name, value, doc = c
        return ast.Update(_identifier(name), value, _doc(doc), span=_cover(c))

    def grad(self, c: list[Any]) -> ast.Gradient:
        _, of, _, wrt, doc = c
        return ast.Gradient(of, wrt, _doc(doc), span=_cover(c))

    def fn(self, c: list[Any]) -> ast.Function:
        _, name, axis, _, parameters, _, body, doc = c
        return ast.Function(_identifier(name), axis, parameters, body, _doc(doc), span=_cover(c))

    # Parts of statements.

    def role(self, c: list[Any]) -> tuple[Token, ...]:
        return tuple(c)

    def kind(self, c: list[Any]) -> ast.Identifier:
        return _identifier(c[1])

    def bound(self, c: list[Any]) -> ast.Bound:
        return ast.Bound(str(c[0]), c[1], span=_cover(c))

    def value(self, c: list[Any]) -> ast.Expression:
        expression: ast.Expression = c[1]
        return expression

    def declared(self, c: list[Any]) -> tuple[tuple[ast.Dimension, ...], Token]:
        return c[1] or (), c[2]

    def dtype(self, c: list[Any]) -> ast.ElementType | ast.ElementChoice:
        element: ast.ElementType | ast.ElementChoice = c[1]
        return element

    def element_type(self, c: list[Any]) -> ast.ElementType:
        return ast.ElementType(_identifier(c[-1]), like=len(c) == 2, span=_cover(c))

    def element_choice(self, c: list[Any]) -> ast.ElementChoice:
        then, _, condition, _, otherwise = c
        return ast.ElementChoice(then, condition, otherwise, span=_cover(c))

    def parameter_axis(self, c: list[Any]) -> ast.Identifier:
        return _identifier(c[1])

    def parameters(self, c: list[Any]) -> tuple[ast.Identifier, ...]:
        return _identifiers(c)

    def names(self, c: list[Any]) -> tuple[ast.Identifier, ...]:
        return _identifiers(c)

    def dimensions(self, c: list[Any]) -> tuple[ast.Dimension, ...]:
        return _listed(c)

    def single(self, c: list[Any]) -> ast.Dimension:
        return _identifiers(c)

    def composite(self, c: list[Any]) -> ast.Dimension:
        return _identifiers(c)

    # Expressions.

    def conditional(self, c: list[Any]) -> ast.Conditional:
        then, _, condition, _, otherwise = c
        return ast.Conditional(then, condition, otherwise, span=_cover(c))

    def binary(self, c: list[Any]) -> ast.Binary:
        left, operator, right = c
        return ast.Binary(str(operator), left, right, span=_cover(c))

    def unary(self, c: list[Any]) -> ast.Unary:
        operator, operand = c
        return ast.Unary(str(operator), operand, span=_cover(c))

    def number(self, c: list[Any]) -> ast.Number:
        return ast.Number(str(c[0]), span=_cover(c))

    def truth(self, c: list[Any]) -> ast.Truth:
        return ast.Truth(c[0].lower() == "true", span=_cover(c))

    def name(self, c: list[Any]) -> ast.Name:
        return ast.Name(str(c[0]), span=_cover(c))

    def subscript(self, c: list[Any]) -> ast.Subscript:
        name, _, over, _ = c
        return ast.Subscript(_identifier(name), over, span=_cover(c))

    def call(self, c: list[Any]) -> ast.Call:
        over = c[2] if len(c) == 7 else ()
        return ast.Call(_identifier(c[0]), over, c[-2], span=_cover(c))

    def parenthesised(self, c: list[Any]) -> ast.Expression:
        """The expression inside, standing for its parentheses too."""
        inner: ast.Expression = c[1]
        return replace(inner, span=_cover(c))

    def arguments(self, c: list[Any]) -> tuple[ast.Expression, ...]:
        return _listed(c)

    def over(self, c: list[Any]) -> tuple[ast.Reach, ...]:
        return _listed(c)

    def place(self, c: list[Any]) -> ast.Identifier:
        return _identifier(c[0])

    def window(self, c: list[Any]) -> ast.Window:
        axis, _, low, _, high = c
        return ast.Window(_identifier(axis), low, high, span=_cover(c))
