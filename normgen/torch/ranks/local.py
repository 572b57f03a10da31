"""A local program of a rank, ready to be called again with tensors that lie alike."""

from __future__ import annotations

from typing import Any

from normgen.arrays.torch import TORCH
from normgen.package.spread import StageRecord
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.steps import SENT, LocalCall, Sent, Values
from normgen.torch import native
from normgen.torch.calls import Joined, Known, Numbers, Tensors, Wanted, own, prepare
from normgen.torch.dtypes import TYPES


class LocalProgram:
    """A step that runs a local program by kernels, which are prepared when it runs first. `moved`: the
    operands whose channels it takes as the last axis; `last`: the results whose channels it makes so."""

    def __init__(
        self,
        norm: Norm,
        record: StageRecord,
        call: LocalCall,
        sent: Sent | None = None,
        moved: frozenset[str] = frozenset(),
        last: frozenset[str] = frozenset(),
    ) -> None:
        """`call`: one of those that run it; `sent`: what it sends."""
        self._norm, self._types, self._moved, self._last = norm, call.types, moved, last
        direction = norm.dispatcher("forward").direction
        self._reads, self._results = direction.reads, tuple(direction.results)
        self._attrs = tuple(attr.name for attr in norm.package.attrs)
        self._states = [n for n, name in enumerate(direction.reads) if name in direction.updated]
        asked = {*record.handed, *call.results, *(each.name for each, _ in record.told)}
        self._wanted = tuple(name for name in self._results if name in asked)
        self.is_idle = not self._wanted and not direction.updated
        self._joined = None
        self._first = ""  # the result that is all floats which the rank sends
        if sent is not None:
            places, size = sent.layout
            self._first = next(iter(places))
            self._joined = Joined({name: start for name, (start, _) in places.items()}, size)
        self._known: Known | None = None
        self._fast: Any = None  # the same in the extension
        self._told = False  # the extension of it

    def __call__(self, values: Values) -> Values:
        """All results, None for those that are not wanted, and for those that are within others."""
        if self.is_idle:
            return {}
        made = dict(zip(self._results, self._run(*self._taken(values)), strict=True))
        if self._first:
            made[SENT] = made[self._first]
        return made

    def share(self, values: Values) -> float:
        """What the largest launch of such a call takes of the places that the device has for its blocks."""
        known = self._known or self._prepare(*self._taken(values))
        return known.share()

    def _run(self, tensors: Tensors, numbers: Numbers) -> tuple[Any, ...]:
        own(tensors, self._states)
        if self._fast is not None:
            made: tuple[Any, ...] | None = self._fast.run(numbers, tensors)
            if made is not None:
                return made
        given = [tensor for tensor in tensors if tensor is not None]
        known = self._known or self._prepare(tensors, numbers)
        if not self._told and native.EXTENSION.there:
            self._told = True
            if known.in_extension is not None:
                self._fast = known.in_extension(native.EXTENSION.loaded)
        return known.repeated(given[-1], tensors, numbers, [TORCH.address(tensor) for tensor in given])

    def _taken(self, values: Values) -> tuple[Tensors, Numbers]:
        tensors = tuple([values.get(name) for name in self._reads])
        return tensors, tuple([values[name] for name in self._attrs])

    def _prepare(self, tensors: Tensors, numbers: Numbers) -> Known:
        named = dict(zip(self._reads, tensors, strict=True))
        types = ((name, TYPES[kind]) for name, kind in self._types.items() if named.get(name) is None)
        lying = tuple(
            tensor.movedim(1, -1) if name in self._moved and tensor is not None else tensor
            for name, tensor in named.items()
        )
        wanted = Wanted(self._wanted, tuple(types))
        last = self._last & {*self._results}
        known = prepare(self._norm, "forward", lying, numbers, wanted, last, self._joined)
        self._known = known
        return known
