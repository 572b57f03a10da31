"""Diagnostics of a spec: what is wrong, where, and how a terminal shows it.

A `Diagnostic` is data (a code, a headline, labelled spans, help); `render` turns it into text:

    error[axes]: `rstd` is declared without axis `D`, but its value varies over `D`
     --> example.norm:8:20
      |
    8 | save   rstd[...] = rsqrt(x^2 + eps)
      |        --------- declared with axes [...]
      |                    ^^^^^^^^^^^^^^^^ this has axes [..., D]
      |
      = help: reduce over D, for example `mean[D](...)`, or declare `rstd[..., D]`

Spans are offsets into the source text; lines and columns exist only here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

TAB = 4
WIDEST = 160  # columns of a source line that are shown; a longer line is cut around its first label


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters of a source text."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """From the beginning of this span to the end of the other."""
        return Span(self.start, max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a spec and its name in messages, usually its path."""

    name: str
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "".join(map(_display, self.name)))

    @property
    def file(self) -> str:
        """The file's name without folders, for generated texts: characters that a compiler could interpret
        are replaced."""
        return re.sub(r"[^\w.+-]", "_", re.split(r"[/\\]", self.name)[-1], flags=re.ASCII)


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the source and what it is. The primary label is the one that the headline is about."""

    span: Span
    text: str = ""
    primary: bool = True


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message. `severity` is error, warning or note; `code` is a word that names the kind of mistake."""

    code: str
    message: str
    labels: tuple[Label, ...]
    help: tuple[str, ...] = ()
    severity: str = "error"


class SpecError(Exception):
    """An error in a spec or in the attr values passed to it. `str()` renders every diagnostic."""

    def __init__(self, diagnostics: Sequence[Diagnostic], source: Source) -> None:
        super().__init__(diagnostics, source)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        self.source = source

    def __str__(self) -> str:
        return render_all(self.diagnostics, self.source)


_COLORS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[1;36m"}
_BOLD, _BLUE, _RESET = "\x1b[1m", "\x1b[1;34m", "\x1b[0m"


def position(source: Source, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both counted from 1, in characters."""
    before = source.text.count("\n", 0, offset)
    return before + 1, offset - (source.text.rfind("\n", 0, offset) + 1) + 1


def render_all(diagnostics: Sequence[Diagnostic], source: Source, color: bool = False) -> str:
    """The text of all diagnostics, separated by blank lines."""
    return "\n\n".join(render(diagnostic, source, color) for diagnostic in diagnostics)


def render(diagnostic: Diagnostic, source: Source, color: bool = False) -> str:
    """The text of one diagnostic, without a newline at its end."""

    def paint(text: str, style: str) -> str:
        return f"{style}{text}{_RESET}" if color and text else text

    accent = _COLORS[diagnostic.severity]
    head = paint(f"{diagnostic.severity}[{diagnostic.code}]", accent)
    lines = [f"{head}{paint(': ' + diagnostic.message, _BOLD)}"]
    labels = sorted(diagnostic.labels, key=lambda label: (label.span.start, label.span.end))
    gutter = " "
    if labels:
        placed = [(source.text.count("\n", 0, label.span.start), label) for label in labels]
        width = len(str(placed[-1][0] + 1))
        gutter = " " * (width + 1)
        bar = paint(f"{gutter}|", _BLUE)
        headline = next((label for label in labels if label.primary), labels[0])
        line, column = position(source, headline.span.start)
        lines += [f"{paint(' ' * width + '-->', _BLUE)} {source.name}:{line}:{column}", bar]
        last: int | None = None
        for number, label in placed:
            start, end = _line_around(source.text, label.span.start)
            shown = _Line(source.text[start:end], start, [mark for at, mark in placed if at == number])
            if last is not None and number > last + 1:
                lines.append(paint("...", _BLUE))
            if number != last:
                lines.append(f"{paint(f'{number + 1:>{width}} |', _BLUE)} {shown.text}".rstrip())
            style = accent if label.primary else _BLUE
            lines.append(f"{bar} {shown.indent(label)}{paint(shown.underline(label), style)}")
            last = number
        if diagnostic.help:
            lines.append(bar)
    equals = paint(f"{gutter}=", _BLUE)
    lines += [f"{equals} {paint('help', _BOLD)}: {text}" for text in diagnostic.help]
    return "\n".join(lines)


def _line_around(text: str, offset: int) -> tuple[int, int]:
    """The offsets at which the line of an offset begins and ends."""
    end = text.find("\n", offset)
    return text.rfind("\n", 0, offset) + 1, len(text) if end < 0 else end


def _display(character: str) -> str:
    """A character as a terminal shows it: itself, or a visible replacement for a control character."""
    if character == "\t":
        return " " * TAB
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        code = ord(character)
        return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"
    return character


def _columns(text: str) -> int:
    """The width of displayed text in columns: two for a wide character, none for a combining mark."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


class _Line:
    """One source line as shown: control characters visible, and cut around its labels if too long."""

    def __init__(self, raw: str, start: int, labels: list[Label]) -> None:
        self.start = start
        raw = raw.removesuffix("\r")
        self.length = len(raw)
        first = min(label.span.start for label in labels) - start
        self.left = max(0, first - WIDEST // 4) if self.length > WIDEST else 0
        self.raw = raw[self.left : self.left + WIDEST]
        self.before = "…" if self.left else ""
        after = "…" if self.left + WIDEST < self.length else ""
        self.text = self.before + self._show(self.raw) + after

    @staticmethod
    def _show(text: str) -> str:
        return "".join(map(_display, text))

    def _part(self, start: int, end: int) -> str:
        """The shown text between two offsets of the source, as far as it is inside the cut."""
        low, high = (min(max(at - self.start - self.left, 0), len(self.raw)) for at in (start, end))
        return self._show(self.raw[low:high])

    def indent(self, label: Label) -> str:
        return " " * _columns(self.before + self._part(self.start, label.span.start))

    def underline(self, label: Label) -> str:
        columns = _columns(self._part(label.span.start, label.span.end))
        marks = ("^" if label.primary else "-") * max(1, columns)
        return f"{marks} {label.text}" if label.text else marks
