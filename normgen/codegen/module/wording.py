"""The words of a generated module: docstrings, and a user's text made harmless for where it stands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from normgen.codegen.module.literal import WIDTH
from normgen.package.direction import Direction
from normgen.package.records import Package
from normgen.package.signature import heading, sections

# Quotes that could end a triple-quoted string: three in a row, or the last ones.
_CLOSING_QUOTES = re.compile(r'"{3,}|"+(?=\s*\Z)')


def docstring(package: Package, direction: Direction) -> str:
    """The docstring's text, escaped, with its margin of four spaces but without quotes."""
    lines = prose(heading(package, direction), 4).split("\n")
    for title, entries in sections(package, direction).items():
        lines += ["", *_section(title, entries)]
    return "\n".join(lines).rstrip()


def _section(title: str, entries: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"    {title}:"]
    for name, text in entries:
        filled = textwrap.wrap(
            f"{name}: {escaped(text)}",
            width=WIDTH - 2,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += filled
    return lines


def attr_text(value: float | int | bool) -> str:
    """An attr's value as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def prose(text: str, indent: int) -> str:
    """A doc as the beginning of a docstring: wrapped and escaped."""
    return textwrap.fill(
        escaped(text),
        width=WIDTH - 4,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def escaped(text: str) -> str:
    """Text for the inside of a triple-quoted string: no quote, backslash or hidden character acts."""
    doubled = text.replace("\\", "\\\\")
    quoted = _CLOSING_QUOTES.sub(lambda found: '\\"' * len(found.group()), doubled)
    if quoted.replace("\n", "").replace("\t", "").isprintable():
        return quoted
    return "".join(visible(character) for character in quoted)


def visible(character: str) -> str:
    """A character, or its escape if it would hide, act, or reorder what stands around it."""
    if character in "\n\t" or character.isprintable():
        return character
    return repr(character)[1:-1]
