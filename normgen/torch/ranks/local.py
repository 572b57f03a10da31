"""A local program of a rank, ready to be called again with tensors that lie alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from normgen.arrays.torch import TORCH
from normgen.launching.layout import Lengths
from normgen.package.direction import Direction
from normgen.package.spread import StageRecord
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.stages import layout
from normgen.torch import native
from normgen.torch.calls import Joined, Known, Numbers, Tensors, Wanted, own, prepare
from normgen.torch.dtypes import TYPES

Along = Mapping[str, "np.ndarray[Any, Any]"]  # of each spread axis the lengths on all ranks


class Outer(NamedTuple):
    """A call without its values, as its stages see it."""

    direction: Direction
    attrs: tuple[str, ...]
    results: tuple[str, ...]  # that are wanted
    given: frozenset[str]  # the operands that are there
    types: Mapping[str, str]  # of these, and of others that are told
    lengths: Lengths  # on this rank
    device: torch.device
    moved: frozenset[str]  # operands whose channels stages have as the last axis
    last: frozenset[str]  # results whose channels they make as the last axis


class Names:
    """Where in what a call holds everything lies while its plan is made: None, operands, counts, and what the
    stages make, one after the other."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.places = {name: place + 1 for place, name in enumerate(names)}
        self._count = len(names) + 1

    def add(self, names: Iterable[str]) -> None:
        """What comes next."""
        for name in names:
            self.places[name] = self._count
            self._count += 1


class Stage:
    """A local program of a plan."""

    def __init__(
        self,
        norm: Norm,
        wanted: Wanted,
        operands: tuple[int, ...],
        numbers: tuple[int, ...],
        moved: frozenset[int],
        last: frozenset[str],
        joined: Joined | None,
    ) -> None:
        """`operands`, `numbers`: their places in what a call holds, and in its pool of numbers; `moved`: the
        places whose channels it takes as the last axis."""
        self._norm, self._wanted = norm, wanted
        self._operands, self._numbers = operands, numbers
        self._moved, self._last, self._joined = moved, last, joined
        direction = norm.dispatcher("forward").direction
        self._states = [n for n, name in enumerate(direction.reads) if name in direction.updated]
        self._known: Known | None = None
        self._fast: Any = None  # the same in the extension
        self._told = False  # the extension of it

    def run(self, hold: list[Any], pool: Numbers) -> tuple[Any, ...]:
        """All results, None for those that are not wanted, and for those that are within others."""
        tensors, numbers = self._taken(hold, pool)
        own(tensors, self._states)
        if self._fast is not None:
            made: tuple[Any, ...] | None = self._fast.run(numbers, tensors)
            if made is not None:
                return made
        given = [tensor for tensor in tensors if tensor is not None]
        known = self._known or self._prepare(tensors, numbers)
        if not self._told and native.EXTENSION.there:
            self._told = True
            if known.in_extension is not None:
                self._fast = known.in_extension(native.EXTENSION.loaded)
        return known.repeated(given[-1], tensors, numbers, [TORCH.address(tensor) for tensor in given])

    def share(self, hold: list[Any], pool: Numbers) -> float:
        """What the largest launch of such a call takes of the places that the device has for its blocks."""
        known = self._known or self._prepare(*self._taken(hold, pool))
        return known.share()

    def _taken(self, hold: list[Any], pool: Numbers) -> tuple[Tensors, Numbers]:
        tensors = tuple([hold[place] for place in self._operands])
        return tensors, tuple([pool[place] for place in self._numbers])

    def _prepare(self, tensors: Tensors, numbers: Numbers) -> Known:
        lying = tuple(
            tensor.movedim(1, -1) if place in self._moved and tensor is not None else tensor
            for place, tensor in zip(self._operands, tensors, strict=True)
        )
        known = prepare(self._norm, "forward", lying, numbers, self._wanted, self._last, self._joined)
        self._known = known
        return known


def stage_of(
    record: StageRecord,
    norm: Norm | None,
    outer: Outer,
    names: Names,
    numbers: Mapping[str, int],
    moved: frozenset[int],
) -> Stage | None:
    """A stage of a plan, whose results then have places; None where there is nothing to compute."""
    if norm is None:
        return None
    direction = norm.dispatcher("forward").direction
    told = [each.name for each, _ in record.told]
    asked = {*record.handed, *told, *outer.results}
    wanted = tuple(name for name in direction.results if name in asked)
    if not wanted and not direction.updated:
        return None
    operands = tuple(names.places.get(name, 0) for name in direction.reads)
    read = outer.given & {*direction.reads}
    types = {name: TYPES[dtype] for name, dtype in outer.types.items() if name not in read}
    joined = None
    if told:
        lies = layout(record.told, outer.lengths)
        joined = Joined({name: start for name, (start, _) in lies.places.items()}, lies.size)
    names.add(direction.results)
    return Stage(
        norm,
        Wanted(wanted, tuple(types.items())),
        operands,
        tuple(numbers[attr.name] for attr in norm.package.attrs),
        moved,
        outer.last & {*direction.results},
        joined,
    )
