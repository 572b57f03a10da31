"""What a forward may do besides computing its result, judged from the names in its code before it runs."""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Iterator
from inspect import isclass, isfunction
from types import FunctionType
from typing import Any

import torch
from torch.nn import Module

from normgen.torch.patching.sources import codes

TRUSTED = frozenset({"torch", "math", "builtins", "typing", "types", "enum", "functools", "operator"})
ACTS = frozenset({"__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"})
TORCH_ACTS = frozenset({"distributed", "_c10d_functional", "load", "save"})  # attributes
BEGIN = ("forward", "__getattr__", "__getattribute__", "__setattr__")  # what runs in a call of a forward
KINDS = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME"), "global"),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"), "attribute"),
    **dict.fromkeys(("IMPORT_NAME", "STORE_GLOBAL"), "act"),
}


def effects(cls: type[Module]) -> list[str]:
    """The names in the forward of a class, or in the first function that it may call and that has some, that
    may do more than compute: print, write, communicate, import, or read what may change."""
    waiting = [each for name in BEGIN for each in _members(cls, name)]
    for function in waiting:  # grows
        found = set()
        called: list[FunctionType] = []
        for kind, name in _names(function):
            if kind == "attribute":
                called += _members(cls, name)
                value = inspect.getattr_static(cls, name, None)
                acts = name in TORCH_ACTS or (callable(value) and not inspect.isroutine(value))
            else:
                acts = kind == "act"
            found |= {name} if acts else set()
        for name, value in named(function):
            runs = _called(value, cls)
            called += runs or []
            found |= {name} if runs is None else set()
        if found:
            return sorted(found)
        waiting += [each for each in dict.fromkeys(called) if each not in waiting]
    return []


def named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The values of what a function names of its module, of Python, and of the functions around it."""
    known = {**vars(builtins), **function.__globals__}
    yield from ((name, known[name]) for kind, name in _names(function) if kind == "global" and name in known)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def is_constant(value: Any) -> bool:
    """Whether it is no flag, and keeps nothing."""
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    is_code = inspect.ismodule(value) or isclass(value) or inspect.isroutine(value)
    return is_code or isinstance(value, (float, torch.dtype))


def _names(function: FunctionType) -> set[tuple[str, str]]:
    """How a function uses a name, and the name."""
    instructions = (each for code in codes(function.__code__) for each in dis.get_instructions(code))
    return {(KINDS[each.opname], each.argval) for each in instructions if each.opname in KINDS}


def _members(cls: type[Module], name: str) -> list[FunctionType]:
    """The functions of this name of a class and of those that it derives from, but for PyTorch's."""
    homes = cls.__mro__[: cls.__mro__.index(Module)]
    found = [each for home in homes for each in _functions(vars(home).get(name))]
    return [each for each in found if not _is_trusted(each)]


def _functions(value: Any) -> list[FunctionType]:
    plain = getattr(value, "fget", getattr(value, "__func__", value))
    return [plain] if isfunction(plain) else []


def _called(value: Any, cls: type[Module]) -> list[FunctionType] | None:
    """The functions that may run where a value is named; None where that may do more than compute."""
    if isinstance(value, tuple):
        runs = [_called(each, cls) for each in value]
        return None if None in runs else [each for found in runs for each in found or ()]
    if not is_constant(value):
        return None
    if isinstance(value, (float, torch.dtype)) or value in cls.__mro__:
        return []
    if _is_trusted(value):
        return _functions(getattr(value, "__wrapped__", None))
    if isclass(value):
        members = [member for home in value.__mro__ for member in vars(home).values()]
        return [each for member in members for each in _functions(member) if not _is_trusted(each)]
    return _functions(value) or None


def _is_trusted(value: Any) -> bool:
    """Whether it is of PyTorch or of Python, and only computes."""
    if isfunction(value):  # its `__module__` may be that of what it wraps
        home = value.__globals__["__name__"]
    else:
        home = value.__name__ if inspect.ismodule(value) else str(getattr(value, "__module__", ""))
    acts = home == "builtins" and value.__name__ in ACTS
    return home.partition(".")[0] in TRUSTED and not home.startswith("torch.distributed") and not acts
