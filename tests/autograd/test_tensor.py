"""Tensors by themselves: what they wrap, and what may be set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from examples.autograd import Tensor
from tests.autograd.drawing import draw, leaf

f32 = np.float32


def test_an_array_is_kept_by_reference() -> None:
    array = draw(2, 3)
    x = Tensor(array)
    assert x.data is array and x.shape == (2, 3) and x.dtype == f32
    assert not x.requires_grad and x.grad is None and x.is_leaf
    assert (
        repr(Tensor(array, requires_grad=True)) == "Tensor(shape=(2, 3), dtype=float32, requires_grad=True)"
    )


@pytest.mark.parametrize("number", [2, 2.5, np.float32(2.5), np.float64(2.5), np.int64(2)])
def test_a_number_is_a_0d_array(number: Any) -> None:
    x = Tensor(number, requires_grad=True)
    assert (x.shape, x.dtype, x.item()) == ((), f32, float(number))


def test_floats_of_at_most_32_bits_can_be_trained() -> None:
    for dtype in (np.int32, np.int64, np.bool_, np.float64, ml_dtypes.float8_e4m3fn):
        array = np.zeros(3, dtype)
        assert Tensor(array).data is array
        with pytest.raises(TypeError, match=r"cannot require grad: only f32, f16, bf16 can; cast it"):
            Tensor(array, requires_grad=True)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = Tensor(np.ones(3, dtype), requires_grad=True)
        x.backward(np.ones(3, dtype))
        x.backward(np.ones(3, dtype))
        assert x.grad is not None and x.grad.dtype == dtype and (x.grad == 2).all()


@pytest.mark.parametrize(
    ("array", "words"),
    [([1.0], "convert it with numpy.asarray"), (True, "bool"), (Tensor(1.0), "a Tensor already")],
)
def test_other_things_are_refused(array: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Tensor(array)


def test_item_is_for_one_element() -> None:
    assert Tensor(np.full((1, 1), 3, f32)).item() == 3.0
    for shape in ((2,), (0,), (1, 2)):
        with pytest.raises(ValueError, match="needs a tensor with one element"):
            Tensor(np.zeros(shape, f32)).item()


def test_detach_shares_memory_and_requires_no_grad() -> None:
    x = leaf(3)
    y = x * 2.0
    assert y.detach().data is y.data and not y.detach().requires_grad and y.detach().is_leaf
    (x.detach() * x).sum().backward()
    assert x.grad is not None and (x.grad == x.data).all()  # one factor of the two


def test_zero_grad_allocates_then_clears_in_place() -> None:
    x = leaf(2, 3)
    x.zero_grad()
    first = x.grad
    assert first is not None and first.shape == (2, 3) and first.dtype == f32 and not first.any()
    x.sum().backward()
    assert x.grad is first and (first == 1).all()
    x.zero_grad()
    assert x.grad is first and not first.any()


@pytest.mark.parametrize("name", ["data", "grad"])
def test_what_is_set_must_be_like_the_tensor(name: str) -> None:
    x = leaf(2, 3)
    setattr(x, name, draw(2, 3, seed=1))
    with pytest.raises(ValueError, match=rf"{name} has shape \(3, 2\), but the tensor has shape \(2, 3\)"):
        setattr(x, name, draw(3, 2))
    with pytest.raises(TypeError, match=f"{name} is float16, but the tensor is float32"):
        setattr(x, name, np.zeros((2, 3), np.float16))
