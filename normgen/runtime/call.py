"""One pass of a norm as a call: arrays -> views -> a prepared list of launches -> results.

Everything that depends only on shapes, dtypes, strides and alignment is prepared once and found again by that
signature: the checks, the launch plan, the compiled functions. What is left for each call is to look at the
arrays, allocate the results, fill in addresses and launch.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from normgen.dtypes import DEVICE_DTYPES, DTYPES, name_of_numpy, round_to
from normgen.runtime import arrays
from normgen.runtime.binding import Bound, Range, bind, check_overlaps
from normgen.runtime.direction import Direction
from normgen.runtime.executors import Executor
from normgen.runtime.housekeeping import copy_launch, fill_launch
from normgen.runtime.launches import Launch, LaunchPlan, Slot
from normgen.runtime.layout import Shape
from normgen.runtime.steps import Step, launch, step
from normgen.runtime.views import HOST, ArrayView, DeviceKey
from normgen.runtime.workspace import Arenas, align, supplied, with_multiprocessors

Planner = Callable[..., LaunchPlan]

PLANS_KEPT = 4096
# What may stand for a 0-d array.
SCALARS = (float, int, np.generic)


class Request(NamedTuple):
    """What a call asks for, beside its arrays and numbers. A named tuple, since every call makes one."""

    wanted: tuple[str, ...]
    out: Mapping[str, object] | None = None
    accumulate: bool = False
    stream: object = None
    workspace: Mapping[str, object] | None = None
    sm_count: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call without its addresses.

    `scratch`: the offset of each array of the arena, which takes `size` bytes; `workspace`: those of
    them that the caller may supply.
    """

    bound: Bound
    executor: Executor | None = None
    steps: tuple[Step, ...] = ()
    scratch: tuple[tuple[str, int], ...] = ()
    size: int = 0
    workspace: tuple[tuple[str, Shape, str], ...] = ()


