"""One pass of a norm as a call: arrays -> views -> a prepared list of launches -> results.

Everything that depends only on shapes, dtypes, strides and alignment is prepared once and found again by that
signature: the checks, the launch plan, the compiled functions. What is left for each call is to look at the
arrays, allocate the results, fill in addresses and launch.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from normgen.dtypes import DEVICE_DTYPES, DTYPES, name_of_numpy, round_to
from normgen.runtime import arrays
from normgen.runtime.binding import Bound, Direction, bind, check_overlaps
from normgen.runtime.executors import Executor
from normgen.runtime.housekeeping import copy_launch, fill_launch
from normgen.runtime.layout import Shape, is_contiguous
from normgen.runtime.records import Buffer, Launch, LaunchPlan, Slot
from normgen.runtime.views import HOST, ArrayView, DeviceKey
from normgen.runtime.workspace import Arenas, align

Planner = Callable[..., LaunchPlan]

PLANS_KEPT = 4096
# What may stand for a 0-d array.
SCALARS = (float, int, np.generic)


@dataclass(frozen=True, slots=True)
class Request:
    """What a call asks for, beside its arrays and numbers."""

    wanted: tuple[str, ...]
    out: Mapping[str, object] | None = None
    accumulate: bool = False
    stream: object = None
    workspace: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A launch with its function, and where its arguments come from.

    `addresses` and `numbers`: (position among the arguments, name). `buffers`: (name, first byte,
    bytes, bytes of an element, access) of the memory that the launch touches.
    """

    function: Any
    launch: Launch
    pack: Callable[..., bytes]
    addresses: tuple[tuple[int, str], ...]
    numbers: tuple[tuple[int, str], ...]
    buffers: tuple[tuple[str, int, int, int, str], ...]


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
        prepared = self.prepare(views, targets, request.wanted, request.accumulate, tuple(bits))
        bound = prepared.bound

        addresses = {name: view.pointer for name, view in views.items()}
        results: dict[str, object] = {}
        for name, shape, dtype in bound.results:
            if name in out:
                results[name] = out[name]
                addresses[name] = targets[name].pointer
            else:
                results[name] = array = arrays.allocate(like, shape, dtype)
                addresses[name] = arrays.view(array).pointer
                if addresses[name] % 16 and not bound.idle:
                    # The plan counts on aligned results. Plan again for what the allocator gave.
                    return self.run(given, numbers, _with_out(request, results))
        supplied = _workspace(prepared.workspace, request.workspace, like) if request.workspace else {}
        if out or supplied or self.direction.updated:
            self._check_overlaps(addresses, bound, set(out), supplied)
        if bound.idle:
            self._clear(like, stream, addresses, bound, request.accumulate)
            return self._delivered(results, out, like, stream)
        if like.device != HOST:
            arrays.order(stream, (*views.values(), *targets.values()))
        if prepared.size:
            if len(supplied) < len(prepared.scratch):
                self._place(prepared, like, stream, addresses)
            addresses.update((name, pointer) for name, (pointer, _) in supplied.items())
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
    ) -> Prepared:
        """The prepared call for arrays like these: from the cache, or checked, planned and compiled now."""
        key = (
            tuple([(name, *_signature(view)) for name, view in views.items()]),
            tuple([(name, *_signature(view)) for name, view in out.items()]) if out else (),
            wanted,
            accumulate,
            filled,
        )
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepare(views, out, wanted, accumulate, filled)
            with self._lock:
                while len(self._prepared) >= PLANS_KEPT:
                    del self._prepared[next(iter(self._prepared))]
                self._prepared[key] = prepared
        return prepared

    def _delivered(
        self, results: dict[str, object], out: Mapping[str, object], like: ArrayView, stream: int
    ) -> dict[str, object]:
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
    ) -> Prepared:
        bound = bind(self.direction, views, out, wanted, accumulate)
        if bound.idle:
            return Prepared(bound)
        executor = self._executors(next(iter(views.values())).device)
        plan = self._planner(self.direction.record, bound.binding, executor.device, self._header)
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
        supplied: Mapping[str, tuple[int, int]],
    ) -> None:
        ranges = [
            (name, addresses[name] + low, addresses[name] + high)
            for name, (low, high) in bound.extents.items()
        ]
        written = out | self.direction.updated
        scratch = [(f"workspace[{name!r}]", start, start + size) for name, (start, size) in supplied.items()]
        check_overlaps(
            [(f"out[{r[0]!r}]" if r[0] in out else r[0], r[1], r[2]) for r in ranges if r[0] in written]
            + scratch,
            [r for r in ranges if r[0] not in written],
        )

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


