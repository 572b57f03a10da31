"""A step's calls on tensors, prepared once for all that lie alike: what is left is to allocate and launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from normgen.arrays.torch import TORCH, resolved
from normgen.arrays.views import packed
from normgen.devices.executors import executor_of, keeps_calls
from normgen.launching.launch import HOST
from normgen.launching.layout import Shape
from normgen.package.direction import Direction
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.calls.prepared import PreparedCall
from normgen.runtime.norm import Norm
from normgen.torch import native
from normgen.torch.dtypes import NAMES, TYPES

Tensors = tuple[Any, ...]  # in order, None for those left out
Numbers = tuple[float, ...]

KEPT = 1024
# (one of the operands, all of them, numbers, the addresses of those that are there) -> all results in order.
Repeated = Callable[[Any, Tensors, Numbers, list[Any]], tuple[Any, ...]]


class Known(NamedTuple):
    """A call that was prepared: what makes it again, and how the extension learns of it, if at all."""

    repeated: Repeated
    in_extension: Callable[[Any], Any] | None = None  # (the extension) -> the call as that makes it
    # what its largest launch takes of the places that the device has for its blocks
    share: Callable[[], float] = float


class Layout(NamedTuple):
    """A result to make. One that is `within` another, by its place, has no tensor of its own: it begins so
    many bytes behind the other."""

    shape: Shape
    strides: Shape
    dtype: torch.dtype
    within: int = -1
    offset: int = 0


class Joined(NamedTuple):
    """Results that lie one after the other in an array of floats, which the first of them then is: where each
    begins, by name, and how many floats there are."""

    places: Mapping[str, int]
    size: int


class Wanted(NamedTuple):
    """The results that a call is to compute. `types`: of operands that it is not given, the element types,
    which their gradients have too."""

    names: tuple[str, ...]
    types: tuple[tuple[str, torch.dtype], ...] = ()


# (operands, numbers, what is wanted) -> what runs such calls, with whatever numbers.
Prepare = Callable[[Tensors, Numbers, Wanted], Known]


class Calls:
    """The calls of one direction. Any number of threads may call it at once."""

    def __init__(self, norm: Norm, direction: str, prepare: Prepare) -> None:
        self._prepare = prepare
        dispatcher = norm.dispatcher(direction)
        self._direction = dispatcher.direction
        self._results = tuple(self._direction.results)
        self._states = [n for n, name in enumerate(self._direction.reads) if name in self._direction.updated]
        records = self._direction.results.values()
        self._gradient_of = {record.source: place for place, record in enumerate(records)}
        bounds = (dispatcher.arguments.bounds(attr.name) for attr in norm.package.attrs)
        self._bounds = [each for each in bounds if each is not None]
        self._known: Bounded[Any, Known] = Bounded(KEPT)
        self._fast: Any = None  # those in the extension
        keeps_calls(self)

    def forget(self) -> None:
        """Prepare every call again when it comes next."""
        self._known.forget()
        if self._fast is not None:
            self._fast.forget()

    def fast(self, extension: Any) -> Any:
        """The calls in C++, which learn what is prepared here."""
        if self._fast is None:
            self._fast = extension.Calls(KEPT, self._bounds)
        return self._fast

    def run(
        self,
        tensors: tuple[Any, ...],
        numbers: tuple[float, ...],
        wanted: Wanted,
    ) -> tuple[Any, ...]:
        """All results in order, None for those that are not wanted."""
        own(tensors, self._states)
        fast = self.fast(native.EXTENSION.loaded) if native.EXTENSION.there else None
        if fast is not None:
            results: tuple[Any, ...] | None = fast.run(self._asked(wanted), numbers, tensors)
            if results is not None:
                return results
        key: list[Any] = [wanted]
        pointers = []
        owner = None
        for tensor in tensors:
            if tensor is None:
                key.append(None)
            else:
                owner, (pointer, lies) = tensor, TORCH.glance(tensor)
                pointers.append(pointer)
                key.append(lies)
        found = tuple(key)
        known = self._known.get(found) if self._allows(numbers) else None
        if known is None:
            given = all_resolved(self._direction, tensors)
            if any(new is not old for new, old in zip(given, tensors, strict=True)):
                return self.run(given, numbers, wanted)
            known = self._prepare(tensors, numbers, wanted)
            self._known.keep(found, known)
        if fast is not None and (told := known.in_extension) is not None:
            fast.learn(self._asked(wanted), tensors, lambda: told(native.EXTENSION.loaded))
        return known.repeated(owner, tensors, numbers, pointers)

    def _allows(self, numbers: Numbers) -> bool:
        """Whether numbers are plainly within their bounds."""
        for number, (low, high) in zip(numbers, self._bounds, strict=True):
            if number is None or not low <= number <= high:
                return False
        return True

    def _asked(self, wanted: Wanted) -> tuple[Any, ...]:
        """What is wanted, as C++ knows it."""
        types = ((self._gradient_of[source], dtype) for source, dtype in wanted.types)
        return mask(self._results, wanted.names), *types


def own(tensors: Tensors, places: Sequence[int]) -> None:
    """See that these tensors, which are written, have memory of their own: a lazy clone shares its memory."""
    for place in places:
        if tensors[place] is not None and not tensors[place].is_meta:
            tensors[place].data_ptr()


def all_resolved(direction: Direction, tensors: Tensors) -> Tensors:
    """The operands with the values that they stand for in memory: some hold the negative of these, or zeros
    that are nowhere. RuntimeError for such a state, which the results could not be written to."""
    made = []
    for name, tensor in zip(direction.reads, tensors, strict=True):
        values = None if tensor is None else resolved(tensor)
        if values is not tensor and name in direction.updated:
            raise RuntimeError(
                f"state {name} is updated in place, but its memory does not hold its values: "
                f"pass {name}.resolve_neg().clone()"
            )
        made.append(values)
    return tuple(made)


def prepare(
    norm: Norm,
    direction: str,
    tensors: Tensors,
    numbers: Numbers,
    wanted: Wanted,
    last: frozenset[str] = frozenset(),
    joined: Joined | None = None,
) -> Known:
    """What makes a call of kernels again. `last`: the results whose last axis is to be PyTorch's second."""
    dispatcher, attrs = norm.dispatcher(direction), [attr.name for attr in norm.package.attrs]
    given = tuple(tensor if tensor is None else tensor.detach() for tensor in tensors)
    named = {name: each for name, each in zip(attrs, numbers, strict=True) if each is not None}
    types = tuple((name, NAMES[dtype]) for name, dtype in wanted.types)
    request = dispatcher.arguments.request(given, named)._replace(wanted=wanted.names, types=types)
    prepared = dispatcher.settle(request).prepared
    places = prepared.fields([*range(len(prepared.made)), None])
    by_name = dict(zip(dispatcher.direction.results, places, strict=True))
    turned = {place for name, place in by_name.items() if name in last}
    layouts = [
        Layout(*(strides_last(shape) if place in turned else (shape, packed(shape))), TYPES[dtype])
        for place, (shape, dtype) in enumerate(prepared.made)
    ]
    if joined is not None:
        first, *others = joined.places
        layouts[by_name[first]] = Layout((joined.size,), (1,), torch.float32)
        for name in others:
            within = {"within": by_name[first], "offset": 4 * joined.places[name]}
            layouts[by_name[name]] = layouts[by_name[name]]._replace(**within)
    return repeated(prepared, tuple(map(attrs.index, prepared.numbers)), tuple(layouts))


