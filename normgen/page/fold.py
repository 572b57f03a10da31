"""Bodies of functions without what constants decide: branches, and locals that nothing reads any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from normgen.page.expression import Folder, Scope, Value
from normgen.page.layout import (
    dedented,
    flat,
    inner_lead,
    joined_lead,
    lead_after,
    lead_of,
    with_lead,
    without_comment,
)
from normgen.page.tokens import (
    Group,
    Item,
    Items,
    Token,
    is_group,
    is_name,
    is_op,
    leading,
    named,
    names_of,
    split,
    tokens,
)
from normgen.page.tree import Block, Branch, Loop, Simple, Statement, items_of, statements

_LEAVING = ("return", "continue", "break")
_NOT_TYPES = frozenset(
    {"return", "case", "goto", "else", "new", "delete", "typename", "template", "asm", "operator", "throw",
     "static_assert", "using", "default", "break", "continue"}
)  # fmt: skip


def fold_body(group: Group, scope: Scope) -> Group:
    """The body of a function or a lambda, in the scope of its parameters."""
    while True:
        body = _block(statements(group.items), scope.inner())
        found = Group(group.open, _joined(_without_unread(body, scope)), group.close)
        if found == group:
            return found
        group = found


def _lambda(group: Group, before: Sequence[Item], scope: Scope) -> Group:
    """The body of a lambda, whose parameters hide what has their names."""
    hidden: dict[str, Value] = {}
    for item in before:
        if is_group(item, "("):
            assert isinstance(item, Group)
            hidden |= dict.fromkeys(parameters(item))
    return fold_body(group, scope.inner(hidden))


FOLDER = Folder(_lambda)


def parameters(group: Group) -> Iterator[str]:
    """The names of a function's parameters: the last of each that is one, or one in brackets of its own."""
    for part in split(group.items):
        plain = part[: next((k for k, item in enumerate(part) if is_op(item, "=")), len(part))]
        for item in reversed(plain):
            if isinstance(item, Group) and item.kind == "(":
                yield from (token.text for token in tokens(item.items) if token.kind == "name")
                break
            if is_name(item):
                assert isinstance(item, Token)
                yield item.text
                break


def _joined(found: Sequence[Statement]) -> Items:
    return tuple(item for each in found for item in items_of(each))


# ------------------------------------------------------------------------------------------------- statements


def _block(found: Sequence[Statement], scope: Scope) -> tuple[Statement, ...]:
    """Statements one after the other, up to the first that leaves."""
    out: list[Statement] = []
    dropped: str | None = None  # the lead of what has gone just before
    for place, each in enumerate(found):
        beside = (*found[:place], *found[place + 1 :])
        folded = _statement(each, scope, beside)
        if isinstance(each, Block):
            folded = _placed(folded, each.open.lead, beside)
        if not folded:
            dropped = joined_lead(dropped, each)
            continue
        if dropped is not None:
            folded = (with_lead(folded[0], lead_after(dropped, lead_of(folded[0]))), *folded[1:])
            dropped = None
        out += folded
        if _leaves(folded[-1]):
            labels = [k for k, s in enumerate(found[place + 1 :]) if _is_label(s)]
            if labels:
                out += _block(found[place + 1 + labels[0] :], scope)
            break
    return tuple(out)


def _leaves(statement: Statement) -> bool:
    """Whether nothing after a statement is run."""
    if isinstance(statement, Block):
        return bool(statement.body) and _leaves(statement.body[-1])
    return isinstance(statement, Simple) and is_op(statement.items[0], *_LEAVING)


def _is_label(statement: Statement) -> bool:
    return isinstance(statement, Simple) and is_op(statement.items[0], "case", "default")


def _statement(each: Statement, scope: Scope, beside: Sequence[Statement]) -> tuple[Statement, ...]:
    """What becomes of a statement. `beside`: the others of its block."""
    match each:
        case Simple(items):
            return _simple(items, scope)
        case Block(opening, body, close):
            inner = _block(body, scope.inner())
            return (Block(opening, inner, close),) if inner else ()
        case Loop(head, body, tail):
            return _loop(head, body, tail, scope)
        case Branch():
            return _branch(each, scope, beside)


