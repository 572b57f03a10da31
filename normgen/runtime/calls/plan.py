"""`Plan`: one call of a norm, prepared once and repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normgen import arrays
from normgen.arrays.views import View
from normgen.counting import counted
from normgen.launching.launch import HOST
from normgen.locks import new_lock
from normgen.runtime.calls.arguments import Request
from normgen.runtime.calls.binding import alignment_of, device_text
from normgen.runtime.calls.dispatch import Dispatcher
from normgen.runtime.calls.prepared import NOWHERE, Ready, fire, taking
from normgen.runtime.calls.workspace import Memory


class Plan:
    """A call that is checked, planned and compiled, to be repeated on arrays of the same layout.

    `plan(*arrays)` takes the arrays named in `args`, by position or name, and returns the same results as the
    norm, bit for bit. Numbers, the results in `out`, the stream and scratch arrays are fixed. Each call
    allocates the results that are not in `out`. If the plan has no stream, a call runs on the current stream
    of its arrays' library.

    A call checks that the library, shape, strides, element type and device of its arrays are as planned, that
    the alignment is no less, and that nothing overlaps the results: TypeError or ValueError otherwise. With
    all results in `out`, it does not allocate or synchronize, so a CUDA graph can capture it.

    If kernels need scratch memory, the plan holds its own, or that of `workspace`. Calls may come from any
    thread, but must be on one stream, or be ordered by the caller. So must replays of graphs that captured
    them; keep the plan alive while such graphs are replayed.
    """

    def __init__(self, dispatcher: Dispatcher, request: Request) -> None:
        settled = dispatcher.settle(request)
        prepared, call = settled.prepared, settled.call
        like = call.views[call.like]
        self.args = tuple(name for name in prepared.operands if name not in call.loose)
        self._call = dispatcher.direction.text
        seen = arrays.glance([call.views[name].owner for name in self.args])
        if seen is None:
            raise TypeError(
                f"a plan takes arrays of NumPy, PyTorch, CuPy and PyCUDA, not a {type(like.owner).__name__}: "
                f"call {self._call} instead"
            )
        self._dispatcher, self._request, self._prepared = dispatcher, request, prepared
        assembler = dispatcher.assembler
        assembler.compile(assembler.texts(call), prepared.device)
        self._keys = seen[1]
        self._states = [n for n, name in enumerate(self.args) if name in dispatcher.direction.updated]
        self._planned = {name: call.views[name]._replace(owner=None) for name in self.args}
        self._library = like.library
        given = request.stream is not None or prepared.device == HOST
        self._stream = settled.stream if given else None
        # The head of the pool: addresses of a call's arrays, then all else. Numbers that stand for operands
        # live in their views.
        self._loose = [call.views[name] for name in call.loose]
        fixed = [place for place, name in enumerate(prepared.operands) if name in call.loose]
        fixed += range(len(prepared.operands), len(settled.head))
        self._fixed = [settled.head[place] for place in fixed]
        count = len(self.args)
        names = range(len(settled.head))
        self._take = taking(
            [count + fixed.index(p) if p in fixed else self.args.index(prepared.operands[p]) for p in names]
        )
        self._out = [request.out[name] for name in prepared.given]
        self._result = dispatcher.result
        self._made = None if prepared.made else self._result._make(prepared.fields([*self._out, None]))
        self._memory = Memory()
        self._placed = NOWHERE
        if prepared.scratch.size:
            placed = prepared.place_scratch(
                self._memory, self._library, like.owner, settled.stream, settled.theirs, lasting=True
            )
            # Calls may come from several threads, whose launches must not mingle.
            self._placed = placed._replace(lock=new_lock())
        # The addresses of the last call's arrays and of the results made for it, and its launches, which a
        # call with the same ones repeats.
        self._last: tuple[list[Any] | None, list[int], list[Ready]] = (None, [], [])

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run on these arrays. Returns the results as a named tuple."""
        if named:
            given = self._in_order(given, named)
        states = [given[place] for place in self._states if place < len(given)] if self._states else ()
        seen = arrays.glance(given, states)
        values = seen[0] if seen is not None and seen[1] == self._keys else self._look(given)
        prepared, library, owner = self._prepared, self._library, given[0]
        stream = self._stream
        if stream is None:
            stream = library.stream(owner, prepared.device)
        result = self._made
        addresses: list[int] = []
        if result is None:
            made, addresses = prepared.make(library, owner)
            if not prepared.suits(addresses):
                # Results came out with less alignment than planned for: the same call by the norm itself.
                operands = {**self._request.operands, **dict(zip(self.args, given, strict=True))}
                return self._dispatcher.run(self._request._replace(operands=operands))
            result = self._result._make(prepared.results(self._out, made, library, stream))
        known, theirs, launches = self._last
        if prepared.idle or values != known or addresses != theirs:
            pool = [*self._take([*values, *self._fixed]), *addresses, *self._placed.addresses]
            launches = prepared.ready(pool, self._placed)
            self._last = values, addresses, launches
            if prepared.idle:
                prepared.clear(pool, stream)
        fire(launches, self._placed, prepared.device, stream)
        return result

    def __repr__(self) -> str:
        return f"<plan of {self._call}({', '.join(self.args)}) on {device_text(self._prepared.device)}>"

    def _in_order(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arrays by position."""
        missing = self.args[len(given) :]
        for name in named:
            if name not in missing:
                twice = name in self.args
                fault = f"{name} twice, by position and by name" if twice else f"{name!r}"
                raise TypeError(f"the plan of {self._call} got {fault}; it takes {', '.join(self.args)}")
        return (*given, *(named[name] for name in missing if name in named))

    def _look(self, given: tuple[Any, ...]) -> list[int]:
        """The addresses of arrays that differ from the planned ones; an error if the difference matters."""
        if len(given) != len(self.args):
            names = ", ".join(self.args)
            raise TypeError(
                f"the plan of {self._call} takes {counted(len(self.args), 'array')} ({names}) but got "
                f"{len(given)}"
            )
        addresses = []
        for (name, planned), array in zip(self._planned.items(), given, strict=True):
            view = arrays.view(array, name, name in self._dispatcher.direction.updated)
            if view.library is not planned.library:
                known, found = planned.library.name, view.library.name
                raise TypeError(f"{name} was planned as an array of {known} but is an array of {found}")
            if view.dtype != planned.dtype:
                raise TypeError(f"{name} was planned as {planned.dtype} but is {view.dtype}")
            if _text(view) != _text(planned):
                raise ValueError(f"{name} was planned with {_text(planned)} but has {_text(view)}")
            if alignment_of(view.pointer) < (needed := alignment_of(planned.pointer)):
                raise ValueError(
                    f"{name} was planned with an alignment of {needed} bytes but is at {view.pointer:#x}"
                )
            if view.readonly and name in self._dispatcher.direction.updated:
                raise ValueError(f"{name} is read-only, but the call writes it: pass a writable copy")
            addresses.append(view.pointer)
        return addresses


def _text(view: View) -> str:
    return f"shape {view.shape} and strides {view.strides} on {device_text(view.device)}"
