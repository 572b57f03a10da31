"""Whole calls on the host executor, its checker on: views, numbers, threads; copies and fills."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.launching.launch import Slot
from normgen.runtime.calls.assemble import Pool, compiled
from normgen.runtime.calls.utility_kernels import copy_launch, fill_launch
from normgen.runtime.norm import Norm
from tests.memory import at_offset, sparse
from tests.runtime.calling import address
from tests.threads import at_once

SPEC = """norm shifted
attr   eps = 1e-6
input  x[..., D]
input  a[] "a number for all rows"
input  r[...] "one for each row"
param  w[D] = 1
save   rstd[...] = rsqrt(mean[D](x^2) + eps)
output y[..., D] = x * rstd * w * a + r
"""
f32 = np.float32


@pytest.fixture(scope="module")
def executor() -> HostExecutor:
    return HostExecutor(checked=True)


@pytest.fixture(scope="module")
def norm(executor: HostExecutor) -> Norm:
    return normgen.load(SPEC).on(executor)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


WIDE = draw(3, 6, 32)
VIEWS = {
    "rows apart": WIDE[..., :16],
    "dimensions and columns apart": WIDE[:, ::2, ::2],
    "transposed": draw(16, 6, 3).T,
    "backwards": WIDE[::-1, :, 15::-1],
    "expanded": np.broadcast_to(WIDE[0, 0, :1], (3, 6, 16)),
    "one row": draw(16),
    "an element off": np.frombuffer(draw(3 * 6 * 16 + 1).tobytes()[4:], f32).reshape(3, 6, 16),
}


def test_views_give_the_bits_of_contiguous_arrays(norm: Norm) -> None:
    w = draw(16)
    for name, x in VIEWS.items():
        rows = draw(*x.shape[:-1])
        want = norm.forward(np.ascontiguousarray(x), 2.0, rows, w)
        got = norm.forward(x, 2.0, rows, w)
        assert all((one == two).all() for one, two in zip(want, got, strict=True)), name
        dense = np.ascontiguousarray(x)
        many = norm.backward(x, x=dense, a=2.0, w=w, rstd=want.rstd)
        once = norm.backward(dense, x=dense, a=2.0, w=w, rstd=want.rstd)
        assert all((one == two).all() for one, two in zip(many, once, strict=True)), name


def test_threads_share_a_norm(norm: Norm) -> None:
    x, w, dy = draw(9, 16), draw(16), draw(9, 16, seed=1)
    rstd = norm.forward(x, 2.0, draw(9), w).rstd
    want = norm.backward(dy, x=x, a=2.0, w=w, rstd=rstd)

    def work() -> None:
        for _ in range(10):
            got = norm.backward(dy, x=x, a=2.0, w=w, rstd=rstd)
            assert not [n for n in got._fields if (getattr(got, n) != getattr(want, n)).any()]

    at_once(*[work] * 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_copies_of_any_view(executor: HostExecutor, dtype: Any) -> None:
    whole = np.arange(3 * 4 * 5 * 6).astype(dtype).reshape(3, 4, 5, 6)
    views = [whole[::-1, 1:, ::2, ::-2]]
    if dtype is np.uint16:
        views += [whole.transpose(order) for order in list(permutations(range(4)))[::5]]
        views += [whole[:, :1, :, 2:3], np.broadcast_to(whole[:, :1], whole.shape)]
    for view in views:
        target = np.zeros(view.shape, dtype)
        strides = tuple(s // view.itemsize for s in view.strides)
        reach = [(n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        item = copy_launch("from", "to", view.shape, strides, view.itemsize)
        memory = {
            "from": (low, high - low + view.itemsize, view.itemsize),
            "to": (0, target.nbytes, target.itemsize),
        }
        run(executor, item, memory, {"from": address(view), "to": address(target)})
        assert (target == view).all()


def test_results_that_an_allocator_gave_less_aligned_are_written_in_narrower_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a call that is new, by one like it, by a plan: the checker sees every access."""
    norm = normgen.load("layernorm").on(HostExecutor(checked=True))
    x, w, b = draw(5, 64), draw(64, seed=1), draw(64, seed=2)
    plan, wanted = norm.plan("forward", x, w, b), norm.forward(x, w, b)
    assert address(wanted.y) % 16 == 0, "NumPy's own memory is aligned"
    monkeypatch.setattr(np, "empty", partial(at_offset, 4))
    other = normgen.load("layernorm").on(HostExecutor(checked=True))
    for call in (norm.forward, norm.forward, plan, other.forward, other.forward):
        made = call(x, w, b)
        assert address(made.y) % 16 == 4
        for got, want in zip(made, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# Elements: more than 32 bits count, with a sign or without, also of what the last block copies.
MANY = 2**32 + 2**20 + 999


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, MANY // 2), (MANY // 2 + 77, 1)),  # an index along an axis needs 31 bits, an offset 33
        ((MANY // 2, 2), (3, 1)),  # the same of the first axis, of which there is no remainder
        ((3, 500), (2**32 + 8, 1)),  # few elements, far apart
        ((2, 3, 500), (-(2**31), -(2**33), 2)),  # and backwards
    ],
)
def test_copies_of_more_than_32_bits_count(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """The blocks at the end of the grid, on bytes that are mapped but mostly never touched."""
    item = copy_launch("from", "to", shape, strides, 1)
    count, step = prod(shape), item.grid[0] * item.block[0]
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    source, target = sparse((high - low + 1,), np.uint8), sparse((count,), np.uint8)
    starts = np.arange(step - item.block[0], count, step)  # what the last block copies
    copied = (starts[:, None] + np.arange(item.block[0])).reshape(-1)
    copied = copied[copied < count]
    offsets = sum(i * s for i, s in zip(np.unravel_index(copied, shape), strides, strict=True)) - low
    source[offsets] = (offsets * 2654435761 >> 16) % 251
    memory = {"from": (low, high - low + 1, 1), "to": (0, count, 1)}
    addresses = {"from": address(source) - low, "to": address(target)}
    run(HostExecutor(blocks=slice(-1, None)), item, memory, addresses)
    assert (target[copied] == source[offsets]).all() and source[offsets[-1]]
    assert max(copied.max(), np.abs(offsets + low).max()) > 2**32


def test_a_copy_of_many_dimensions() -> None:
    shape = (2,) * 9
    strides = tuple(3**i for i in range(9))
    with pytest.raises(ValueError, match="a view with 9 separate strides, and at most 8 are supported"):
        copy_launch("from", "to", shape, strides, 4)
    merged = copy_launch("from", "to", (2, 1, 3, 4), (12, 99, 4, 1), 4)
    assert "rank = 1" in merged.source


@pytest.mark.parametrize(("dtype", "bits"), [(np.uint8, 7), (np.uint16, 0x3F80), (np.uint32, 0x3F800000)])
def test_fills(executor: HostExecutor, dtype: Any, bits: int) -> None:
    target = np.zeros(400, dtype)
    item = fill_launch("to", 399, target.itemsize, Slot("scalar", "bits"))
    run(executor, item, {"to": (0, 399 * target.itemsize, target.itemsize)}, {"to": address(target)}, bits)
    assert (target[:399] == bits).all() and target[399] == 0


def run(executor: Any, item: Any, memory: Any, addresses: Any, bits: int = 0) -> None:
    pool = Pool([*addresses, "bits"])
    function = executor.function(item.source, item.entry, item.shared)
    step = compiled(executor, function, item, pool, memory)
    whole = [*addresses.values(), bits, *pool.constants]
    step.fire(step.pack(*step.take(whole)), step.memory(whole), 0)
