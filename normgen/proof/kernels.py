"""One case through a norm's kernels, forward and backward, compared with the float64 interpreter.

The backward is fed the statistics of the float64 reference, rounded as they are stored, never the kernel's
own: so a fault of one direction cannot hide one of the other. What is kept as an output is read as it is
stored; a save counts as exact, and the bound accounts for the rounding of its storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import DTYPES, round_to
from normgen.ir.centre import centre
from normgen.ir.program import Definition, Program, Tensor
from normgen.ir.reference import evaluate
from normgen.proof.bounds import BACKWARD_SLACK, FORWARD_SLACK, Setting, analyse
from normgen.proof.cases import Case
from normgen.proof.compare import WRONG, Comparison, compare
from normgen.proof.draw import Drawn
from normgen.proof.memory import HOST, Memory
from normgen.runtime.norm import Norm

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Subject:
    """A norm under proof: its mathematics in both directions, plain and centred, and its kernels. `strategy`
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
class Outcome:
    """One result of one direction against its bound."""

    direction: str
    result: str
    dtype: str
    comparison: Comparison


def run_case(
    subject: Subject,
    case: Case,
    drawn: Drawn,
    scalars: Mapping[str, float],
    executor: Any,
    memory: Memory = HOST,
    directions: tuple[str, ...] = ("forward", "backward"),
) -> Iterator[Outcome]:
    """Every result of the case, compared."""
    arrays = _with_defaults(subject.definition.program, case, drawn.arrays)
    norm = subject.norm.on(executor)
    saved = _truth(subject.definition.program, case, arrays, scalars)
    if "forward" in directions:
        yield from _forward(subject, norm, case, arrays, saved, scalars, memory)
    if "backward" in directions and subject.backward is not None:
        yield from _backward(subject, norm, case, arrays, saved, scalars, memory)


def _forward(
    subject: Subject,
    norm: Norm,
    case: Case,
    arrays: Mapping[str, FloatArray],
    truth: Mapping[str, FloatArray],
    scalars: Mapping[str, float],
    memory: Memory,
) -> Iterator[Outcome]:
    program = subject.definition.program
    bounds = _bounds(subject.centred, case, arrays, {}, scalars, FORWARD_SLACK)
    operands = _place_all(program.operands, case, arrays, memory)
    results = [r.tensor for r in program.results if case.save or r.tensor.role != "save"]
    out: dict[str, Any] | None = None
    if case.given_out:
        out = {t.name: memory.blank(case.dtypes[t.name], case.memory_shape(t), case.offset) for t in results}
    made = norm.forward(**operands, **_given(norm, scalars), out=out, save=case.save)
    for tensor in results:
        got = memory.fetch(getattr(made, tensor.name))
        yield _outcome(
            "forward", tensor, case.dtypes[tensor.name], case, got, truth[tensor.name], bounds[tensor.name]
        )
    for update in program.updates:
        if update.state in case.absent:
            continue
        tensor = next(t for t in program.operands if t.name == update.state)
        got, name = memory.fetch(operands[tensor.name]), f"update:{tensor.name}"
        yield _outcome("forward", tensor, case.dtypes[tensor.name], case, got, truth[name], bounds[name])


def _backward(
    subject: Subject,
    norm: Norm,
    case: Case,
    arrays: Mapping[str, FloatArray],
    saved: Mapping[str, FloatArray],
    scalars: Mapping[str, float],
    memory: Memory,
) -> Iterator[Outcome]:
    program, centred = subject.backward, subject.centred_backward
    assert program is not None and centred is not None
    exact, stored, errors = read_back(subject.definition.program, case, arrays, saved)
    truth = _truth(centred, case, exact, scalars)
    bounds = _bounds(centred, case, stored, errors, scalars, BACKWARD_SLACK)
    operands = _place_all(program.operands, case, stored, memory)
    results = [r.tensor for r in program.results if _source(r.tensor) not in case.absent]
    dtypes = {t.name: _gradient_dtype(t, program, case) for t in results}
    before: dict[str, FloatArray] = {}
    out: dict[str, Any] | None = None
    if case.accumulate or case.given_out:
        out = {t.name: memory.blank(dtypes[t.name], case.memory_shape(t), case.offset) for t in results}
        params = {t.name for t in subject.definition.program.operands if t.role == "param"}
        for tensor in results if case.accumulate else ():
            if _source(tensor) in params:
                start = np.asarray(round_to(0.5 + 0.01 * truth[tensor.name], dtypes[tensor.name]))
                before[tensor.name] = start.astype(np.float64)
                shape = case.memory_shape(tensor)
                out[tensor.name] = memory.place(start, dtypes[tensor.name], shape, case.offset, False)
    made = norm.backward(
        **operands,
        **_given(norm, scalars),
        out=out,
        accumulate=case.accumulate,
        wrt=tuple(_source(t) for t in results) if case.absent else None,
    )
    for tensor in results:
        name, got = tensor.name, memory.fetch(getattr(made, tensor.name))
        want, bound = truth[name], bounds[name]
        if name in before:
            want = want + before[name]
            bound = bound + BACKWARD_SLACK * 2.0**-24 * np.abs(want)
        yield _outcome("backward", tensor, dtypes[name], case, got, want, bound)


