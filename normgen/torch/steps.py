"""A direction of a norm as a function of tensors: what it takes and returns, and how it runs.

A norm's forward is a step, its backward another, and the derivative of each step is a step again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from normgen.locks import cached_property
from normgen.package.direction import Direction
from normgen.package.records import Package
from normgen.torch import layouts
from normgen.torch.calls import Numbers, Tensors, Wanted
from normgen.torch.errors import explained
from normgen.torch.imagine import imagined

if TYPE_CHECKING:
    from normgen.ir.program import Program


@dataclass(frozen=True, eq=False)
class Derivative:
    """A step's gradients as a step, and what its operands and results are to the one that it is of.

    `operands`: for each operand of `step`, whether it is a cotangent, an operand or a result of the other,
    and its name there. `gradients`: the result of `step` for each operand that has a gradient.
    """

    step: Step
    operands: tuple[tuple[str, str], ...]  # ("cotangent" | "operand" | "result", name)
    gradients: dict[str, str]


Needed = tuple[bool, ...]  # of each operand, whether it needs a gradient
Types = tuple["torch.dtype | None", ...]


class Pull:
    """A derivative by places: what a recorded call keeps for it, and what it then takes.

    `kept`: places among the operands of a call, then its results. `typed`: of the operands whose element type
    is kept alone, since the derivative does not read them. `taken`: for each operand of the derivative its
    place among cotangents, or else among what was kept.
    """

    def __init__(self, step: Step, derivative: Derivative) -> None:
        self.step = derivative.step
        self.results = frozenset(name for kind, name in derivative.operands if kind == "result")
        known = (*step.operands, *step.results)
        read = [name for kind, name in derivative.operands if kind != "cotangent"]
        self.kept = tuple(known.index(name) for name in read)
        self.taken = tuple(
            (kind == "cotangent", (step.results if kind == "cotangent" else read).index(name))
            for kind, name in derivative.operands
        )
        self.cotangents = tuple(place for given, place in self.taken if given)
        self.sources = tuple(derivative.gradients.get(name) for name in step.operands)
        self.typed = tuple(place for place, name in enumerate(self.sources) if name in self.step.typed)
        self._chosen: dict[tuple[Needed, Types], tuple[Wanted, tuple[int | None, ...]]] = {}

    def types(self, tensors: Sequence[Any]) -> Types:
        """What is kept of the operands that are `typed`."""
        return tuple([None if tensors[place] is None else tensors[place].dtype for place in self.typed])

    def choose(self, needed: Needed, types: Types) -> tuple[Wanted, tuple[int | None, ...]]:
        """The results to compute for the operands that need a gradient, and the place of the gradient of each
        operand among all results."""
        found = self._chosen.get((needed, types))
        if found is None:
            results, sources = self.step.results, self.step.typed
            names = [name if need else None for name, need in zip(self.sources, needed, strict=True)]
            places = tuple(None if name is None else results.index(name) for name in names)
            told = {
                sources[n]: dtype for at, dtype in zip(self.typed, types, strict=True) if (n := names[at])
            }
            wanted = Wanted(
                tuple(name for name in results if name in names),
                tuple((source, told[source]) for source in sources.values() if source in told),
            )
            found = self._chosen[needed, types] = wanted, places
        return found


# (a step, operands, numbers, what is wanted) -> results.
Call = Callable[["Step", Tensors, Numbers, Wanted], tuple[Any, ...]]
# (operands, numbers, what is wanted) -> results, recorded.
Recorder = Callable[[Tensors, Numbers, Wanted], tuple[Any, ...]]


class Recording(NamedTuple):
    """A call that is recorded: the results to compute, how many of all to return, the first ones, and the
    places of those among them that are not differentiated."""

    computed: Wanted
    returned: int
    constants: tuple[int, ...]


@dataclass(frozen=True)
class Outline:
    """What is known of a step before it runs.

    `program`: what the direction means; `derive`: the derivative by the operands, None where there is none,
    the same whenever it is asked for. `extra`: operands that are there for that alone.
    """

    name: str
    package: Package
    direction: Direction
    program: Callable[[], Program]
    derive: Callable[[], Derivative | None]
    extra: tuple[str, ...] = ()


class Step:
    """One direction of a norm.

    Tensors come in the order of `operands`, None for those left out; numbers in that of `attrs`; results in
    that of `results`, outputs before saves, None for those that are not wanted. `typed`: the results whose
    element types no operand tells, with the tensors that they are gradients of. `updated`: operands that are
    written.
    """

    def __init__(self, outline: Outline) -> None:
        direction = outline.direction
        self.name = outline.name
        self.package = outline.package
        self.norm = outline.package.name
        self.direction = direction
        self.attrs = outline.package.attrs
        self.operands = (*direction.reads, *outline.extra)
        self.results = tuple(direction.results)
        self.outputs = tuple(n for n, record in direction.results.items() if record.role != "save")
        self.typed = _typed(direction)
        self.updated = tuple(name for name in self.operands if name in direction.updated)
        self.operator: Any = None  # once it is registered
        self.in_graph: Any = None  # the same as a function that compilers look into
        self._program = outline.program
        self.derive = outline.derive
        self._recorded: dict[Wanted, Recording] = {}
        self._read = len(direction.reads) if outline.extra else None

    def recorder(self, tensors: Tensors, call: Call) -> Recorder | None:
        """What calls it and records that where nobody looks; None where its operator does. `call`: what runs
        its derivative."""
        return None

    def registered(self, operator: Any, library: torch.library.Library) -> None:
        """Add to its operator, which was just registered in a library."""

    @cached_property
    def pull(self) -> Pull | None:
        """How gradients are made."""
        derivative = self.derive()
        return None if derivative is None else Pull(self, derivative)

    def recorded(self, wanted: Wanted) -> Recording:
        """What a call does where some results are wanted and the derivative may be asked for."""
        found = self._recorded.get(wanted)
        if found is None:
            kept = () if self.pull is None else self.pull.results
            computed = tuple(name for name in self.results if name in wanted.names or name in kept)
            saves = any(name not in self.outputs for name in wanted.names)
            count = len(self.results if saves else self.outputs)
            constants = tuple(place for place in self.constants if place < count)
            found = self._recorded[wanted] = Recording(wanted._replace(names=computed), count, constants)
        return found

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """The places of results that are not differentiated."""
        differentiated = () if self.pull is None else self.pull.cotangents
        return tuple(place for place in range(len(self.results)) if place not in differentiated)

    @cached_property
    def program(self) -> Program:
        """What it computes."""
        return self._program()

    def masked(self, mask: Sequence[bool], types: Sequence[torch.dtype | None] = ()) -> Wanted:
        """The results that a mask names. `types`: of those that are `typed`."""
        names = tuple([name for name, wanted in zip(self.results, mask, strict=True) if wanted])
        pairs = zip(self.typed.values(), types, strict=False)
        return Wanted(names, tuple([(source, dtype) for source, dtype in pairs if dtype is not None]))

    def run(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        """The results, computed where the tensors are: by kernels, or in float64 by the program itself.
        Nothing is recorded."""
        if self._read is not None:
            tensors = tensors[: self._read]
        try:
            return self._run(tensors, numbers, wanted)
        except (TypeError, ValueError, RuntimeError) as error:
            told = explained(self.direction, self.attrs, tensors, numbers, error)
            if told is error:
                raise
            raise told from error

    def _run(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        """The same, of the operands that the direction reads."""
        raise NotImplementedError

    def imagined(self, tensors: Tensors, wanted: Wanted) -> tuple[Any, ...]:
        """The results, then the new states, of tensors that have shapes alone, which have no more."""
        names = self.operands[: len(tensors)]
        return imagined(self.direction, names, tensors, wanted)

    def traced(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        """The results, then the new states, as operators of PyTorch that compilers see."""
        raise NotImplementedError

    def laid(self, made: tuple[Any, ...], last: frozenset[str]) -> tuple[Any, ...]:
        """Results with those that are named `last` laid so."""
        return tuple(
            layouts.laid_last(result) if name in last and result is not None else result
            for name, result in zip(self.results, made, strict=True)
        )


def without_data(tensors: Tensors) -> bool:
    """Whether some of these have shapes alone."""
    return any(tensor is not None and tensor.is_meta for tensor in tensors)


def _typed(direction: Direction) -> dict[str, str]:
    return {
        name: record.source
        for name, record in direction.results.items()
        if record.role == "gradient" and record.source not in direction.reads
    }
