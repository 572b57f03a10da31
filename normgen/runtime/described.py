"""Signatures and docs of one norm's calls: what `help`, `inspect.signature` and notebooks show of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from normgen.package.direction import Direction
from normgen.package.records import Package
from normgen.package.signature import arguments, documented, heading, numbers, sections, signature

BY_CALL = ("out", "stream")  # the options of `forward` that a norm itself takes


def own_method(
    method: Callable[..., Any], owner: object, package: Package, direction: Direction
) -> MethodType:
    """The method of a class as one of this owner alone, which says what it takes. It is called as fast."""
    assert isinstance(method, FunctionType)
    own = FunctionType(
        method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__
    )
    own.__kwdefaults__ = method.__kwdefaults__
    own.__qualname__ = method.__qualname__
    taken = arguments(package, direction)
    own.__signature__ = signature(taken, ("self",))  # type: ignore[attr-defined]
    own.__doc__ = documented(heading(package, direction), sections(package, direction))
    return MethodType(own, owner)


def call_signature(
    package: Package, forward: Direction, options: tuple[str, ...] = BY_CALL
) -> inspect.Signature:
    """The signature of a norm called directly, or of a function of tensors, which takes no `options`."""
    taken = [each for each in arguments(package, forward) if each.positional]
    named = [each for each in arguments(package, forward) if each.name in options]
    return signature([*taken, *numbers(package), *named])


def call_text(package: Package, forward: Direction, options: tuple[str, ...] = BY_CALL) -> str:
    """Its docstring."""
    names = call_signature(package, forward, options).parameters
    found = sections(package, forward)
    found["Args"] = [(name, text) for name, text in found["Args"] if name in names]
    found["Returns"] = [
        (name, text) for name, text in found["Returns"] if forward.results[name].role != "save"
    ]
    return documented(heading(package, forward), found)
