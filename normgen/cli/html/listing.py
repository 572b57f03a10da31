"""A spec and the CUDA text of its kernels as lines of HTML, and which lines of one belong to which of the
other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from normgen.diagnostics import Source, Span
from normgen.ir.program import Definition

_TITLE, _LAUNCHED = "// ---- ", "// grid ("  # what a kernel begins with
_WORD = re.compile(r"[A-Za-z_]\w*")
# What a kernel calls what it has of a tensor: the pointer, words that are loaded, what is stored, sums.
_SUFFIXES = ("_ptr", "_words", "_out", "_sum", "_sum_partial", "_pipeline", "_word", "_offset")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a text: its number, its HTML, and the lines of the spec that it is of."""

    number: int
    html: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """A CUDA text: the device functions, and the kernels after them."""

    functions: tuple[Line, ...]
    kernels: tuple[Line, ...]


def spec_lines(source: Source) -> list[Line]:
    """A spec, line by line. Each line is of itself."""
    from normgen.cli.html.lexer import SpecLexer

    return [Line(n, html, (n,)) for n, html in enumerate(_highlighted(source.text, SpecLexer), 1)]


def names_of(definition: Definition) -> dict[str, int]:
    """The line of the spec where each name is declared; a gradient's is that of what it is by."""
    program, text = definition.program, definition.source.text
    spans: dict[str, Span | None] = {a.name: a.span for a in program.attrs}
    spans |= {t.name: t.span for t in program.operands}
    spans |= {b.name: b.span for b in program.bindings}
    spans |= {r.tensor.name: r.tensor.span for r in program.results}
    found = {name: text.count("\n", 0, span.start) + 1 for name, span in spans.items() if span is not None}
    return {f"d{name}": line for name, line in found.items()} | found


def cuda_lines(text: str, definition: Definition) -> Listing:
    """A CUDA text whose kernels are linked to the lines of the spec: where a comment names the line, or a
    statement handles a tensor."""
    from pygments.lexers import CudaLexer

    lines = _highlighted(text, CudaLexer)
    plain = text.splitlines()
    pairs = enumerate(pairwise(plain))
    first = next((n for n, (a, b) in pairs if a.startswith(_TITLE) and b.startswith(_LAUNCHED)), 0)
    if first > 1 and plain[first - 2].startswith("namespace"):
        first -= 2
    named = names_of(definition)
    pattern = re.compile(rf"// {re.escape(definition.source.file)}:(\d+)")
    made = [
        Line(n + 1, html, _lines_of(line, named, pattern) if n >= first else ())
        for n, (html, line) in enumerate(zip(lines, plain, strict=True))
    ]
    return Listing(tuple(made[:first]), tuple(made[first:]))


def _lines_of(line: str, named: Mapping[str, int], pattern: re.Pattern[str]) -> tuple[int, ...]:
    said = [int(number) for number in pattern.findall(line)]
    if said or line.lstrip().startswith("//"):
        return tuple(said)
    words = (_stem(word) for word in _WORD.findall(line))
    return tuple(dict.fromkeys(named[word] for word in words if word in named))


def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix):
            return word.removesuffix(suffix)
    return word


def _highlighted(text: str, lexer: Callable[..., Any]) -> list[str]:
    """The lines of a text as HTML."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter

    shown: str = highlight(text, lexer(stripnl=False, ensurenl=True), HtmlFormatter(nowrap=True))
    return shown.splitlines()
