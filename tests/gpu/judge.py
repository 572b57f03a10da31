"""Whether a call made what it should: the error bounds of `normgen check`, beside float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from normgen.ir.reference import evaluate
from normgen.torch.dtypes import NAMES
from normgen.verify.bounds import BACKWARD_SLACK, Setting, analyse
from normgen.verify.cases import Case
from normgen.verify.compare import compare
from normgen.verify.draw import Drawn
from normgen.verify.expected import Expectation, Expected, read_back, unconcerned
from tests.gpu.calls import Made, exact


def check(made: Made, times: float = 1.0) -> None:
    """Hold every result of a call to its bound, in the element type that it must have, and all memory that
    was only read to what was in it. `times`: how many times its bound an error may be."""
    call, subject = made.call, made.call.norm.subject
    stored = call.case
    case = call.computed(any(each is not None and each.is_cuda for each in made.tensors.values()))
    arrays = _arrays(made, case)
    expected = Expectation(subject, case, Drawn(arrays, (), True), call.numbers).forward
    for name, output in made.outputs.items():
        _compare(made, name, output, case.dtypes[name], expected, times)
    for update in call.norm.definition.program.updates:
        state = made.tensors[update.state]
        if state is not None:
            _compare(made, f"update:{update.state}", state, "f32", expected, times)
    if made.gradients:
        read = _backward(made, case, arrays, expected)
        for name, gradient in made.gradients.items():
            _compare(made, f"d{name}", gradient, stored.dtypes[name], read, times)
    for name, (memory, before) in made.memory.items():
        bits = (each.view(torch.uint8) for each in (memory, before))
        assert torch.equal(*bits), f"{call}: the memory of {name} was written"


def _arrays(made: Made, case: Case) -> dict[str, Any]:
    """What a call read, in float64, a dimension for each axis."""
    program = made.call.norm.definition.program
    drawn = made.call.values()  # defaults of what is left out, zeros where no cotangent comes
    found = {}
    for name, value in drawn.items():
        read = exact(made.cotangents[name]) if name in made.cotangents else made.before.get(name)
        found[name] = value if read is None else read.reshape(value.shape)
    assert found.keys() >= {tensor.name for tensor in program.operands}
    return found


def _backward(made: Made, case: Case, arrays: Mapping[str, Any], before: Expected) -> Expected:
    """What the backward must make of what the forward left: of its outputs as they are, and of saves that may
    be as far off as the forward's bounds allow."""
    subject, numbers = made.call.norm.subject, made.call.numbers
    program, centred = subject.definition.program, subject.centred_backward
    assert centred is not None
    exactly, stored, errors = read_back(program, case, arrays, before.truth)
    for result in program.results:
        name = result.tensor.name
        if result.kept and name in made.outputs:
            exactly[name] = stored[name] = exact(made.outputs[name]).reshape(stored[name].shape)
            errors[name] = np.zeros_like(stored[name])
        elif result.kept:
            errors[name] = errors[name] + before.bounds[name]
    zeros = {
        r.tensor.name: np.zeros([case.extents[axis] for axis in r.tensor.order]) for r in centred.results
    }
    if not all(case.extents.values()):
        centred = unconcerned(centred, case)
    setting = Setting(stored, case.extents, numbers, case.dtypes)
    bounds = {name: each.error for name, each in analyse(centred, setting, errors, BACKWARD_SLACK).items()}
    truth = evaluate(centred, exactly, case.extents, numbers, True, case.dtypes)
    return Expected(stored, {**zeros, **truth}, {**zeros, **bounds})


def _compare(made: Made, name: str, got: Any, dtype: str, expected: Expected, times: float) -> None:
    said = f"{made.call}: {name}"
    assert NAMES[got.dtype] == dtype, f"{said} is {NAMES[got.dtype]}, not {dtype}"
    truth = np.asarray(expected.truth[name]).reshape(tuple(got.shape))
    bound = np.broadcast_to(expected.bounds[name], expected.truth[name].shape).reshape(tuple(got.shape))
    found = compare(exact(got), dtype, truth, bound)
    assert found.worst <= times, f"{said}: {found}"
