"""Which tests compile kernels: those that name the host executor, or that call what names it in tests/.

A test that comes to it another way, by a call on NumPy arrays or by a command, says so by the mark `kernels`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from normgen.devices.host.executor import HostExecutor

_TESTS = f"{Path(__file__).parent}/"
# Parameters that are no code.
_PLAIN = (str, bytes, int, float, tuple, list, dict, frozenset, type(None))


def names_executor(item: pytest.Function) -> bool:
    """Whether the code of a test, of its fixtures or of its parameters names the host executor."""
    fixtures = [f.func for found in item._fixtureinfo.name2fixturedefs.values() for f in found]
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    values = [value for value in parameters if not isinstance(value, _PLAIN)]
    return any(map(_function_names, (item.obj, *fixtures))) or any(map(_names, values))


@functools.cache
def _function_names(function: Callable[..., Any]) -> bool:
    return _names(function)


def _names(value: Any) -> bool:
    """Whether a value is a host executor, or code of tests/ that names one."""
    seen: set[int] = set()
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, HostExecutor) or value is HostExecutor:
            return True
        for function in _functions(value):
            if id(function) not in seen:
                seen.add(id(function))
                left += _named(function)
    return False


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions of tests/ that a value is, or that it wraps or holds."""
    if isinstance(value, (functools.partial, staticmethod)):
        yield from _functions(value.func)
        return
    if hasattr(value, "hypothesis"):
        value = value.hypothesis.inner_test
    if (
        not inspect.isclass(value)
        and not isinstance(value, (FunctionType, ModuleType))
        and _is_ours(type(value))
    ):
        value = type(value)
    if inspect.isclass(value) and _is_ours(value):
        for base in value.__mro__[:-1]:
            if base is HostExecutor:
                yield _names_it
            elif _is_ours(base):
                members = (getattr(member, "fget", member) for member in vars(base).values())
                yield from (member for member in members if isinstance(member, FunctionType))
        return
    function = inspect.unwrap(value) if callable(value) and hasattr(value, "__wrapped__") else value
    function = getattr(function, "__func__", function)
    if isinstance(function, FunctionType) and _is_ours(function):
        yield function


def _is_ours(value: Any) -> bool:
    """Whether a function, a class or a module is of tests/."""
    module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
    return str(getattr(module, "__file__", "")).startswith(_TESTS)


def _names_it() -> type[HostExecutor]:
    return HostExecutor


def _named(function: FunctionType) -> list[Any]:
    """The values that a function's code names, in its module and in modules that it names."""
    names = set(_names_of(function.__code__))
    known = function.__globals__
    found = [known[name] for name in names if name in known]
    found += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found += [cell.cell_contents for cell in function.__closure__ or ()]
    modules = [value for value in found if isinstance(value, ModuleType) and _is_ours(value)]
    return found + [getattr(m, name) for m in modules for name in names if hasattr(m, name)]


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)
