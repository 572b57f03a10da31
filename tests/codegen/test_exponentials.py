"""A maximum and the sum of exponentials in one exchange: rows in which not everything is finite."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.dtypes import DTYPES
from tests.sampling import paired

pytestmark = pytest.mark.kernels

LOGSUMEXP = "norm merged\ninput x[..., D]\noutput y[...] = logsumexp[D](x)"
WIDTHS = [5, 64, 700, 3000]  # lanes of a warp, one warp, a few, as many as need a slice each


def rows(width: int) -> np.ndarray:
    x = np.random.default_rng(3).standard_normal((7, width)).astype(np.float32)
    x[1, width // 2] = -np.inf
    x[2, :-1] = -np.inf  # all that most warps have
    x[3] = -np.inf
    x[4, 0] = np.inf
    x[5, -1] = np.nan
    x[6] = 1e4 * x[6]
    return x


@pytest.mark.parametrize(("dtype", "width"), paired(["bf16", "f16"], WIDTHS[1:]))
def test_elements_of_two_bytes_are_as_good_as_rounded(dtype, width):
    """Their exponentials are squares of roots: right to where results are subnormal, and beyond."""
    numpy_dtype = DTYPES[dtype].numpy
    x = -np.linspace(0, 110, width)[None, :].astype(numpy_dtype).repeat(3, axis=0)
    x[1] += numpy_dtype.type(30)
    x[2, : width // 2] = -np.inf
    found = normgen.load("softmax").forward(x=x).y
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=1, keepdims=True))
    wanted = e / e.sum(axis=1, keepdims=True)
    info = ml_dtypes.finfo(numpy_dtype)
    half = np.maximum(wanted, float(info.smallest_normal)) * float(info.eps) / 2
    assert np.all(np.abs(found.astype(np.float64) - wanted) <= 1.001 * half)


@pytest.mark.parametrize(("width", "spec"), paired(WIDTHS, ["softmax", "log_softmax", LOGSUMEXP]))
def test_rows_that_are_not_finite(spec: str, width: int) -> None:
    x = rows(width)
    found = normgen.load(spec).forward(x=x).y
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = wide - wide.max(axis=1, keepdims=True)
        e = np.exp(shifted)
        total = e.sum(axis=1, keepdims=True)
        wanted = e / total if spec == "softmax" else shifted - np.log(total)
        wanted = np.logaddexp.reduce(wide, axis=1) if spec == LOGSUMEXP else wanted
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-30)
