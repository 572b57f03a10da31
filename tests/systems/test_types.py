"""Results of another type than what they are made of, as other systems have them.

RMSNorm of float32 into 16 bits, as in Transformer Engine; COAT's FP8 RMSNorm: group-scaled FP8 in, per-tensor
FP8 out and its transpose. How close the values are, tests/verify shows of every bundled spec.
"""

from __future__ import annotations

import numpy as np
import pytest

from normgen.diagnostics import Source
from tests.verify.subjects import bundled_source, case_of, prove, subject_of

from .compare import Array, bf16, f8e4m3, f8e5m2, loaded, normal, rounded, wide

pytestmark = pytest.mark.kernels

LARGEST = {False: 448.0, True: 57344.0}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_float32_in_and_16_bits_out(dtype: str) -> None:
    text = bundled_source("rmsnorm").text.replace("output y[..., D] =", f"output y[..., D]: {dtype} =")
    subject = subject_of(Source("rmsnorm.norm", text))
    prove(subject, case_of(subject, 3, 133))
    assert subject.norm.forward(normal(2, 8)).y.dtype == (bf16 if dtype == "bf16" else np.float16)


def quantised(values: Array, e5m2: bool, group: int) -> tuple[Array, Array]:
    """Groups of the last dimension by s = bf16(amax / fp8_max) and q = fp8(x / s)."""
    kind = f8e5m2 if e5m2 else f8e4m3
    grouped = values.reshape(*values.shape[:-1], -1, group)
    scale = rounded(np.abs(grouped).max(-1) / LARGEST[e5m2], bf16)
    safe = np.where(scale == 0, 1, scale)[..., None]
    return rounded(grouped / safe, kind).astype(kind).reshape(values.shape), scale.astype(bf16)


@pytest.mark.parametrize("e5m2", [False, True], ids=["e4m3", "e5m2"])
def test_the_scale_leaves_no_value_outside(e5m2: bool) -> None:
    """A bf16 scale may be too small by half its last place; what exceeds the range by that saturates."""
    norm, w = loaded("rmsnorm_fp8", e5m2=e5m2), normal(64, seed=9, dtype=bf16)
    for seed in range(6):
        values = 10.0 ** (seed - 3) * wide(normal(4, 64, seed=seed))
        values[1] = 0
        xq, xs = quantised(values, e5m2, 16)
        result = norm.forward(xq, xs, w)
        q = wide(result.q)
        assert np.isfinite(q).all() and LARGEST[e5m2] / 1.01 / 1.13 < np.abs(q).max() <= LARGEST[e5m2]
        assert not q[1].any()
        assert result.qt.tobytes() == np.ascontiguousarray(result.q.T).tobytes()
    zeros = norm.forward(np.zeros_like(xq), np.zeros_like(xs), w)
    assert not wide(zeros.q).any() and not wide(zeros.qt).any()
    assert float(zeros.scale) == rounded(1e-10 / LARGEST[e5m2], bf16)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"xq": np.zeros((8, 60), f8e4m3)}, ValueError, "60"),
        ({"xs": np.zeros((8, 5), bf16)}, ValueError, r"\(G E\) is 64 in xq.* but G = 5 and E = 16 in xs"),
        ({"xs": np.zeros((8, 4), np.float32)}, TypeError, "xs.*must be bf16"),
        ({"xq": np.zeros((8, 64), f8e5m2)}, TypeError, "xq.*must be f8e4m3"),
    ],
)
def test_what_is_refused(wrong: dict[str, Array], error: type[Exception], message: str) -> None:
    good = {"xq": np.zeros((8, 64), f8e4m3), "xs": np.zeros((8, 4), bf16), "w": np.zeros(64, bf16)}
    with pytest.raises(error, match=message):
        loaded("rmsnorm_fp8").forward(**{**good, **wrong})
