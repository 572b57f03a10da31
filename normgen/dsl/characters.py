"""The diagnostic for a character that begins no token, with what to write instead."""

from __future__ import annotations

import re
import unicodedata

from lark import Token

from normgen.diagnostics import Diagnostic, Label, Span
from normgen.dsl.functions import PRODUCT, VALUES_ELSEWHERE

_LIBRARIES = ("torch", "np", "numpy", "math", "F", "functional", "jnp", "tl", "cp")
# Called as members elsewhere, over axes.
_REDUCED = ("mean", "sum", "max", "min", "var", "amax", "amin", "softmax")
_TRANSPOSED = "there is no transpose: declare the output with its axes in the other order, `y[E, D]`"
_CHARACTERS: dict[str, str] = {
    "%": "there is no remainder operator; for compile-time integers, write `a - a // b * b`",
    "&": "join conditions with `and`",
    "|": "join conditions with `or`; the absolute value is `abs(v)`",
    "!": "negate a condition with `not`; compare with `!=`",
    "~": "negate a condition with `not`",
    "?": "a choice is written `a if condition else b`",
    ";": "remove it: a statement ends where the next one begins",
    "@": f"products are elementwise: {PRODUCT}",
    "\\": "remove it: a statement may extend over several lines",
    **dict.fromkeys("{}", "axes are written in brackets, values in parentheses"),
    **dict.fromkeys("×·∗⋅", "multiply with `*`"),
    "÷": "divide with `/`",
    **dict.fromkeys("−–—", "subtract with `-`"),
    **dict.fromkeys("²³", "write powers with `^`, as in `x^2`"),
    "√": "write `sqrt(v)`",
    "∑": "write `sum[D](v)`",
    "∞": VALUES_ELSEWHERE["inf"],
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
    "→": "a definition is written `name = value`",
    "…": "write three dots, `...`",
    **dict.fromkeys("“”„«»‘’`", 'write docs in straight double quotes, `"`'),
}


def unexpected_character(offset: int, last: Token | None, text: str) -> Diagnostic:
    """The diagnostic for a character that begins no token."""
    character = text[offset]
    label = Label(Span(offset, offset + 1))
    if character == '"':
        return _doc_fault(offset, text)
    if character == "_" and last is not None and last.type == "NUMBER" and last.end_pos == offset:
        whole = re.compile(r"[0-9_]+").match(text, last.start_pos or 0)
        assert whole is not None
        help = f"write `{whole.group().replace('_', '')}`"
        return Diagnostic(
            "syntax", "a number has no separators", (Label(Span(whole.start(), whole.end())),), (help,)
        )
    if character == "_":
        help = "names begin with a lowercase letter, axes with a capital"
        return Diagnostic("syntax", "a name cannot begin with `_`", (label,), (help,))
    name = f"`{character}`" if character.isascii() else f"`{character}` (U+{ord(character):04X})"
    return Diagnostic("syntax", f"unexpected character {name}", (label,), (_cure(offset, last, text),))


def _cure(offset: int, last: Token | None, text: str) -> str:
    """What to write in place of a character."""
    character = text[offset]
    if character == ".":
        return _member(offset, text)
    if character == "'":
        after_value = last is not None and last.type in ("NAME", ")") and last.end_pos == offset
        return _TRANSPOSED if after_value else 'write docs in double quotes, `"`'
    if character.isalpha():
        spelled = re.fullmatch(r"GREEK (?:SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(character, ""))
        example = f", for example `{spelled[1].lower()}`" if spelled else ""
        return f"a name consists of the letters a to z and A to Z, digits and `_`{example}"
    return _CHARACTERS.get(character, "remove it; the operators are `+ - * / // ^ < <= > >= == !=`")


def _member(offset: int, text: str) -> str:
    """What to write in place of `torch.rsqrt(x)`, `self.eps`, `x.T`, `x.mean()`."""
    owner = re.compile(r"[A-Za-z_]\w*$").search(text, 0, offset)
    member = re.compile(r"\.([A-Za-z_]\w*)(\()?").match(text, offset)
    if owner is None or member is None:
        return "a number is written `1.5`; a value has no members"
    name, called = member.groups()
    if name in ("T", "mT", "transpose", "permute"):
        return _TRANSPOSED
    if owner.group() in _LIBRARIES and called:
        return f"write `{name}[D](...)`" if name in _REDUCED else f"write `{name}(...)`"
    if owner.group() == "self":
        return f"write `{name}` and declare it above: `attr {name} = 1e-6` or `param {name}[D] = 1`"
    if name in _REDUCED:
        return f"write `{name}[D]({owner.group()})`"
    return "a value has no members; call a function, as in `mean[D](x)`"


def _doc_fault(offset: int, text: str) -> Diagnostic:
    """Why the text from this quote on is not a doc string."""
    for found in re.compile(r"\\(.?)|\n|\"", re.DOTALL).finditer(text, offset + 1):
        if found.group() == "\n" or found.group(1) in ("\n", ""):
            break
        if found.group(1) not in ('"', "\\"):
            message = f"unknown escape `{found.group()}`"
            help = 'a doc has two escapes: `\\"` and `\\\\`'
            return Diagnostic("syntax", message, (Label(Span(*found.span())),), (help,))
    end = text.find("\n", offset)
    label = Label(Span(offset, end if end >= 0 else len(text)))
    return Diagnostic("syntax", "this doc does not end on its line", (label,), ('end it with `"`',))