def _source(gradient: Tensor) -> str:
    return gradient.name.removeprefix("d")


def _gradient_dtype(tensor: Tensor, backward: Program, case: Case) -> str:
    """That of its tensor; where the call gives neither the tensor nor an array, that of the first
    cotangent."""
    given = {t.name for t in backward.operands}
    if _source(tensor) in case.dtypes and (_source(tensor) in given or case.given_out or case.accumulate):
        return case.dtypes[_source(tensor)]
    return next(case.dtypes[t.name] for t in backward.operands if t.role == "cotangent")


def read_back(
    program: Program, case: Case, arrays: Mapping[str, FloatArray], saved: Mapping[str, FloatArray]
) -> tuple[dict[str, FloatArray], dict[str, FloatArray], dict[str, FloatArray]]:
    """What the backward reads: as it is meant, as it is stored, and the difference where that is an
    error."""
    exact, stored, errors = dict(arrays), dict(arrays), {}
    for result in program.results:
        if not result.kept:
            continue
        name = result.tensor.name
        stored[name] = np.asarray(round_to(saved[name], case.dtypes[name]), dtype=np.float64)
        exact[name] = saved[name] if result.tensor.role == "save" else stored[name]
        with np.errstate(invalid="ignore"):
            errors[name] = np.nan_to_num(np.abs(stored[name] - exact[name]), nan=0.0)
    return exact, stored, errors


def _truth(
    program: Program, case: Case, arrays: Mapping[str, FloatArray], scalars: Mapping[str, float]
) -> dict[str, FloatArray]:
    """What a call means: where any tensor is empty, zeros, and states as they were."""
    if not all(case.extents.values()):
        return _zeros(program, case) | {f"update:{u.state}": arrays[u.state] for u in program.updates}
    return evaluate(program, arrays, case.extents, scalars, True, case.dtypes)


def _zeros(program: Program, case: Case) -> dict[str, FloatArray]:
    """An array of zeros for every result."""
    tensors = [result.tensor for result in program.results]
    return {t.name: np.zeros([case.extents[axis] for axis in t.order]) for t in tensors}


def _bounds(
    program: Program,
    case: Case,
    arrays: Mapping[str, FloatArray],
    errors: Mapping[str, FloatArray],
    scalars: Mapping[str, float],
    slack: float,
) -> dict[str, FloatArray]:
    if not all(case.extents.values()):
        states = {f"update:{u.state}": np.zeros_like(arrays[u.state]) for u in program.updates}
        return _zeros(program, case) | states
    setting = Setting(arrays, case.extents, scalars, case.dtypes)
    return {name: e.error for name, e in analyse(program, setting, errors, slack).items()}


def _with_defaults(program: Program, case: Case, arrays: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    filled = dict(arrays)
    for tensor in program.operands:
        if tensor.name in case.absent:
            assert tensor.default is not None
            filled[tensor.name] = np.full_like(arrays[tensor.name], float(tensor.default))
    return filled


def _place_all(
    tensors: tuple[Tensor, ...], case: Case, arrays: Mapping[str, FloatArray], memory: Memory
) -> dict[str, Any]:
    return {
        t.name: _place(t, case, arrays[t.name], memory, index)
        for index, t in enumerate(tensors)
        if t.name not in case.absent
    }


def _place(tensor: Tensor, case: Case, values: FloatArray, memory: Memory, index: int) -> Any:
    offset = (case.offset + index) % 4 if case.offset else 0
    shape, dtype = case.memory_shape(tensor), case.dtypes[tensor.name]
    return memory.place(values, dtype, shape, offset, case.padded and tensor.role != "state")


def _given(norm: Norm, scalars: Mapping[str, float]) -> dict[str, Any]:
    """The float attrs that stayed arguments."""
    return {attr.name: scalars[attr.name] for attr in norm.package.attrs}


def _outcome(
    direction: str,
    tensor: Tensor,
    dtype: str,
    case: Case,
    got: NDArray[Any],
    truth: FloatArray,
    bound: FloatArray,
) -> Outcome:
    shape = case.memory_shape(tensor)
    if got.shape != shape or got.dtype != DTYPES[dtype].numpy:
        found, wanted = f"{got.dtype}{list(got.shape)}", f"{DTYPES[dtype].numpy}{list(shape)}"
        return Outcome(direction, f"{tensor.name} ({found}, not {wanted})", dtype, WRONG)
    comparison = compare(got, dtype, truth.reshape(shape), np.reshape(bound, shape))
    return Outcome(direction, tensor.name, dtype, comparison)
