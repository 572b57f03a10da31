"""Rows so far apart that the last begins beyond 2^32 elements, on memory that is mapped and never touched."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import normgen
from tests.memory import sparse
from tests.sampling import sampled

ROWS, STRIDE = 5, (1 << 30) + 8
# Norms, and the shape of one of their rows or samples.
NORMS = {
    "rmsnorm": (64,),
    "softmax": (1000,),
    "layernorm": (40,),
    "layernorm2d": (8, 4, 8),
    "local_response_norm": (8, 4, 8),
}


def far(near: np.ndarray) -> np.ndarray:
    """The same, with its rows far apart."""
    memory = sparse(((ROWS - 1) * STRIDE + near[0].size,), near.dtype)
    found = as_strided(memory, near.shape, (STRIDE * near.itemsize, *near.strides[1:]))
    found[...] = near
    return found


@pytest.mark.kernels
@pytest.mark.parametrize("name", sampled(NORMS, 0, 3))
def test_rows_beyond_2_to_the_32_elements(name: str) -> None:
    norm = normgen.load(name)
    random = np.random.default_rng(3)
    x, dy = random.standard_normal((2, ROWS, *NORMS[name])).astype(np.float16)
    width = NORMS[name][0]
    params = {
        p: random.standard_normal(width).astype(np.float16) for p in ("w", "b") if p in norm.forward_args
    }
    wanted = norm.forward(x, **params)
    made = norm.forward(far(x), **params)
    np.testing.assert_array_equal(made.y, wanted.y)
    saved = {n: getattr(wanted, n) for n in norm.backward_args if n in wanted._fields}
    given = {n: array for n, array in {"x": x, **params}.items() if n in norm.backward_args} | saved
    wanted_back = norm.backward(dy=dy, **given)
    apart = {n: far(a) if a.shape == x.shape else a for n, a in given.items()}
    made_back = norm.backward(dy=far(dy), **apart)
    for got, want in zip(made_back, wanted_back, strict=True):
        np.testing.assert_array_equal(got, want)
