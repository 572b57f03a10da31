"""What a fault of syntax is called, and what to write instead.

The likely slips are a table over the unexpected token, what would have been right, and what stands before.
All else reads "expected X, Y or Z".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches

from lark import Token

from normgen.diagnostics import Diagnostic, Label, Span

_STATEMENTS = frozenset(
    {"attr", "axis", "input", "param", "state", "save", "output", "let", "update", "grad", "fn"}
)
_OPERATORS = frozenset("+ - * / // ^ < <= > >= == != if and or ( [".split())  # noqa: SIM905
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
        return not self.line_before.strip()

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
    def line_before(self) -> str:
        """The line up to the token."""
        start = self.token.start_pos or 0
        return self.text[self.text.rfind("\n", 0, start) + 1 : start]

    @property
    def nearest(self) -> str:
        """The keyword that is spelt most like the token, if one is."""
        return next(iter(get_close_matches(self.token, sorted(_STATEMENTS), n=1, cutoff=0.7)), "")

    @property
    def lowered(self) -> str:
        """As a name: an abbreviation in capitals has none left."""
        return self.token.lower() if self.token.isupper() else self.token[:1].lower() + self.token[1:]


_Rule = tuple[Callable[[_Place], bool], str, tuple[str, ...]]

# (when, message, help). `{t}` is the token, `{T}` and `{l}` the same with a capital or small first letter,
# `{b}` the token before, `{n}` that and the words behind hyphens as one name, `{k}` the nearest keyword.
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
        lambda p: p.after_expression and bool(re.search(r"//[\w\s]*$", p.line_before)),
        "`//` divides; it does not begin a comment",
        ("comments begin with `#`",),
    ),
    (
        lambda p: p.token == "axis" and p.in_expression,
        "arguments have no names",
        ("axes stand in brackets, as in `mean[D](x)`",),
    ),
    (
        lambda p: p.token == "=" and p.after_expression and bool(re.search(r"[(,]\s*\w+\s*$", p.line_before)),
        "arguments have no names",
        ("axes stand in brackets, as in `mean[D](x)`; of other arguments write the value alone",),
    ),
    (
        lambda p: p.token == "=" and p.before in ("+", "-", "*", "/"),
        "values do not change",
        ("give the result a name of its own: `let h = x {b} ...`",),
    ),
    (
        lambda p: p.token == "norm" and p.in_expression,
        "`norm` begins a spec, and is no function",
        ("a length is `sqrt(sum[D](v^2))`",),
    ),
    (
        lambda p: p.token.type == "NUMBER" and "AXIS" in p.follows and "..." in p.follows,
        "axes are named, not numbered",
        ("values are whole here: write `x`, or reduce it, as in `mean[D](x)`",),
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
        lambda p: p.token.type == "NAME" and p.starts_line and p.at_statement and bool(p.nearest),
        "no statement begins with `{t}`",
        ("did you mean `{k}`?",),
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
            words |= {"n": place.underscored, "k": place.nearest}
            return Diagnostic(
                "syntax", message.format(**words), (label,), tuple(line.format(**words) for line in help)
            )
    found = "the text ends" if token.type == "$END" else f"found `{token}`"
    more = "docs/language.md has the language on one page, and `normgen list` specs to compare with"
    return Diagnostic("syntax", f"expected {_expected(place)}, but {found}", (label,), (more,))


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
            *["+", "-", "*", "/", "//", "^", "<", "<=", ">", ">=", "==", "!=", "if", "and", "or", "(", "["]
        }
        phrases.append("an operator")
    listed = sorted(_FRIENDLY.get(option, f"`{option}`") for option in options)
    phrases = listed + phrases if len(listed) + len(phrases) <= 6 else phrases or listed
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} or {phrases[-1]}"
