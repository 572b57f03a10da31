"""A step's calls on tensors, prepared once for all that lie alike: what is left is to allocate and launch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from normgen.arrays.torch import TORCH
from normgen.launching.launch import HOST
from normgen.runtime.calls.prepared import PreparedCall
from normgen.runtime.calls.workspace import ThreadMemory
from normgen.runtime.norm import Norm

KEPT = 1024
# (one of the operands, the addresses of all of them) -> all results in order.
Repeated = Callable[[Any, list[Any]], tuple[Any, ...]]


class Calls:
    """The calls of one direction. Any number of threads may call it at once."""

    def __init__(self, norm: Norm, direction: str) -> None:
        self._dispatcher = norm.dispatcher(direction)
        self._attrs = tuple(attr.name for attr in norm.package.attrs)
        self._memory = ThreadMemory(spare=True)
        self._known: dict[tuple[Any, ...], Repeated] = {}

    def run(self, tensors: Any, numbers: tuple[float, ...], wanted: tuple[str, ...]) -> tuple[Any, ...]:
        """All results in order, None for those that are not wanted."""
        key: list[Any] = [wanted, numbers]
        pointers = []
        owner = None
        for tensor in tensors:
            if tensor is None:
                key.append(None)
            else:
                owner, pointer = tensor, tensor.data_ptr()
                pointers.append(pointer)
                key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, pointer & 15)
        known = self._known.get(found := tuple(key))
        if known is None:
            known = self._prepare(tensors, numbers, wanted)
            for oldest in list(islice(self._known, max(0, len(self._known) - KEPT + 1))):
                self._known.pop(oldest, None)
            self._known[found] = known
        return known(owner, pointers)

    def _prepare(self, tensors: Any, numbers: tuple[float, ...], wanted: tuple[str, ...]) -> Repeated:
        dispatcher = self._dispatcher
        given = tuple(tensor if tensor is None else tensor.detach() for tensor in tensors)
        named = {name: each for name, each in zip(self._attrs, numbers, strict=True) if each is not None}
        request = dispatcher.arguments.request(given, named)._replace(wanted=wanted)
        settled = dispatcher.settle(request)
        prepared = settled.prepared
        return repeated(prepared, settled.head[len(prepared.operands) :], self._memory)


def repeated(prepared: PreparedCall, numbers: tuple[Any, ...], memory: ThreadMemory) -> Repeated:
    """What makes a call again, on other tensors that lie alike. `numbers`: what follows the addresses of
    operands among its arguments."""
    device, made, fields, scratch = prepared.device, prepared.made, prepared.fields, prepared.scratch
    usual, constants = prepared.usual, prepared.constants
    plain = not (prepared.idle or scratch.size or usual.guards or any(step.buffers for step in usual.steps))
    steps = [(step.fire, step.pack, step.take) for step in usual.steps]
    on_host = device == HOST
    empty, stream_of = TORCH.empty, TORCH.stream

    def short(owner: Any, pointers: list[Any]) -> tuple[Any, ...]:
        pointers += numbers
        results: list[Any] = []
        for shape, dtype in made:
            result, address = empty(owner, device, shape, dtype)
            results.append(result)
            pointers.append(address)
        pointers += constants
        stream = stream_of(owner, device)
        for fire, pack, take in steps:
            fire(pack(*take(pointers)), (), stream)
        results.append(None)
        return fields(results)

    def full(owner: Any, pointers: list[Any]) -> tuple[Any, ...]:
        results, addresses = prepared.make(TORCH, owner)
        pool, variant = [*pointers, *numbers, *addresses], usual
        stream = 0 if on_host else stream_of(owner, device)
        if scratch.size:
            places, variant = prepared.place_scratch(memory, TORCH, owner, stream, {})
            pool += places
        launches = prepared.ready(pool, variant)
        if prepared.idle:
            prepared.clear(pool, stream)
        for fire, packed, buffers in launches:
            fire(packed, buffers, stream)
        return fields([*results, None])

    return short if plain and not on_host else full
