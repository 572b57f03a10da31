"""Parameters of templates: what they are, and which have one value wherever a text uses the template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from normgen.page.expression import Scope, Value
from normgen.page.fold import FOLDER
from normgen.page.tokens import Group, Item, Items, Token, is_group, is_name, is_op, split
from normgen.page.tree import Declaration, parameters_of

UNKNOWN = "unknown"  # the worth of a parameter with more values than one
Worth = int | str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a template. `is_value`: else it is a type. `pack`: it stands for any number."""

    name: str
    is_value: bool
    pack: bool
    default: Items | None


@dataclass(frozen=True, slots=True)
class Use:
    """A template with the arguments that stand after its name: each a value, None where that is not known, or
    the name of a parameter that has no value yet (`pending`)."""

    name: str
    values: tuple[Value, ...]
    pending: tuple[bool, ...] = ()
    explicit: bool = True


@dataclass(frozen=True, slots=True)
class Signature:
    """What a declaration says of its template. `given`: the arguments that a specialisation is for, else
    None. `deduced`: of a function, by its parameter the templates and places that it is deduced from."""

    parameters: tuple[Parameter, ...] = ()
    given: tuple[Items, ...] | None = None
    deduced: Mapping[str, tuple[tuple[str, int], ...]] | None = None


def signature(each: Declaration) -> Signature:
    """The signature of a declaration; that of no template has no parameters."""
    head = each.head
    own = head[1] if len(head) > 1 and is_op(head[0], "template") else None
    found = tuple(_parameters(own)) if isinstance(own, Group) and own.kind == "<" else ()
    given = _given(each)
    if each.kind != "function":
        return Signature(found, given)
    at = parameters_of(head)
    names = {p.name for p in found}
    sources: dict[str, list[tuple[str, int]]] = {}
    if at is not None:
        taken = head[at]
        assert isinstance(taken, Group)
        for name, place, template in _bound(taken.items, names):
            sources.setdefault(name, []).append((template, place))
    return Signature(found, given, {name: tuple(places) for name, places in sources.items()})


def _parameters(group: Group) -> Iterator[Parameter]:
    for part in split(group.items):
        at = next((k for k, item in enumerate(part) if is_op(item, "=")), len(part))
        named = [item for item in part[:at] if is_name(item)]
        last = named[-1] if named else None
        is_type = is_op(part[0], "class", "typename", "template")
        name = last.text if isinstance(last, Token) and len(named) > 1 else ""
        yield Parameter(name, not is_type, any(is_op(i, "...") for i in part), part[at + 1 :] or None)


def _given(each: Declaration) -> tuple[Items, ...] | None:
    """The arguments after the name of a specialisation."""
    for k, item in enumerate(each.head[1:], 1):
        before = each.head[k - 1]
        if (
            isinstance(item, Group)
            and item.kind == "<"
            and isinstance(before, Token)
            and before.text == each.name
        ):
            after = each.head[k + 1] if k + 1 < len(each.head) else None
            if each.kind == "class" or (each.kind == "function" and is_group(after, "(")):
                return tuple(split(item.items))
    return None


def _bound(items: Sequence[Item], names: set[str]) -> Iterator[tuple[str, int, str]]:
    """Where the types of a function's parameters have its template's as an argument of another template."""
    for k, item in enumerate(items):
        if not isinstance(item, Group):
            continue
        before = items[k - 1] if k else None
        if item.kind == "<" and isinstance(before, Token):
            for place, part in enumerate(split(item.items)):
                only = part[0] if len(part) == 1 else None
                if isinstance(only, Token) and only.text in names:
                    yield only.text, place, before.text
        yield from _bound(item.items, names)


def joined(one: Worth | None, other: Worth) -> Worth:
    """The worth of a parameter that has both. (True is not 1: what it prints as differs.)"""
    if one is None or (one == other and type(one) is type(other)):
        return other
    return UNKNOWN


def bound(parameters: Sequence[Parameter], use: Use, scope: Scope) -> dict[str, Worth | None]:
    """What a use makes of parameters: by name a value, UNKNOWN, or None where it adds nothing. Those without
    an argument have their default, or are left out where they have none."""
    found: dict[str, Worth | None] = {}
    known: dict[str, Value] = {}
    for place, parameter in enumerate(parameters):
        if parameter.pack:
            break
        if place < len(use.values):
            value = use.values[place]
            pending = place < len(use.pending) and use.pending[place]
            found[parameter.name] = None if pending else UNKNOWN if value is None else value
        elif parameter.default is not None:
            value = FOLDER.value(parameter.default, scope.inner(known))
            waits = value is None and any(use.pending)
            found[parameter.name] = None if waits else UNKNOWN if value is None else value
        else:
            continue
        worth = found[parameter.name]
        known[parameter.name] = None if isinstance(worth, str) else worth
    return found


def match(
    given: Sequence[Items],
    parameters: Sequence[Parameter],
    primary: Sequence[Parameter],
    use: Use,
    scope: Scope,
) -> tuple[bool, bool, dict[str, Worth | None]]:
    """Whether a use may be of a specialisation, whether it must be, and what it makes of its parameters."""
    values = bound(primary, use, scope)
    own = {p.name: p for p in parameters}
    may = must = True
    made: dict[str, Worth | None] = {}
    for parameter, argument in zip(primary, given, strict=False):  # (some have defaults)
        only = argument[0] if len(argument) == 1 else None
        worth = values.get(parameter.name, UNKNOWN)
        if isinstance(only, Token) and only.text in own:
            made[only.text] = worth
            continue
        asked = FOLDER.value(argument, scope)
        if worth is None:
            may = must = False
        elif not parameter.is_value or asked is None or worth == UNKNOWN:
            must = False
        elif asked != worth:
            may = must = False
    return may, must, made
