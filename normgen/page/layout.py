"""White space and comments of statements: what becomes of them where statements go, move or get shorter."""

from __future__ import annotations

import re
from dataclasses import replace

from normgen.page.tokens import Group, Item, Items, Token, is_line, is_op, leading, led
from normgen.page.tree import Block, Branch, Loop, Simple, Statement, items_of, statements

_COMMENT = re.compile(r"//|/\*")


def lead_of(statement: Statement) -> str:
    return leading(items_of(statement))


def with_lead(statement: Statement, lead: str) -> Statement:
    """A statement with something else before it."""
    match statement:
        case Simple(items):
            return Simple(led(items, lead))
        case Block(opening, body, close):
            return Block(replace(opening, lead=lead), body, close)
        case Loop(head, body, tail):
            return Loop(led(head, lead), body, tail)
        case Branch(head, then, word, otherwise):
            return Branch(led(head, lead), then, word, otherwise)


def flat(items: Items) -> Items:
    """What lay on several lines on one, but for comments and what stands between braces: what is left of a
    long line may be short."""
    out: list[Item] = list(items[:1])
    for item in items[1:]:
        lead = leading((item,))
        if "\n" in lead and not _COMMENT.search(lead) and not is_line(item):
            before = out[-1]
            tight = is_op(before, "<", "::") or is_op(item, ")")
            item = led((item,), "" if tight else " ")[0]
        out.append(item)
    return tuple(
        Group(each.open, _flat_inside(each.items), _flat_close(each.close))
        if isinstance(each, Group) and each.kind != "{"
        else each
        for each in out
    )


def _flat_inside(items: Items) -> Items:
    lead = leading(items)
    starts = "\n" in lead and not _COMMENT.search(lead)
    return flat(led(items, "") if starts else items)


def _flat_close(close: Token) -> Token:
    starts = "\n" in close.lead and not _COMMENT.search(close.lead)
    return replace(close, lead="") if starts else close


def dedented(statement: Statement) -> Statement:
    """A statement one level further out."""

    def moved(items: Items) -> Items:
        out: list[Item] = []
        for item in items:
            if isinstance(item, Token):
                out.append(replace(item, lead=item.lead.replace("\n    ", "\n")))
            else:
                opening, close = moved((item.open,))[0], moved((item.close,))[0]
                assert isinstance(opening, Token) and isinstance(close, Token)
                out.append(Group(opening, moved(item.items), close))
        return tuple(out)

    return statements(moved(items_of(statement)))[0]


def inner_lead(lead: str, own: str) -> str:
    """What stands before the first statement of what were braces: comments before these, and its own."""
    if not _COMMENT.search(own):
        return lead
    return lead[: lead.rfind("\n")] + own if own.startswith("\n") else lead + own.lstrip(" ")


def _trailing(lead: str) -> tuple[str, str]:
    """What belongs to the line before, and the rest."""
    end = lead.find("\n")
    return (lead, "") if end < 0 else (lead[:end], lead[end:])


def joined_lead(before: str | None, dropped: Statement) -> str:
    return lead_of(dropped) if before is None else before


def without_comment(lead: str) -> str:
    """The white space of a lead, with what belongs to the line before."""
    own, rest = _trailing(lead)
    lines = [line for line in rest.split("\n") if not _COMMENT.match(line.strip())]
    return own + "\n".join(lines)


def lead_after(dropped: str, lead: str, stays: bool = False) -> str:
    """What stands before a statement that follows one that has gone. A comment on the line of what has gone
    goes with it, one above it too, unless (`stays`) it is of all that followed without a blank line."""
    own, above = _trailing(dropped)
    _, rest = _trailing(lead)
    if "\n" not in lead:
        rest = lead
    if _COMMENT.search(rest) or rest.count("\n") > 1 or not (stays and _COMMENT.search(above)):
        blank = "\n" if above.count("\n") > 1 and "\n\n" in above and "\n\n" not in rest else ""
        return own + blank + (rest if rest else above)
    return own + above
