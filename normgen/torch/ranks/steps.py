"""Steps of norms whose axes are spread: each rank computes its shards, and they exchange a few numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from normgen import arrays
from normgen.arrays.torch import TORCH
from normgen.devices.executors import keeps_calls
from normgen.launching.layout import shape_of
from normgen.package.spread import SpreadRecord, ToldRecord
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.ranks.direction import Run, SpreadDirection, StagesOf
from normgen.runtime.ranks.group import RankCall, run_alone
from normgen.runtime.ranks.steps import Along, LocalCall
from normgen.torch import layouts
from normgen.torch.calls import KEPT, Numbers, Tensors, Wanted, all_resolved
from normgen.torch.derived import dtype_of, element_types
from normgen.torch.dtypes import NAMES
from normgen.torch.eager import recorder
from normgen.torch.errors import check_host, check_kinds, check_numbers, check_run
from normgen.torch.ranks.group import ProcessRanks, TensorMemory
from normgen.torch.ranks.known import KnownCall
from normgen.torch.ranks.order import stand_in_line
from normgen.torch.steps import Call, Outline, Recorder, Step, without_data


class SpreadStep(Step):
    """A direction of a norm on one of the ranks that its axes are spread over. All ranks make its calls, in
    the same order."""

    def __init__(
        self,
        outline: Outline,
        spread: SpreadDirection,
        ranks: ProcessRanks,
        in_float64: StagesOf,
        innermost: Callable[[tuple[str, ...]], SpreadRecord | None],
        in_kernel: Callable[[tuple[str, ...]], ToldRecord | None],
    ) -> None:
        """`spread`: the direction on one rank; `in_float64`: its stages in float64. `innermost` compiles them
        for tensors whose channels lie innermost, `in_kernel` as one kernel that exchanges; both return None
        if there are none."""
        super().__init__(replace(outline, direction=spread.direction))
        self.spread, self.ranks = spread, ranks
        self._float64, self._innermost, self._in_kernel = in_float64, innermost, in_kernel
        self._known: Bounded[Any, KnownCall] = Bounded(KEPT)
        self._recorder: Recorder | None = None
        keeps_calls(self)

    def forget(self) -> None:
        """Prepare every call again when it comes next."""
        self._known.forget()

    def registered(self, operator: Any, library: torch.library.Library) -> None:
        """Have its operator take its turn among exchanges."""
        stand_in_line(operator, library, lambda *_: self.ranks.name)

    def recorder(self, tensors: Tensors, call: Call) -> Recorder:
        if self._recorder is None:
            self._recorder = recorder(self, lambda *given: self.run(*given), call)
        return self._recorder

    def _run(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        key = _key(tensors, wanted)
        known = None if key is None else self._known.get(key)
        told = None if known is None else known.messages.get(numbers)
        if known is None or told is None:
            return self._first(tensors, numbers, wanted, key)
        self.ranks.meet(self.spread.title)
        plan = known.agreed(self.ranks, told)
        made = plan.run(self.ranks, tensors, numbers)
        return self.laid(made, plan.copied) if plan.copied else made

    def _first(self, tensors: Tensors, numbers: Numbers, wanted: Wanted, key: Any) -> tuple[Any, ...]:
        """A call that is not known, which it then is if that can be."""
        if without_data(tensors):
            return self.imagined(tensors, wanted)[: len(self.results)]
        types = {tensor.dtype for tensor in tensors if tensor is not None} | set(dict(wanted.types).values())
        self.ranks.meet(self.spread.title)
        last = layouts.results_last(self.direction, tensors)

        def asked() -> tuple[LocalCall, Run]:
            if torch.float64 in types:
                return self._in_float64(tensors, numbers, wanted)
            return self._by_kernels(tensors, numbers, wanted, last, key)

        made = run_alone(self.spread.call(asked), self.ranks)
        found = tuple([made.get(name) for name in self.results])
        return self.laid(found, frozenset(name for name in last if not _lies_last(made.get(name))))

    def _by_kernels(
        self, tensors: Tensors, numbers: Numbers, wanted: Wanted, last: frozenset[str], key: Any
    ) -> tuple[LocalCall, Run]:
        check_run(self.direction.reads, tensors)
        given = all_resolved(self.direction, tensors)
        plain = tuple([each if each is None else each.detach() for each in given])
        request = self.spread.arguments.request(plain, self._named(numbers))
        types = tuple((name, NAMES[dtype]) for name, dtype in wanted.types)
        device = next(each.device for each in plain if each is not None)
        request = request._replace(wanted=wanted.names, types=types)
        call, run = self.spread.asked(request, TensorMemory(device), self.ranks.rank)
        if call.idle or not all(call.lengths.axes.values()):  # rare, and steps leave results as they are
            return call, run
        known = self._known.get(key)
        if known is None:
            known = self._knowing(call, last)
        if key is not None and all(new is old for new, old in zip(given, tensors, strict=True)):
            self._known.keep(key, known)
            known.messages.keep(numbers, self.spread.message(call))

        def run_known(_: LocalCall, along: Along) -> RankCall:
            yield from ()  # steps meet the others by themselves
            found = known.plan(along).run(self.ranks, plain, numbers)
            return dict(zip(self.results, found, strict=True))

        return call, run_known

    def _knowing(self, call: LocalCall, last: frozenset[str]) -> KnownCall:
        """What is known of calls like this one."""
        computed = self.spread.computed(call)
        record = self.spread.stages_of(computed).record
        innermost = self._innermost(computed) if last else None
        # Other ranks may run the plain programs in the same call.
        if innermost is not None and _exchanged(innermost) != _exchanged(record):
            innermost = None
        given = {name: name if tensor is not None else None for name, tensor in call.operands.items()}
        bare, kernel = replace(call, operands=given, like=None), partial(self._in_kernel, computed)
        return KnownCall(self.spread, bare, innermost or record, kernel, last, innermost is not None)

    def _in_float64(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[LocalCall, Run]:
        direction, reads = self.direction, self.direction.reads
        check_kinds(reads, tensors)
        check_numbers(self.attrs, numbers)
        plain = all_resolved(direction, tensors)
        given = {name: each.detach() for name, each in zip(reads, plain, strict=True) if each is not None}
        check_host(given)
        lengths = self.spread.lengths({name: tuple(each.shape) for name, each in given.items()})
        types = element_types({name: each.dtype for name, each in given.items()}, wanted)
        like = next(iter(given.values()))
        call = LocalCall(
            operands={name: given.get(name) for name in reads},
            numbers=self._named(numbers),
            like=arrays.view(like),
            memory=TensorMemory(like.device, torch.float64),
            lengths=lengths,
            results={
                name: (shape_of(direction.results[name], lengths), dtype_of(direction, name, types))
                for name in wanted.names
            },
            types=types,
            idle=False,
            rank=self.ranks.rank,
        )

        def run(local: LocalCall, along: Along) -> RankCall:
            absent = {
                name: local.array(shape_of(direction.operands[name], lengths), "f64")
                for name in direction.mentioned - given.keys()
            }
            known = {**types, **dict.fromkeys(absent, "f64")}
            local = replace(local, operands={**local.operands, **absent}, types=known)
            return self.spread.run(local, along, self._float64)

        return call, run

    def _named(self, numbers: Numbers) -> dict[str, float]:
        return {attr.name: number for attr, number in zip(self.attrs, numbers, strict=True)}


def _key(tensors: Tensors, wanted: Wanted) -> Any:
    """What calls are known by: how tensors lie, and what is wanted. None for tensors that none are known of,
    of which ranks learn what is wrong with them."""
    try:
        lying = [None if tensor is None else TORCH.glance(tensor)[1] for tensor in tensors]
    except (TypeError, RuntimeError):
        return None
    return (wanted, *lying)


def _lies_last(result: Any) -> bool:
    return result is None or layouts.channels_last(result)


def _exchanged(record: SpreadRecord) -> Any:
    """What stages tell other ranks, and what all ranks make of that."""
    package = record.merge.package
    merged = () if package is None else tuple((t.name, t.dims) for t in package.forward.writes)
    return record.axes, tuple(each.told for each in record.rounds), record.own, merged
