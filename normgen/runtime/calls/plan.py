"""`Plan`: one call of a norm, made ready and repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normgen import arrays
from normgen.arrays.views import View
from normgen.launching.launch import HOST
from normgen.locks import new_lock
from normgen.runtime.calls.arguments import Request
from normgen.runtime.calls.binding import alignment_of, device_text
from normgen.runtime.calls.dispatch import Dispatcher
from normgen.runtime.calls.prepared import NOWHERE, Ready, fire, taking
from normgen.runtime.calls.workspace import Memory


class Plan:
    """A call that is checked, planned and compiled, to be repeated on arrays that lie alike.

    `plan(*arrays)` takes the arrays named in `args`, by position or name, and returns what the norm would:
    the same results, bit for bit. Numbers, the results in `out`, the stream and scratch arrays are those that
    the plan was made with. Results that `out` did not hold are made anew by each call; where no stream was
    given, a call runs on the current one of its arrays' library.

    Of its arrays a call checks that library, shape, strides, element type and device are as planned, that
    the alignment is no less, and that nothing overlaps what is written: TypeError or ValueError where not.
    With all results in `out` it allocates nothing and waits for nothing, so that a CUDA graph may capture it.

    Where kernels need scratch memory, the plan holds its own, or that of `workspace`. Its calls may come from
    any thread, but they must be on one stream, or be ordered by the caller; so must replays of graphs that
    captured them, which need the plan for as long as they are replayed.
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
                f"a plan takes arrays of NumPy, PyTorch, CuPy and PyCUDA, but not a "
                f"{type(like.owner).__name__}; {self._call} takes it"
            )
        self._dispatcher, self._request, self._prepared = dispatcher, request, prepared
        assembler = dispatcher.assembler
        assembler.compile(assembler.texts(call), prepared.device)
        self._keys = seen[1]
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
        """Run on these arrays; the results as a named tuple."""
        if named:
            given = self._in_order(given, named)
        seen = arrays.glance(given)
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
                raise TypeError(
                    f"the plan of {self._call} was given {fault}; it takes {', '.join(self.args)}"
                )
        return (*given, *(named[name] for name in missing if name in named))

    def _look(self, given: tuple[Any, ...]) -> list[int]:
        """The addresses of arrays that are not just as planned; an error where that matters."""
        if len(given) != len(self.args):
            names = ", ".join(self.args)
            raise TypeError(
                f"the plan of {self._call} takes {len(self.args)} arrays ({names}) but was given {len(given)}"
            )
        addresses = []
        for (name, planned), array in zip(self._planned.items(), given, strict=True):
            view = arrays.view(array, name)
            if view.library is not planned.library:
                known, found = planned.library.name, view.library.name
                raise TypeError(f"{name} was planned as an array of {known} but is one of {found}")
            if view.dtype != planned.dtype:
                raise TypeError(f"{name} was planned as {planned.dtype} but is {view.dtype}")
            if _text(view) != _text(planned):
                raise ValueError(f"{name} was planned with {_text(planned)} but has {_text(view)}")
            if alignment_of(view.pointer) < (needed := alignment_of(planned.pointer)):
                raise ValueError(
                    f"{name} was planned at an address divisible by {needed} but is at {view.pointer:#x}"
                )
            if view.readonly and name in self._dispatcher.direction.updated:
                raise ValueError(f"{name} is read-only, but {name} is written")
            addresses.append(view.pointer)
        return addresses


def _text(view: View) -> str:
    return f"shape {view.shape} and strides {view.strides} on {device_text(view.device)}"
