"""Tensors by themselves: what they wrap, their operators, and the walk back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normgen.autograd import Tensor, no_grad

f32 = np.float32


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(draw(*shape, seed=seed), requires_grad=True)


# ------------------------------------------------------------------------------------------- the array


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


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_, np.float64, ml_dtypes.float8_e4m3fn])
def test_what_cannot_be_trained_requires_no_grad(dtype: Any) -> None:
    array = np.zeros(3, dtype)
    assert Tensor(array).data is array
    with pytest.raises(TypeError, match=r"cannot require grad: only f32, f16, bf16 can; cast it"):
        Tensor(array, requires_grad=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_can_be_trained(dtype: Any) -> None:
    x = Tensor(np.ones(3, dtype), requires_grad=True)
    x.backward(np.ones(3, dtype))
    x.backward(np.ones(3, dtype))
    assert x.grad is not None and x.grad.dtype == dtype and (x.grad == 2).all()


@pytest.mark.parametrize(
    ("array", "words"),
    [([1.0], "make it one with numpy.asarray"), ("x", "got str"), (None, "NoneType"), (True, "bool")],
)
def test_other_things_are_refused(array: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Tensor(array)
    with pytest.raises(TypeError, match="a tensor already"):
        Tensor(Tensor(1.0))


def test_item_is_for_one_element() -> None:
    assert Tensor(np.full((1, 1), 3, f32)).item() == 3.0
    for shape in ((2,), (0,), (1, 2)):
        with pytest.raises(ValueError, match="for one element"):
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
    with pytest.raises(ValueError, match=rf"{name} has the shape \(3, 2\), but the tensor \(2, 3\)"):
        setattr(x, name, draw(3, 2))
    with pytest.raises(TypeError, match=f"{name} is float16, but the tensor is float32"):
        setattr(x, name, np.zeros((2, 3), np.float16))


# ------------------------------------------------------------------------------------------- operators

Function = Callable[..., Any]
FORMULAS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "add": (lambda a, b: a + b, ((3, 4), (3, 4))),
    "subtract": (lambda a, b: a - b, ((3, 4), (3, 4))),
    "multiply": (lambda a, b: a * b, ((3, 4), (3, 4))),
    "negate": (lambda a: -a, ((3, 4),)),
    "numbers": (lambda a: 1.5 - (2 * (a + 3) - 1) * 0.25, ((5,),)),
    "constants": (lambda a: draw(5) * a - draw(5, seed=2) + (a - draw(5)), ((5,),)),
    "twice": (lambda a: a * a + a, ((3, 4),)),
    "three times": (lambda a: (a + a) + a, ((3, 4),)),
    "against itself": (lambda a: a - a, ((3,),)),
    "cube": (lambda a: a * a * a, ((4,),)),
    "matrices": (lambda a, b: a @ b, ((3, 4), (4, 2))),
    "a matrix by itself": (lambda a: a @ a @ a, ((3, 3),)),
    "constant matrices": (lambda a: draw(2, 3) @ a @ draw(4, 2), ((3, 4),)),
    "reshape": (lambda a, b: a.reshape(4, 3) @ b.reshape((3, 4)) * 2, ((3, 4), (2, 6))),
    "reshape and as it was": (lambda a: a.reshape(-1) * a.reshape(12), ((3, 4),)),
    "sum": (lambda a, b: (a * b).sum() * a.sum(), ((3, 4), (3, 4))),
    "0-d": (lambda a, b: a * b + a, ((), ())),
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


@given(st.lists(st.sampled_from(["+", "-", "*"]), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_random_graphs_of_whole_numbers_are_exact(signs: list[str], random: Any) -> None:
    """Forward-mode derivatives in Python's integers say what every leaf must get."""
    leaves = [Tensor(float(random.randint(-2, 2)), requires_grad=True) for _ in range(3)]
    pool = [(each, [int(i == j) for j in range(3)]) for i, each in enumerate(leaves)]
    for sign in signs:
        (a, da), (b, db) = random.choice(pool), random.choice(pool)
        x, y = int(a.item()), int(b.item())
        if abs(x) > 1000 or abs(y) > 1000 or max(map(abs, da + db)) > 1000:
            continue
        match sign:
            case "+":
                pool.append((a + b, [p + q for p, q in zip(da, db, strict=True)]))
            case "-":
                pool.append((a - b, [p - q for p, q in zip(da, db, strict=True)]))
            case "*":
                pool.append((a * b, [p * y + x * q for p, q in zip(da, db, strict=True)]))
    root, wanted = pool[-1]
    root.backward()
    got = [0 if each.grad is None else int(each.grad) for each in leaves]
    assert got == wanted


