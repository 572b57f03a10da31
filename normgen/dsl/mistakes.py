"""What a fault of syntax is called, and what to write instead.

The likely slips are a table over the unexpected token, what would have been right, and what stands before.
All else reads "expected X, Y or Z".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lark import Token

from normgen.diagnostics import Diagnostic, Label, Span

_STATEMENTS = frozenset(
    {"attr", "axis", "input", "param", "state", "save", "output", "let", "update", "grad", "fn"}
)
_FRIENDLY = {
    "NAME": "a name",
    "AXIS": "an axis",
    "NUMBER": "a number",
    "DOC": "a doc string",
    "$END": "the end of the text",
}


@dataclass(frozen=True)
class _Place:
    """An unexpected token with what surrounds it. `follows`: the words and kinds that would be right here."""

    token: Token
    last: Token | None
    follows: Collection[str]
    text: str

    @property
    def before(self) -> str:
        return str(self.last) if self.last is not None else ""

    @property
    def adjoins(self) -> bool:
        """No space between the last token and this one."""
        return self.last is not None and self.last.end_pos == self.token.start_pos

    @property
    def after_name(self) -> bool:
        return self.last is not None and self.last.type == "NAME"

    @property
    def starts_line(self) -> bool:
        start = self.token.start_pos or 0
        return not self.text[self.text.rfind("\n", 0, start) + 1 : start].strip()

    @property
    def in_expression(self) -> bool:
        """An expression could begin here."""
        return "NUMBER" in self.follows

    @property
    def after_expression(self) -> bool:
        """An expression just ended, or could go on, here."""
        return "^" in self.follows or "+" in self.follows

    @property
    def at_statement(self) -> bool:
        return "let" in self.follows

    @property
    def is_keyword(self) -> bool:
        return self.token.type not in _FRIENDLY and self.token.isidentifier()

    @property
    def capitalised(self) -> str:
        return self.token[:1].upper() + self.token[1:]

    @property
    def underscored(self) -> str:
        """The last token and what goes on behind its hyphens, as one name."""
        start = self.last.start_pos if self.last is not None else self.token.start_pos
        found = re.compile(r"\w+(?:-\w+)*").match(self.text, start or 0)
        return found.group().replace("-", "_") if found else self.before

    @property
    def lowered(self) -> str:
        """As a name: an abbreviation in capitals has none left."""
        return self.token.lower() if self.token.isupper() else self.token[:1].lower() + self.token[1:]


_Rule = tuple[Callable[[_Place], bool], str, tuple[str, ...]]

# (when, message, help). `{t}` is the token, `{T}` and `{l}` the same with a capital or small first letter,
# `{b}` the token before, `{n}` that and the words behind hyphens as one name.
_RULES: tuple[_Rule, ...] = (
    (
        lambda p: p.token == "norm" and p.at_statement,
        "a second `norm` in one file",
        ("a file states one normalization; write the other into a file of its own",),
    ),
    (
        lambda p: p.before == "" and p.token != "norm" and "norm" in p.follows,
        "a spec begins with `norm` and its name",
        ('for example `norm power_norm "what it does"`',),
    ),
    (
        lambda p: p.token == "*" and p.before == "*" and p.adjoins,
        "`**` is not an operator",
        ("write powers with `^`, as in `x^2`",),
    ),
    (
        lambda p: p.token == "-" and p.adjoins and p.after_name and not p.after_expression,
        "names have no `-`",
        ("write `{n}`",),
    ),
    (
        lambda p: p.token == "+" and p.in_expression,
        "there is no unary `+`",
        ("leave it out",),
    ),
    (
        lambda p: p.token == "//" and (p.starts_line or (p.at_statement and not p.after_expression)),
        "`//` divides; it does not begin a comment",
        ("comments begin with `#`",),
    ),
    (
        lambda p: p.token == "=" and p.after_expression and "==" in p.follows,
        "`=` gives a name its value; it does not compare",
        ("compare with `==`",),
    ),
    (
        lambda p: p.token in ("<", "<=") and ">=" in p.follows and p.at_statement and not p.after_expression,
        "an attr's range is a lower bound",
        ("write `>= low` or `> low`",),
    ),
    (
        lambda p: p.token in ("<", "<=", ">", ">=", "==", "!=") and p.after_expression and "+" in p.follows,
        "comparisons do not chain",
        ("join two with `and`, as in `a < b and b < c`",),
    ),
    (
        lambda p: p.token.type == "AXIS" and p.in_expression,
        "`{t}` is an axis, and axes are not values",
        ("reduce over it with `sum[{t}](...)`, or read its length with `size[{t}]`",),
    ),
    (
        lambda p: p.token.type == "AXIS" and set(p.follows) == {"NAME"},
        "expected a name; `{t}` is an axis, because it is capitalised",
        ("names of values and functions begin with a small letter: `{l}`",),
    ),
    (
        lambda p: p.token.type == "NAME" and "AXIS" in p.follows,
        "expected an axis; `{t}` is the name of a value, because it begins with a small letter",
        ("axes are capitalised: `{T}`",),
    ),
    (
        lambda p: p.token.type == "AXIS" and "," in p.follows and "]" in p.follows and not p.after_expression,
        "expected `,` or `]`",
        ("separate axes with commas, `[{b}, {t}]`; parts of one dimension go in parentheses, `[({b} {t})]`",),
    ),
    (
        lambda p: p.token == "," and "AXIS" in p.follows and p.last is not None and p.last.type == "AXIS",
        "the parts of one dimension are separated by a space",
        ("write `({b} ...)` without commas",),
    ),
    (
        lambda p: p.token == ")" and "AXIS" in p.follows and p.last is not None and p.last.type == "AXIS",
        "a group of one axis",
        ("write `{b}` without parentheses",),
    ),
    (
        lambda p: set(p.follows) == {"["},
        "expected the axes of `{b}`",
        ("a tensor declares them in brackets, `{b}[..., D]`; one without axes is `{b}[]`",),
    ),
    (
        lambda p: p.token.type == "NAME" and p.starts_line and p.at_statement,
        "expected a statement, which begins with a keyword",
        ("a definition begins with `let`, `save` or `output`; a tensor with `input`, `param` or `state`",),
    ),
    (
        lambda p: p.token.type in ("NAME", "NUMBER") and p.before.isdigit() and p.adjoins,
        "a name cannot begin with a digit",
        ("to multiply, write `{b} * {t}`",),
    ),
    (
        lambda p: p.token.type in ("NAME", "NUMBER", "AXIS") and p.after_expression,
        "expected an operator before `{t}`",
        ("to multiply, write `{b} * {t}`",),
    ),
    (
        lambda p: p.token == "else" and p.after_expression,
        "`else` without `if`",
        ("a choice is written `a if condition else b`",),
    ),
    (
        lambda p: p.token == "if" and p.in_expression,
        "expected a value before `if`",
        ("a choice is written `a if condition else b`",),
    ),
    (
        lambda p: "else" in p.follows and not p.at_statement and p.token in _STATEMENTS | {""},
        "this choice has no `else`",
        ("a choice is written `a if condition else b`",),
    ),
    (
        lambda p: p.token == "not" and p.in_expression,
        "`not` stands before a whole condition only",
        ("put it in parentheses: `(not a)`",),
    ),
    (
        lambda p: "NAME" in p.follows and not p.in_expression and p.is_keyword,
        "`{t}` is a keyword of the language and cannot be a name",
        ("choose another name",),
    ),
)  # fmt: skip


def unexpected_token(token: Token, last: Token | None, follows: Collection[str], text: str) -> Diagnostic:
    """The diagnostic for a token that cannot stand where it does."""
    place = _Place(token, last, follows, text)
    if token.type == "$END":
        end = len(text.rstrip())
        label = Label(Span(max(end - 1, 0), max(end, 1)))
    else:
        label = Label(Span(token.start_pos or 0, token.end_pos or 0))
    for applies, message, help in _RULES:
        if applies(place):
            words = {"t": str(token), "T": place.capitalised, "l": place.lowered, "b": place.before}
            words["n"] = place.underscored
            return Diagnostic(
                "syntax", message.format(**words), (label,), tuple(line.format(**words) for line in help)
            )
    found = "the text ends" if token.type == "$END" else f"found `{token}`"
    return Diagnostic("syntax", f"expected {_expected(place)}, but {found}", (label,))


def _expected(place: _Place) -> str:
    if place.in_expression:
        return "a value"
    options = set(place.follows)
    phrases = []
    if options >= _STATEMENTS:
        options -= _STATEMENTS | {"$END"}
        phrases.append("a statement")
    if place.after_expression:
        options -= {
            "+",
            "-",
            "*",
            "/",
            "//",
            "^",
            "<",
            "<=",
            ">",
            ">=",
            "==",
            "!=",
            "if",
            "and",
            "or",
            "(",
            "[",
        }
        phrases.append("an operator")
    listed = sorted(_FRIENDLY.get(option, f"`{option}`") for option in options)
    phrases = listed + phrases if len(listed) + len(phrases) <= 6 else phrases or listed
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} or {phrases[-1]}"


_CHARACTERS: dict[str, str] = {
    "%": "there is no remainder; for compile-time integers it is `a - a // b * b`",
    "&": "conditions are joined with `and`",
    "|": "conditions are joined with `or`; an absolute value is `abs(v)`",
    "!": "a condition is reversed with `not`",
    "~": "a condition is reversed with `not`",
    "?": "a choice is written `a if condition else b`",
    "'": "docs stand in double quotes",
    ";": "statements end by themselves; leave it out",
    "@": "products are elementwise, written `*`; add them up with `sum[D](a * b)`",
    "{": "braces have no meaning here; axes stand in brackets, values in parentheses",
    "}": "braces have no meaning here; axes stand in brackets, values in parentheses",
    ".": "values have no members; write a function, as in `mean[D](x)`",
    "×": "multiply with `*`",
    "·": "multiply with `*`",
    "÷": "divide with `/`",
    "−": "subtract with `-`",
    "²": "write powers with `^`, as in `x^2`",
    "√": "write `sqrt(v)`",
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
            "syntax", "numerals have no separators", (Label(Span(whole.start(), whole.end())),), (help,)
        )
    if character == "_":
        help = "names begin with a small letter, axes with a capital"
        return Diagnostic("syntax", "a name cannot begin with `_`", (label,), (help,))
    name = f"`{character}`" if character.isascii() else f"`{character}` (U+{ord(character):04X})"
    if character in _CHARACTERS:
        return Diagnostic("syntax", f"unexpected character {name}", (label,), (_CHARACTERS[character],))
    if character.isalpha():
        help = "names are made of the letters a to z, A to Z, digits and `_`"
        return Diagnostic("syntax", f"unexpected character {name}", (label,), (help,))
    return Diagnostic("syntax", f"unexpected character {name}", (label,))


def _doc_fault(offset: int, text: str) -> Diagnostic:
    """Why the text from this quote on is not a doc string."""
    for found in re.compile(r"\\(.?)|\n|\"", re.DOTALL).finditer(text, offset + 1):
        if found.group() == "\n" or found.group(1) in ("\n", ""):
            break
        if found.group(1) not in ('"', "\\"):
            message = f"unknown escape `{found.group()}`"
            help = 'a doc knows two: `\\"` and `\\\\`'
            return Diagnostic("syntax", message, (Label(Span(*found.span())),), (help,))
    end = text.find("\n", offset)
    label = Label(Span(offset, end if end >= 0 else len(text)))
    return Diagnostic("syntax", "this doc does not end on its line", (label,), ('close it with `"`',))
