"""Cases: calls that differ only in the lengths of open axes are prepared once.

An axis is open where no kernel has it in its rows and the spec does not fix its length: the number of rows.
The second time that a call comes with other open lengths its case is made (`launching.case`): grids,
arguments, shapes and sizes as formulas of the open lengths. Any further call within the limits of the case
takes its numbers from the formulas: nothing is planned or compiled for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from normgen.arrays.views import View, packed
from normgen.devices.executors import Executor
from normgen.launching.case import Case, Later, traced
from normgen.launching.launch import Launch
from normgen.launching.layout import REST
from normgen.launching.tracing import SHORTEST
from normgen.package.direction import Direction
from normgen.runtime.calls.assemble import Assembler
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.calls.look import ViewedCall
from normgen.runtime.calls.prepared import PreparedCall

KINDS_KEPT = 1024
MOST_CASES = 32  # of one kind of call
MOST_PINNED = 3  # times that a case is for a single length, after which that length is not open any more

Kind = tuple[Any, ...]


class PreparedCases:
    """The cases of one direction. It holds nothing but caches."""

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._names = cache(partial(_names, assembler.direction))
        # By kind, the open lengths of which a case was for a single one, each as often as that happened.
        self._pinned: Bounded[Kind, tuple[str, ...]] = Bounded(KINDS_KEPT)
        self._cases: Bounded[Kind, tuple[Case[PreparedCall], ...]] = Bounded(KINDS_KEPT)

    def forget(self) -> None:
        """Prepare every call again when it comes next."""
        self._pinned.forget()
        self._cases.forget()

    def prepare(self, call: ViewedCall) -> PreparedCall:
        """The prepared call: by the formulas of a case, or planned for its own lengths."""
        opened = self._opened(call)
        if opened is None:
            return self._assembler.prepare(call)
        kind, lengths = opened
        pinned = self._pinned.get(kind)
        if pinned is None:  # the first of its kind
            self._pinned.keep(kind, ())
            return self._assembler.prepare(call)
        closed = [name for name in lengths if pinned.count(name) >= MOST_PINNED]
        left = [name for name in lengths if name not in closed]
        key = (*kind, *((name, lengths[name]) for name in closed))
        known = self._cases.get(key, ())
        case = next((each for each in known if each.limits.hold(lengths)), None)
        if case is None and left and len(known) < MOST_CASES:
            case = self._case(call, lengths, left)
            self._pinned.keep(kind, (*pinned, *case.limits.pinned))
            self._cases.keep(key, (*known, case))
        return self._assembler.prepare(call) if case is None else case.at(lengths)

    def _opened(self, call: ViewedCall) -> tuple[Kind, dict[str, int]] | None:
        """The lengths of a call's open dimensions, after its kind, which is all else: two calls of one kind
        differ only in these lengths. None where it has none, or is empty, or where arrays do not agree in
        them. A length of 1 is not open."""
        lengths: dict[str, int] = {}
        kind: list[Any] = [call.wanted, call.accumulate, call.sm_count, call.types, call.loose, (*call.bits,)]
        for views in (call.views, call.out):
            kind.append(None)
            for name, view in views.items():
                shape = view.shape
                names = self._names(name, len(shape))
                if len(names) != len(shape) or 0 in shape:
                    return None
                closed: list[int | None] = []
                for axis, size in zip(names, shape, strict=True):
                    # (planning may take for granted that an open axis is stepped along)
                    if axis is None or size < SHORTEST:
                        closed.append(size)
                    elif lengths.setdefault(axis, size) == size:
                        closed.append(None)
                    else:
                        return None
                strides = None if view.strides == packed(shape) else view.strides
                kind += [name, view.pointer & 15, view.dtype, (*closed,), strides, view.readonly, view.device]
        return (tuple(kind), lengths) if lengths else None

    def _case(self, call: ViewedCall, lengths: Mapping[str, int], left: Sequence[str]) -> Case[PreparedCall]:
        """The case of a call, with these of its open lengths left open."""
        assembler = replace(self._assembler, executors=lambda key: _Compiling(self._assembler.executors(key)))

        def prepared(sizes: Mapping[str, int]) -> PreparedCall:
            def sized(views: Mapping[str, View]) -> dict[str, View]:
                names = {name: self._names(name, len(view.shape)) for name, view in views.items()}
                return {name: _sized(view, names[name], sizes) for name, view in views.items()}

            return assembler.prepare(call._replace(views=sized(call.views), out=sized(call.out)))

        return traced(lengths, left, prepared)


@dataclass(frozen=True)
class _Compiling:
    """An executor that compiles functions, and prepares launches when their grids are known."""

    executor: Executor

    @property
    def device(self) -> Any:
        return self.executor.device

    def function(self, source: str, entry: str, shared: int) -> Any:
        return self.executor.function(source, entry, shared)

    def prepare(self, function: Any, launch: Launch) -> Any:
        return Later(self.executor.prepare, (function, launch))


def _names(direction: Direction, tensor: str, count: int) -> tuple[str | None, ...]:
    """For each dimension of an array that has so many the name of its length, where that is open."""
    left = set(direction.record.open) - {axis.name for axis in direction.axes if axis.extent is not None}
    dims = (direction.operands | direction.results)[tensor].dims
    found: list[str | None] = []
    for dim in dims:
        rest = [f"{REST}{place}" for place in range(count - len(dims) + 1)]
        found += [name if left.issuperset(dim) else None for name in (rest if dim == (REST,) else dim[:1])]
    return tuple(found)


def _sized(view: View, names: Sequence[str | None], sizes: Mapping[str, int]) -> View:
    """A view with the lengths of its open dimensions in place of numbers. `names`: of all its dimensions."""
    shape = tuple(
        sizes.get(name or "", length) if length >= SHORTEST else length
        for name, length in zip(names, view.shape, strict=True)
    )
    if view.strides != packed(view.shape):
        return view._replace(shape=shape)
    strides, step = [], 1
    for length in reversed(shape):  # (`packed` keeps results, for which it needs the lengths as numbers)
        strides.append(step)
        step *= length
    return view._replace(shape=shape, strides=tuple(reversed(strides)))