@pytest.mark.parametrize(
    ("make", "fault", "words"),
    [
        (
            lambda: leaf(2, 3) + leaf(3),
            ValueError,
            r"\+ needs equal shapes, not \(2, 3\) and \(3,\): there is",
        ),
        (lambda: leaf(2, 3) * leaf(3, 2), ValueError, r"\* needs equal shapes"),
        (lambda: leaf(2, 3) @ leaf(2, 3), ValueError, r"@ needs shapes \(m, k\) and \(k, n\)"),
        (lambda: leaf(2) @ leaf(2), ValueError, "@ needs shapes"),
        (lambda: leaf(2, 3).reshape(4), ValueError, r"reshape from \(2, 3\) to \(4,\)"),
        (lambda: leaf(2, 3).reshape(-1, 4), ValueError, "reshape from"),
        (lambda: leaf(2, 3).reshape(-1, -1), ValueError, "reshape from"),
        (lambda: leaf(2, 3).reshape(-2, -3), ValueError, "reshape from"),
        (lambda: Tensor(np.ones(2, np.float16)) + 1, TypeError, "for float32, not for float16: cast with"),
        (lambda: leaf(2) * np.ones(2), TypeError, "for float32, not for float64"),
        (lambda: Tensor(np.ones(2, np.int32)).sum(), TypeError, "for float32, not for int32"),
        (lambda: leaf(2) + "x", TypeError, "unsupported operand"),
        (lambda: leaf(2) - [1.0, 2.0], TypeError, "unsupported operand"),
        (lambda: leaf(2) @ 2.0, TypeError, "unsupported operand"),
        (
            lambda: leaf(2).backward(),
            ValueError,
            r"of shape \(2,\) needs the cotangent.*y\.sum\(\)\.backward",
        ),
        (lambda: leaf(2).backward(np.ones(3, f32)), ValueError, "grad has the shape"),
        (lambda: leaf(2).backward(np.ones(2)), TypeError, "grad is float64, but the tensor is float32"),
        (lambda: leaf(2).backward(leaf(2)), TypeError, "grad: expected an array, got Tensor"),
        (lambda: Tensor(1.0).backward(), ValueError, "requires no grad: nothing it was computed from"),
    ],
)
def test_refusals(make: Function, fault: type[Exception], words: str) -> None:
    with pytest.raises(fault, match=words):
        make()


# -------------------------------------------------------------------------------------------- the walk


def test_one_element_of_any_shape_seeds_one() -> None:
    for shape in ((), (1,), (1, 1, 1)):
        x = Tensor(np.full(shape, 3, f32), requires_grad=True)
        (x * x).backward()
        assert x.grad is not None and x.grad.shape == shape and float(x.grad.sum()) == 6.0


def test_backward_accumulates_and_the_caller_s_arrays_stay_as_they_were() -> None:
    x, seed = leaf(3), np.ones(3, f32)
    y = x + x.reshape(3)
    y.backward(seed, retain_graph=True)
    first = x.grad
    y.backward(seed)
    assert x.grad is first and (first == 4).all() and (seed == 1).all()
    x.backward(seed)
    assert (first == 5).all() and (seed == 1).all()
    z = Tensor(seed, requires_grad=True)
    z.backward(seed)
    assert z.grad is not seed


def test_leaves_never_share_a_gradient() -> None:
    a, b, c = leaf(4), leaf(4), leaf(4)
    ((a + b).reshape(2, 2).reshape(4) + c).backward(np.ones(4, f32))
    arrays = [each.grad for each in (a, b, c)]
    for array in arrays:
        array *= 3
    assert all((array == 3).all() for array in arrays)


def test_only_leaves_gather_gradients() -> None:
    x = leaf(3)
    y = x * 2
    y.sum().backward()
    assert y.grad is None and not y.is_leaf and x.grad is not None


def test_a_graph_is_walked_once_unless_retained() -> None:
    x = leaf(3)
    y = x * x
    one, two = y.sum(), (y * y).sum()
    one.backward()
    before = x.grad.copy()  # type: ignore[union-attr]
    for again in (one, two, y.sum()):
        with pytest.raises(RuntimeError, match=r"freed at \S+ by an earlier backward.*retain_graph=True"):
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
    for _ in range(50_000):
        y = y * 1.0
    for _ in range(60):
        shared = shared + shared * 0.5  # 2^60 paths, 120 nodes
    (y + shared).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad, 1 + 1.5**60, rtol=1e-5)
    z = x
    for _ in range(200_000):
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
    assert z.requires_grad and (x * 2).requires_grad
    with pytest.raises(ValueError, match="no_grad"):
        y.sum().backward()
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert (x * 2).requires_grad

    @no_grad()
    def step() -> Tensor:
        return x * 2

    assert not step().requires_grad and not step().requires_grad and (x * 2).requires_grad


def test_a_step_in_place_is_noticed_where_the_old_values_are_needed() -> None:
    x, w = leaf(3), leaf(3, seed=1)
    product, total = x * w, x + w
    w.data -= f32(0.5)
    with pytest.raises(RuntimeError, match=r"an operand of \* was changed in place after \* kept it"):
        product.sum().backward()
    assert x.grad is None
    total.sum().backward()  # reads neither
    shared = x * w.detach()
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


def test_what_needs_no_gradient_is_not_kept() -> None:
    x, w = leaf(3), Tensor(draw(3))
    y = x * w
    x.data += f32(1)  # only w is read for the gradient of x
    y.sum().backward()
    assert (x.grad == w.data).all()
