"""A spec, wherever it is, to the function of tensors that it states."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

import torch

import normgen
from normgen.locks import new_reentrant_lock
from normgen.runtime.norm import Norm
from normgen.torch.function import NormFunction
from normgen.torch.private import constant

if TYPE_CHECKING:
    from normgen.torch.ranks.partial import SummedFunction

NormSource = str | os.PathLike[str] | ModuleType | Norm


@overload
def load(
    source: NormSource,
    /,
    *,
    shard: Mapping[str, Any] | None = None,
    whole: Sequence[str] = (),
    partial: None = None,
    **attrs: Any,
) -> NormFunction: ...


@overload
def load(
    source: NormSource,
    /,
    *,
    shard: Mapping[str, Any] | None = None,
    whole: Sequence[str] = (),
    partial: Mapping[str, Any],
    **attrs: Any,
) -> SummedFunction: ...


def load(
    source: NormSource,
    /,
    *,
    shard: Mapping[str, Any] | None = None,
    whole: Sequence[str] = (),
    partial: Mapping[str, Any] | None = None,
    **attrs: Any,
) -> NormFunction | SummedFunction:
    """The function of a norm: a bundled name, a path, a spec's text, a generated module, or a loaded norm.

    `shard`: the sharded axes, each with a process group or a `DeviceMesh` of one dimension: `{"D": group}`.
    The function is then a `SpreadFunction`, which each rank calls with its shards. `whole`: with `shard`, the
    operands whose gradients are summed over ranks. `partial`: operands of which each rank has one addend,
    `{"x": group}`: they are summed over ranks first, and their gradients are whole.
    `attrs`: values of the spec's attrs. Integers and choices are fixed here, as in `normgen.load`.
    The same source and attrs return the same function. Raises what `normgen.load` raises; TypeError for attrs
    of a module or a norm, which are fixed already.

    If `torch.compile` traces this call, it loads the norm once, during tracing.
    """
    if partial is not None or shard is not None:
        from normgen.torch.ranks import loading

        if partial is None:
            return loading.spread(source, attrs, shard or {}, tuple(whole))
        return loading.summed(load(source, shard=shard, whole=whole, **attrs), partial)
    if whole:
        raise TypeError("whole= requires shard=: it names the operands whose gradients are summed over ranks")
    if torch.compiler.is_compiling():
        found: NormFunction = loaded(_place_of(source, **attrs))
        return found
    return _load(source, attrs)


def function(spec: str, /, **attrs: Any) -> NormFunction:
    """What modules call: the function of a bundled spec or of a spec's text, looked up sooner than by `load`.
    `attrs`: whole numbers and choices."""
    found: NormFunction = loaded(_known_place(spec, **attrs))
    return found


def restored(spec: str, folded: tuple[tuple[str, Any], ...]) -> NormFunction:
    """The function of a spec's text and the attrs that are fixed: what copies and pickles come to."""
    return _function(spec, folded, _Held(lambda: normgen.load(spec, **dict(folded))))


def _load(source: Any, attrs: dict[str, Any]) -> NormFunction:
    norm = norm_of(source, attrs)
    return _function(norm.package.spec, norm.package.folded, _Held(lambda: norm))


def norm_of(source: Any, attrs: dict[str, Any]) -> Norm:
    """The norm of any source that `load` takes."""
    if isinstance(source, (str, os.PathLike)):
        norm: Norm = normgen.load(source, **attrs)
        return norm
    found = source if isinstance(source, Norm) else getattr(source, "NORM", None)
    if not isinstance(found, Norm):
        raise TypeError(f"expected a spec, a generated module or a norm, got {type(source).__name__}")
    if attrs:
        raise TypeError(f"the attrs of {found.name} are fixed already: leave out {', '.join(attrs)}")
    return found


class _Held:
    """How a norm is made, which plays no part in a cache's key: its text and attrs say all."""

    def __init__(self, make: Callable[[], Norm]) -> None:
        self.make = make

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


# Threads that load a norm at once get one function: its operators can be registered once.
_LOADING = new_reentrant_lock()


def _function(spec: str, folded: tuple[Any, ...], held: _Held) -> NormFunction:
    with _LOADING:
        return _made(spec, folded, held)


@cache
def _made(spec: str, folded: tuple[Any, ...], held: _Held) -> NormFunction:
    return NormFunction(held.make())


class _Loaded:
    """Functions as attributes: what `torch.compile` reads anew each time that it is asked for."""


_LOADED = _Loaded()
_NUMBERS = count()  # of its attributes: no two threads get the same


def loaded(place: str) -> Any:
    """The function at a place."""
    return getattr(_LOADED, place)


@constant
def _place_of(source: Any, /, **attrs: Any) -> str:
    """Where the function is, once it is loaded."""
    return place(_load(source, attrs))


@constant
def _known_place(spec: str, /, **attrs: Any) -> str:
    return _known(spec, tuple(attrs.items()))


@cache
def _known(spec: str, attrs: tuple[tuple[str, Any], ...]) -> str:
    return _place_of(spec, **dict(attrs))


@cache
def place(function: NormFunction) -> str:
    """Where a function is: what compilers can hold."""
    name = f"function_{next(_NUMBERS)}"
    setattr(_LOADED, name, function)
    return name