def _simple(items: Items, scope: Scope) -> tuple[Statement, ...]:
    first = next((item for item in items if not (isinstance(item, Token) and item.kind == "line")), None)
    if is_op(first, "asm") or first is None:
        return (Simple(items),)
    if is_op(first, "static_assert"):
        assert isinstance(items[1], Group)
        asked = FOLDER.value(split(items[1].items)[0], scope)
        return () if asked else (Simple(items),)
    if is_op(first, "case", "default"):
        return (Simple(items),)
    if _is_call(items) and scope.fact(items[:-2]) in scope.facts.empty:
        assert isinstance(items[-2], Group)
        if FOLDER.pure(items[-2].items, scope):
            return ()
    is_truth = any(is_op(item, "bool") for item in items[:3])
    folded = FOLDER.items(items, scope, is_truth)
    for name, value in declared(folded, scope):
        scope.values[name] = value
    if isinstance(each := folded[0], Token) and each.text == "using" and is_name(folded[1]):
        _alias(folded, scope)
    return (Simple(flat(folded)),)


def _is_call(items: Items) -> bool:
    """Whether a statement calls a function, and does no more."""
    if len(items) < 3 or not is_group(items[-2], "(") or not is_op(items[-1], ";"):
        return False
    plain = all(is_name(item) or is_op(item, "::", ".", "->") or is_group(item, "<") for item in items[:-2])
    return plain and not any(is_name(a) and is_name(b) for a, b in pairwise(items[:-2]))


def _alias(items: Items, scope: Scope) -> None:
    name = items[1]
    assert isinstance(name, Token)
    scope.values[name.text] = None


def declared(items: Items, scope: Scope) -> Iterator[tuple[str, Value]]:
    """The names that a statement declares, and what they are worth where that is known."""
    if not items or (isinstance(items[0], Token) and items[0].text in _NOT_TYPES):
        return
    constant = any(is_op(item, "constexpr", "const") for item in items[:3])
    plain = not any(is_op(item, "*", "&", "float") for item in items[: _first(items, "=")])
    found: list[tuple[str, int]] = []
    for place in range(1, len(items)):
        item, before = items[place], items[place - 1]
        after = items[place + 1] if place + 1 < len(items) else None
        if not isinstance(item, Token) or item.kind != "name" or not _declares(items[:place], bool(found)):
            continue
        opens = isinstance(after, Group) and after.kind in "[{(" and not is_op(before, ",", "*", "&")
        if opens or after is None or is_op(after, "=", ";", ",", ":"):
            found.append((item.text, place))
    for name, place in found:
        value = None
        if constant and plain and is_op(items[place + 1] if place + 1 < len(items) else None, "="):
            rest = items[place + 2 :]
            value = FOLDER.value(rest[: min(_first(rest, ","), _first(rest, ";"))], scope)
        yield name, value


def _declares(before: Items, already: bool) -> bool:
    """Whether a name after this is declared: after a type, or after a comma that follows such a name."""
    last = before[-1]
    if already and (is_op(last, ",") or (is_op(last, "*", "&") and is_op(before[-2], ","))):
        return True
    if is_op(last, "*", "&"):
        rest = before[:-1]
        plain = all(is_name(item) or is_op(item, "::", "*", "&") or is_group(item, "<") for item in rest)
        return plain and bool(rest) and not is_op(rest[0], "*", "&")
    if isinstance(last, Token) and last.kind == "name":
        return last.text not in _NOT_TYPES
    return is_group(last, "<")


def _first(items: Sequence[Item], *texts: str) -> int:
    return next((k for k, item in enumerate(items) if is_op(item, *texts)), len(items))


def _loop(head: Items, body: Statement, tail: Items, scope: Scope) -> tuple[Statement, ...]:
    inner = scope.inner()
    last = head[-1]
    if isinstance(last, Group) and last.kind == "(":
        parts = split(last.items, ";")
        is_for = len(parts) > 1
        if is_for:
            for name, _ in declared((*parts[0], Token("op", ";")), scope):
                inner.values[name] = None
        head = (*head[:-1], Group(last.open, FOLDER.items(last.items, inner), last.close))
        folded = _one(_statement(body, inner, ()), body, again=False)
        if is_for and _is_empty(folded) and FOLDER.pure(split(last.items, ";")[1], inner):
            return ()
        return (Loop(head, folded, tail),)
    folded = _one(_statement(body, inner, ()), body, again=False)
    tail = tuple(
        Group(t.open, FOLDER.items(t.items, scope, True), t.close) if isinstance(t, Group) else t
        for t in tail
    )
    return (Loop(head, folded, tail),)


def _is_empty(statement: Statement) -> bool:
    return isinstance(statement, Block) and not statement.body


def _one(found: tuple[Statement, ...], was: Statement, again: bool) -> Statement:
    """Statements as one: a block, unless it is one. `again`: whether an `else` follows."""
    if len(found) == 1 and not (again and isinstance(found[0], (Branch, Loop))):
        return found[0]
    lead = "" if isinstance(was, Block) else " "
    opening = was.open if isinstance(was, Block) else Token("op", "{", lead)
    close = was.close if isinstance(was, Block) else Token("op", "}", " ")
    return Block(opening, found, close)


