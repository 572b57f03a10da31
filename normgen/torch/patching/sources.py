"""Methods as syntax, and methods made of syntax that was changed."""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from inspect import isfunction, ismodule
from types import CellType, CodeType, FunctionType
from typing import Any

from torch.nn import Module

from normgen.torch.patching.codes import codes
from normgen.torch.patching.syntax import stores

FORWARD = "forward"


def scope_of(cls: type[Module], method: str = FORWARD) -> dict[str, Any]:
    """What the names in a method are, but for those of its own and of the functions within it."""
    plain = inspect.unwrap(getattr(cls, method))
    own = {name for each in codes(plain.__code__) for name in (*each.co_varnames, *each.co_cellvars)}
    return {name: value for name, value in plain.__globals__.items() if name not in own}


def resolved(name: ast.expr, scope: Mapping[str, Any]) -> Any:
    """What a name with dots stands for in a module; None where it is none, or stands for nothing there."""
    match name:
        case ast.Name(id=first):
            return scope.get(first)
        case ast.Attribute(value=home, attr=attr):
            found = resolved(home, scope)
            return getattr(found, attr, None) if ismodule(found) else None
    return None


def compiled(
    cls: type[Module], definition: ast.FunctionDef, named: Mapping[str, Any], method: str = FORWARD
) -> Callable[..., Any]:
    """The method of a class with the code of a definition. `named`: what names stand for in that alone."""
    plain: Any = inspect.unwrap(getattr(cls, method))
    code = _code(plain, definition, named)
    cells = tuple(CellType(named[name]) for name in code.co_freevars)
    made: Any = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, cells)
    update_wrapper(made, plain)
    del made.__wrapped__
    made.__kwdefaults__ = plain.__kwdefaults__
    home = next(vars(base) for base in cls.__mro__ if method in vars(base))
    for each in reversed(definition.decorator_list):
        decorator = compile(ast.Expression(each), plain.__code__.co_filename, "eval", dont_inherit=True)
        made = eval(decorator, plain.__globals__, dict(home))(made)
    function: Callable[..., Any] = made
    return function


def _code(plain: Any, definition: ast.FunctionDef, names: Iterable[str]) -> CodeType:
    """The code of a definition that stands where the plain function does: in a class, with whose name Python
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


def first_argument(definition: ast.FunctionDef | None) -> str:
    """What a method calls its module; "" where it gives that name another value."""
    if definition is None:
        return ""
    name = next((each.arg for each in (*definition.args.posonlyargs, *definition.args.args)), "")
    return "" if stores(definition, name) else name


def methods_of(cls: type[Module]) -> tuple[str, ...]:
    """The forward of a class, and methods of its own that are called from there."""
    found = [FORWARD]
    for method in found:
        definition = definition_of(cls, method)
        own = first_argument(definition)
        for node in () if definition is None else ast.walk(definition):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if name == own:
                    found += [attr] if attr not in found and _is_method(cls, attr) else []
    return tuple(found)


def _is_method(cls: type[Module], name: str) -> bool:
    home: Mapping[str, Any] = next((vars(base) for base in cls.__mro__ if name in vars(base)), {})
    return isfunction(home.get(name)) and not hasattr(Module, name)


def definition_of(cls: type[Module], method: str = FORWARD) -> ast.FunctionDef | None:
    """The syntax of a method with its decorators, if that is all there is to it."""
    function: Any = getattr(cls, method)
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
