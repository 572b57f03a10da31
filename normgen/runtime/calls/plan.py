"""`Plan`: one call of a norm, made ready and repeated."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from normgen import arrays
from normgen.arrays.views import Library, View
from normgen.launching.launch import HOST
from normgen.runtime.calls.binding import alignment_of, device_text
from normgen.runtime.calls.passes import Pass, Request, Settled
from normgen.runtime.calls.steps import Ready, Step, Take, taking
from normgen.runtime.calls.workspace import GRANULE, align


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
    any thread, but they must be on one stream, or be ordered by the caller.
    """

    def __init__(
        self,
        norm: str,
        chosen: Pass,
        result: Any,
        operands: Mapping[str, object],
        numbers: Mapping[str, float],
        request: Request,
    ) -> None:
        settled = chosen.settle(operands, numbers, request)
        prepared, like = settled.prepared, settled.views[settled.like]
        self.args = tuple(name for name in prepared.operands if name not in settled.loose)
        self._call = f"{norm}.{chosen.direction.name}"
        seen = arrays.glance([settled.views[name].owner for name in self.args])
        if seen is None:
            raise TypeError(
                f"a plan takes arrays of NumPy, PyTorch, CuPy and PyCUDA, but not a "
                f"{type(like.owner).__name__}; {self._call} takes it"
            )
        out = request.out or {}
        self._chosen, self._result, self._prepared = chosen, result, prepared
        alike = chosen.texts(
            settled.views, settled.targets, request.wanted, request.accumulate, request.sm_count
        )
        chosen.warm(alike, prepared.device)
        self._keys = seen[1]
        self._planned = {name: settled.views[name]._replace(owner=None) for name in self.args}
        self._adapter = like.library
        fixed = request.stream is not None or prepared.device == HOST
        self._stream = settled.stream if fixed else None
        # What a call of the norm takes beside the arrays; numbers that stand for operands live here too.
        self._rest = ({name: operands[name] for name in settled.loose}, numbers, request)
        self._loose = [settled.views[name] for name in settled.loose]
        self._fixed, self._take = self._head(settled)
        self._out = [out[name] for name in prepared.given]
        self._made = None if prepared.made else self._result._make(prepared.fields([*self._out, None]))
        self._scratch, self._steps, self._memory = _scratch(settled, self._adapter, like)
        self._guards = prepared.workspace_guards if settled.theirs else prepared.guards
        self._lock = threading.Lock()
        # The addresses of the last call's arrays and of the results made for it, and its launches, which a
        # call with the same ones repeats.
        self._last: tuple[list[Any] | None, list[int], list[Ready]] = (None, [], [])

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run on these arrays; the results as a named tuple."""
        if named:
            given = self._in_order(given, named)
        seen = arrays.glance(given)
        values = seen[0] if seen is not None and seen[1] == self._keys else self._look(given)
        prepared, adapter, owner = self._prepared, self._adapter, given[0]
        stream = self._stream
        if stream is None:
            stream = adapter.stream(owner, prepared.device)
        result = self._made
        addresses: list[int] = []
        if result is None:
            made, addresses = prepared.make(adapter, owner)
            if not prepared.suits(addresses):
                return self._by_norm(given)
            result = self._result._make(prepared.results(self._out, made, adapter, stream))
        if prepared.idle:
            prepared.run(self._pool(values, addresses), stream, self._guards, self._steps)
            return result
        known, theirs, launches = self._last
        if values != known or addresses != theirs:
            launches = prepared.ready(self._pool(values, addresses), self._guards, self._steps)
            self._last = values, addresses, launches
        if self._scratch:
            with self._lock:  # launches of another call must not come in between
                for fire, packed, buffers in launches:
                    fire(packed, buffers, stream)
        else:
            for fire, packed, buffers in launches:
                fire(packed, buffers, stream)
        return result

    def __repr__(self) -> str:
        return f"<plan of {self._call}({', '.join(self.args)}) on {device_text(self._prepared.device)}>"

    def _pool(self, values: list[Any], addresses: list[int]) -> list[Any]:
        """The pool up to its constants, of a call whose arrays and new results have these addresses."""
        pool = [*values, *self._fixed]
        if self._take is not None:
            pool = [*self._take(pool)]
        return [*pool, *addresses, *self._scratch]

    def _head(self, settled: Settled) -> tuple[tuple[Any, ...], Take | None]:
        """What is fixed of the head of the pool, and how to put it in order after a call's addresses, where
        numbers stand for some operands."""
        operands = settled.prepared.operands
        loose = [place for place, name in enumerate(operands) if name in settled.loose]
        order = [*(operands.index(name) for name in self.args), *loose]
        fixed = (*(settled.head[place] for place in loose), *settled.head[len(operands) :])
        if not loose:
            return fixed, None
        rest = range(len(operands), len(settled.head))
        return fixed, taking([*(order.index(place) for place in range(len(operands))), *rest])

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
                raise TypeError(
                    f"{name} was planned as an array of {planned.library.name} "
                    f"but is one of {view.library.name}"
                )
            if view.dtype != planned.dtype:
                raise TypeError(f"{name} was planned as {planned.dtype} but is {view.dtype}")
            if _place(view) != _place(planned):
                raise ValueError(f"{name} was planned with {_text(planned)} but has {_text(view)}")
            if alignment_of(view.pointer) < alignment_of(planned.pointer):
                needed = alignment_of(planned.pointer)
                raise ValueError(
                    f"{name} was planned at an address divisible by {needed} but is at {view.pointer:#x}"
                )
            if view.readonly and name in self._chosen.direction.updated:
                raise ValueError(f"{name} is read-only, but {name} is written")
            addresses.append(view.pointer)
        return addresses

    def _by_norm(self, given: tuple[Any, ...]) -> Any:
        """The same call by the norm itself, where results came out with less alignment than planned for."""
        loose, numbers, request = self._rest
        operands = {**loose, **dict(zip(self.args, given, strict=True))}
        return self._result._make(self._chosen.run(operands, numbers, request))


def _scratch(
    settled: Settled, adapter: Library, like: View
) -> tuple[list[int], tuple[Step, ...], list[object]]:
    """The addresses of a plan's scratch arrays, the steps to take with them, and what keeps the memory."""
    memory: list[object] = []

    def placed(found: tuple[int, object] | None) -> int:
        if found is None:
            return 0
        memory.append(found[1])
        return align(found[0])

    owner, device, stream = like.owner, like.device, settled.stream
    addresses, steps = settled.prepared.placed(
        settled.theirs,
        lambda size: placed(arrays.zero_scratch(adapter, owner, device, size + GRANULE, stream)),
        lambda size: placed(arrays.scratch(adapter, owner, device, size + GRANULE)),
    )
    return addresses, steps, memory


def _place(view: View) -> tuple[Any, ...]:
    return (view.shape, view.strides, view.device)


def _text(view: View) -> str:
    return f"shape {view.shape} and strides {view.strides} on {device_text(view.device)}"
