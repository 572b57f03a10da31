"""What a caller of a norm meets: results, memory, what is prepared once. Nothing is computed here."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.runtime.norm import Norm, check_abi
from tests.runtime import stubs
from tests.runtime.calling import DY, RSTD, B, W, X, address, f32, made, zeros


def test_results_are_named_tuples_in_spec_order() -> None:
    norm, _ = made()
    result = norm.forward(X, W)
    assert type(result).__name__ == "RowsNormForward" and result._fields == ("y", "rstd")
    assert (result.y.shape, result.rstd.shape, result.rstd.dtype) == ((4, 8), (4,), f32)
    gradients = norm.backward(DY, X, W, RSTD)
    assert gradients._fields == ("dx", "dw", "db") and gradients.db.shape == (8,)


def test_the_kernel_gets_the_addresses_in_its_own_order_and_null_for_what_is_left_out() -> None:
    norm, recorder = made()
    result = norm.forward(X, b=B, eps=0.5)
    *pointers, eps = recorder.last()["values"]
    assert pointers == [address(X), 0, address(B), address(result.y), address(result.rstd)] and eps == 0.5
    assert norm.forward(X, save=False).rstd is None
    assert recorder.last()["values"][4] == 0


def test_buffers_tell_what_a_launch_may_touch() -> None:
    norm, recorder = made()
    result = norm.forward(X, W)
    by_address = {b.pointer: (b.bytes, b.itemsize, b.access) for b in recorder.launches[-1][2]}
    assert by_address == {
        address(X): (128, 4, "read"),
        address(W): (32, 4, "read"),
        address(result.y): (128, 4, "write"),
        address(result.rstd): (16, 4, "write"),
    }


def test_out_is_written_and_returned() -> None:
    norm, recorder = made()
    y = np.full((4, 8), 7, f32)
    result = norm.forward(X, out={"y": y})
    assert result.y is y and recorder.last()["values"][3] == address(y)
    assert norm.forward(X, save=False, out={"rstd": RSTD}).rstd is RSTD
    with pytest.raises(ValueError, match="out: rows_norm has no 'Y'"):
        norm.forward(X, out={"Y": y})
    with pytest.raises(ValueError, match=r"out\['dw'\] is not computed: w is not in wrt"):
        norm.backward(DY, X, W, RSTD, wrt="x", out={"dw": zeros(8)})


MEMORY = np.zeros(256, f32)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (MEMORY[:32], {"y": MEMORY[16:48]}, r"out\['y'\] overlaps x"),
        (MEMORY[:32], {"y": MEMORY[40:72], "rstd": MEMORY[68:72]}, r"out\['rstd'\] overlaps out\['y'\]"),
        (MEMORY[31::-1], {"y": MEMORY[31:63]}, r"out\['y'\] overlaps x"),
    ],
)
def test_outputs_must_have_memory_of_their_own(x: Any, out: Any, message: str) -> None:
    norm, recorder = made()
    out = {name: a.reshape(4, 8) if name == "y" else a for name, a in out.items()}
    with pytest.raises(ValueError, match=message):
        norm.forward(x.reshape(4, 8), out=out)
    assert not recorder.launches
    norm.forward(MEMORY[:32].reshape(4, 8), out={"y": MEMORY[32:64].reshape(4, 8), "rstd": MEMORY[64:68]})
    norm.forward(MEMORY[:32].reshape(4, 8), out={"y": MEMORY[:32].reshape(4, 8)})
    assert len(recorder.launches) == 2


def test_accumulate_adds_to_what_out_holds() -> None:
    norm, recorder = made()
    dw, db = zeros(8), zeros(8)
    with pytest.raises(ValueError, match=r"accumulate=True adds to out\['db'\], which is missing"):
        norm.backward(DY, X, W, RSTD, accumulate=True, out={"dw": dw})
    norm.backward(DY, X, W, RSTD, accumulate=True, out={"dw": dw}, wrt=("x", "w"))
    access = {b.pointer: b.access for b in recorder.launches[-1][2]}
    assert access[address(dw)] == "update"
    ones = np.ones(8, f32)
    norm.backward(None, X, W, RSTD, accumulate=True, out={"dw": ones, "db": db})
    assert (ones == 1).all()


def test_empty_arrays_launch_nothing() -> None:
    norm, recorder = made()
    result = norm.forward(zeros(0, 8), W)
    assert (result.y.shape, result.rstd.shape) == ((0, 8), (0,))
    dirty = np.full(8, 7, f32)
    gradients = norm.backward(zeros(0, 8), zeros(0, 8), W, zeros(0), out={"dw": dirty})
    assert gradients.dw is dirty and (dirty == 0).all() and (gradients.db == 0).all()
    with pytest.raises(ValueError, match="D is 0: nothing to reduce over"):
        norm.forward(zeros(4, 0))
    assert not recorder.launches and not recorder.compiled


def test_numbers_stand_for_arrays_without_axes() -> None:
    scale = stubs.tensor("a[]", "param", default=1.0)
    package = stubs.rows()
    kernel = stubs.kernel("f", ("...",), ("D",), (stubs.X, scale), (stubs.Y,))
    record = replace(
        package.forward, reads=(stubs.X, scale), writes=(stubs.Y,), strategies=stubs.fused(kernel)
    )
    norm, recorder = made(replace(package, forward=record, backward=None))
    for value in (2, 2.5, np.float64(2), np.float16(2), ml_dtypes.bfloat16(2), np.array(2, f32)):
        norm.forward(X, value)
        assert recorder.last()["values"][1] != 0
    with pytest.raises(ValueError, match=r"^a is beyond the range of f32"):
        norm.forward(X, 10**400)
    with pytest.raises(TypeError, match=r"^a must be a number but is a str_"):
        norm.forward(X, np.str_("1"))
    with pytest.raises(TypeError, match="a is a bool"):
        norm.forward(X, True)
    with pytest.raises(ValueError, match=r"a\[\] needs 0 dimensions"):
        norm.forward(X, zeros(1))


def test_a_norm_can_be_bound_to_one_executor() -> None:
    norm, first = made()
    second = stubs.Recorder()
    norm.on(second).forward(X)
    assert not first.launches and len(second.launches) == 1
    elsewhere = stubs.Recorder(device=replace(stubs.DEVICE, name="a GPU", arch="sm_90"))
    with pytest.raises(ValueError, match="this norm runs on a GPU, but the arrays are on host"):
        norm.on(elsewhere).forward(X)


def test_another_abi_is_refused_with_the_command_to_run() -> None:
    with pytest.raises(ImportError, match=r"ABI 0.*generate it again: normgen compile a\.norm"):
        check_abi(0, "normgen compile a.norm")


def test_reference_is_only_there_where_the_spec_was_loaded() -> None:
    with pytest.raises(AttributeError, match=r"normgen\.load\(\.\.\.\)\.reference"):
        _ = made()[0].reference
    assert Norm(stubs.rows(), reference=Fraction(1)).reference == 1