class Pass:
    """One direction of a norm, callable. It holds nothing but caches; any number of threads may call it
    at once."""

    def __init__(
        self,
        direction: Direction,
        header: str,
        executors: Callable[[DeviceKey], Executor],
        planner: Planner,
    ) -> None:
        self.direction = direction
        self._header = header
        self._executors = executors
        self._planner = planner
        self._arenas = Arenas()
        self._lock = threading.Lock()
        self._prepared: dict[Any, Prepared] = {}

    def run(
        self, given: Mapping[str, object], numbers: Mapping[str, float | int], request: Request
    ) -> dict[str, object]:
        """The wanted results by name, each the same kind of array as the caller's."""
        out = request.out or {}
        targets = {name: arrays.view(array, f"out[{name!r}]") for name, array in out.items()}
        views, bits = self._views(given, targets)
        like = next(iter(views.values()))
        stream = _stream(like, request.stream)
        prepared = self.prepare(
            views, targets, request.wanted, request.accumulate, tuple(bits), request.sm_count
        )
        bound = prepared.bound

        addresses = {name: view.pointer for name, view in views.items()}
        results: dict[str, object] = {}
        for name, shape, dtype in bound.results:
            if name in out:
                results[name] = out[name]
                addresses[name] = targets[name].pointer
            else:
                results[name] = array = arrays.allocate(like, shape, dtype)
                addresses[name] = arrays.address_of(array)
                if addresses[name] % 16 and not bound.idle:
                    # The plan counts on aligned results. Plan again for what the allocator gave.
                    return self.run(given, numbers, _with_out(request, results))
        theirs = supplied(prepared.workspace, request.workspace, like) if request.workspace else {}
        if out or theirs or self.direction.updated:
            self._check_overlaps(addresses, bound, set(out), theirs)
        if bound.idle:
            self._clear(like, stream, addresses, bound, request.accumulate)
            return self._delivered(results, out, like, stream)
        if like.device != HOST:
            arrays.order(stream, (*views.values(), *targets.values()))
        if prepared.size:
            if len(theirs) < len(prepared.scratch):
                self._place(prepared, like, stream, addresses)
            addresses.update((name, pointer) for name, (pointer, _) in theirs.items())
        values = {**numbers, **bits} if bits else numbers
        assert prepared.executor is not None
        launch(prepared.executor, prepared.steps, addresses, values, stream)
        return self._delivered(results, out, like, stream)

    def prepare(
        self,
        views: Mapping[str, ArrayView],
        out: Mapping[str, ArrayView],
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
            prepared = self._prepare(views, out, wanted, accumulate, filled, sm_count)
            with self._lock:
                while len(self._prepared) >= PLANS_KEPT:
                    del self._prepared[next(iter(self._prepared))]
                self._prepared[key] = prepared
        return prepared

    def _delivered(
        self, results: dict[str, object], out: Mapping[str, object], like: ArrayView, stream: int
    ) -> dict[str, object]:
        if like.kind == "numpy":
            return results
        for name, array in results.items():
            if name not in out:
                results[name] = arrays.deliver(like, array, stream)
        return results

    def _views(
        self, given: Mapping[str, object], out: Mapping[str, ArrayView]
    ) -> tuple[dict[str, ArrayView], dict[str, int]]:
        """The arrays as views in declared order, and the bit patterns of numbers that stand for 0-d
        arrays."""
        views: dict[str, ArrayView] = {}
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
            return views, {}
        like = next(iter((*views.values(), *out.values())), None)
        bits: dict[str, int] = {}
        for name in loose:
            value = _zero_dimensional(name, given[name], self._scalar_dtype(name, given[name], views))
            if like is None or like.device == HOST:
                views[name] = arrays.view(value)
            else:
                views[name] = arrays.scalar_view(like, name_of_numpy(value.dtype) or "f32")
                bits[_bits(name)] = int(value.view(f"u{value.itemsize}"))
        return {name: views[name] for name in self.direction.operands if name in views}, bits

    def _scalar_dtype(self, name: str, value: object, views: Mapping[str, ArrayView]) -> str:
        record = self.direction.operands[name]
        if record.dtype is not None:
            return record.dtype
        if record.like is not None and record.like in views:
            return views[record.like].dtype
        own = name_of_numpy(value.dtype) if isinstance(value, np.generic) else None
        return own if own in DEVICE_DTYPES else "f32"

    def _prepare(
        self,
        views: Mapping[str, ArrayView],
        out: Mapping[str, ArrayView],
        wanted: tuple[str, ...],
        accumulate: bool,
        filled: tuple[str, ...],
        sm_count: int | None,
    ) -> Prepared:
        bound = bind(self.direction, views, out, wanted, accumulate)
        if bound.idle:
            return Prepared(bound)
        executor = self._executors(next(iter(views.values())).device)
        device = with_multiprocessors(executor.device, sm_count)
        plan = self._planner(self.direction.record, bound.binding, device, self._header)
        before: list[Launch] = []
        memory: dict[str, tuple[int, int, int]] = {}
        for name, (low, high) in bound.extents.items():
            itemsize = DTYPES[dict(bound.binding.operands)[name].dtype].bytes
            memory[name] = (low, high - low, itemsize)
        for name in bound.copies:
            view, itemsize = views[name], memory[name][2]
            before.append(copy_launch(_as_given(name), name, view.shape, view.strides, itemsize))
            memory[_as_given(name)] = memory[name]
            memory[name] = (0, prod(view.shape) * itemsize, itemsize)
        for name in self.direction.reads:
            if _bits(name) in filled:
                before.append(fill_launch(name, 1, memory[name][2], Slot("scalar", _bits(name))))
        for name, shape, dtype in plan.workspace:
            itemsize = DTYPES[dtype].bytes
            memory[name] = (0, prod(shape) * itemsize, itemsize)
        scratch, size = [], 0
        for name in (
            *(name for item in before for name in item.writes),
            *(name for name, _, _ in plan.workspace),
        ):
            scratch.append((name, size))
            size += align(memory[name][1])
        added = {name for name in wanted if accumulate and self.direction.accumulates(name)}
        steps = tuple(step(executor, item, memory, added) for item in (*before, *plan.launches))
        return Prepared(bound, executor, steps, tuple(scratch), size, plan.workspace)

    def _check_overlaps(
        self,
        addresses: Mapping[str, int],
        bound: Bound,
        out: set[str],
        theirs: Mapping[str, tuple[int, int]],
    ) -> None:
        written = out | self.direction.updated
        ranges: dict[bool, list[Range]] = {True: [], False: []}
        for name, (low, high) in bound.extents.items():
            text = f"out[{name!r}]" if name in out else name
            ranges[name in written].append((name, text, addresses[name] + low, addresses[name] + high))
        for name, (start, size) in theirs.items():
            text = f"workspace[{name!r}]"
            ranges[True].append((text, text, start, start + size))
        check_overlaps(ranges[True], ranges[False], bound.in_place)

    def _clear(
        self, like: ArrayView, stream: int, addresses: dict[str, int], bound: Bound, accumulate: bool
    ) -> None:
        """Results of a call that launches nothing: zero, except for sums that have nothing added to them."""
        for name, shape, dtype in bound.results:
            count, itemsize = prod(shape), DTYPES[dtype].bytes
            if not count or (accumulate and self.direction.accumulates(name)):
                continue
            if like.device == HOST:
                ctypes.memset(addresses[name], 0, count * itemsize)
                continue
            from normgen.runtime.cuda import context_of

            context_of(like.device).fill_zero(addresses[name], count * itemsize, stream)

    def _place(self, prepared: Prepared, like: ArrayView, stream: int, addresses: dict[str, int]) -> None:
        """Say where in the arena scratch memory is."""
        for name in prepared.bound.copies:
            addresses[_as_given(name)] = addresses[name]
        key = (like.device, stream)
        base = self._arenas.address(key, prepared.size, lambda size: arrays.scratch(like, size))
        for name, offset in prepared.scratch:
            addresses[name] = base + offset


def _signatures(views: Mapping[str, ArrayView]) -> tuple[Any, ...]:
    # view[1:6]: dtype, shape, strides, readonly, device
    return tuple([(name, view.pointer & 15, view[1:6]) for name, view in views.items()])


def _as_given(name: str) -> str:
    return f"{name} (as given)"


def _bits(name: str) -> str:
    return f"{name} (bits)"


def _with_out(request: Request, made: Mapping[str, object]) -> Request:
    out = {**made, **(request.out or {})}
    return request._replace(out=out)


def _zero_dimensional(name: str, value: object, dtype: str) -> np.ndarray[Any, Any]:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is a bool; give a number or an array")
    return np.asarray(round_to(float(value), dtype))  # type: ignore[arg-type]


def _stream(like: ArrayView, stream: object) -> int:
    if like.device == HOST:
        if stream is not None:
            raise TypeError("stream= is for device arrays; host arrays are computed when the call returns")
        return 0
    return arrays.stream_of(like) if stream is None else arrays.stream_handle(stream)
