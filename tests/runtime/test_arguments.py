"""What a norm takes: arrays by position and name, attrs, options; and how it refuses others."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.package.records import AttrRecord
from tests.runtime import stubs
from tests.runtime.calling import DY, RSTD, B, W, X, f32, made, zeros


def test_names_of_the_arguments() -> None:
    norm, _ = made()
    assert norm.forward_args == ("x", "w", "b") and norm.backward_args == ("dy", "x", "w", "rstd")
    assert stubs.norm(stubs.without_backward()).backward_args == ()
    assert repr(norm) == "<rows_norm: x[..., D], w[D]=1, b[D]=0; eps=1e-05 -> y[..., D], rstd[...]>"


Results = namedtuple("Results", ["y", "rstd"])

BAD_ARGUMENTS = [
    ((), {}, r"rows_norm\.forward\(\) needs x"),
    ((None,), {}, "needs x"),
    ((X, W, B, X), {}, r"takes at most 3 arrays \(x, w, b\) but got 4"),
    ((X,), {"x": X}, "got x twice"),
    ((X,), {"epsilon": 1.0}, "unknown argument 'epsilon'; did you mean eps?"),
    ((X,), {"zzz": 1}, "it takes x, w, b, eps, save, out, stream, workspace, sm_count"),
    ((X,), {"y": X}, "unknown argument 'y'"),
    ((X,), {"scale": 0.25}, r"scale was fixed to 0\.5 when the spec was loaded"),
    ((X,), {"groups": 4}, "groups is an int attr, fixed to 4 when the spec was loaded: load the spec again"),
    ((X,), {"training": True}, "training is a bool attr"),
    ((X,), {"sm_count": 1.5}, "sm_count must be an int but is a float"),
    ((X,), {"sm_count": True}, "sm_count must be an int but is a bool"),
    ((X,), {"eps": None}, "eps must be a number but is a NoneType"),
    ((X,), {"eps": np.ones(1)}, "eps must be a number but is a ndarray"),
    ((X,), {"eps": np.bytes_(b"1")}, "eps must be a number but is a bytes_"),
    ((X,), {"eps": np.complex64(1)}, "eps must be a number but is a complex64"),
    ((X,), {"eps": np.timedelta64(1)}, "eps must be a number but is a timedelta64"),
    ((X,), {"out": [X]}, r"out is a list: pass a dict of arrays by name, such as out=\{'y': \.\.\.\}"),
    ((X,), {"out": Results(X, None)}, r"out is a Results: pass its \._asdict\(\)"),
    ((X,), {"out": {1: X}}, "out takes names, such as 'y', not a int"),
    (
        (X,),
        {"workspace": [X]},
        "workspace is a list: pass a dict of arrays by name, as `workspace` lists them",
    ),
    (("x",), {}, "x: expected an array, got str"),
    ((X,), {"w": object()}, "w: expected an array, got object"),
    ((X,), {"out": {"y": [1]}}, r"out\['y'\]: expected an array"),
    ((np.zeros((4, 8)),), {}, r"x is float64.*x\.astype\(numpy\.float32\)"),
    ((X,), {"stream": 7}, "stream= is for arrays on a CUDA device"),
]
BAD_NUMBERS = [
    ({"eps": -1e-9}, "eps must be >= 0 but is -1e-09"),
    ({"eps": float("nan")}, "eps must be finite but is nan"),
    ({"eps": float("inf")}, "must be finite"),
    ({"eps": 1e39}, "beyond the range of float32"),
    ({"scale": -(10**400)}, "^scale is beyond the range of float32$"),
    ({"sm_count": 0}, "sm_count must be positive but is 0"),
]
BACKWARD = (DY, X, W, RSTD)
BAD_CALLS = [
    *(("forward", *call, TypeError) for call in BAD_ARGUMENTS),
    *(("backward", BACKWARD, *call, ValueError) for call in BAD_NUMBERS),
    ("forward", (X, W), {"out": {"y": X[:2]}}, r"but \(2,\) in y", ValueError),
    ("forward", (X, W), {"out": {"y": X.astype(np.float16)}}, r"out\['y'\]", TypeError),
    ("backward", BACKWARD[:3], {}, "needs rstd", TypeError),
    (
        "backward",
        BACKWARD,
        {"accumulate": True},
        r"needs out\['dw'\]: pass it, or leave it out of wrt",
        ValueError,
    ),
    ("backward", BACKWARD, {"wrt": ["dx"]}, "wrt: rows_norm has no 'dx'; did you mean 'x'", ValueError),
    ("backward", BACKWARD, {"wrt": ("x", 3)}, "wrt takes names", TypeError),
    ("backward", BACKWARD, {"wrt": X}, "wrt takes names", TypeError),
    ("backward", (), {"x": X, "w": W, "rstd": RSTD}, r"needs dy: pass None if it is zero", TypeError),
    ("backward", BACKWARD, {"b": zeros(9)}, r"D is 8 in .* but 9 in b\[D\]", ValueError),
]


@pytest.mark.parametrize(("direction", "arrays", "named", "message", "kind"), BAD_CALLS)
def test_calls_that_are_wrong(direction: str, arrays: Any, named: Any, message: str, kind: type) -> None:
    """By the first call, by one after others that were right, and by a plan: in the same words."""
    package = replace(stubs.package(), folded=(("scale", 0.5), ("groups", 4), ("training", True)))
    (cold, _), (warm, recorder) = made(package), made(package)
    for _ in range(2):
        warm.forward(X, W)
        warm.forward(X, W, eps=1e-5, scale=0.5)
        warm.forward(X, W, out={"y": zeros(4, 8)})
        warm.backward(*BACKWARD)
        warm.backward(*BACKWARD, eps=1e-5)
        warm.backward(*BACKWARD, wrt=("x",), accumulate=False)
    count = len(recorder.launches)
    with pytest.raises(kind, match=message) as expected:
        getattr(cold, direction)(*arrays, **named)
    for run in (getattr(warm, direction), partial(warm.plan, direction)):
        with pytest.raises(kind) as told:
            run(*arrays, **named)
        assert str(told.value) == str(expected.value)
    assert len(recorder.launches) == count


def test_attr_values_of_every_kind_of_number() -> None:
    norm, recorder = made()
    for eps in (0, 0.0, 1, True, np.False_, np.float32(0.5), np.int64(2), 1e-45, ml_dtypes.bfloat16(2)):
        norm.forward(X, eps=eps)
        assert recorder.last()[-1] == float(f32(eps))


def test_a_strict_bound_and_an_attr_without_default() -> None:
    norm, recorder = made(replace(stubs.package(), attrs=(AttrRecord("eps", None, low=0.0, strict=True),)))
    with pytest.raises(TypeError, match=r"rows_norm\.forward\(\) needs the attr eps, which has no default"):
        norm.forward(X)
    with pytest.raises(ValueError, match="eps must be > 0 but is 0"):
        norm.forward(X, eps=0)
    norm.forward(X, eps=1)
    assert recorder.last()[-1] == 1.0


def test_an_absent_cotangent_and_what_the_backward_does_not_read() -> None:
    norm, recorder = made()
    gradients = norm.backward(None, X, W, RSTD, b=B)
    assert not recorder.launches
    assert all((array == 0).all() for array in gradients) and gradients.dx.shape == (4, 8)
    half = zeros(8, dtype=np.float16)
    assert norm.backward(dy=DY, x=X, w=W, b=half, rstd=RSTD, y=X, eps=1e-3).db.dtype == np.float16


def test_wrt_selects_and_a_param_left_out_has_no_gradient() -> None:
    norm, recorder = made()
    assert [g is None for g in norm.backward(DY, X, W, RSTD, wrt=("w",))] == [True, False, True]
    assert recorder.last()[4] == 0
    assert [g is None for g in norm.backward(DY, X, W, RSTD, wrt="x")] == [False, True, True]
    assert [g is None for g in norm.backward(DY, X, None, RSTD)] == [False, True, False]
    count = len(recorder.launches)
    assert norm.backward(DY, X, W, RSTD, wrt=()) == (None, None, None) and len(recorder.launches) == count


def test_a_norm_without_a_backward_says_so() -> None:
    with pytest.raises(ValueError, match="group_norm has no backward"):
        made(stubs.without_backward())[0].backward(X)
