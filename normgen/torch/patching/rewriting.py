"""Forwards, read and written again: a sum and a norm of it become one call, functions become others.

A sum and its norm are these statements, of which the second may be missing where the norm has another target:

    total = left + right
    copy = total
    normed = self.norm(total)

Whatever else a forward does, it does as before.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, update_wrapper
from inspect import isfunction, ismodule
from types import CellType, CodeType, FunctionType
from typing import Any

from torch.nn import Module

from normgen.torch.patching.codes import codes

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
    definition = _definition(cls)
    return () if definition is None else tuple(site.norm for site in _sites(definition))


def rewritten(cls: type[Module], norm: str) -> Callable[..., Any]:
    """The forward of a class with the sum and the norm named `norm` as one call."""
    definition = _definition(cls)
    assert definition is not None
    site = next(site for site in _sites(definition) if site.norm == norm)
    definition.body[site.begin : site.end] = _fused(site, definition.body[site.begin])
    return _compiled(cls, definition, {})


def functions_called(cls: type[Module], known: Container[Any]) -> tuple[Any, ...]:
    """Which of these functions the forward of a class calls by a name of its module; none where its source is
    not to be had."""
    definition = _definition(cls)
    if definition is None:
        return ()
    scope = _scope(cls)
    called = (_resolved(node.func, scope) for node in ast.walk(definition) if isinstance(node, ast.Call))
    return tuple(dict.fromkeys(each for each in called if _is_among(each, known)))


def redirected(cls: type[Module], instead: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any]:
    """The forward of a class with other functions in place of those that it calls."""
    definition = _definition(cls)
    assert definition is not None
    scope = _scope(cls)
    named = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _is_among(found := _resolved(node.func, scope), instead):
            name = f"_normgen_{found.__name__}"
            named[name] = instead[found]
            node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
    return _compiled(cls, definition, named)


def _scope(cls: type[Module]) -> dict[str, Any]:
    """What the names in a forward are, but for those of its own and of the functions within it."""
    plain = inspect.unwrap(cls.forward)
    own = {name for each in codes(plain.__code__) for name in (*each.co_varnames, *each.co_cellvars)}
    return {name: value for name, value in plain.__globals__.items() if name not in own}


def _is_among(found: Any, known: Container[Any]) -> bool:
    return isfunction(found) and found in known


def _resolved(name: ast.expr, scope: Mapping[str, Any]) -> Any:
    """What a name with dots stands for in a module; None where it is none, or stands for nothing there."""
    match name:
        case ast.Name(id=first):
            return scope.get(first)
        case ast.Attribute(value=home, attr=attr):
            found = _resolved(home, scope)
            return getattr(found, attr, None) if ismodule(found) else None
    return None


def _compiled(cls: type[Module], definition: ast.FunctionDef, named: Mapping[str, Any]) -> Callable[..., Any]:
    """The forward of a class with the code of a definition. `named`: what names stand for in that alone."""
    plain: Any = inspect.unwrap(cls.forward)
    code = _code(plain, definition, named)
    cells = tuple(CellType(named[name]) for name in code.co_freevars)
    made: Any = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, cells)
    update_wrapper(made, plain)
    del made.__wrapped__
    made.__kwdefaults__ = plain.__kwdefaults__
    home = next(vars(base) for base in cls.__mro__ if "forward" in vars(base))
    for each in reversed(definition.decorator_list):
        decorator = compile(ast.Expression(each), plain.__code__.co_filename, "eval", dont_inherit=True)
        made = eval(decorator, plain.__globals__, dict(home))(made)
    function: Callable[..., Any] = made
    return function


def _code(plain: Any, definition: ast.FunctionDef, names: Iterable[str]) -> CodeType:
    """The code of a definition that stands where the plain forward does: in a class, with whose name Python
    spells the private names in it. `names`: what it finds outside of the class, beside globals."""
    _, _, home = plain.__qualname__.rpartition(".")[0].rpartition(".")
    tree = ast.parse(f"def scope({', '.join(names)}):\n    class {home or '_'}: pass")
    scope: Any = tree.body[0]
    scope.body[0].body = [definition]
    ast.increment_lineno(definition, plain.__code__.co_firstlineno - 1)
    flags = plain.__code__.co_flags & __future__.annotations.compiler_flag
    file = plain.__code__.co_filename
    made = compile(ast.fix_missing_locations(tree), file, "exec", flags, dont_inherit=True)
    return next(each for each in codes(made) if each.co_name == definition.name)


def _definition(cls: type[Module]) -> ast.FunctionDef | None:
    """The syntax of a forward with its decorators, if that is all there is to it."""
    function: Any = cls.forward
    wrappers = []
    while hasattr(function, "__wrapped__"):
        wrappers.append(getattr(function, "__code__", None))
        function = function.__wrapped__
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    if not isinstance(found, ast.FunctionDef) or not isfunction(function) or function.__code__.co_freevars:
        return None
    unseen = wrappers[: len(wrappers) - len(found.decorator_list)]
    if len(wrappers) < len(found.decorator_list) or (unseen and not _wraps_subclasses(cls, unseen)):
        return None
    return found


def _wraps_subclasses(cls: type[Module], wrappers: list[CodeType | None]) -> bool:
    """Whether these are what a base class wraps the forward of each of its subclasses in."""
    bases = [base for base in cls.__mro__ if "__init_subclass__" in vars(base)]
    return len(set(wrappers)) == 1 and len(bases) > 1 and wrappers[0] in _within(bases[0])


def _within(base: type) -> list[Any]:
    """The code of the functions that the `__init_subclass__` of a class makes."""
    return list(vars(base)["__init_subclass__"].__func__.__code__.co_consts)


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
