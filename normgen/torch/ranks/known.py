"""Calls of a rank that were made before: their steps are made once.

What ranks compare of a call is told by how its tensors lie, what is wanted, and its numbers. Its steps
depend on the lengths on all ranks beside, and then have tensors that lie alike: so each is prepared once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from normgen.ir.channels_last import has_channels
from normgen.launching.layout import Shape
from normgen.locks import cached_property
from normgen.package.spread import SpreadRecord, StageRecord, ToldRecord
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.agreement import Message, agreed
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.runtime.ranks.group import run_alone
from normgen.runtime.ranks.steps import Along, LocalCall, Sent, Values, constants, steps_of, walk
from normgen.torch.calls import Numbers, Tensors
from normgen.torch.dtypes import TYPES
from normgen.torch.ranks.group import ProcessRanks
from normgen.torch.ranks.local import LocalProgram
from normgen.torch.ranks.told import ToldCall

_KEPT = 64  # lengths on all ranks, or numbers, of calls that are alike else


@dataclass(frozen=True, eq=False)
class KnownCall:
    """Calls whose tensors lie alike. `call`: one of them, with names in place of tensors; `record`: its local
    programs; `kernel`: compiles them as one kernel that exchanges; `last`: the results whose channels are to
    lie innermost; `innermost`: whether the programs take and make such tensors; `messages`: what ranks
    compare, by the numbers of calls."""

    spread: SpreadDirection
    call: LocalCall
    record: SpreadRecord
    kernel: Callable[[], ToldRecord | None]
    last: frozenset[str]
    innermost: bool
    messages: Bounded[Numbers, Message] = field(default_factory=partial(Bounded, _KEPT))
    _plans: Bounded[Any, Plan] = field(default_factory=partial(Bounded, _KEPT))  # by lengths on all ranks
    _agreed: Bounded[bytes, Plan] = field(default_factory=partial(Bounded, _KEPT))  # by what all ranks sent

    def plan(self, along: Along) -> Plan:
        """The steps for these lengths on all ranks."""
        key = tuple(each.tobytes() for each in along.values())
        found = self._plans.get(key)
        if found is None:
            found = Plan(self, along)
            self._plans.keep(key, found)
        return found

    def agreed(self, ranks: ProcessRanks, told: Message) -> Plan:
        """The steps of a call, once ranks agree on it."""
        heads = ranks.gather(told.head)
        key = heads.tobytes()
        found = self._agreed.get(key)
        if found is None:
            every = run_alone(agreed(self.spread.title, told, heads), ranks)
            found = self.plan(self.spread.along(self.call.lengths, every))
            self._agreed.keep(key, found)
        return found

    @cached_property
    def norms(self) -> list[tuple[StageRecord, Norm | None]]:
        """The local programs, each with its kernels."""
        every = (*self.record.rounds, self.record.merge, self.record.apply)
        return [(each, None if each.package is None else Norm(each.package)) for each in every]

    def program(self, call: LocalCall, place: int, sent: Sent | None) -> LocalProgram | None:
        """The local program at a place, None where it has nothing to compute. `sent`: what it sends."""
        record, norm = self.norms[place]
        if norm is None:
            return None
        operands = self.spread.direction.operands if self.innermost else {}
        moved = frozenset(name for name, each in operands.items() if has_channels(each.dims))
        return LocalProgram(norm, record, call, sent, moved, self.last if self.innermost else frozenset())


class Plan:
    """The steps of known calls, for given lengths on all ranks. `copied`: the results that are copied in the
    end, so that their channels lie innermost."""

    def __init__(self, known: KnownCall, along: Along) -> None:
        spread = known.spread
        self._reads, self._results = spread.direction.reads, tuple(spread.direction.results)
        self._attrs = tuple(attr.name for attr in spread.package.attrs)
        self._told: ToldCall | None = None
        self._zeros: Mapping[str, tuple[Shape, str]] = {}  # results that steps add to
        self.copied = known.last
        if spread.divided(along):
            self._steps, self._zeros = spread.steps(known.call, along), known.call.results
            return
        call, lengths = spread.by_groups(known.call, along)
        if known.innermost:
            self.copied = frozenset()
        elif known.record.rounds:
            numbers = constants(known.record, call.lengths, lengths)
            self._told = ToldCall(spread.direction, call, known.kernel, lengths, numbers)
        self._steps = tuple(
            steps_of(known.record, call.lengths, lengths, call.memory, partial(known.program, call))
        )

    def run(self, ranks: ProcessRanks, tensors: Tensors, numbers: Numbers) -> tuple[Any, ...]:
        """The results of a call in order, None for those that are not wanted."""
        values: Values = dict(zip(self._attrs, numbers, strict=True))
        if self._zeros:
            tensors = tuple([tensor if tensor is None else tensor.detach() for tensor in tensors])
            like = next(tensor for tensor in tensors if tensor is not None)
            values |= {
                n: like.new_zeros(shape, dtype=TYPES[kind]) for n, (shape, kind) in self._zeros.items()
            }
        values.update(zip(self._reads, tensors, strict=True))
        made = None if self._told is None else self._told.run(ranks, tensors, values)
        if made is None:
            made = run_alone(walk(self._steps, values), ranks)
        return tuple([made.get(name) for name in self._results])
