"""Text to syntax tree. A fault of syntax is a `SpecError` with one diagnostic: parsing stops at the first.

The parser is driven token by token, so nesting is counted as it grows, and the tree is built while tokens are
reduced: no recursion, whatever the text holds.
"""

from __future__ import annotations

import io
from functools import cache
from importlib.resources import files
from typing import Any

import lark
from lark.lexer import PatternStr

from normgen.cache_results import kept
from normgen.diagnostics import Diagnostic, Label, Source, Span, SpecError
from normgen.dsl import ast, mistakes
from normgen.dsl.build import Builder
from normgen.dsl.characters import unexpected_character
from normgen.dsl.limits import DEEPEST, LONGEST_NAME, numeral_fault, text_fault

_OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "basic",
    "start": ["spec", "prelude"],
    "keep_all_tokens": True,
    "maybe_placeholders": True,
}
_OPEN, _CLOSE = ("(", "["), (")", "]")


@cache
def parser() -> lark.Lark:
    """The parser of both start rules, made once. Its tables come out of the cache."""
    grammar = files("normgen.dsl").joinpath("norm.lark").read_text(encoding="utf-8")

    def build() -> bytes:
        made = lark.Lark(grammar, transformer=Builder(), **_OPTIONS)
        with io.BytesIO() as file:
            made.save(file)
            return file.getvalue()

    tables = kept("parser", (lark.__version__, repr(_OPTIONS), grammar), build)
    return lark.Lark.load(io.BytesIO(tables))


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
        follows, last = _accepted_after(before, start), before[-1] if before else None
        raise SpecError([mistakes.unexpected_token(error.token, last, follows, text)], source) from None
    except lark.UnexpectedCharacters as error:
        last = read[-1] if read else None
        raise SpecError([unexpected_character(error.pos_in_stream or 0, last, text)], source) from None
    if fault := _nesting_fault(tree):
        raise SpecError([fault], source)
    return tree


def _accepted_after(tokens: list[lark.Token], start: str) -> frozenset[str]:
    """What may follow these tokens: words and signs as they are written, the rest by kind.

    Asked of a fresh parser, because the one that failed has already reduced because of the wrong token.
    """
    interactive = parser().parse_interactive(start=start)
    for token in tokens:
        interactive.feed_token(token)
    written = {t.name: t.pattern.value for t in parser().terminals if isinstance(t.pattern, PatternStr)}
    accepted = interactive.accepts()  # type: ignore[no-untyped-call]
    return frozenset(written.get(name, name) for name in accepted)


def _token_fault(token: lark.Token, depth: int) -> Diagnostic | None:
    """What is wrong with a token wherever it stands."""
    span = span_of(token)
    if depth >= DEEPEST and token in _OPEN:
        return _too_deep(span)
    if token.type == "NUMBER" and (reason := numeral_fault(token)):
        message = f"this number is {reason}" if reason[0] != "a" else reason
        help = "a number of float32 has some 8 digits, and lies between 1.5e-45 and 3.4e38"
        return Diagnostic("number", message, (Label(span),), (help,))
    if token.type in ("NAME", "AXIS") and len(token) > LONGEST_NAME:
        message = f"a name of {len(token)} characters; names have at most {LONGEST_NAME}"
        return Diagnostic("name", message, (Label(span),), ("take a shorter one",))
    return None


def span_of(token: lark.Token) -> Span:
    assert token.start_pos is not None and token.end_pos is not None
    return Span(token.start_pos, token.end_pos)


def _too_deep(span: Span) -> Diagnostic:
    help = "give a part a name of its own with `let`"
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
