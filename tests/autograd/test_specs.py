"""Every bundled spec on the tape: it does what a caller would do with forward and backward."""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import pytest

from examples.autograd import Tensor, apply, no_grad
from normgen import bundled
from normgen.dtypes import DTYPES
from normgen.runtime.norm import Norm
from tests.autograd.drawing import draw, load
from tests.kinds import of_all

pytestmark = pytest.mark.kernels

EXTENTS = {"B": 2, "G": 2, "S": 3, "D": 8, "H": 3, "K": 2, "C": 4, "W": 5, "...": 6}


def operands(norm: Norm) -> dict[str, Any]:
    """An array for each operand, of the element type that the spec fixes, else f32; not negative."""
    lengths = EXTENTS | {axis.name: axis.extent for axis in norm.package.axes if axis.extent is not None}
    made = {}
    for seed, record in enumerate(norm.package.forward.reads):
        shape = [prod(lengths[axis] for axis in axes) for axes in record.dims]
        made[record.name] = abs(draw(*shape, seed=seed)).astype(DTYPES[record.dtype or "f32"].numpy)
    return made


# What these return is quantised, and has no gradient.
THROUGH_A_LET = ("rmsnorm_fp8", "rmsnorm_quantized_static")


@pytest.mark.parametrize("name", of_all(sorted({*bundled.names()} - {*THROUGH_A_LET})))
def test_the_tape_does_what_a_caller_would_do_by_hand(name: str) -> None:
    norm, dtype = load(name), ml_dtypes.bfloat16
    assert norm.package.backward is not None
    gradients = {record.name for record in norm.package.backward.writes}
    given = {
        key: Tensor(array.astype(dtype), requires_grad=True) if f"d{key}" in gradients else array
        for key, array in operands(norm).items()
    }
    by_hand = {key: each.data if isinstance(each, Tensor) else each.copy() for key, each in given.items()}
    outputs = apply(norm, *given.values())
    made = norm.forward(**by_hand)
    for key in outputs._fields:
        assert (getattr(outputs, key).data == getattr(made, key)).all()
        assert getattr(outputs, key).requires_grad == (f"d{key}" in norm.backward_args)
    leaves = {key: each for key, each in given.items() if isinstance(each, Tensor)}
    for key in given.keys() - leaves.keys():
        assert (given[key] == by_hand[key]).all()  # states, each in its own array
    known = {**by_hand, **made._asdict()}
    read = {key: known[key] for key in norm.backward_args if key in known}
    for key in outputs._fields:
        if not getattr(outputs, key).requires_grad:
            continue
        # One output after another: each walk has one cotangent, the others are None.
        cotangents = dict.fromkeys(f"d{other}" for other in made._fields if f"d{other}" in norm.backward_args)
        cotangents[f"d{key}"] = draw(*getattr(made, key).shape, seed=9).astype(dtype)
        expected = norm.backward(**{**read, **cotangents})
        getattr(outputs, key).backward(cotangents[f"d{key}"], retain_graph=True)
        for operand_name, tensor in leaves.items():
            wanted = getattr(expected, f"d{operand_name}")
            if tensor.grad is not None:
                assert tensor.grad.dtype == wanted.dtype == dtype and (tensor.grad == wanted).all()
            else:
                assert not wanted.any()
            tensor.grad = None


@pytest.mark.parametrize("name", THROUGH_A_LET)
def test_what_is_differentiated_through_something_unseen_runs_without_a_tape(name: str) -> None:
    norm = load(name)
    given = [*operands(norm).values()]
    trained = [*given[:-1], Tensor(given[-1], requires_grad=True)]
    with pytest.raises(TypeError, match=rf"{name} flow through y, which apply\(\) does not return"):
        apply(norm, *trained)
    expected = norm.forward(*given)
    with no_grad():
        outputs = apply(norm, *trained)
    for key in outputs._fields:
        assert not getattr(outputs, key).requires_grad
        assert getattr(outputs, key).data.tobytes() == getattr(expected, key).tobytes()
