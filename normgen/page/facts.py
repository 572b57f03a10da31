"""What folded functions say of calls: which always return the same, do nothing, or do nothing but return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from normgen.page.expression import ASSIGNING, Facts, Scope, Value
from normgen.page.fold import FOLDER
from normgen.page.tokens import Group, Items, Token, is_group, is_op, led, tokens
from normgen.page.tree import Declaration, Simple, items_of, parameters_of, statements

# A function's name, the type parameters of its template, and itself, folded.
Functions = Sequence[tuple[str, set[str], Declaration]]
Short = Mapping[str, tuple[tuple[str, ...], Items]]
_SHORT = 20  # tokens
# What may be called without doing anything but return a value, beside functions of the text.
_CONVERSIONS = frozenset(
    {"int", "float", "bool", "unsigned", "long", "char", "index_t", "offset_t", "sizeof", "square"}
)


def facts_of(functions: Functions, short: Short, known: Facts) -> Facts:
    """The facts of some functions beside those that are known, and what `short` ones return. They stay true
    of functions that are not reached any more, since nothing calls what does nothing."""
    return Facts(
        {**known.results, **_agreed(functions, _result)},
        known.empty | _empty(functions),
        known.pure | _pure(functions),
        known.made,
        {**known.short, **short},
    )


def returned(each: Declaration) -> Items:
    """What a function without arguments returns, if it does nothing else and that is short."""
    place = parameters_of(each.head)
    if each.body is None or place is None:
        return ()
    taken, items = each.head[place], each.body.items
    if not isinstance(taken, Group) or taken.items or not items or not is_op(items[0], "return"):
        return ()
    text = items[1:-1]
    alone = len(statements(items)) == 1 and not any(is_group(item, "{") for item in text)
    return led(text, "") if alone and len(list(tokens(text))) <= _SHORT else ()


def _agreed(functions: Functions, of: Callable[[Declaration], Value]) -> dict[str, Value]:
    """What all functions of a name have in common, by name, where that is known."""
    found: dict[str, Value] = {}
    for name, _, each in functions:
        value = of(each)
        found[name] = value if found.get(name, value) == value else None
    return {name: value for name, value in found.items() if value is not None}


def _result(each: Declaration) -> Value:
    """The value that a function always returns."""
    assert each.body is not None
    items = each.body.items
    if not items or not is_op(items[0], "return") or len(statements(items)) != 1:
        return None
    return FOLDER.value(items[1:-1], Scope())


def _empty(functions: Functions) -> frozenset[str]:
    """The names whose functions do nothing."""
    some = {name for name, _, each in functions if each.body is not None and each.body.items}
    return frozenset(name for name, _, _ in functions) - some


def _pure(functions: Functions) -> frozenset[str]:
    """The names whose functions do nothing but return something."""
    calls: dict[str, set[str]] = {}
    for name, types, each in functions:
        assert each.body is not None
        calls.setdefault(name, set()).update(set(_does(each.body)) - types)
    while True:
        left = {name: made for name, made in calls.items() if made <= calls.keys() | _CONVERSIONS}
        if left == calls:
            return frozenset(left)
        calls = left


def _does(body: Group) -> Iterator[str]:
    """What a body calls; where it assigns, the name of nothing."""
    for each in statements(body.items):
        items = items_of(each)
        assigned = [
            k
            for k, token in enumerate(tokens(items))
            if token.text in (*ASSIGNING, "++", "--", "asm", "volatile")
        ]
        constant = isinstance(each, Simple) and is_op(items[0], "const", "constexpr")
        if assigned and not (constant and len(assigned) == 1):
            yield ""
        before: Token | None = None
        for token in tokens(items):
            if token.text == "(" and before is not None and (before.kind == "name" or before.text == ">"):
                yield before.text if before.text not in ("if", "constexpr", "return", ">") else "square"
            before = token
