"""Drawn specs by PyTorch's operators have the results of the reference, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, note, reject, seed, settings
from hypothesis import strategies as st

import normgen.torch as nt
from normgen.diagnostics import SpecError
from normgen.ir.reference import evaluate
from normgen.launching.layout import REST, Lengths, shape_of
from normgen.torch import cutting
from normgen.torch.calls import Wanted
from normgen.torch.derived import Derived
from normgen.torch.steps import Step
from tests.axis_specs import axis_specs
from tests.channel_specs import channel_specs
from tests.strategies import well_typed_specs

LENGTHS = {"B": 3, "S": 4, "D": 5, "C": 4, "G": 2, "H": 3, "W": 5, REST: 3}
PIECES = (1 << 19, 7)  # elements: a call whole, and cut many times


def steps(text: str) -> Iterator[Step]:
    """Both directions of a spec; a spec without kernels is drawn anew, since PyTorch cannot load it."""
    try:
        forward = nt.load(text).step
    except SpecError as fault:
        assert [each.code for each in fault.diagnostics] == ["unsupported"]
        reject()
    yield forward
    derivative = forward.derive()
    if derivative is not None:
        yield derivative.step


def compare(step: Step, random: Random, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare each result of a step with the reference; returns how many there are."""
    program, direction = step.program, step.direction
    lengths = {axis.name: axis.extent or LENGTHS[axis.name] for axis in program.axes} | {REST: 3}
    generator = np.random.default_rng(random.randrange(2**30))
    values = {
        operand.name: generator.uniform(0.5, 2, [lengths[axis] for axis in operand.order])
        for operand in program.operands
    }
    numbers = {attr.name: 0.37 for attr in program.attrs if not attr.folded}
    wanted = reference(step, values, lengths, numbers)
    known = Lengths({axis: n for axis, n in lengths.items() if axis != REST}, (3,))
    tensors = tuple(
        torch.from_numpy(values[name].reshape(shape_of(direction.operands[name], known)).copy())
        for name in direction.reads
    )
    before = [tensor.clone() for tensor in tensors]
    asked = Wanted(step.results, tuple((source, torch.float64) for source in step.typed.values()))
    derived = Derived(direction, program, tuple(attr.name for attr in step.attrs))
    for reuses, piece in product((True, False), PIECES):
        monkeypatch.setattr(cutting, "_PIECE", piece)
        call = derived.prepare(tensors, asked, reuses)
        with torch.no_grad():
            made = call(tensors, tuple(numbers[attr.name] for attr in step.attrs)).results
        for name, result in zip(step.results, made, strict=True):
            assert result is not None
            got = result.numpy().reshape(-1)
            np.testing.assert_allclose(got, wanted[name].reshape(-1), rtol=1e-9, atol=1e-9, err_msg=name)
        assert all(map(torch.equal, tensors, before)), "a call leaves its operands as they are"
    return len(step.results)


def reference(
    step: Step,
    values: Mapping[str, np.ndarray],
    lengths: Mapping[str, int],
    numbers: Mapping[str, float],
) -> dict[str, np.ndarray]:
    dtypes = dict.fromkeys(values, "f64")
    made = evaluate(step.program, values, lengths, numbers, rounding=True, dtypes=dtypes)
    return {name: np.asarray(made[name]) for name in step.results}


@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.thorough)])
def test_drawn_specs_have_the_results_of_the_reference(
    examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    @seed(examples)
    @given(well_typed_specs() | axis_specs() | channel_specs(), st.randoms(use_true_random=False))
    @settings(max_examples=examples, deadline=None, database=None)
    def each(text: str, random: Random) -> None:
        nonlocal compared
        note(text)
        for step in steps(text):
            compared += compare(step, random, monkeypatch)

    each()
    assert compared > 2 * examples
