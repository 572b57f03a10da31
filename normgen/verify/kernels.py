"""One case through a norm's kernels, forward and backward, compared with what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.arrays import view
from normgen.dtypes import DTYPES, round_to
from normgen.ir.program import Program, Tensor
from normgen.package.direction import Direction, directions
from normgen.runtime.calls.binding import bind
from normgen.runtime.norm import Norm
from normgen.verify.cases import Case
from normgen.verify.compare import WRONG, Comparison, compare
from normgen.verify.expected import Expectation, Expected, FloatArray, Subject
from normgen.verify.memory import HOST, PACKED, Memory

Arrays = dict[str, Any]

ADDING = 2.0**-22  # share of a sum by which adding a gradient to what is there may be off
PART = 0.01  # of a gradient, in what it is added to


@dataclass(frozen=True, slots=True)
class Outcome:
    """One result of one direction against its bound."""

    direction: str
    result: str
    dtype: str
    comparison: Comparison


def run_case(
    subject: Subject,
    expectation: Expectation,
    executor: Any,
    memory: Memory = HOST,
    directions: tuple[str, ...] = ("forward", "backward"),
) -> Iterator[Outcome]:
    """Every result of the case, compared."""
    norm = subject.norm.on(executor)
    if "forward" in directions:
        yield from _forward(subject, norm, expectation, memory)
    if "backward" in directions and subject.backward is not None:
        yield from _backward(subject, norm, expectation, memory)


def _forward(subject: Subject, norm: Norm, expectation: Expectation, memory: Memory) -> Iterator[Outcome]:
    program, case, expected = subject.definition.program, expectation.case, expectation.forward
    operands = _place_all(program.operands, case, expected, memory)
    tensors = [r.tensor for r in program.results if case.save or r.tensor.role != "save"]
    dtypes = {t.name: case.dtypes[t.name] for t in tensors}
    out = _results(directions(norm.package)[0], tensors, dtypes, case, operands, memory)
    made = norm.forward(**operands, **_given(norm, expectation.scalars), out=out, save=case.save)
    for tensor in tensors:
        got = memory.fetch(getattr(made, tensor.name))
        yield _outcome("forward", tensor, dtypes[tensor.name], case, got, expected, tensor.name)
    for update in program.updates:
        if update.state in case.absent:
            continue
        tensor = next(t for t in program.operands if t.name == update.state)
        got, name = memory.fetch(operands[tensor.name]), f"update:{tensor.name}"
        yield _outcome("forward", tensor, case.dtypes[tensor.name], case, got, expected, name)


def _backward(subject: Subject, norm: Norm, expectation: Expectation, memory: Memory) -> Iterator[Outcome]:
    program, case, expected = subject.backward, expectation.case, expectation.backward
    direction = directions(norm.package)[1]
    assert program is not None and direction is not None
    operands = _place_all(program.operands, case, expected, memory)

    tensors = [r.tensor for r in program.results if _is_wanted(r.tensor, case)]
    dtypes = {t.name: gradient_dtype(t, program, case) for t in tensors}
    out = _results(direction, tensors, dtypes, case, operands, memory)
    params = {t.name for t in subject.definition.program.operands if t.role == "param"}
    if case.accumulate:
        summed = [t for t in tensors if _source(t) in params]
        out, expected = _onto_what_is_there(summed, out, dtypes, case, expected, memory)
    made = norm.backward(
        **operands,
        **_given(norm, expectation.scalars),
        out=out,
        accumulate=case.accumulate,
        dtypes={_source(t): dtypes[t.name] for t in tensors if _source(t) in case.dtypes},
        wrt=tuple(_source(t) for t in tensors) if case.absent or case.wrt is not None else None,
    )
    for tensor in tensors:
        got = memory.fetch(getattr(made, tensor.name))
        yield _outcome("backward", tensor, dtypes[tensor.name], case, got, expected, tensor.name)
    for name in {r.tensor.name for r in program.results} - dtypes.keys():
        if getattr(made, name) is not None:
            yield Outcome("backward", f"{name} (not requested)", "", WRONG)


def _is_wanted(gradient: Tensor, case: Case) -> bool:
    source = _source(gradient)
    return source not in case.absent and (case.wrt is None or source in case.wrt)


def _source(gradient: Tensor) -> str:
    return gradient.name.removeprefix("d")


def gradient_dtype(tensor: Tensor, backward: Program, case: Case) -> str:
    """That of its tensor; of a let, that of the first cotangent."""
    if _source(tensor) in case.dtypes:
        return case.dtypes[_source(tensor)]
    cotangents = (t.name for t in backward.operands if t.role == "cotangent" and t.name not in case.absent)
    return case.dtypes[next(cotangents)]


def _results(
    direction: Direction,
    tensors: list[Tensor],
    dtypes: Mapping[str, str],
    case: Case,
    operands: Arrays,
    memory: Memory,
) -> Arrays:
    """The arrays that the caller gives for results: blank ones, or operands that they may overwrite."""
    if not (case.given_out or case.accumulate or case.in_place):
        return {}
    out = {t.name: memory.blank(dtypes[t.name], case.memory_shape(t), case.out_offset) for t in tensors}
    over = _in_place(direction, operands, out, case.accumulate) if case.in_place else {}
    return {**out, **over} if case.given_out or case.accumulate else over


def _in_place(direction: Direction, operands: Arrays, out: Arrays, accumulate: bool) -> Arrays:
    """Operands by the result that may overwrite them: each for one result alone."""
    views = {name: view(array) for name, array in operands.items() if array is not None}
    targets = {name: view(array) for name, array in out.items()}
    # (of the same axes in other dimensions, an operand is no array for the result)
    pairs = bind(direction, views, targets, tuple(out), accumulate).in_place
    found: dict[str, str] = {}
    for result, operand in sorted(pairs):
        fits = views[operand].shape == targets[result].shape
        if fits and result not in found and operand not in found.values():
            found[result] = operand
    return {result: operands[operand] for result, operand in found.items()}


def _onto_what_is_there(
    tensors: list[Tensor],
    out: Arrays,
    dtypes: Mapping[str, str],
    case: Case,
    expected: Expected,
    memory: Memory,
) -> tuple[Arrays, Expected]:
    """The arrays of these results with something in them that is to be added to, and the sums."""
    out, truth, bounds = dict(out), dict(expected.truth), dict(expected.bounds)
    for tensor in tensors:
        name, dtype = tensor.name, dtypes[tensor.name]
        start = np.asarray(round_to(0.5 + PART * truth[name], dtype))
        out[name] = memory.place(start, dtype, case.memory_shape(tensor), case.out_offset, PACKED)
        truth[name] = truth[name] + start.astype(np.float64)
        bounds[name] = bounds[name] + ADDING * np.abs(truth[name])
    return out, Expected(expected.arrays, truth, bounds)


def _place_all(tensors: tuple[Tensor, ...], case: Case, expected: Expected, memory: Memory) -> Arrays:
    """The arrays of a call: what is absent is left out, and None where it is a cotangent."""
    return {
        t.name: None if t.name in case.absent else _place(t, case, expected.arrays[t.name], memory, index)
        for index, t in enumerate(tensors)
        if t.name not in case.absent or t.role == "cotangent"
    }


def _place(tensor: Tensor, case: Case, values: FloatArray, memory: Memory, index: int) -> Any:
    offset = (case.offset + index) % 4 if case.offset else 0
    shape, dtype = case.memory_shape(tensor), case.dtypes[tensor.name]
    return memory.place(values, dtype, shape, offset, PACKED if tensor.role == "state" else case.pitch)


def _given(norm: Norm, scalars: Mapping[str, float]) -> dict[str, Any]:
    """The float attrs that stayed arguments."""
    return {attr.name: scalars[attr.name] for attr in norm.package.attrs}


def _outcome(
    direction: str, tensor: Tensor, dtype: str, case: Case, got: NDArray[Any], expected: Expected, name: str
) -> Outcome:
    shape = case.memory_shape(tensor)
    if got.shape != shape or got.dtype != DTYPES[dtype].numpy:
        found, wanted = f"{got.dtype}{list(got.shape)}", f"{DTYPES[dtype].numpy}{list(shape)}"
        return Outcome(direction, f"{tensor.name} ({found}, not {wanted})", dtype, WRONG)
    truth, bound = expected.truth[name].reshape(shape), np.reshape(expected.bounds[name], shape)
    return Outcome(direction, tensor.name, dtype, compare(got, dtype, truth, bound))
