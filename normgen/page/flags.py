"""Templates without flags that have one value on a page: `Vector<T, N>` for `Vector<T, N, false>`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from normgen.page.program import Node, Program
from normgen.page.tokens import Group, Item, Items, Token, leading, led, split
from normgen.page.tree import Declaration, declarations


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that a page can do without. `values`: of a template's declaration by name; `places`: among
    the arguments of all templates of a name; `plain`: templates whose name may stand without arguments."""

    values: Mapping[Node, Mapping[str, bool]]
    places: Mapping[str, Collection[int]]
    plain: Collection[str]


def single_flags(program: Program, reached: Mapping[Node, Declaration]) -> Flags:
    """The parameters of templates that are true wherever a page uses them, or false."""
    by_name: dict[str, list[Node]] = {}
    for node in reached:
        if node.declaration.kind in ("class", "function"):
            by_name.setdefault(node.name, []).append(node)
    values: dict[Node, dict[str, bool]] = {}
    places: dict[str, set[int]] = {}
    for name, nodes in by_name.items():
        if any(n.signature.given is not None and n.declaration.kind == "class" for n in nodes):
            continue
        for node in nodes:
            for place, parameter in enumerate(node.signature.parameters):
                worth = program.worth(node, parameter.name)
                if isinstance(worth, bool) and program.always_given(name, place, worth):
                    values.setdefault(node, {})[parameter.name] = worth
                    places.setdefault(name, set()).add(place)
    plain = {
        name
        for name in places
        for node in by_name[name]
        if node.declaration.kind == "function" or len(node.signature.parameters) == len(values.get(node, {}))
    }
    return Flags(values, places, plain)


def without_flags(
    found: Sequence[Declaration], nodes: Sequence[Node], reached: Collection[Node], flags: Flags
) -> Items:
    """Declarations of these nodes, as they are printed, without the flags."""
    return _without(found, [node for node in nodes if node in reached], reached, flags, {})


def _without(
    found: Sequence[Declaration],
    nodes: Sequence[Node],
    reached: Collection[Node],
    flags: Flags,
    outer: Mapping[str, bool],
) -> Items:
    out: list[Item] = []
    for each, node in zip(found, nodes, strict=True):
        own = flags.values.get(node, {})
        hidden = {parameter.name for parameter in node.signature.parameters}
        known = {**{name: value for name, value in outer.items() if name not in hidden}, **own}
        head = _cleared(_declared(each.head, node, own), known, flags)
        head = led(head, _commented(leading(each.head), own))
        body = each.body
        if body is not None and each.kind == "class":
            members = [member for member in node.members if member in reached]
            inner = _without(declarations(body.items), members, reached, flags, known)
            body = Group(body.open, inner, body.close)
        elif body is not None:
            body = Group(body.open, _cleared(body.items, known, flags), body.close)
        out += replace(each, head=head, body=body).items
    return tuple(out)


def _declared(head: Items, node: Node, own: Mapping[str, bool]) -> Items:
    """The head of a template without its flags; of one with flags alone it is none."""
    if not own:
        return head
    group = head[1]
    assert isinstance(group, Group)
    left = _arguments(group, [k for k, p in enumerate(node.signature.parameters) if p.name in own])
    return (head[0], left, *head[2:]) if left.items else head[2:]


def _cleared(items: Items, known: Mapping[str, bool], flags: Flags) -> Items:
    """Text with values in place of flags, and without the arguments that stand for them."""
    out: list[Item] = []
    for item in items:
        before = out[-1] if out else None
        if isinstance(item, Token):
            if item.kind == "name" and item.text in known:
                item = Token("name", str(known[item.text]).lower(), item.lead)
            out.append(item)
            continue
        if item.kind == "<" and isinstance(before, Token) and before.text in flags.places:
            item = _arguments(item, flags.places[before.text])
            if not item.items and before.text in flags.plain:
                continue
        out.append(Group(item.open, _cleared(item.items, known, flags), item.close))
    return tuple(out)


def _arguments(group: Group, dropped: Collection[int]) -> Group:
    left = [part for place, part in enumerate(split(group.items)) if place not in dropped]
    items: list[Item] = []
    for part in left:
        items += (Token("op", ","), *part) if items else led(part, leading(group.items))
    return Group(group.open, tuple(items), group.close)


def _commented(lead: str, own: Mapping[str, bool]) -> str:
    """What stands before a declaration, without the sentences about its flags."""
    for name in own:
        lead = re.sub(rf"(?m)^ *// {name}: .*\n(?: *// (?![A-Z]+: ).*\n)*(?: *//\n(?= *// ))?", "", lead)
    return re.sub(r"(?m)^ *//\n(?! *//)", "", lead)
