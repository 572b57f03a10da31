"""One direction of a norm whose axes are spread over ranks: what a call is, and what ranks must agree on.

Ranks may have runs of dimensions `(G C)`. To a call such a dimension is one axis, of any length on each rank.
Where runs are whole groups, and ranks have as many where the spec fixes how many there are, they are runs of
G. Otherwise they straddle groups (`straddling`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np

from normgen.launching.layout import Lengths, Shape, is_contiguous, solve
from normgen.locks import new_reentrant_lock
from normgen.package.direction import Direction
from normgen.package.records import ABI, Package
from normgen.package.spread import PairRecord, SpreadRecord
from normgen.runtime.calls.arguments import Arguments, Request
from normgen.runtime.calls.binding import bind, check_reductions, device_text
from normgen.runtime.calls.look import look
from normgen.runtime.ranks.agreement import Message, agree, faulty, message
from normgen.runtime.ranks.division import Division, divisions
from normgen.runtime.ranks.group import RankCall
from normgen.runtime.ranks.steps import Along, Computes, LocalCall, Memory, Stages, Step
from normgen.runtime.ranks.straddling import Straddling

# What makes the stages of a direction that give these results: by its name, of blocks (`straddling`) or not.
Compile = Callable[[str, tuple[str, ...], bool], SpreadRecord]
Run = Callable[[LocalCall, Along], RankCall]  # what makes the results of a call by name
StagesOf = Callable[[tuple[str, ...], bool], Stages]  # those that give these results, of blocks or not
_REST = "..."


@dataclass(frozen=True)
class Grouped:
    """Dimensions that are two axes, of which ranks have runs. `wholes`: whether ranks may have whole groups
    alone."""

    pairs: tuple[PairRecord, ...]
    wholes: bool


class SpreadDirection:
    """One direction: its stages, and what ranks must agree on before they run them. `direction`: what a rank
    takes and returns; `placements`: what it then has of each result. Where ranks can have runs of whole
    groups, these are those of such runs, whatever runs they have."""

    def __init__(
        self,
        package: Package,
        direction: Direction,
        axes: tuple[str, ...],
        grouped: Grouped | None,
        whole: tuple[str, ...],
        compiled: Compile,
        computes: Computes,
    ) -> None:
        """`axes`: that are spread; `grouped`: those of them that are dimensions of two axes; `whole`: the
        operands whose gradients ranks add up."""
        self.package, self.axes, self.whole = package, axes, whole
        self.grouped = grouped or Grouped((), True)
        self._compiled = partial(compiled, direction.name)
        self._computes = computes
        self._lock = new_reentrant_lock()
        self._made: dict[tuple[tuple[str, ...], bool], Stages] = {}
        self.placements = dict(self.stages_of(tuple(direction.results)).record.placements)
        updated = (name.partition(":") for name in self.placements)
        self._global = replace(direction, updated=frozenset(state for _, colon, state in updated if colon))
        # A rank may have no elements along a spread axis, where all ranks together have some.
        reduced = tuple(axis for axis in direction.record.reduced if axis not in axes)
        self.direction = replace(self._global, record=replace(direction.record, reduced=reduced))
        self.arguments = Arguments(package, self.direction)
        self.title = f"{direction.norm} over {', '.join(axes)}"

    def stages_of(self, wanted: tuple[str, ...], blocks: bool = False) -> Stages:
        """The stages that give these results, compiled when they are first asked for. `blocks`: those of runs
        that straddle groups."""
        with self._lock:
            key = wanted, blocks or not self.grouped.wholes
            if key not in self._made:
                self._made[key] = Stages(self._compiled(*key), self._computes)
            return self._made[key]

    def computed(self, call: LocalCall) -> tuple[str, ...]:
        """The results that the stages of a call give. Saves that are not wanted change nothing about what is
        exchanged."""
        every = self.direction.name == "forward" or call.idle
        return tuple(self.direction.results if every else call.results)

    def call(self, asked: Callable[[], tuple[LocalCall, Run]]) -> RankCall:
        """The call of one rank: its results by name. `asked`: the call, checked as far as this rank can, and
        what makes its results; what it raises, the others learn of."""
        local: LocalCall | None = None
        fault: Exception | None = None
        try:
            local, run = asked()
            told = self.message(local)
        except Exception as raised:
            fault, told = raised, faulty(raised)
        every = yield from agree(self.title, told, fault)
        assert local is not None, "agree raises a fault"
        along = self.along(local.lengths, every)
        return local.zeros() if local.idle else (yield from run(local, along))

    def message(self, call: LocalCall) -> Message:
        """What ranks compare before a call."""
        return message(self._meant(call), [call.lengths.axes[axis] for axis in self.axes])

    def along(self, own: Lengths, every: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Of each spread axis the lengths on all ranks. `own`: those of all axes on this one; `every`: what
        ranks told, [size, axes]. ValueError where ranks together have nothing to reduce, or of a dimension no
        whole groups."""
        found = dict(zip(self.axes, every.T, strict=True))
        totals = {axis: int(lengths.sum()) for axis, lengths in found.items()}
        check_reductions(self._global, Lengths({**own.axes, **totals}, own.rest))
        for division in divisions(self.grouped.pairs, found):
            inner, members = division.pair.inner, division.members
            if own.axes.get(inner, members) != members:
                told = f"{members} in {division.pair.name} over all ranks"
                raise ValueError(f"{inner} is {own.axes[inner]} in an operand but {told}")
        return found

    def steps(self, call: LocalCall, along: Along, stages_of: StagesOf | None = None) -> tuple[Step, ...]:
        """The steps of a call. `along`: of each spread axis the lengths on all ranks; `stages_of`: the stages
        to run in place of kernels."""
        found = self.divided(along)
        stages = (stages_of or self.stages_of)(self.computed(call), bool(found))
        if found:
            return tuple(Straddling(stages, self.direction, found, call).steps())
        return tuple(stages.steps(*self.by_groups(call, along)))

    def run(self, call: LocalCall, along: Along, stages_of: StagesOf | None = None) -> RankCall:
        """What makes the results of a call by its steps."""
        return call.run(self.steps(call, along, stages_of))

    def divided(self, along: Along) -> tuple[Division, ...]:
        """The runs of all ranks, where they straddle groups; none where they are runs of whole groups."""
        found = divisions(self.grouped.pairs, along)
        return found if not self.grouped.wholes or any(each.straddles for each in found) else ()

    def by_groups(self, call: LocalCall, along: Along) -> tuple[LocalCall, Along]:
        """A call, and the lengths on all ranks, by the axes that stages know: a call whose runs are whole
        groups is one of runs of the outer axes."""
        lengths, outer = dict(call.lengths.axes), {}
        for each in divisions(self.grouped.pairs, along):
            outer[each.pair.outer] = np.array(each.whole_groups)
            lengths[each.pair.outer], lengths[each.pair.inner] = each.whole_groups[call.rank], each.members
        return replace(call, lengths=Lengths(lengths, call.lengths.rest)), outer or along

    def asked(self, request: Request, memory: Memory, rank: int) -> tuple[LocalCall, Run]:
        """A call of kernels. `memory`: for what ranks tell each other; `rank`: which one this is."""
        seen = look(self.direction, request)
        if seen.device != memory.device:
            raise TypeError(
                f"{seen.like} is on {device_text(seen.device)}, but this sharded norm takes arrays on "
                f"{device_text(memory.device)}: move it"
            )
        bound = bind(self.direction, seen.views, {}, request.wanted, False, dict(request.types))
        shapes = {name: view.shape for name, view in seen.views.items()}
        for name in self.direction.updated & seen.views.keys():
            if not is_contiguous(seen.views[name].shape, seen.views[name].strides):
                raise ValueError(
                    f"state {name} is updated in place, so it must be contiguous: pass a contiguous array"
                )
        call = LocalCall(
            operands={name: request.operands.get(name) for name in self.direction.operands},
            numbers=request.numbers,
            like=seen.views[seen.like],
            memory=memory,
            lengths=self.lengths(shapes),
            results={name: (shape, dtype) for name, shape, dtype in bound.results},
            types={**{name: view.dtype for name, view in seen.views.items()}, **dict(request.types)},
            idle=bound.idle,
            rank=rank,
        )
        self.stages_of(self.computed(call))  # compiled before ranks meet
        return call, self.run

    def lengths(self, shapes: Mapping[str, Shape]) -> Lengths:
        """The lengths of axes on this rank, told by the operands that are there."""
        lengths = solve(
            [(self.direction.operands[name], shape) for name, shape in shapes.items()], self.direction.axes
        )
        for axis in self.axes:
            if axis not in lengths.axes:
                raise ValueError(f"the length of {axis} is unknown: no given array has it")
        return lengths

    def _meant(self, call: LocalCall) -> dict[str, str]:
        """What all ranks must mean alike, in words by topic."""
        package = self.package
        folded = "".join(f", {name} = {value}" for name, value in package.folded)
        given = [name for name, array in call.operands.items() if array is not None]
        text = blake2b(package.spec.encode(), digest_size=4).hexdigest()
        found = {
            "norm": f"loads {self.title}{folded}",
            "whole": f"loads with whole={self.whole!r}",
            "text": f"loads {package.name} from a spec with the digest {text}",
            "runtime": f"runs normgen with ABI {ABI}",
            "direction": f"calls {self.direction.name}",
            "operands": f"passes {', '.join(given)}",
        }
        if self.direction.name == "backward":  # saves that are left out change nothing for others
            found["results"] = f"asks for {' and '.join(call.results) or 'nothing'}"
        open_groups = {pair.outer for pair in self.grouped.pairs if pair.groups is None}
        for axis, length in call.lengths.axes.items():
            if axis not in self.axes and axis not in open_groups:
                found[f"length of {axis}"] = f"has {_length_text(axis, length)}"
        for name in given:
            found[f"type of {name}"] = f"has {name} in {call.types[name]}"
        return {**found, **{name: f"has {name} = {value!r}" for name, value in call.numbers.items()}}


def _length_text(axis: str, length: int) -> str:
    return f"{length} rows" if axis == _REST else f"{axis} = {length}"
