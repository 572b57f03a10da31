"""Methods as syntax, and methods compiled from syntax that was changed."""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from inspect import isfunction, ismodule
from types import CellType, CodeType, FunctionType
from typing import Any

from torch.nn import Module

from normgen.torch.patching.syntax import looks_at_names, stores

FORWARD = "forward"


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code and those of the functions and classes within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a class. `own`: what it calls its module; "" where it gives that name another value.
    `scope`: what its other names stand for, but for those of its own and of the functions within it."""

    cls: type[Module]
    name: str
    definition: ast.FunctionDef
    own: str
    scope: Mapping[str, Any]

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.definition) if isinstance(node, ast.Call))

    def compiled(self, named: Mapping[str, Any]) -> Callable[..., Any]:
        """The method as its definition is now. `named`: what names stand for in that alone."""
        plain: Any = inspect.unwrap(getattr(self.cls, self.name))
        code = _code(plain, self.definition, named)
        cells = tuple(CellType(named[name]) for name in code.co_freevars)
        made: Any = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, cells)
        update_wrapper(made, plain)
        del made.__wrapped__
        made.__kwdefaults__ = plain.__kwdefaults__
        home = next(vars(base) for base in self.cls.__mro__ if self.name in vars(base))
        for each in reversed(self.definition.decorator_list):
            decorator = compile(ast.Expression(each), plain.__code__.co_filename, "eval", dont_inherit=True)
            made = eval(decorator, plain.__globals__, dict(home))(made)
        function: Callable[..., Any] = made
        return function


def method_of(cls: type[Module], name: str = FORWARD) -> Method | None:
    """A method of a class; None where its source is not available, or is not all that there is to it."""
    definition = _definition(cls, name)
    if definition is None:
        return None
    plain: Any = inspect.unwrap(getattr(cls, name))
    inner = {name for each in codes(plain.__code__) for name in (*each.co_varnames, *each.co_cellvars)}
    scope = {name: value for name, value in plain.__globals__.items() if name not in inner}
    own = next((each.arg for each in (*definition.args.posonlyargs, *definition.args.args)), "")
    return Method(cls, name, definition, "" if stores(definition, own) else own, scope)


def methods_of(cls: type[Module]) -> list[Method]:
    """The forward of a class, and methods of its own that are called from there, whose source says all that
    they do."""
    names, found = [FORWARD], []
    for name in names:  # grows
        if (method := method_of(cls, name)) is None:
            continue
        for call in method.calls():
            match call.func:
                case ast.Attribute(value=ast.Name(id=own), attr=attr) if own == method.own:
                    names += [attr] if attr not in names and _is_method(cls, attr) else []
        found += [] if looks_at_names(method.definition) else [method]
    return found


def rewritten(
    cls: type[Module], change: Callable[[Method], bool], named: Mapping[str, Any]
) -> dict[str, Callable[..., Any]]:
    """The methods of a class whose syntax `change` changes, compiled. `named`: what names stand for there."""
    return {each.name: each.compiled(named) for each in methods_of(cls) if change(each)}


def _is_method(cls: type[Module], name: str) -> bool:
    home: Mapping[str, Any] = next((vars(base) for base in cls.__mro__ if name in vars(base)), {})
    return isfunction(home.get(name)) and not hasattr(Module, name)


def resolved(name: ast.expr, scope: Mapping[str, Any]) -> Any:
    """What a name with dots stands for in a module; None where it is none, or stands for nothing there."""
    match name:
        case ast.Name(id=first):
            return scope.get(first)
        case ast.Attribute(value=home, attr=attr):
            found = resolved(home, scope)
            return getattr(found, attr, None) if ismodule(found) else None
    return None


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


def _definition(cls: type[Module], name: str) -> ast.FunctionDef | None:
    """The syntax of a method with its decorators, if that is all there is to it."""
    function: Any = getattr(cls, name)
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
