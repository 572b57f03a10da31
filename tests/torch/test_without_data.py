"""Tensors without data, on meta and fake ones: a call of them is refused in the words of one with data, and
otherwise gives results that lie as those do."""

from __future__ import annotations

import random

import pytest

from tests.torch.drawing import example, label, variants
from tests.torch.norms import nt, torch

FakeTensorMode = pytest.importorskip("torch._subclasses").FakeTensorMode
TYPES = (torch.float32, torch.float16, torch.float64, torch.int32)
CHANGES = {
    "longer": lambda draw, tensor, dim: torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim),
    "empty": lambda draw, tensor, dim: tensor.narrow(dim, 0, 0),
    "a dimension less": lambda draw, tensor, dim: tensor.select(dim, 0),
    "a dimension more": lambda draw, tensor, dim: tensor.unsqueeze(dim),
    "another type": lambda draw, tensor, dim: tensor.to(draw.choice(TYPES)),
}


def _changed(draw, tensors):
    """The operands of a call, one of which is made another."""
    place = draw.choice([place for place, tensor in enumerate(tensors) if tensor.ndim])
    tensor = tensors[place].to(torch.float32) if tensors[place].itemsize == 1 else tensors[place]
    made = CHANGES[draw.choice(list(CHANGES))](draw, tensor, draw.randrange(tensor.ndim))
    return (*tensors[:place], made, *tensors[place + 1 :])


def _outcome(function, tensors, named):
    """How the results lie, or what is wrong."""
    try:
        made = function(*tensors, **named)
    except Exception as error:
        return type(error), str(error)
    made = made if isinstance(made, tuple) else (made,)
    return [(each.shape, each.stride(), each.dtype) for each in made]


@pytest.mark.parametrize("variant", variants(), ids=label)
def test_wrong_calls_are_told_as_those_with_data(variant):
    draw, case = random.Random(label(variant)), example(variant)
    found = []
    for _ in range(8):
        tensors = _changed(draw, case.tensors)
        want = _outcome(case.function, [tensor.clone() for tensor in tensors], case.named)
        assert _outcome(case.function, [tensor.to("meta") for tensor in tensors], case.named) == want
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(tensor) for tensor in tensors]
            assert _outcome(case.function, fakes, case.named) == want
        found.append(want)
    assert any(isinstance(each, tuple) for each in found)


def test_numbers_out_of_range_are_refused_on_meta():
    norm = nt.load("rmsnorm_quantized_row")
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(ValueError, match=r"^floor must be > 0 but is 0\.0$"):
            norm(torch.empty(3, 8, dtype=dtype, device="meta"), floor=0.0)
