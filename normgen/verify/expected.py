"""What a case must give: in float64, with error bounds, apart from any kernel.

The backward is fed the statistics of the float64 reference, rounded as they are stored, never the kernel's
own: so a fault of one direction cannot hide one of the other. What is kept as an output is read as it is
stored; a save counts as exact, and the bound accounts for the rounding of its storage. States hold their new
values by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import round_to
from normgen.ir.centre import centre
from normgen.ir.expr import walk
from normgen.ir.program import Definition, Program
from normgen.ir.reference import evaluate
from normgen.locks import cached_property
from normgen.runtime.norm import Norm
from normgen.verify.bounds import BACKWARD_SLACK, FORWARD_SLACK, Setting, analyse
from normgen.verify.cases import Case
from normgen.verify.draw import Drawn

FloatArray = NDArray[np.float64]
Arrays = Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Subject:
    """A norm under check: its mathematics in both directions, plain and centred, and its kernels. `strategy`
    names the way they are run, where there is a choice."""

    definition: Definition
    backward: Program | None
    norm: Norm
    strategy: str = ""
    centred: Program = field(init=False)
    centred_backward: Program | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "centred", centre(self.definition.program))
        backward = None if self.backward is None else centre(self.backward)
        object.__setattr__(self, "centred_backward", backward)


@dataclass(frozen=True, slots=True)
class Expected:
    """One direction of a case: what it reads, as it is stored, what it must return and how far off that may
    be. By name of the tensor; new states as `update:<state>`."""

    arrays: Arrays
    truth: Arrays
    bounds: Arrays


class Expectation:
    """A case with what each direction of it must give: computed when it is first asked for, and once for all
    executors and strategies."""

    def __init__(self, subject: Subject, case: Case, drawn: Drawn, scalars: Mapping[str, float]) -> None:
        self.case = case
        self.scalars = scalars
        self._subject = subject
        self._drawn = drawn.arrays
        # (what is left out has no element type: casts to that round to f32)
        self._dtypes = {**case.dtypes, **dict.fromkeys(case.absent, "f32")}

    @cached_property
    def forward(self) -> Expected:
        """From the operands to outputs, saves and new states."""
        arrays, program = self._drawn, self._subject.definition.program
        bounds = self._bounds(self._subject.centred, arrays, {}, FORWARD_SLACK)
        return Expected(arrays, self._truth(program, arrays), bounds)

    @cached_property
    def backward(self) -> Expected:
        """From cotangents, operands and what the forward kept to gradients."""
        centred = self._subject.centred_backward
        assert centred is not None
        program = self._subject.definition.program
        exact, stored, errors = read_back(program, self.case, self._drawn, self.forward.truth)
        bounds = self._bounds(centred, stored, errors, BACKWARD_SLACK)
        return Expected(stored, self._truth(centred, exact), bounds)

    def _truth(self, program: Program, arrays: Arrays) -> Arrays:
        """What a call means: where an empty axis concerns a result, zeros, and states as they were."""
        case = self.case
        if all(case.extents.values()):
            return evaluate(program, arrays, case.extents, self.scalars, True, self._dtypes)
        states = {f"update:{u.state}": arrays[u.state] for u in program.updates}
        made = evaluate(unconcerned(program, case), arrays, case.extents, self.scalars, True, self._dtypes)
        return {**_zeros(program, case), **states, **made}

    def _bounds(self, program: Program, arrays: Arrays, errors: Arrays, slack: float) -> Arrays:
        case, zeros = self.case, {}
        if not all(case.extents.values()):
            states = {f"update:{u.state}": np.zeros_like(arrays[u.state]) for u in program.updates}
            zeros, program = _zeros(program, case) | states, unconcerned(program, case)
        setting = Setting(arrays, case.extents, self.scalars, self._dtypes)
        return {**zeros, **{name: e.error for name, e in analyse(program, setting, errors, slack).items()}}


def read_back(
    program: Program, case: Case, arrays: Arrays, saved: Arrays
) -> tuple[dict[str, FloatArray], dict[str, FloatArray], dict[str, FloatArray]]:
    """What the backward reads: as it is meant, as it is stored, and the difference where that is an
    error."""
    updated = {update.state: f"update:{update.state}" for update in program.updates}
    moved = {state: saved[name] for state, name in updated.items() if state not in case.absent}
    exact, errors = {**arrays, **moved}, {}
    stored = dict(exact)
    for result in program.results:
        if not result.kept:
            continue
        name = result.tensor.name
        stored[name] = np.asarray(round_to(saved[name], case.dtypes[name]), dtype=np.float64)
        exact[name] = saved[name] if result.tensor.role == "save" else stored[name]
        with np.errstate(invalid="ignore"):
            errors[name] = np.nan_to_num(np.abs(stored[name] - exact[name]), nan=0.0)
    return exact, stored, errors


def unconcerned(program: Program, case: Case) -> Program:
    """The results of a program that no empty axis concerns."""
    empty = {axis for axis, length in case.extents.items() if length == 0}
    results = tuple(r for r in program.results if all(empty.isdisjoint(node.axes) for node in walk(r.expr)))
    return replace(program, results=results, updates=())


def _zeros(program: Program, case: Case) -> dict[str, FloatArray]:
    """An array of zeros for every result."""
    tensors = [result.tensor for result in program.results]
    return {t.name: np.zeros([case.extents[axis] for axis in t.order]) for t in tensors}
