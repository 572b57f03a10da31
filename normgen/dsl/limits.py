"""The limits of a spec's text, checked before it is lexed, and of its numbers.

Later stages rely on text of bounded size without control characters, and on numbers with a small exact value.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from normgen.diagnostics import Diagnostic, Label, Span
from normgen.dtypes import DTYPES

LONGEST_TEXT = 100_000  # characters
LONGEST_LINE = 5_000
LONGEST_NUMERAL = 100
LONGEST_NAME = 64
DEEPEST = 200  # levels of nesting in one expression

_LARGEST = Fraction(DTYPES["f32"].largest)
_SMALLEST = Fraction(DTYPES["f32"].smallest_subnormal)

# Control characters other than tab and newline; the marks that reorder text on screen; other line separators.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]|\r(?!\n)"
)


def text_fault(text: str) -> Diagnostic | None:
    """The first reason to refuse the text before it is lexed."""
    if len(text) > LONGEST_TEXT:
        message = f"the text has {len(text)} characters, but a spec has at most {LONGEST_TEXT}"
        help = "split it into several norms"
        return Diagnostic("size", message, (Label(Span(0, 0)),), (help,))
    start = 0
    for line in text.split("\n"):
        if len(line) > LONGEST_LINE:
            message = f"the line has {len(line)} characters, but a line has at most {LONGEST_LINE}"
            help = "split it: a statement may extend over several lines"
            return Diagnostic("size", message, (Label(Span(start, start + 1)),), (help,))
        start += len(line) + 1
    if found := _FORBIDDEN.search(text, 1 if text.startswith("\ufeff") else 0):
        character = found.group()
        name = _CONTROL_NAMES.get(character) or unicodedata.name(character, "a control character").lower()
        message = f"unexpected character U+{ord(character):04X} ({name})"
        help = "remove it: the character is invisible or changes how the text around it is displayed"
        return Diagnostic("character", message, (Label(Span(found.start(), found.end())),), (help,))
    return None


_CONTROL_NAMES = {"\x00": "null", "\r": "a carriage return without a newline", "\x1b": "escape"}
_NUMERAL = re.compile(r"([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?")


def numeral_fault(text: str) -> str | None:
    """Why a numeral is not a float32; examines its digits, not its exact value, which may be huge."""
    if len(text) > LONGEST_NUMERAL:
        return f"longer than {LONGEST_NUMERAL} characters"
    match = _NUMERAL.fullmatch(text)
    assert match is not None
    whole, fraction, exponent = match.group(1), match.group(2), int(match.group(3) or 0)
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return None
    magnitude = len(whole) + exponent - (len(whole + fraction) - len(digits))  # value < 10^magnitude
    if abs(magnitude) > 100:
        return _OUTSIDE if magnitude > 0 else _VANISHES
    return number_fault(Fraction(text))


_OUTSIDE = f"larger than the largest float32, {float(_LARGEST):.7g}"
_VANISHES = f"smaller than the smallest positive float32, {float(_SMALLEST):.2g}"


def number_fault(value: Fraction) -> str | None:
    """Why a constant cannot be used in a kernel, whose values are float32."""
    if abs(value) > _LARGEST:
        return _OUTSIDE
    if value and abs(value) < _SMALLEST:
        return _VANISHES
    return None