def mask(results: tuple[str, ...], wanted: tuple[str, ...]) -> int:
    """Some of the results as bits."""
    return sum(1 << place for place, name in enumerate(results) if name in wanted)


def strides_last(shape: Shape) -> tuple[Shape, Shape]:
    """Of a result with its channels as the last axis, the shape that PyTorch gives it, and its strides."""
    strides = packed(shape)
    return (shape[0], shape[-1], *shape[1:-1]), (strides[0], strides[-1], *strides[1:-1])


def repeated(prepared: PreparedCall, numbers: tuple[int, ...], layouts: tuple[Layout, ...]) -> Known:
    """What makes a call again, on other tensors that lie alike. `numbers`: which of a call's its launches
    take; `layouts`: of the results to make."""
    device, fields = prepared.device, prepared.fields

    def call(owner: Any, tensors: Tensors, given: Numbers, pointers: list[Any]) -> tuple[Any, ...]:
        results: list[Any] = [
            torch.empty_strided(shape, strides, dtype=dtype, device=owner.device) if within < 0 else None
            for shape, strides, dtype, within, _ in layouts
        ]
        addresses = [
            results[place if each.within < 0 else each.within].data_ptr() + each.offset
            for place, each in enumerate(layouts)
        ]
        stream = 0 if device == HOST else TORCH.stream(owner, device)
        taken = [given[place] for place in numbers]
        pool = [*pointers, *taken, *addresses]
        prepared.run(TORCH, owner, stream, pool)
        results.append(None)
        return fields(results)

    if prepared.idle:
        return Known(call)
    launcher = native.launcher_of(prepared)
    if prepared.device != HOST:
        native.EXTENSION.ask()

    def in_extension(node: Any) -> Any:
        return native.prepared_in_extension(node, launcher, prepared, numbers, layouts)

    return Known(call, in_extension, lambda: prepared.share(executor_of(device).device))
