"""Statements of a function's body, and declarations of a file or class, as trees over groups of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normgen.page.tokens import Group, Item, Items, Token, is_group, is_line, is_name, is_op


@dataclass(frozen=True, slots=True)
class Simple:
    """A statement up to its semicolon, or a label up to its colon."""

    items: Items


@dataclass(frozen=True, slots=True)
class Block:
    """Statements between braces."""

    open: Token
    body: tuple[Statement, ...]
    close: Token


@dataclass(frozen=True, slots=True)
class Branch:
    """`head`: up to the condition in its brackets."""

    head: Items
    then: Statement
    word: Token | None = None  # else
    otherwise: Statement | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop or a switch. `head`: with the pragma before it, up to what is in brackets. `tail`: what follows
    the body of a `do`."""

    head: Items
    body: Statement
    tail: Items = ()


Statement = Simple | Block | Branch | Loop


def statements(items: Sequence[Item]) -> tuple[Statement, ...]:
    """The statements of a body."""
    found = []
    at = 0
    while at < len(items):
        statement, at = _statement(items, at)
        found.append(statement)
    return tuple(found)


def _statement(items: Sequence[Item], at: int) -> tuple[Statement, int]:
    start = at
    while at < len(items) and is_line(items[at]):
        at += 1
    first = items[at] if at < len(items) else None
    if is_op(first, "if"):
        end = at + (2 if is_op(items[at + 1], "constexpr") else 1) + 1
        head = tuple(items[start:end])
        then, at = _statement(items, end)
        if at < len(items) and is_op(items[at], "else"):
            word = items[at]
            assert isinstance(word, Token)
            otherwise, at = _statement(items, at + 1)
            return Branch(head, then, word, otherwise), at
        return Branch(head, then), at
    if is_op(first, "for", "while", "switch"):
        body, end = _statement(items, at + 2)
        return Loop(tuple(items[start : at + 2]), body), end
    if is_op(first, "do"):
        body, end = _statement(items, at + 1)
        return Loop(tuple(items[start : at + 1]), body, tuple(items[end : end + 3])), end + 3
    if isinstance(first, Group) and first.kind == "{" and start == at:
        return Block(first.open, statements(first.items), first.close), at + 1
    while at < len(items) and not is_op(items[at], ";"):
        if is_op(items[at], ":") and is_op(first, "case", "default", "public", "private"):
            break
        at += 1
    return Simple(tuple(items[start : at + 1])), at + 1


def items_of(statement: Statement) -> Items:
    """A statement as items again."""
    match statement:
        case Simple(items):
            return items
        case Block(opening, body, close):
            return (Group(opening, tuple(i for each in body for i in items_of(each)), close),)
        case Loop(head, body, tail):
            return (*head, *items_of(body), *tail)
        case Branch(head, then, word, otherwise):
            rest = () if word is None or otherwise is None else (word, *items_of(otherwise))
            return (*head, *items_of(then), *rest)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declaration of a file or a class.

    `kind`: function, class, alias, constant (a variable), other. `body`: that of a function, or the members
    of a class.
    """

    kind: str
    name: str
    head: Items  # all before the body
    body: Group | None = None
    tail: Items = ()  # the semicolon after a class

    @property
    def items(self) -> Items:
        """All of it."""
        return (*self.head, *((self.body,) if self.body is not None else ()), *self.tail)


def declarations(items: Sequence[Item]) -> list[Declaration]:
    """The declarations of a file, or the members of a class."""
    found = []
    start = at = 0
    while at < len(items):
        item = items[at]
        if is_line(item) and at == start:
            found.append(Declaration("other", "", (item,)))
            start = at = at + 1
        elif is_op(item, ";"):
            found.append(_plain(tuple(items[start : at + 1])))
            start = at = at + 1
        elif isinstance(item, Group) and item.kind == "{" and not _initialises(items[start:at]):
            head = tuple(items[start:at])
            if _class_word(head) is not None:
                end = at + 1 + (at + 1 < len(items) and is_op(items[at + 1], ";"))
                tail = tuple(items[at + 1 : end])
                found.append(Declaration("class", _class_name(head), head, item, tail))
            else:
                end = at + 1
                found.append(Declaration("function", _function_name(head), head, item))
            start = at = end
        else:
            at += 1
    assert start == len(items), "a declaration without an end"
    return found


def _initialises(head: Sequence[Item]) -> bool:
    """Whether a brace after this begins a value."""
    if any(is_op(item, "=") for item in head):
        return True
    return _class_word(head) is None and parameters_of(head) is None


def _class_word(head: Sequence[Item]) -> int | None:
    return next((k for k, item in enumerate(head) if is_op(item, "struct", "class", "namespace")), None)


def _class_name(head: Items) -> str:
    at = _class_word(head)
    assert at is not None
    for item in head[at + 1 :]:
        if is_op(item, ":"):
            break
        if isinstance(item, Token) and item.kind == "name" and item.text not in _ATTRIBUTES:
            return item.text
    return ""


_ATTRIBUTES = frozenset(
    {"__launch_bounds__", "__cluster_dims__", "alignas", "__align__", "decltype", "sizeof"}
)


def parameters_of(head: Sequence[Item]) -> int | None:
    """Where the parameters of a function are in its head: the first round brackets after a name, but for
    those of attributes."""
    for place in range(1, len(head)):
        before = head[place - 1]
        if not is_group(head[place], "("):
            continue
        if isinstance(before, Token) and (before.kind == "name" or is_op(before, "=", "+", "]")):
            if before.text not in _ATTRIBUTES:
                return place
        elif is_group(before, "<") or is_group(before, "[") or is_group(before, "("):
            return place
    return None


def _function_name(head: Items) -> str:
    at = parameters_of(head)
    if at is None:
        return ""
    if any(is_op(item, "operator") for item in head[:at]):
        return "operator"
    return next((i.text for i in reversed(head[:at]) if isinstance(i, Token) and i.kind == "name"), "")


def _plain(items: Items) -> Declaration:
    """A declaration without a body."""
    word = next((i for i in items if is_name(i) and not is_op(i, "template")), None)
    if is_op(word, "using"):
        at = next(k for k, item in enumerate(items) if item is word)
        alias = items[at + 1] if any(is_op(i, "=") for i in items) else items[-2]
        return Declaration("alias", alias.text if isinstance(alias, Token) else "", items)
    if _class_word(items) is not None and not any(is_op(i, "=") for i in items):
        return Declaration("class", _class_name(items), items)
    if is_op(word, "static_assert"):
        return Declaration("other", "", items)
    before = items[: next(k for k, i in enumerate(items) if is_op(i, "=", ";") or is_group(i, "{"))]
    if parameters_of(before) is not None:
        return Declaration("function", _function_name(before), items)
    name = next((i for i in reversed(before) if is_name(i)), None)
    return Declaration("constant", name.text if isinstance(name, Token) else "", items)
