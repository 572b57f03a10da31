"""The numbers that a forward is written with, as far as they may be an eps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

from normgen.torch.patching.codes import codes

LARGEST = 1e-2
# What PyTorch's functions take where they are told none: `layer_norm`, and `rms_norm` in float32.
DEFAULTS = (1e-5, float(torch.finfo(torch.float32).eps), 0.0)


def constants_of(cls: type[torch.nn.Module]) -> tuple[float, ...]:
    """Small numbers in the code of a class's forward, in what that names in its module and its class, and in
    methods that it calls; then what PyTorch's functions take by default."""
    found: dict[float, None] = {}
    for function in _functions(cls):
        for value in _values(cls, function):
            if isinstance(value, float) and 0 < value <= LARGEST:
                found[value] = None
    return tuple(dict.fromkeys((*found, *DEFAULTS)))


def _functions(cls: type[torch.nn.Module]) -> list[Any]:
    """The forward, and the methods and functions of its module that it names."""
    forward = inspect.unwrap(cls.forward)
    if not inspect.isfunction(forward):
        return []
    named = [_named(cls, forward, name) for name in _names(forward.__code__)]
    own = [inspect.unwrap(each) for each in named if callable(each)]
    same = [each for each in own if inspect.isfunction(each) and each.__module__ == forward.__module__]
    return [forward, *same]


def _values(cls: type[torch.nn.Module], function: Any) -> Iterator[Any]:
    for code in codes(function.__code__):
        yield from code.co_consts
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        yield _named(cls, function, name)


def _named(cls: type[torch.nn.Module], function: Any, name: str) -> Any:
    return getattr(cls, name, function.__globals__.get(name))


def _names(code: CodeType) -> list[str]:
    return [name for each in codes(code) for name in each.co_names]
