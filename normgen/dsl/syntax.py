"""From text to a syntax tree. Parsing stops at the first error: a `SpecError` with one diagnostic.

The parser is driven token by token, which counts nesting as it grows, and reductions build the tree, so no
text causes recursion.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import lark
from lark.lexer import PatternStr

from normgen.diagnostics import Diagnostic, Label, Source, Span, SpecError
from normgen.dsl import ast, mistakes
from normgen.dsl.build import Builder
from normgen.dsl.characters import unexpected_character
from normgen.dsl.limits import DEEPEST, LONGEST_NAME, numeral_fault, text_fault

_OPEN, _CLOSE = ("(", "["), (")", "]")


@cache
def parser() -> lark.Lark:
    """The parser of both start rules, by the tables that `tools/parser_tables.py` makes of the grammar."""
    text = files("normgen.dsl").joinpath("tables.json").read_text(encoding="utf-8")
    # JSON has no numbers as keys
    tables = json.loads(text, object_hook=lambda t: {int(k) if k.isdecimal() else k: v for k, v in t.items()})
    tables["data"]["options"]["transformer"] = Builder()
    return lark.Lark.load(tables)


def parse(source: Source) -> ast.Spec:
    """The syntax tree of a spec."""
    tree = _parse(source, "spec")
    assert isinstance(tree, ast.Spec)
    return tree


def parse_prelude(source: Source) -> tuple[ast.Function, ...]:
    """The functions of a prelude file."""
    tree = _parse(source, "prelude")
    assert isinstance(tree, tuple)
    return tree


def _parse(source: Source, start: str) -> Any:
    if fault := text_fault(source.text):
        raise SpecError([fault], source)
    # A byte order mark is skipped, but counts as a character: spans stay offsets into the text as given.
    text = " " + source.text[1:] if source.text.startswith("\ufeff") else source.text
    interactive = parser().parse_interactive(text, start=start)
    read: list[lark.Token] = []
    depth = 0
    try:
        for token in interactive.iter_parse():  # each is here before it is fed
            if fault := _token_fault(token, depth):
                raise SpecError([fault], source)
            depth += (token in _OPEN) - (token in _CLOSE)
            read.append(token)
        tree = interactive.feed_eof(read[-1] if read else None)  # type: ignore[no-untyped-call]
    except lark.UnexpectedToken as error:
        before = read if error.token.type == "$END" else read[:-1]
        follows = _accepted_after(before, start)
        raise SpecError([mistakes.unexpected_token(error.token, before, follows, text)], source) from None
    except lark.UnexpectedCharacters as error:
        last = read[-1] if read else None
        raise SpecError([unexpected_character(error.pos_in_stream or 0, last, text)], source) from None
    if fault := _nesting_fault(tree):
        raise SpecError([fault], source)
    return tree


def _accepted_after(tokens: list[lark.Token], start: str) -> frozenset[str]:
    """What may follow these tokens: words and signs as they are written, other tokens by kind.

    A fresh parser answers, because the one that failed has already reduced for the wrong token.
    """
    interactive = parser().parse_interactive(start=start)
    for token in tokens:
        interactive.feed_token(token)
    written = {t.name: t.pattern.value for t in parser().terminals if isinstance(t.pattern, PatternStr)}
    accepted = interactive.accepts()  # type: ignore[no-untyped-call]
    return frozenset(written.get(name, name) for name in accepted)


def _token_fault(token: lark.Token, depth: int) -> Diagnostic | None:
    """The fault of a token in any context."""
    span = span_of(token)
    if depth >= DEEPEST and token in _OPEN:
        return _too_deep(span)
    if token.type == "NUMBER" and (reason := numeral_fault(token)):
        help = "write a float32: about 8 digits, with a magnitude from 1.5e-45 to 3.4e38"
        return Diagnostic("number", f"this number is {reason}", (Label(span),), (help,))
    if token.type in ("NAME", "AXIS") and len(token) > LONGEST_NAME:
        message = f"the name has {len(token)} characters, but a name has at most {LONGEST_NAME}"
        return Diagnostic("name", message, (Label(span),), ("choose a shorter name",))
    return None


def span_of(token: lark.Token) -> Span:
    assert token.start_pos is not None and token.end_pos is not None
    return Span(token.start_pos, token.end_pos)


def _too_deep(span: Span) -> Diagnostic:
    help = "define part of it with `let`"
    return Diagnostic("nesting", f"nested more than {DEEPEST} levels deep", (Label(span),), (help,))


def _nesting_fault(tree: ast.Spec | tuple[ast.Function, ...]) -> Diagnostic | None:
    """Operators nest as well as brackets do: `a - (b - (c - ...))` and a long chain of `a + b + c + ...`."""
    stack: list[tuple[Any, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > DEEPEST:
            return _too_deep(node.span)
        deeper = depth + isinstance(node, (ast.Unary, ast.Binary, ast.Conditional, ast.Call, ast.Subscript))
        stack.extend((child, deeper) for child in ast.children(node))
    return None
