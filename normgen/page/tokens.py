"""CUDA text as tokens, and as groups of tokens between brackets.

Every token keeps what stands before it, white space and comments, so that a text is its tokens one after the
other. Angle brackets are brackets after the name of a template, else operators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<lead>(?:\s|//[^\n]*|/\*.*?\*/)*)
    (?:(?P<line>\#(?:\\\n|[^\n])*)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
      |(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      |(?P<op><<=|>>=|\.\.\.|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||::|[-+*/%&|^]=|[^\s\w])
      |(?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast", "template"})


@dataclass(frozen=True, slots=True)
class Token:
    """`kind`: name, number, text, op, or line (a directive of the preprocessor)."""

    kind: str
    text: str
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """What stands between two brackets, with them."""

    open: Token
    items: tuple[Item, ...]
    close: Token

    @property
    def kind(self) -> str:
        """The opening bracket."""
        return self.open.text


Item = Token | Group
Items = tuple[Item, ...]


def tokenise(text: str) -> list[Token]:
    """The tokens of a text; its last comments and white space are dropped."""
    found = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "end":
            break
        found.append(Token(kind, match[kind], match["lead"]))
    return found


def tokens(items: Iterable[Item]) -> Iterator[Token]:
    """All tokens of some items, brackets included."""
    for item in items:
        if isinstance(item, Token):
            yield item
        else:
            yield item.open
            yield from tokens(item.items)
            yield item.close


def text_of(items: Iterable[Item]) -> str:
    """The text of some items, with what stands before them."""
    return "".join(token.lead + token.text for token in tokens(items))


def names_of(items: Iterable[Item]) -> set[str]:
    """Every identifier."""
    return set(named(items))


def named(items: Iterable[Item]) -> Iterator[str]:
    """Every identifier, as often as it stands there: those of pragmas too."""
    for token in tokens(items):
        if token.kind == "name":
            yield token.text
        elif token.kind == "line":
            yield from _WORD.findall(token.text)


def is_op(item: Item | None, *texts: str) -> bool:
    """Whether an item is one of these operators or words."""
    return isinstance(item, Token) and item.text in texts and item.kind != "text"


def is_line(item: Item | None) -> bool:
    """Whether an item is a directive of the preprocessor."""
    return isinstance(item, Token) and item.kind == "line"


def is_name(item: Item | None) -> bool:
    """Whether an item is an identifier or a keyword."""
    return isinstance(item, Token) and item.kind == "name"


def is_group(item: Item | None, kind: str) -> bool:
    """Whether an item is what stands between such brackets."""
    return isinstance(item, Group) and item.kind == kind


def leading(items: Sequence[Item]) -> str:
    """What stands before the first token."""
    first = next(tokens(items), None)
    return first.lead if first is not None else ""


def split(items: Sequence[Item], at: str = ",") -> list[Items]:
    """What stands between commas."""
    parts: list[list[Item]] = [[]]
    for item in items:
        if is_op(item, at):
            parts.append([])
        else:
            parts[-1].append(item)
    return [tuple(part) for part in parts if part]


def led(items: Items, lead: str) -> Items:
    """The same items with something else before them. (Directives begin their line.)"""
    if not items:
        return items
    first, rest = items[0], items[1:]
    if isinstance(first, Token):
        lead = lead.rstrip(" ") if first.kind == "line" else lead
        return (Token(first.kind, first.text, lead), *rest)
    return (Group(Token("op", first.open.text, lead), first.items, first.close), *rest)


def templates_of(found: Sequence[Token]) -> set[str]:
    """The names that a text declares as templates: those before the parameters of a function, after `struct`
    and `using`, and before the value of a variable."""
    names = set()
    for place, token in enumerate(found):
        if token.text == "template" and place + 1 < len(found) and found[place + 1].text == "<":
            at = _after_angles(found, place + 1)
            while at < len(found) and found[at].text not in ("(", "{", ";", "=", ":"):
                if found[at].text in ("alignas", "__align__", "__launch_bounds__"):
                    at = _after_round(found, at + 1)
                    continue
                if found[at].text == "<":
                    at = _after_angles(found, at)
                    continue
                if found[at].kind == "name":
                    last = found[at].text
                at += 1
            names.add(last)
    return names


def _after_angles(found: Sequence[Token], at: int) -> int:
    depth = 0
    while at < len(found):
        if found[at].text == "(":
            at = _after_round(found, at)
            continue
        depth += {"<": 1, ">": -1}.get(found[at].text, 0)
        at += 1
        if depth == 0:
            break
    return at


def _after_round(found: Sequence[Token], at: int) -> int:
    depth = 0
    while at < len(found):
        depth += {"(": 1, ")": -1}.get(found[at].text, 0)
        at += 1
        if depth == 0:
            break
    return at


def nest(found: Sequence[Token], templates: Collection[str]) -> Items:
    """Tokens as groups."""
    items, at = _nest(found, 0, "", templates)
    assert at == len(found), f"a bracket too many: {found[at]}"
    return items


def _nest(found: Sequence[Token], at: int, closing: str, templates: Collection[str]) -> tuple[Items, int]:
    """The items up to a closing bracket, and where that is, or where it cannot be any more."""
    items: list[Item] = []
    while at < len(found) and not (found[at].text == closing and found[at].kind == "op"):
        token = found[at]
        if token.kind == "op" and token.text in ("(", "[", "{"):
            inner, end = _nest(found, at + 1, _CLOSING[token.text], templates)
            items.append(Group(token, inner, found[end]))
            at = end + 1
        elif token.text == "<" and items and _opens(items[-1], templates):
            inner, end = _nest(found, at + 1, ">", templates)
            if end < len(found) and found[end].text == ">":
                items.append(Group(token, inner, found[end]))
                at = end + 1
            else:  # a value that has the name of a template
                items.append(token)
                at += 1
        elif closing == ">" and token.text in (";", ")", "]", "}", "&&", "||"):
            break
        else:
            items.append(token)
            at += 1
    return tuple(items), at


def _opens(before: Item, templates: Collection[str]) -> bool:
    return isinstance(before, Token) and (before.text in _CASTS or before.text in templates)
