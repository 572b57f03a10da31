"""What functions say of their calls: which always return the same, do nothing, or do nothing but return."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Sequence

from tree_sitter import Node

from normgen.page.declarations import Declaration
from normgen.page.syntax import field, parts, text_of, walk
from normgen.page.values import CONVERSIONS, Facts, Known, Short, Value, called_name, is_action

_SHORT = 20  # pieces of an expression that are not worth a function
_OPERANDS = ("identifier", "number_literal", "call_expression", "field_expression", "subscript_expression")


def constructed(every: Iterable[Declaration]) -> frozenset[str]:
    """The classes with a constructor."""
    return frozenset(each.name for each in every if each.owner is not None and each.owner.name == each.name)


def facts_of(reached: Sequence[Declaration]) -> Facts:
    """The facts of the functions that are reached."""
    functions = [each for each in reached if each.kind == "function"]
    defined = [each for each in functions if each.body is not None]
    filled = {each.name for each in defined if each.body is not None and parts(each.body)}
    return Facts(
        _results(defined),
        frozenset(each.name for each in defined) - filled,
        _pure(defined),
        constructed(functions),
        dict(_short([each for each in functions if each.owner is None])),
    )


def _returned(each: Declaration) -> Node | None:
    """What a function returns, if it does nothing else."""
    inner = parts(each.body) if each.body is not None else []
    if len(inner) != 1 or inner[0].type != "return_statement":
        return None
    return next(iter(parts(inner[0])), None)


def _results(functions: Sequence[Declaration]) -> dict[str, Value]:
    """What all functions of a name return, by name, where that is known."""
    nothing = Known(Facts(), ChainMap())
    found: dict[str, set[Value]] = {}
    for each in functions:
        found.setdefault(each.name, set()).add(nothing.value(_returned(each)))
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}


def _pure(functions: Sequence[Declaration]) -> frozenset[str]:
    """The names whose functions do nothing but return something."""
    calls: dict[str, set[str]] = {}
    for each in functions:
        assert each.body is not None
        types = {parameter.name for parameter in each.parameters}
        calls.setdefault(each.name, set()).update(set(_does(each.body)) - types)
    while True:
        left = {name: made for name, made in calls.items() if made <= calls.keys() | CONVERSIONS}
        if left == calls:
            return frozenset(left)
        calls = left


def _does(body: Node) -> Iterator[str]:
    """What a body calls; where it changes something, the name of nothing."""
    for each in walk(body):
        if is_action(each) or (each.type == "type_qualifier" and text_of(each) == "volatile"):
            yield ""
        elif each.type == "call_expression":
            yield called_name(field(each, "function"))


def _short(functions: Sequence[Declaration]) -> Iterator[tuple[str, Short]]:
    """The functions that a page has in one version, without arguments, which return an expression."""
    count = Counter(each.name for each in functions)
    for each in functions:
        returned = _returned(each)
        if returned is None or count[each.name] > 1 or _takes(each) or len(list(walk(returned))) > _SHORT:
            continue
        parameters = tuple(parameter.name for parameter in each.parameters)
        yield each.name, Short(parameters, text_of(returned), returned.type in _OPERANDS)


def _takes(each: Declaration) -> bool:
    """Whether a function has parameters."""
    declarator = field(each.inner, "declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = field(declarator, "declarator") or next(iter(parts(declarator)), None)
    taken = field(declarator, "parameters") if declarator is not None else None
    return taken is None or bool(parts(taken))