def _branch(each: Branch, scope: Scope, beside: Sequence[Statement]) -> tuple[Statement, ...]:
    asked = each.head[-1]
    assert isinstance(asked, Group)
    value = FOLDER.value(asked.items, scope)
    lead = leading(each.head)
    if value is not None:
        taken = each.then if value else each.otherwise
        if taken is None:
            return ()
        folded = _statement(taken, scope.inner() if isinstance(taken, Block) else scope, beside)
        return _placed(folded, lead, beside)
    condition = Group(asked.open, flat(FOLDER.items(asked.items, scope, True)), asked.close)
    then = _one(_statement(each.then, scope.inner(), ()), each.then, again=each.otherwise is not None)
    head = (*each.head[:-1], condition)
    if each.otherwise is not None:
        rest = _statement(each.otherwise, scope.inner(), ())
        if rest and not (len(rest) == 1 and _is_empty(rest[0])):
            otherwise = _one(rest, each.otherwise, again=False)
            return (Branch(head, then, each.word, otherwise),)
    if _is_empty(then) and FOLDER.pure(asked.items, scope):
        return ()
    return (Branch(head, then),)


def _placed(folded: tuple[Statement, ...], lead: str, beside: Sequence[Statement]) -> tuple[Statement, ...]:
    """A branch that is always taken in place of the whole: without its braces, unless what it declares could
    be mistaken for something beside it."""
    if not folded:
        return ()
    if len(folded) == 1 and isinstance(folded[0], Block):
        block = folded[0]
        names = {name for s in block.body if isinstance(s, Simple) for name in _names_declared(s)}
        if names & {name for s in beside for name in names_of(items_of(s))}:
            return (Block(replace(block.open, lead=lead), block.body, block.close),)
        body = tuple(dedented(s) for s in block.body)
        return (with_lead(body[0], inner_lead(lead, lead_of(body[0]))), *body[1:]) if body else ()
    return (with_lead(folded[0], lead), *folded[1:])


def _names_declared(statement: Simple) -> Iterator[str]:
    first = statement.items[0]
    if is_op(first, "using") and isinstance(statement.items[1], Token):
        yield statement.items[1].text
    yield from (name for name, _ in declared(statement.items, Scope()))


# --------------------------------------------------------------------------------------------- unread locals


def _without_unread(found: Sequence[Statement], scope: Scope) -> tuple[Statement, ...]:
    """Without the locals that nothing in their block reads, if making them does nothing else."""
    count = Counter(name for each in found for name in _named_without(each))
    out: list[Statement] = []
    dropped: str | None = None
    for each in found:
        if isinstance(each, Simple) and _unread(each, count, scope):
            is_function = any(is_group(item, "{") for item in each.items)
            lead = lead_of(each)
            dropped = joined_lead(dropped, each) if not is_function else without_comment(dropped or lead)
            continue
        kept = _inside(each, scope)
        if dropped is not None:
            kept = with_lead(kept, lead_after(dropped, lead_of(kept), stays=True))
            dropped = None
        out.append(kept)
    return tuple(out)


def _named_without(each: Statement) -> Iterator[str]:
    """The names in a statement, but for what a block has under names of its own."""
    if not isinstance(each, Block):
        yield from named(items_of(each))
        return
    hidden: set[str] = set()
    for inner in each.body:
        if isinstance(inner, Simple):
            hidden |= set(_names_declared(inner))
        yield from (name for name in _named_without(inner) if name not in hidden)


def _inside(each: Statement, scope: Scope) -> Statement:
    match each:
        case Block(opening, body, close):
            return Block(opening, _without_unread(body, scope), close)
        case Loop(head, body, tail):
            return Loop(head, _inside(body, scope), tail)
        case Branch(head, then, word, otherwise):
            rest = _inside(otherwise, scope) if otherwise is not None else None
            return Branch(head, _inside(then, scope), word, rest)
        case _:
            return each


def _unread(each: Simple, count: Mapping[str, int], scope: Scope) -> bool:
    items = each.items
    if any(is_op(item, "extern", "volatile") for item in items[:3]):
        return False
    names = set(_names_declared(each))
    own = [name for name in named(items) if name in names]
    if not names or any(count.get(name, 0) != own.count(name) for name in names):
        return False
    if is_op(items[0], "using"):
        return True
    return all(_makes_nothing(part, scope) for part in split(items[:-1]))


def _makes_nothing(part: Items, scope: Scope) -> bool:
    """Whether a declarator does no more than to name something."""
    at = _first(part, "=")
    if at < len(part):
        return FOLDER.pure(part[at + 1 :], scope)
    return not any(is_group(item, "(") for item in part) and not names_of(part) & scope.facts.made
