"""The operators of tensors, with their gradients, against the same formulas in other arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.autograd import Tensor
from tests.autograd.drawing import draw, leaf

f32 = np.float32


Function = Callable[..., Any]
FORMULAS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "elementwise": (lambda a, b: -(a - b) * b + a * a * a, ((3, 4), (3, 4))),
    "numbers": (lambda a: 1.5 - (2 * (a + 3) - 1) * 0.25, ((5,),)),
    "constants": (lambda a: draw(5) * a - draw(5, seed=2) + (a - draw(5)), ((5,),)),
    "matrices": (lambda a, b: a @ a @ b, ((3, 3), (3, 2))),
    "constant matrices": (lambda a: draw(2, 3) @ a @ draw(4, 2), ((3, 4),)),
    "reshape": (lambda a, b: a.reshape(4, 3) @ b.reshape((3, 4)) * 2, ((3, 4), (2, 6))),
    "reshape and as it was": (lambda a: a.reshape(-1) * a.reshape(12), ((3, 4),)),
    "sum": (lambda a, b: (a * b).sum() * a.sum(), ((3, 4), (3, 4))),
    "nothing in it": (lambda a: (a * 2).sum(), ((0, 3),)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_operators_and_their_gradients(name: str) -> None:
    """The same formula in f32 on the tape, and in f64 with central differences."""
    formula, shapes = FORMULAS[name]
    leaves = [leaf(*shape, seed=10 + i) for i, shape in enumerate(shapes)]
    made = formula(*leaves)
    wide = [each.data.astype(np.float64) for each in leaves]
    value = formula(*wide)
    assert type(made) is Tensor and made.dtype == f32 and isinstance(made.data, np.ndarray)
    np.testing.assert_allclose(made.data, value, rtol=1e-5, atol=1e-5)
    cotangent = draw(*made.shape, seed=3)
    made.backward(cotangent)
    for each, array in zip(leaves, wide, strict=True):
        assert each.grad is not None and each.grad.dtype == f32 and each.grad.flags.writeable
        expected = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            sides = []
            for step in (1e-4, -1e-4):
                moved = [other.copy() for other in wide]
                moved[[a is array for a in wide].index(True)][index] += step
                sides.append((np.asarray(formula(*moved)) * cotangent).sum())
            expected[index] = (sides[0] - sides[1]) / 2e-4
        np.testing.assert_allclose(each.grad, expected, rtol=1e-4, atol=1e-4)


SIGNS: dict[str, tuple[Function, Function]] = {  # with the derivative, by those of both operands
    "+": (operator.add, lambda a, b, da, db: da + db),
    "-": (operator.sub, lambda a, b, da, db: da - db),
    "*": (operator.mul, lambda a, b, da, db: da * b + a * db),
}


@settings(deadline=None)
@given(st.lists(st.sampled_from([*SIGNS]), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_random_graphs_of_whole_numbers_are_exact(signs: list[str], random: Any) -> None:
    """Forward-mode derivatives in whole numbers say what every leaf must get."""
    leaves = [Tensor(float(random.randint(-2, 2)), requires_grad=True) for _ in range(3)]
    pool = list(zip(leaves, np.eye(3), strict=True))
    for sign in signs:
        (a, da), (b, db) = random.choice(pool), random.choice(pool)
        if max(abs(a.item()), abs(b.item()), *abs(da), *abs(db)) <= 1000:
            made, derivative = SIGNS[sign]
            pool.append((made(a, b), derivative(a.item(), b.item(), da, db)))
    root, wanted = pool[-1]
    root.backward()
    assert [0 if each.grad is None else each.grad for each in leaves] == list(wanted)


@pytest.mark.parametrize(
    ("make", "fault", "words"),
    [
        (
            lambda: leaf(2, 3) + leaf(3),
            ValueError,
            r"\+ needs equal shapes, not \(2, 3\) and \(3,\): it does not broadcast",
        ),
        (lambda: leaf(2, 3) @ leaf(2, 3), ValueError, r"@ needs shapes \(m, k\) and \(k, n\)"),
        (lambda: leaf(2, 3).reshape(4), ValueError, r"cannot reshape \(2, 3\) to \(4,\)"),
        (lambda: leaf(2, 3).reshape(-1, 4), ValueError, "cannot reshape"),
        (lambda: leaf(2, 3).reshape(-2, -3), ValueError, "cannot reshape"),
        (lambda: Tensor(np.ones(2, np.float16)) + 1, TypeError, "supports float32, not float16: cast with"),
        (lambda: leaf(2) * np.ones(2), TypeError, "supports float32, not float64"),
        (lambda: Tensor(np.ones(2, np.int32)).sum(), TypeError, "supports float32, not int32"),
        (lambda: leaf(2) - [1.0, 2.0], TypeError, "unsupported operand"),
        (lambda: leaf(2) @ 2.0, TypeError, "unsupported operand"),
        (lambda: leaf(2).backward(), ValueError, r"\(2,\) needs grad, .*y\.sum\(\)\.backward"),
        (lambda: leaf(2).backward(np.ones(3, f32)), ValueError, "grad has shape"),
        (lambda: leaf(2).backward(np.ones(2)), TypeError, "grad is float64, but the tensor is float32"),
        (lambda: leaf(2).backward(leaf(2)), TypeError, "grad: expected an array, got Tensor"),
        (
            lambda: Tensor(1.0).backward(),
            ValueError,
            "does not require grad: nothing that it was computed from",
        ),
    ],
)
def test_refusals(make: Function, fault: type[Exception], words: str) -> None:
    with pytest.raises(fault, match=words):
        make()
