"""The diagnostics of syntax errors, with what to write instead.

A table lists likely mistakes by the unexpected token, the tokens allowed there, and what precedes it. Any
other error reads "expected X, Y or Z", and shows the form of the statement.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import pairwise

from lark import Token

from normgen.diagnostics import Diagnostic, Label, Span
from normgen.dsl.functions import built_in, prelude
from normgen.locks import cached_property

# What each statement looks like.
_FORMS = {
    "norm": 'norm power_norm "what it does"',
    "attr": "attr eps >= 0 = 1e-6",
    "axis": "axis G = 4",
    "input": "input x[..., D]: bf16",
    "param": "param w[D] = 1",
    "state": "state running_mean[C] = 0",
    "save": "save mu[...] = mean[D](x)",
    "output": "output y[..., D] = 2 * x",
    "let": "let h = x + r",
    "update": "update running_mean = value",
    "grad": "grad y wrt x, w",
    "fn": "fn twice(v) = 2 * v",
}
_KEYWORDS_ELSEWHERE = {
    "def": "fn", "function": "fn", "return": "output", "const": "let", "var": "let", "weight": "param",
    "bias": "param", "buffer": "state",
}  # fmt: skip
_SIGNS_ELSEWHERE = {
    "**": "write powers with `^`, as in `x^2`",
    "->": "a definition is written `name = value`",
    "<-": "a definition is written `name = value`",
    "=>": "a definition is written `name = value`; greater or equal is `>=`",
    ":=": "a definition is written `name = value`",
    "===": "compare with `==`",
    "<>": "compare with `!=`",
}
_VALUE = "a value is a number, a name, a call such as `exp(v)` or `mean[D](v)`, or an expression of these"
_CLOSING = {"(": ")", "[": "]"}
_FRIENDLY = {
    "NAME": "a name",
    "AXIS": "an axis",
    "NUMBER": "a number",
    "DOC": "a doc string",
    "$END": "the end of the text",
}


@dataclass(frozen=True)
class _Place:
    """An unexpected token and its surroundings.

    `read`: the tokens before it. `follows`: the words, signs and kinds of tokens allowed here.
    """

    token: Token
    read: Sequence[Token]
    follows: Collection[str]
    text: str

    @property
    def last(self) -> Token | None:
        return self.read[-1] if self.read else None

    @property
    def before(self) -> str:
        return str(self.last) if self.last is not None else ""

    @property
    def adjoins(self) -> bool:
        """No space between the last token and this one."""
        return self.last is not None and self.last.end_pos == self.token.start_pos

    def after(self, kind: str) -> bool:
        return self.last is not None and self.last.type == kind

    @property
    def starts_line(self) -> bool:
        return not self.line_before.strip()

    @property
    def in_expression(self) -> bool:
        """An expression could begin here."""
        return "NUMBER" in self.follows

    @property
    def after_expression(self) -> bool:
        """An expression could end or continue here."""
        return "^" in self.follows or "+" in self.follows

    @property
    def at_statement(self) -> bool:
        return "let" in self.follows

    @property
    def in_dimensions(self) -> bool:
        """A dimension of a tensor could begin here, or an axis of one that is split."""
        return "AXIS" in self.follows and ("(" in self.follows or self.opened == "(")

    @property
    def is_keyword(self) -> bool:
        return self.token.type not in _FRIENDLY and self.token.isidentifier()

    @property
    def capitalised(self) -> str:
        return self.token[:1].upper() + self.token[1:]

    @property
    def lowered(self) -> str:
        """As a name: an abbreviation in capitals has none left."""
        return self.token.lower() if self.token.isupper() else self.token[:1].lower() + self.token[1:]

    @property
    def underscored(self) -> str:
        """The last token and the words after its hyphens, as one name."""
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
        """The keyword that is spelled most like the token, or means the same elsewhere, if any."""
        close = get_close_matches(self.token, sorted(_FORMS), n=1, cutoff=0.7)
        return _KEYWORDS_ELSEWHERE.get(self.token, next(iter(close), ""))

    def within(self, sign: str) -> bool:
        """The token is a part of this."""
        return any(self.text.startswith(sign, (self.token.start_pos or 0) - k) for k in range(len(sign)))

    @cached_property
    def opened(self) -> Token | None:
        """The innermost bracket that is still open."""
        found: list[Token] = []
        for token in self.read:
            if token in _CLOSING:
                found.append(token)
            elif found and token == _CLOSING[found[-1]]:
                found.pop()
        return found[-1] if found else None

    @property
    def closing(self) -> str:
        """The bracket that closes the innermost open one."""
        return _CLOSING[self.opened] if self.opened is not None else ""

    @property
    def owner(self) -> str:
        """The name before the innermost open bracket."""
        opened = self.opened
        return next((str(token) for token, bracket in pairwise(self.read) if bracket is opened), "")

    @property
    def callee(self) -> str:
        """The function, with its axes, that the token should be an argument of: `sqrt` or `mean[D]`."""
        found = re.search(r"\b([a-z]\w*)\s*(\[[^][]*\])?\s*$", self.line_before)
        return found.group().strip() if found and _is_function(found[1]) else ""

    @property
    def argument(self) -> str:
        """The token with what belongs to it: `x^2`, `mean[D](x)`."""
        found = re.compile(r"[\w.^]+(\[[^][]*\])?(\([^()]*\))?").match(self.text, self.token.start_pos or 0)
        return found.group() if found else f"{self.token}...)"

    @property
    def factor(self) -> str:
        """The last token as a factor."""
        return "..." if self.before in (")", "]") else self.before

    @property
    def next_word(self) -> str:
        found = re.compile(r"\W*(\w*)").match(self.text, self.token.end_pos or 0)
        return found[1] if found else ""


def _is_function(name: str) -> bool:
    return built_in(name) is not None or name in prelude()


# (when, message, help)
_RULES: tuple[tuple[Callable[[_Place], bool], str, str], ...] = (
    (lambda p: p.token == "norm" and p.at_statement,
     "a second `norm` in one file",
     "a file defines one normalization; write the other one in a separate file"),
    (lambda p: p.token.type == "AXIS" and p.token.lower() in p.follows,
     "keywords are written in lower case", "write `{p.lowered}`"),
    (lambda p: (p.before == "" and "norm" in p.follows) or (p.before == "norm" and p.is_keyword),
     "a spec begins with `norm` and its name", 'for example `norm power_norm "what it does"`'),
    (lambda p: p.token == "-" and p.adjoins and p.after("NAME") and not p.after_expression,
     "a name cannot contain `-`", "write `{p.underscored}`"),
    *((partial(_Place.within, sign=sign), f"`{sign}` is not an operator", cure)
      for sign, cure in _SIGNS_ELSEWHERE.items()),
    (lambda p: p.token == "+" and p.in_expression,
     "there is no unary `+`", "remove it"),
    (lambda p: (p.token == "//" and (p.starts_line or (p.at_statement and not p.after_expression)))
     or (p.after_expression and bool(re.search(r"//[\w\s]*$", p.line_before))),
     "`//` divides; it does not begin a comment", "comments begin with `#`"),
    (lambda p: (p.token == "axis" and p.in_expression)
     or (p.token == "=" and p.after_expression and bool(re.search(r"[(,]\s*\w+\s*$", p.line_before))),
     "arguments have no names",
     "axes are written in brackets, as in `mean[D](x)`; for other arguments, write only the value"),
    (lambda p: p.token == "=" and p.before in ("+", "-", "*", "/"),
     "a value cannot change", "give the result another name: `let h = x {p.before} ...`"),
    (lambda p: p.token == "norm" and p.in_expression,
     "`norm` begins a spec; it is not a function", "the Euclidean norm is `sqrt(sum[D](v^2))`"),
    (lambda p: p.token.type == "NUMBER" and p.in_dimensions,
     "an axis has a name, not a number", "name it, as in `x[..., D]`; `axis D = {p.token}` fixes its length"),
    (lambda p: p.token in ("*", "..", ":") and p.in_dimensions,
     "expected an axis, but found `{p.token}`", "`...` stands for all remaining dimensions"),
    (lambda p: p.opened == "[" and {"AXIS", "..."} <= {*p.follows} and p.token.type != "NAME"
     and not p.in_dimensions and (_is_function(p.owner) or p.owner == "size"),
     "brackets hold the names of axes",
     "write for example `mean[D](x)`; elementwise functions have no brackets, as in `exp(x)`"),
    (lambda p: p.opened == "[" and {"AXIS", "..."} <= {*p.follows} and p.token.type != "NAME"
     and not p.in_dimensions,
     "values cannot be indexed or sliced",
     "write `{p.owner}`, or reduce over an axis, as in `mean[D]({p.owner})`"),
    (lambda p: ".." in p.follows or (p.token in ("+", "-") and ":" in p.follows and p.opened == "["),
     "a window has two ends", "write for example `sum[D: -1..1](x)`"),
    (lambda p: p.token in ("=", ":") and p.after("AXIS") and p.opened == "[",
     "a tensor lists its axes by name", "fix the length of one with `axis {p.before} = {p.next_word}`"),
    (lambda p: p.token in ("*", "/", "+", "-") and p.after("AXIS") and "]" in p.follows,
     "axes are not multiplied or added",
     "declare a dimension of two axes as `({p.before} {p.next_word})`; "
     "a reduction lists both, `[{p.before}, {p.next_word}]`"),
    (lambda p: p.token in _CLOSING.values() and p.opened is None and p.at_statement,
     "`{p.token}` closes no bracket", "remove it, or open a bracket before it"),
    (lambda p: (p.token == "," and (p.at_statement or (p.opened == "(" and p.after_expression)))
     or (p.token == "(" and {*p.follows} == {"NAME"}),
     "a statement defines one value, not a tuple", "write one statement for each value"),
    (lambda p: p.token in ("=", "==") and p.after_expression and "==" in p.follows,
     "`=` gives a name its value; it does not compare", "compare with `==`"),
    (lambda p: p.token == "==" and "=" in p.follows,
     "`==` compares; it does not give a name its value", "write `=`"),
    (lambda p: p.token in ("<", "<=") and ">=" in p.follows and p.at_statement and not p.after_expression,
     "the range of an attr is a lower bound", "write `>= low` or `> low`"),
    (lambda p: p.token in ("<", "<=", ">", ">=", "==", "!=") and p.after_expression and "+" in p.follows,
     "comparisons cannot be chained", "join two with `and`, as in `a < b and b < c`"),
    (lambda p: p.token == "None" and p.in_expression,
     "there is no `None`", "an optional operand has a number as its default: `param w[D] = 1`"),
    (lambda p: p.token.type == "AXIS" and p.in_expression,
     "`{p.token}` is an axis, and an axis is not a value",
     "reduce over it, as in `sum[{p.token}](...)`, or take its length, `size[{p.token}]`"),
    (lambda p: p.token.type == "AXIS" and set(p.follows) == {"NAME"},
     "expected a name; `{p.token}` is an axis, because it is capitalized",
     "names of values and functions begin with a lowercase letter: `{p.lowered}`"),
    (lambda p: p.token.type == "NAME" and "AXIS" in p.follows,
     "expected an axis; `{p.token}` is the name of a value, because it begins with a lowercase letter",
     "axes are capitalized: `{p.capitalised}`"),
    (lambda p: p.token.type == "AXIS" and "," in p.follows and "]" in p.follows and not p.after_expression,
     "expected `,` or `]`",
     "separate axes with commas, `[{p.before}, {p.token}]`; "
     "put the parts of one dimension in parentheses, `[({p.before} {p.token})]`"),
    (lambda p: p.token == "," and "AXIS" in p.follows and p.after("AXIS"),
     "the parts of one dimension are separated by a space",
     "write `({p.before} {p.next_word})` without commas"),
    (lambda p: p.token == ")" and "AXIS" in p.follows and p.after("AXIS"),
     "a dimension of one axis has no parentheses", "write `{p.before}` without parentheses"),
    (lambda p: set(p.follows) == {"["},
     "expected the axes of `{p.before}`",
     "declare them in brackets, `{p.before}[..., D]`; a single number is `{p.before}[]`"),
    (lambda p: p.token.type == "NAME" and p.starts_line and p.at_statement and bool(p.nearest),
     "no statement begins with `{p.token}`", "did you mean `{p.nearest}`?"),
    (lambda p: p.token.type == "NAME" and p.starts_line and p.at_statement,
     "expected a statement, which begins with a keyword",
     "`let`, `save` and `output` define a value; `input`, `param` and `state` declare a tensor"),
    (lambda p: p.after("NAME") and keyword.iskeyword(p.before) and p.after_expression,
     "`{p.before}` is a keyword of Python and cannot be a name",
     "there are no loops and no anonymous functions; define a function with `fn`"),
    (lambda p: p.token.type == "NAME" and keyword.iskeyword(p.token) and p.after_expression,
     "`{p.token}` is a keyword of Python, not an operator", "compare with `< <= > >= == !=`"),
    (lambda p: p.token == "f" and p.before[:1].isdigit() and p.adjoins,
     "a number has no suffix", "write `{p.before}`"),
    (lambda p: p.token.type in ("NAME", "NUMBER") and p.before.isdigit() and p.adjoins,
     "a name cannot begin with a digit", "to multiply, write `{p.before} * {p.token}`"),
    (lambda p: p.token.type in ("NAME", "NUMBER") and p.after_expression and bool(p.callee),
     "`{p.callee}` takes its argument in parentheses", "write `{p.callee}({p.argument})`"),
    (lambda p: (p.token.type in ("NAME", "NUMBER", "AXIS") or p.token == "(") and p.after_expression,
     "expected an operator before `{p.token}`", "to multiply, write `{p.factor} * {p.argument}`"),
    (lambda p: p.token == "else" and p.after_expression,
     "`else` without `if`", "a choice is written `a if condition else b`"),
    (lambda p: p.token == "if" and p.in_expression,
     "expected a value before `if`", "a choice is written `a if condition else b`"),
    (lambda p: "else" in p.follows and not p.at_statement and p.token in (*_FORMS, ""),
     "this choice has no `else`", "a choice is written `a if condition else b`"),
    (lambda p: p.token == "not" and p.in_expression,
     "`not` applies to a whole condition", "put it in parentheses: `(not a)`"),
    (lambda p: "NAME" in p.follows and not p.in_expression and p.is_keyword,
     "`{p.token}` is a keyword of the language and cannot be a name", "choose another name"),
)  # fmt: skip


def unexpected_token(token: Token, read: Sequence[Token], follows: Collection[str], text: str) -> Diagnostic:
    """The diagnostic for a token that cannot follow those read."""
    place = _Place(token, read, follows, text)
    if token.type == "$END":
        end = len(text.rstrip())
        label = Label(Span(max(end - 1, 0), max(end, 1)))
    else:
        label = Label(Span(token.start_pos or 0, token.end_pos or 0))
    if bracket := _unclosed(place):
        expected = f"expected `{place.closing}` {'here' if token.type == '$END' else 'before this'}"
        opened = Span(bracket.start_pos or 0, bracket.end_pos or 0)
        labels = (Label(opened), Label(label.span, expected, primary=False))
        cure = f"close it with `{place.closing}`"
        return Diagnostic("syntax", f"`{bracket}` is not closed", labels, (cure,))
    for applies, message, cure in _RULES:
        if applies(place):
            return Diagnostic("syntax", message.format(p=place), (label,), (cure.format(p=place),))
    found = "the text ends" if token.type == "$END" else f"found `{token}`"
    form = next((_FORMS[t] for t in reversed(read) if t in _FORMS), _FORMS["norm"])
    cure = _VALUE if place.in_expression else f"the statement looks like this: `{form}`"
    return Diagnostic("syntax", f"expected {_expected(place)}, but {found}", (label,), (cure,))


def _unclosed(place: _Place) -> Token | None:
    """The innermost open bracket, if the token must follow the bracket that closes it."""
    token = place.token
    if place.closing not in place.follows or place.in_expression:
        return None
    ends = token in (*_FORMS, *_CLOSING.values(), "") or token.type == "DOC"
    line = place.text[token.start_pos or 0 :].partition("\n")[0]
    within = token in ("(", "=", ":", "else") and place.closing not in line
    return place.opened if ends or within else None


def _expected(place: _Place) -> str:
    if place.in_expression:
        return "a value"
    options = set(place.follows)
    phrases = []
    if options >= _FORMS.keys() - {"norm"}:
        options -= {*_FORMS, "$END"}
        phrases.append("a statement")
    if place.after_expression:
        options -= {
            *["+", "-", "*", "/", "//", "^", "<", "<=", ">", ">=", "==", "!=", "if", "and", "or", "(", "["]
        }
        phrases.append("an operator")
    listed = sorted(_FRIENDLY.get(option, f"`{option}`") for option in options)
    phrases = listed + phrases if len(listed) + len(phrases) <= 6 else phrases or listed
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} or {phrases[-1]}"
