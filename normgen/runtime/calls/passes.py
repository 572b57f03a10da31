"""One pass of a norm as a call: arrays -> views -> a prepared list of launches -> results.

Everything that depends only on shapes, dtypes, strides and alignment is prepared once and found again by that
signature: the checks, the launch plan, the compiled functions. A call like one before takes a shortcut, and
looks at its arrays no further than it must to know that it is one. What is left for each call is to allocate
the results, fill in addresses and launch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from normgen import arrays
from normgen.arrays.views import Library, View, scalar_view
from normgen.devices.executors import Executor
from normgen.dtypes import DEVICE_DTYPES, name_of_numpy, real, round_to
from normgen.launching.launch import HOST, DeviceKey, Launch
from normgen.package.records import Package
from normgen.runtime.calls import preparing
from normgen.runtime.calls.arguments import Arguments
from normgen.runtime.calls.binding import bind
from normgen.runtime.calls.direction import Direction
from normgen.runtime.calls.prepared import Prepared
from normgen.runtime.calls.preparing import Planner
from normgen.runtime.calls.shortcut import Seen, Shortcut, shortcut
from normgen.runtime.calls.steps import Step
from normgen.runtime.calls.warming import compile_all
from normgen.runtime.calls.workspace import Arenas, supplied, with_multiprocessors

PLANS_KEPT = 4096
SHORTCUTS_KEPT = 256
# What may stand for a 0-d array.
SCALARS = (float, int, np.generic)


class Request(NamedTuple):
    """What a call asks for, beside its arrays and numbers."""

    wanted: tuple[str, ...]
    out: Mapping[str, object] | None = None
    accumulate: bool = False
    stream: object = None
    workspace: Mapping[str, object] | None = None
    sm_count: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """A call with everything looked at. `loose`: operands that are numbers; `like`: the operand whose library
    makes the results; `head`: the pool up to the results that are made; `theirs`: the addresses of scratch
    arrays that the caller supplies."""

    prepared: Prepared
    views: Mapping[str, View]
    targets: Mapping[str, View]
    loose: tuple[str, ...]
    like: str
    stream: int
    head: tuple[Any, ...]
    theirs: Mapping[str, int]


class Pass:
    """One direction of a norm, callable. It holds nothing but caches; any number of threads may call it
    at once."""

    def __init__(
        self,
        direction: Direction,
        package: Package,
        executors: Callable[[DeviceKey], Executor],
        planner: Planner,
    ) -> None:
        self.direction = direction
        self.arguments = Arguments(package, direction)
        self._header = package.header
        self._executors = executors
        self._planner = planner
        self._arenas = Arenas()
        self._lock = threading.Lock()
        self._prepared: dict[Any, Prepared] = {}
        self._shortcuts: dict[Any, Shortcut] = {}

    def again(self, seen: Seen, stream: object) -> tuple[Any, ...] | None:
        """Every result in order, of a call like one before; None where it is not."""
        key, values, objects = seen
        known = self._shortcuts.get(key)
        head = known.head(values) if known is not None else None
        if known is None or head is None:
            return None
        prepared, adapter, owner = known.prepared, known.adapter, objects[known.like]
        handle = arrays.stream_for(adapter, owner, prepared.device, stream)
        pool: list[Any] = [*head]
        made: list[Any] = []
        if prepared.made:
            made, addresses = prepared.make(adapter, owner)
            if not prepared.suits(addresses):
                return None
            pool += addresses
        steps = prepared.steps
        if prepared.scratch.size:
            addresses, steps = self._scratch(prepared, adapter, owner, handle, {})
            pool += addresses
        prepared.run(pool, handle, prepared.guards, steps)
        return prepared.results([objects[place] for place in known.out], made, adapter, handle)

    def run(
        self,
        given: Mapping[str, object],
        numbers: Mapping[str, float | int],
        request: Request,
        seen: Seen | None = None,
    ) -> tuple[Any, ...]:
        """Every result in order, None where it is not wanted, each the same kind of array as the caller's.

        Calls like `seen`, which is this one, may come back by `again`."""
        settled = self.settle(given, numbers, request)
        prepared, like = settled.prepared, settled.views[settled.like]
        adapter, stream = like.library, settled.stream
        made, addresses = prepared.make(adapter, like.owner)
        out = request.out or {}
        if not prepared.suits(addresses):
            # The plan counts on aligned results. Plan again for what the allocator gave.
            names = [name for name in request.wanted if name not in out]
            return self.run(
                given, numbers, request._replace(out={**dict(zip(names, made, strict=True)), **out})
            )
        pool, steps = [*settled.head, *addresses], prepared.steps
        if prepared.scratch.size:
            places, steps = self._scratch(prepared, adapter, like.owner, stream, settled.theirs)
            pool += places
        if prepared.device != HOST and not prepared.idle:
            arrays.order(stream, (*settled.views.values(), *settled.targets.values()))
        prepared.run(pool, stream, prepared.workspace_guards if settled.theirs else prepared.guards, steps)
        if seen is not None and not settled.loose:
            bounds = self.arguments.bounds
            found = shortcut(seen, self.direction, prepared, adapter, settled.like, numbers, bounds)
            self._keep(self._shortcuts, seen[0], found, SHORTCUTS_KEPT)
        return prepared.results([out[name] for name in prepared.given], made, adapter, stream)

    def settle(
        self, given: Mapping[str, object], numbers: Mapping[str, float | int], request: Request
    ) -> Settled:
        """Look at everything that a call gives, check it, and prepare the call."""
        out = request.out or {}
        targets = {name: arrays.view(array, f"out[{name!r}]") for name, array in out.items()}
        views, loose, bits = self._views(given, targets)
        like = next((name for name in views if name not in loose), next(iter(views)))
        stream = arrays.stream_of(views[like], request.stream)
        prepared = self.prepare(
            views, targets, request.wanted, request.accumulate, tuple(bits), request.sm_count
        )
        theirs = (
            supplied(prepared.scratch.workspace, request.workspace, views[like]) if request.workspace else {}
        )
        values = {**numbers, **bits}
        head = (
            *(view.pointer for view in views.values()),
            *(targets[name].pointer for name in prepared.given),
            *(values[name] for name in prepared.numbers),
        )
        return Settled(prepared, views, targets, loose, like, stream, head, theirs)

    def prepare(
        self,
        views: Mapping[str, View],
        out: Mapping[str, View],
        wanted: tuple[str, ...],
        accumulate: bool = False,
        filled: tuple[str, ...] = (),
        sm_count: int | None = None,
    ) -> Prepared:
        """The prepared call for arrays like these: from the cache, or checked, planned and compiled now."""
        key = (
            _signatures(views),
            _signatures(out) if out else (),
            wanted,
            accumulate,
            filled,
            sm_count,
        )
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = preparing.prepare(
                self.direction,
                self._header,
                self._executors,
                self._planner,
                views,
                out,
                wanted,
                accumulate,
                filled,
                sm_count,
            )
            self._keep(self._prepared, key, prepared, PLANS_KEPT)
        return prepared

    def texts(
        self,
        views: Mapping[str, View],
        out: Mapping[str, View],
        wanted: tuple[str, ...],
        accumulate: bool = False,
        sm_count: int | None = None,
    ) -> list[Launch]:
        """The launches of a call with arrays like these, and others with all texts that calls need which
        differ from it in the number of rows."""
        bound = bind(self.direction, views, out, wanted, accumulate)
        if bound.idle:
            return []
        device = self._executors(next(iter(views.values())).device).device
        asked = self.direction.record, bound.binding, with_multiprocessors(device, sm_count), self._header
        plan = self._planner(*asked)
        return [*plan.launches, *plan.alike()]

    def warm(self, launches: list[Launch], device: DeviceKey) -> None:
        """Compile and load what launches on a device need."""
        if launches:
            compile_all(self._executors(device), launches)

    def _keep(self, cache: dict[Any, Any], key: Any, value: Any, most: int) -> None:
        """Put something into a cache, from which the oldest goes where there are too many."""
        with self._lock:
            while len(cache) >= most:
                del cache[next(iter(cache))]
            cache[key] = value

    def _scratch(
        self, prepared: Prepared, adapter: Library, owner: Any, stream: int, theirs: Mapping[str, int]
    ) -> tuple[list[int], tuple[Step, ...]]:
        """The addresses of scratch arrays for a call of this thread on this stream, but for those that the
        caller supplies, and the steps to take with them."""
        device, arenas = prepared.device, self._arenas
        return prepared.placed(
            theirs,
            lambda size: arenas.zeros(
                device, stream, size, lambda room: arrays.zero_scratch(adapter, owner, device, room, stream)
            ),
            lambda size: arenas.address(
                (device, stream), size, lambda room: arrays.scratch(adapter, owner, device, room)
            ),
        )

    def _views(
        self, given: Mapping[str, object], out: Mapping[str, View]
    ) -> tuple[dict[str, View], tuple[str, ...], dict[str, int]]:
        """The arrays as views in declared order; those that numbers stand for; and the bit patterns of the
        ones that a device has yet to be told of."""
        views: dict[str, View] = {}
        loose: list[str] = []
        for name in self.direction.operands:
            array = given.get(name)
            if array is None:
                continue
            if isinstance(array, SCALARS):
                loose.append(name)
            else:
                views[name] = arrays.view(array, name)
        if not loose:
            return views, (), {}
        like = next(iter((*views.values(), *out.values())), None)
        bits: dict[str, int] = {}
        for name in loose:
            value = _zero_dimensional(name, given[name], self._scalar_dtype(name, given[name], views))
            if like is None or like.device == HOST:
                views[name] = arrays.view(value)
            else:
                views[name] = scalar_view(like, name_of_numpy(value.dtype) or "f32")
                bits[preparing.bits(name)] = int(value.view(f"u{value.itemsize}"))
        return {n: views[n] for n in self.direction.operands if n in views}, tuple(loose), bits

    def _scalar_dtype(self, name: str, value: object, views: Mapping[str, View]) -> str:
        record = self.direction.operands[name]
        if record.dtype is not None:
            return record.dtype
        if record.like is not None and record.like in views:
            return views[record.like].dtype
        own = name_of_numpy(value.dtype) if isinstance(value, np.generic) else None
        return own if own in DEVICE_DTYPES else "f32"


def _signatures(views: Mapping[str, View]) -> tuple[Any, ...]:
    # view[1:6]: dtype, shape, strides, readonly, device
    return tuple([(name, view.pointer & 15, view[1:6]) for name, view in views.items()])


def _zero_dimensional(name: str, value: object, dtype: str) -> np.ndarray[Any, Any]:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is a bool; give a number or an array")
    return np.asarray(round_to(real(value, name), dtype))