def launch(
    executor: Executor,
    steps: Iterable[Step],
    addresses: Mapping[str, int],
    numbers: Mapping[str, float | int],
    stream: int,
) -> None:
    """Run the steps in order. An address that nothing has is null: an operand left out, a result not
    wanted."""
    for item in steps:
        values: list[Any] = list(item.launch.values)
        for position, name in item.addresses:
            values[position] = addresses.get(name, 0)
        for position, name in item.numbers:
            values[position] = numbers[name]
        buffers = tuple(
            [
                Buffer(addresses[name] + first, size, itemsize, access)
                for name, first, size, itemsize, access in item.buffers
                if name in addresses
            ]
        )
        executor.launch(item.function, item.launch, item.pack(*values), buffers, stream)


def step(
    executor: Executor,
    item: Launch,
    memory: Mapping[str, tuple[int, int, int]],
    added: Collection[str] = (),
) -> Step:
    """A launch, compiled. `memory`: (first byte, bytes, bytes of an element) by name; `added`: results
    added to."""
    slots = [(i, value) for i, value in enumerate(item.values) if isinstance(value, Slot)]
    both = [name for name in item.writes if name in item.reads or name in added]
    access = dict.fromkeys(item.reads, "read") | dict.fromkeys(item.writes, "write")
    access |= dict.fromkeys(both, "update")
    # Only the host looks at buffers; elsewhere there is nothing to be gained from telling them.
    told = access if executor.device.arch == "host" else {}
    return Step(
        function=executor.function(item.source, item.entry, item.shared),
        launch=item,
        pack=struct.Struct(item.format).pack,
        addresses=tuple((i, slot.name) for i, slot in slots if slot.kind == "pointer"),
        numbers=tuple((i, slot.name) for i, slot in slots if slot.kind == "scalar"),
        buffers=tuple((name, *memory[name], access[name]) for name in told if name in memory),
    )


def _signature(view: ArrayView) -> tuple[Any, ...]:
    return (view.dtype, view.shape, view.strides, view.pointer & 15, view.readonly, view.device)


def _as_given(name: str) -> str:
    return f"{name} (as given)"


def _bits(name: str) -> str:
    return f"{name} (bits)"


def _with_out(request: Request, made: Mapping[str, object]) -> Request:
    out = {**made, **(request.out or {})}
    return Request(request.wanted, out, request.accumulate, request.stream, request.workspace)


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


def _workspace(
    needed: tuple[tuple[str, Shape, str], ...], given: Mapping[str, object], like: ArrayView
) -> dict[str, tuple[int, int]]:
    """Address and bytes of a caller's scratch arrays, after checking that they are what `workspace` told."""
    found: dict[str, tuple[int, int]] = {}
    for name, shape, dtype in needed:
        if name not in given:
            raise ValueError(f"workspace needs {name!r}: {dtype} of shape {shape}")
        view = arrays.view(given[name], f"workspace[{name!r}]")
        if view.dtype != dtype or view.shape != shape or not is_contiguous(view.shape, view.strides):
            raise ValueError(f"workspace[{name!r}] must be contiguous {dtype} of shape {shape}")
        if view.device != like.device or view.readonly or view.pointer % 16:
            raise ValueError(
                f"workspace[{name!r}] must be writable, on the arrays' device and aligned to 16 bytes"
            )
        found[name] = (view.pointer, prod(shape) * DTYPES[dtype].bytes)
    for name in given:
        if name not in found:
            raise ValueError(f"workspace: there is no {name!r}; this call uses {', '.join(found) or 'none'}")
    return found
