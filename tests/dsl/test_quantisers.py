"""What the bundled quantisers compute, with the rounding that they write out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normgen.dtypes import round_to
from normgen.ir.reference import evaluate

from .test_formulas import rms
from .test_specs import bundled

RNG = np.random.default_rng(11)
ROWS, W = RNG.normal(size=(3, 8)), RNG.normal(size=8)
FLAT = {"...": 3, "D": 8}


def rounded(values: Any, dtype: str) -> Any:
    """The values of an element type, as float64."""
    return round_to(values, dtype).astype(float)


@pytest.mark.parametrize(("e5m2", "largest"), [(False, 448), (True, 57344)])
@pytest.mark.parametrize("spec", ["tensor", "row", "group"])
def test_quantised_by_the_amax(spec: str, e5m2: bool, largest: int) -> None:
    """The scale is that of the rounded copy; a part that is all zeros gets the least one."""
    x = ROWS.copy()
    x[1] = 0
    x = rounded(x, "bf16")
    attrs: dict[str, object] = {"e5m2": e5m2} | ({"group": 4} if spec == "group" else {})
    shape, extents = (3, 8), dict(FLAT)
    if spec == "group":
        shape, extents = (3, 2, 4), {"...": 3, "G": 2, "E": 4}
    definition = bundled(f"rmsnorm_quantized_{spec}", **attrs)
    arrays = {"x": x.reshape(shape), "w": W.reshape(shape[1:])}
    got = evaluate(definition.program, arrays, extents, rounding=True, dtypes={"x": "bf16"})
    y = rounded(rms(x, 1) * W, "bf16").reshape(shape)
    np.testing.assert_array_equal(rounded(got["y"], "bf16"), y)
    amax = np.abs(y).max(None if spec == "tensor" else -1)
    scale = np.maximum(amax, 1e-10) / largest
    np.testing.assert_allclose(got["scale"], scale, rtol=1e-15)
    np.testing.assert_allclose(got["q"], y / (scale if spec == "tensor" else scale[..., None]), rtol=1e-14)
    assert np.abs(got["q"]).max() <= largest * (1 + 1e-15)
    (q,) = (r.tensor for r in definition.program.results if r.tensor.name == "q")
    assert q.dtype == ("f8e5m2" if e5m2 else "f8e4m3")


def test_quantised_by_a_given_scale() -> None:
    definition = bundled("rmsnorm_quantized_static")
    got = evaluate(definition.program, {"x": ROWS, "scale": np.asarray(3.0), "w": W}, FLAT)
    y = rms(ROWS, 1) * W
    np.testing.assert_allclose(got["q"], 3 * y)
    np.testing.assert_allclose(got["amax"], np.abs(y).max())
    np.testing.assert_allclose(got["scale_inv"], 1 / 3)


@pytest.mark.parametrize(("e5m2", "largest"), [(False, 448), (True, 57344)])
def test_grouped_fp8_to_fp8(e5m2: bool, largest: int) -> None:
    """The scale is a bf16, made of the unrounded amax; what is quantised is a bf16 too."""
    kind = "f8e5m2" if e5m2 else "f8e4m3"
    xq = rounded(RNG.normal(size=(3, 2, 4)) * 20, kind)
    xs = rounded(RNG.uniform(0.01, 0.1, size=(3, 2)), "bf16")
    definition = bundled("rmsnorm_fp8", e5m2=e5m2, group=4)
    arrays = {"xq": xq, "xs": xs, "w": W.reshape(2, 4)}
    got = evaluate(definition.program, arrays, {"...": 3, "G": 2, "E": 4}, rounding=True)
    x = (xq * xs[..., None]).reshape(3, 8)
    y = rms(x, 1) * W
    scale = rounded((np.abs(y).max() + 1e-10) / largest, "bf16")
    np.testing.assert_array_equal(got["scale"], scale)
    want = (rounded(y, "bf16") / scale).reshape(3, 2, 4)
    np.testing.assert_allclose(got["q"], want, rtol=1e-15)
    np.testing.assert_array_equal(got["qt"].reshape(8, 3), got["q"].reshape(3, 8).T)
