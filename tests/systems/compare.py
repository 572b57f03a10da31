"""What the tests of other systems' semantics share: norms, numbers, and comparison with float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.runtime.norm import Norm

Array = Any
f32 = np.float32
bf16 = ml_dtypes.bfloat16
f8e4m3 = ml_dtypes.float8_e4m3fn
f8e5m2 = ml_dtypes.float8_e5m2


@cache
def _loaded(name: str, attrs: tuple[tuple[str, object], ...]) -> Norm | None:
    try:
        return normgen.load(name, **dict(attrs))
    except normgen.SpecError as error:
        if {d.code for d in error.diagnostics} != {"unsupported"}:
            raise
        return None


def loaded(spec: str, **attrs: object) -> Norm:
    """A norm, by bundled name or text; the test is skipped where there are no kernels of it yet."""
    norm = _loaded(spec, tuple(sorted(attrs.items())))
    if norm is None:
        pytest.skip("no kernel yet")
    return norm


def normal(*shape: int, seed: int = 0, dtype: Any = f32) -> Array:
    """N(0, 1), the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def wide(array: Array) -> Array:
    """The values of an array of any element type, as float64."""
    return np.asarray(array).astype(np.float64)


def rounded(values: Array, dtype: Any) -> Array:
    """float64 values as an element type holds them, as float64 again; fp8 saturates."""
    with np.errstate(over="ignore"):
        values = np.asarray(values, np.float64)
        if np.dtype(dtype).itemsize == 1:
            largest = float(ml_dtypes.finfo(dtype).max)
            values = np.clip(values, -largest, largest)
        return values.astype(f32).astype(dtype).astype(np.float64)
