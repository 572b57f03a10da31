"""Methods, read and written again: a sum and a norm of it become one call, functions become others.

A sum and its norm stand in one list of statements, with whatever names:

    total = left + right
    copy = total
    result = self.mlp(self.norm(copy))

The norm is what is computed next after the sum: names and attributes are all that is read between them. The
two can therefore be computed at once, where the sum is, and nothing else sees a difference. In
`self.norm(left + right)` the sum has no name, and nothing can stand between.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import isfunction
from typing import Any

import torch
from torch.nn import Module

from normgen.torch.patching.sources import FORWARD, Method, method_of, methods_of, resolved
from normgen.torch.patching.syntax import (
    Body,
    OwnCall,
    bodies,
    first_computed,
    inner_bodies,
    name_node,
    own_call,
    own_nodes,
    stores,
    target_of,
    value_of,
)

# Functions that are called instead: (left, right, norm) -> (the sum, [the norm]), and -> the norm alone.
ADD_NORM, NORM_OF_SUM = "_normgen_add_norm", "_normgen_norm_of_sum"
_NORMED = "_normgen_normed"  # the name of the list, which the norm's place empties

WIDTH = 50  # of the statement that a report shows

# Why a sum and its norm do not become one call.
IN_PLACE = "+= changes a tensor that others may hold"
EARLIER = "its statement computes something else first"
APART = "a branch, a loop or a `with` stands between it and the sum"
UNREADABLE = "the source of the block's forward is not available, or does not say all that it does"


@dataclass(frozen=True, slots=True)
class Site:
    """A norm of a sum. `body`, `at`: where the sum is a statement; `fault`: why the two are not one call."""

    call: OwnCall
    body: Body
    at: int
    fault: str = ""


@cache
def sums(cls: type[Module]) -> tuple[tuple[str, str], ...]:
    """The attributes of a class of blocks that its methods call on a sum, each with why it stays apart; ""
    where it need not."""
    found = (site for method in methods_of(cls) for site in _sites(method))
    return tuple(dict.fromkeys((site.call.attribute, site.fault) for site in found))


@cache
def is_readable(cls: type[Module]) -> bool:
    """Whether the source of a forward says all that it does."""
    return any(method.name == FORWARD for method in methods_of(cls))


def unite(method: Method, norms: Container[str]) -> bool:
    """Change the syntax of a method, so that these norms become one call with the sum before; returns whether
    it has any."""
    found = [site for site in _sites(method) if site.call.attribute in norms and not site.fault]
    for site in found:
        _unite(site, method.scope)
    return bool(found)


def functions_called(cls: type[Module], known: Container[Any]) -> tuple[Any, ...]:
    """Which of these functions the forward of a class calls by a name of its module; none where its source is
    not to be had."""
    method = method_of(cls)
    return () if method is None else tuple(dict.fromkeys(found for _, found in _calls(method, known)))


def redirected(cls: type[Module], instead: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any]:
    """The forward of a class with other functions in place of those that it calls."""
    method = method_of(cls)
    assert method is not None
    named = {}
    for call, function in _calls(method, instead):
        name = f"_normgen_{function.__name__}"
        named[name] = instead[function]
        call.func = ast.copy_location(name_node(name), call.func)
    return method.compiled(named)


def _calls(method: Method, known: Container[Any]) -> Iterator[tuple[ast.Call, Any]]:
    """The calls of these functions in a method."""
    found = ((call, resolved(call.func, method.scope)) for call in method.calls())
    return (each for each in found if isfunction(each[1]) and each[1] in known)


def _sites(method: Method) -> list[Site]:
    """The norms of sums in a method."""
    return list(_Reader(method.own, method.scope).sites(method.definition.body, ()))


@dataclass(frozen=True, slots=True)
class _Reader:
    """A method while norms of sums are looked for. `own`: what it calls its module."""

    own: str
    scope: Mapping[str, Any]

    def sites(self, body: Body, outer: tuple[tuple[Body, int], ...]) -> Iterator[Site]:
        """Those of a list of statements. `outer`: the lists around it, and where it is in them."""
        for at, statement in enumerate(body):
            path = (body, at), *outer
            for call in filter(None, (own_call(node, self.own) for node in own_nodes(statement))):
                if _terms(call.value, self.scope):
                    yield Site(call, body, at)
                elif isinstance(call.value, ast.Name):
                    fault = "" if first_computed(value_of(statement)) is call.call else EARLIER
                    yield from self._behind(call, call.value.id, fault, path)
            for inner, _ in inner_bodies(statement):
                yield from self.sites(inner, path)

    def _behind(
        self, call: OwnCall, name: str, fault: str, path: tuple[tuple[Body, int], ...]
    ) -> Iterator[Site]:
        """The norm of a name, if an earlier statement gives it a sum."""
        for body, end in path:
            for at in range(end - 1, -1, -1):
                statement, value = body[at], value_of(body[at])
                if stores(statement, name):
                    if isinstance(value, ast.Name) and target_of(statement) == name:
                        name = value.id
                        continue
                    if self._sums(statement, name):
                        in_place = isinstance(statement, ast.AugAssign)
                        yield Site(call, body, at, IN_PLACE if in_place else fault)
                    elif any(
                        self._sums(each, name) for inner, _ in bodies([statement], False) for each in inner
                    ):
                        yield Site(call, body, at, APART)
                    return
                if not target_of(statement) or first_computed(value) is not None:
                    fault = fault or f"`{_shown(statement)}` stands between it and the sum"
            fault = APART

    def _sums(self, statement: ast.stmt, name: str) -> bool:
        """Whether a statement gives a name a sum."""
        if isinstance(statement, ast.AugAssign):
            return isinstance(statement.op, ast.Add) and getattr(statement.target, "id", "") == name
        return target_of(statement) == name and _terms(value_of(statement), self.scope) is not None


def _terms(value: ast.expr | None, scope: Mapping[str, Any]) -> tuple[ast.expr, ast.expr] | None:
    """What a sum of two adds; None for another expression."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return left, right
        case ast.Call(func=func, args=[left, right], keywords=[]) if resolved(func, scope) is torch.add:
            return None if any(isinstance(each, ast.Starred) for each in (left, right)) else (left, right)
    return None


def _shown(statement: ast.stmt) -> str:
    line = ast.unparse(statement).partition("\n")[0]
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}..."


def _unite(site: Site, scope: Mapping[str, Any]) -> None:
    """Change the syntax of a site to one call."""
    call, value = site.call.call, site.call.value
    if not isinstance(value, ast.Name):
        call.args = [*(_terms(value, scope) or ()), call.func]
        call.func = name_node(NORM_OF_SUM)
        return
    total = site.body[site.at]
    united = ast.Call(name_node(ADD_NORM), [*(_terms(value_of(total), scope) or ()), call.func], [])
    names = ast.Tuple([ast.Name(each, ast.Store()) for each in (target_of(total), _NORMED)], ast.Store())
    site.body[site.at] = ast.copy_location(ast.Assign([names], united), total)
    call.func, call.args = ast.Attribute(name_node(_NORMED), "pop", ast.Load()), []
