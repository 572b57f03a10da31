"""The walk back: sums, sharing, freed graphs, depth, and what is noticed of writes in place."""

from __future__ import annotations

import numpy as np
import pytest

from examples.autograd import Tensor, no_grad
from tests.autograd.drawing import draw, leaf

f32 = np.float32


def test_one_element_of_any_shape_seeds_one() -> None:
    for shape in ((), (1,), (1, 1, 1)):
        x = Tensor(np.full(shape, 3, f32), requires_grad=True)
        (x * x).backward()
        assert x.grad is not None and x.grad.shape == shape and float(x.grad.sum()) == 6.0


def test_gradients_accumulate_in_arrays_of_their_own() -> None:
    x, seed = leaf(3), np.ones(3, f32)
    y = x + x.reshape(3)
    y.backward(seed, retain_graph=True)
    first = x.grad
    y.backward(seed)
    x.backward(seed)
    assert x.grad is first and (first == 5).all() and (seed == 1).all()
    a, b, c = Tensor(seed, requires_grad=True), leaf(3), leaf(3)
    ((a + b).reshape(1, 3).reshape(3) + c).backward(seed)
    for each in (a, b, c):
        each.grad *= 3
    assert all((each.grad == 3).all() for each in (a, b, c)) and (seed == 1).all()


def test_a_graph_is_walked_once_unless_retained() -> None:
    x = leaf(3)
    y = x * x
    one, two = y.sum(), (y * y).sum()
    one.backward()
    before = x.grad.copy()
    for again in (one, two, y.sum()):
        with pytest.raises(
            RuntimeError, match=r"an earlier backward\(\) freed this graph.*retain_graph=True"
        ):
            again.backward()
    assert (x.grad == before).all()  # refused before anything was added
    y = x * x
    x.grad = None
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    np.testing.assert_allclose(x.grad, 4 * x.data, rtol=1e-6)


def test_deep_graphs_need_no_recursion() -> None:
    x = leaf(2)
    y, shared = x, x
    for _ in range(20_000):
        y = y * 1.0
    for _ in range(60):
        shared = shared + shared * 0.5  # 2^60 paths, 120 nodes
    (y + shared).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad, 1 + 1.5**60, rtol=1e-5)
    z = x
    for _ in range(20_000):
        z = z * 1.0
    del z  # never walked: its nodes go one after another, not one inside another


def test_no_grad_records_nothing() -> None:
    x = leaf(3)
    with no_grad():
        y = x * 2
        with no_grad():
            pass
        assert not y.requires_grad and not (x + x).requires_grad
        z = Tensor(draw(3), requires_grad=True)
    assert z.requires_grad
    with pytest.raises(ValueError, match="no_grad"):
        y.sum().backward()
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    step = no_grad()(lambda: x * 2)
    assert not step().requires_grad and not step().requires_grad and (x * 2).requires_grad


def test_a_step_in_place_is_noticed_where_the_old_values_are_needed() -> None:
    x, w = leaf(3), leaf(3, seed=1)
    product, total = x * w, x + w
    w.data -= f32(0.5)
    with pytest.raises(RuntimeError, match=r"an operand of \* was changed in place after \* saved it"):
        product.sum().backward()
    assert x.grad is None
    total.sum().backward()  # reads neither
    for view in (w.detach(), w.reshape(3)):
        shared = x * view
        w.data *= f32(2)
        with pytest.raises(RuntimeError, match="was changed in place"):
            shared.sum().backward()
    # A new array leaves the old one as it was.
    product = x * w
    before = w.data
    w.data = w.data + f32(1)
    x.grad = None
    product.sum().backward()
    assert (x.grad == before).all()
    # What needs no gradient is not kept.
    y = x * draw(3)
    x.data += f32(1)
    y.sum().backward()
