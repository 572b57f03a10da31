"""Forwards, read and written again: a sum and a norm of it become one call, functions become others.

A sum and its norm are these statements, of which the second may be missing where the norm has another target:

    total = left + right
    copy = total
    normed = self.norm(total)

Whatever else a forward does, it does as before.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import isfunction
from typing import Any

from torch.nn import Module

from normgen.torch.patching.sources import compiled, definition_of, resolved, scope_of

ADD_NORM = "_normgen_add_norm"  # the method of a block that is called instead: (norm, left, right)


@dataclass(frozen=True, slots=True)
class _Site:
    """Where a forward has a sum and a norm of it. `copy`: "" where the sum is not copied."""

    begin: int  # of the statements in the forward's body
    end: int
    norm: str
    left: ast.expr
    right: ast.expr
    total: str
    copy: str
    normed: str


@cache
def norms_after_sums(cls: type[Module]) -> tuple[str, ...]:
    """The attributes of a class of blocks that its forward calls on a sum; none where its source is not to
    be had, or does not say all that the forward does."""
    definition = definition_of(cls)
    return () if definition is None else tuple(site.norm for site in _sites(definition))


def rewritten(cls: type[Module], norm: str) -> Callable[..., Any]:
    """The forward of a class with the sum and the norm named `norm` as one call."""
    definition = definition_of(cls)
    assert definition is not None
    site = next(site for site in _sites(definition) if site.norm == norm)
    definition.body[site.begin : site.end] = _fused(site, definition.body[site.begin])
    return compiled(cls, definition, {})


def functions_called(cls: type[Module], known: Container[Any]) -> tuple[Any, ...]:
    """Which of these functions the forward of a class calls by a name of its module; none where its source is
    not to be had."""
    definition = definition_of(cls)
    if definition is None:
        return ()
    scope = scope_of(cls)
    called = (resolved(node.func, scope) for node in ast.walk(definition) if isinstance(node, ast.Call))
    return tuple(dict.fromkeys(each for each in called if _is_among(each, known)))


def redirected(cls: type[Module], instead: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any]:
    """The forward of a class with other functions in place of those that it calls."""
    definition = definition_of(cls)
    assert definition is not None
    scope = scope_of(cls)
    named = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _is_among(found := resolved(node.func, scope), instead):
            name = f"_normgen_{found.__name__}"
            named[name] = instead[found]
            node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
    return compiled(cls, definition, named)


def _is_among(found: Any, known: Container[Any]) -> bool:
    return isfunction(found) and found in known


def _sites(definition: ast.FunctionDef) -> list[_Site]:
    found = (_site(definition.body, k) for k in range(len(definition.body)))
    return [site for site in found if site is not None]


def _site(body: list[ast.stmt], begin: int) -> _Site | None:
    """The site that begins at a statement."""
    total, value = _assigned(body[begin])
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    copy, end = "", begin + 1
    if end < len(body):
        target, copied = _assigned(body[end])
        if target and isinstance(copied, ast.Name) and copied.id == total:
            copy, end = target, end + 1
    normed, call = _assigned(body[end]) if end < len(body) else ("", None)
    norm = _called(call, (total, copy))
    if not norm or (normed == total and not copy) or normed == copy:
        return None
    return _Site(begin, end + 1, norm, value.left, value.right, total, copy, normed)


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """The one name that a statement assigns to, and its value; "" for other statements."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
    return "", None


def _called(call: ast.expr | None, names: tuple[str, str]) -> str:
    """The attribute of self that is called on one of these names and nothing else."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="self"), attr=attr), args=[ast.Name(id=arg)], keywords=[]
        ) if arg and arg in names:
            return attr
    return ""


def _fused(site: _Site, at: ast.stmt) -> list[ast.stmt]:
    """The statements that stand for those of a site."""
    kept = site.copy if site.normed == site.total else site.total
    call = ast.parse(f"{kept}, {site.normed} = self.{ADD_NORM}(self.{site.norm}, 0, 0)").body[0]
    assert isinstance(call, ast.Assign) and isinstance(call.value, ast.Call)
    call.value.args[1:] = [site.left, site.right]
    made = [call]
    if site.copy and site.copy != kept:
        made += ast.parse(f"{site.copy} = {kept}").body  # type: ignore[arg-type]
    return [ast.fix_missing_locations(ast.copy_location(each, at)) for each in made]
