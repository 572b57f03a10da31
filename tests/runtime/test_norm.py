"""What a caller of a norm meets: results, memory, scratch memory. Nothing is computed here."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.runtime.norm import Norm, check_abi
from tests.memory import at_offset
from tests.runtime import stubs
from tests.runtime.calling import DY, RSTD, B, W, X, address, f32, made, zeros
from tests.threads import at_once


def test_results_are_named_tuples_in_spec_order() -> None:
    norm, recorder = made()
    result = norm.forward(X, b=B, eps=0.5)
    assert type(result).__name__ == "RowsNormForward" and result._fields == ("y", "rstd")
    assert (result.y.shape, result.rstd.shape, result.rstd.dtype) == ((4, 8), (4,), f32)
    *pointers, eps = recorder.last()  # in the kernel's order, and null for what is left out
    assert pointers == [address(X), 0, address(B), address(result.rstd), address(result.y)] and eps == 0.5
    assert norm.forward(X, save=False).rstd is None and recorder.last()[3] == 0
    gradients = norm.backward(DY, X, W, RSTD)
    assert gradients._fields == ("dx", "dw", "db") and gradients.db.shape == (8,)


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
    assert result.y is y and recorder.last()[4] == address(y)
    assert norm.forward(X, save=False, out={"rstd": RSTD}).rstd is RSTD
    with pytest.raises(ValueError, match="out: rows_norm has no 'Y'"):
        norm.forward(X, out={"Y": y})
    with pytest.raises(ValueError, match=r"out\['dw'\] is not computed: add w to wrt"):
        norm.backward(DY, X, W, RSTD, wrt="x", out={"dw": zeros(8)})


def test_outputs_must_have_memory_of_their_own() -> None:
    norm, recorder = made()
    memory = np.zeros(72, f32)
    x = memory[:32].reshape(4, 8)
    for given, y, rstd, message in (
        (x, memory[16:48], RSTD, r"out\['y'\] overlaps x"),
        (x, memory[40:72], memory[68:72], r"out\['rstd'\] overlaps out\['y'\]"),
        (x[::-1, ::-1], memory[31:63], RSTD, r"out\['y'\] overlaps x"),
    ):
        with pytest.raises(ValueError, match=message):
            norm.forward(given, out={"y": y.reshape(4, 8), "rstd": rstd})
    assert not recorder.launches
    norm.forward(x, out={"y": memory[32:64].reshape(4, 8), "rstd": memory[64:68]})
    norm.forward(memory[32:64].reshape(4, 8), out={"y": x})
    norm.forward(x, out={"y": x})
    assert len(recorder.launches) == 3


def test_accumulate_adds_to_what_out_holds() -> None:
    norm, recorder = made()
    dw, db = zeros(8), zeros(8)
    with pytest.raises(ValueError, match=r"accumulate=True needs out\['db'\]: pass it"):
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
    with pytest.raises(ValueError, match="D is 0, but the norm reduces over"):
        norm.forward(zeros(4, 0))
    assert not recorder.launches and not recorder.compiled


def test_numbers_stand_for_arrays_without_axes() -> None:
    text = stubs.ROWS.replace("b[D] = 0", "a[] = 1").replace("w + b", "a * w").replace("param w[D] = 1\n", "")
    norm, recorder = made(stubs.package(text.replace(" * w", "")))
    for value in (2, 2.5, np.float64(2), np.float16(2), ml_dtypes.bfloat16(2), np.array(2, f32)):
        norm.forward(X, value)
        assert recorder.last()[1] != 0
    for wrong, kind, message in (
        (10**400, ValueError, r"^a is beyond the range of float32"),
        (np.str_("1"), TypeError, r"^a must be a number but is a str_"),
        (True, TypeError, "a is a bool"),
        (zeros(1), ValueError, r"a\[\] needs 0 dimensions"),
    ):
        with pytest.raises(kind, match=message):
            norm.forward(X, wrong)


def test_a_norm_can_be_bound_to_one_executor() -> None:
    norm, first = made()
    second = stubs.Recorder()
    norm.on(second).forward(X)
    assert not first.launches and len(second.launches) == 1
    elsewhere = stubs.Recorder(device=replace(stubs.DEVICE, name="a GPU", arch="sm_90"))
    with pytest.raises(ValueError, match="this norm runs on a GPU, but the arrays are on host"):
        norm.on(elsewhere).forward(X)


def test_what_is_only_there_elsewhere_is_said() -> None:
    with pytest.raises(ImportError, match=r"ABI 0.*generate it again: normgen compile a\.norm"):
        check_abi(0, "normgen compile a.norm")
    with pytest.raises(AttributeError, match=r"normgen\.load\(\.\.\.\)\.reference"):
        _ = made()[0].reference


# Scratch memory


def test_scratch_memory_of_calls_at_once_is_apart() -> None:
    here = threading.Barrier(2)
    places: list[tuple[int, ...]] = []

    class Meeting(stubs.Recorder):
        def launch(self, *given: Any) -> None:
            super().launch(*given)
            places.append(tuple(self.launches[-1][1][-3:-1]))
            here.wait(60)

    norm = stubs.norm(stubs.package(), Meeting())
    at_once(*[lambda: norm.backward(DY, X, W, RSTD)] * 2)
    assert len({place for each in places for place in each}) == 4
    assert all(place % 256 == 0 for each in places for place in each)


def test_workspace_may_come_from_the_caller() -> None:
    norm, recorder = made()
    told = norm.workspace("backward", {"...": 4, "D": 8}, sm_count=4)
    assert told == {"dw_sum": ((4, 8), "f32"), "db_sum": ((4, 8), "f32")}
    mine = {name: zeros(*shape) for name, (shape, _) in told.items()}
    norm.backward(DY, X, W, RSTD, workspace=mine)
    assert tuple(recorder.last()[-3:-1]) == tuple(address(a) for a in mine.values())
    contiguous = r"workspace\['dw_sum'\] must be a contiguous f32 array of shape \(4, 8\)"
    for wrong, message in (
        (
            {"dw_sum": mine["dw_sum"]},
            r"workspace is missing 'db_sum': .* f32 array of shape \(4, 8\)",
        ),
        (mine | {"dw_sum": zeros(3, 8)}, contiguous),
        (mine | {"dw_sum": zeros(5, 8)}, contiguous),
        (mine | {"dw_sum": zeros(4, 8, dtype=np.float16)}, contiguous),
        (mine | {"dw_sum": at_offset(4, (4, 8), f32)}, "aligned to 16 bytes"),
        (mine | {"more": zeros(1)}, "workspace: there is no 'more'; this call uses dw_sum"),
        (
            dict.fromkeys(mine, mine["dw_sum"]),
            r"workspace\['db_sum'\] overlaps workspace\['dw_sum'\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            norm.backward(DY, X, W, RSTD, workspace=wrong)


def test_questions_about_workspace_need_no_device_but_may_have_no_answer() -> None:
    norm = Norm(stubs.package(), executors=pytest.fail, planner=stubs.plan)
    assert norm.workspace("backward", {"...": (2, 3), "D": 8}, {"x": "bf16"})["dw_sum"] == ((132, 8), "f32")
    assert norm.workspace("forward", {"...": 0, "D": 8}) == {}
    sizes = {"D": 8, "...": 4}
    for arguments, message in (
        (("sideways", {}), "has no direction 'sideways'"),
        (("backward", {"D": 8}), r"sizes: add a length for \.\.\."),
        (("backward", {**sizes, "E": 2}), "there is no axis 'E'; the axes are"),
        (("backward", sizes, "float32"), "'float32' is not supported; use one of f32, f16, bf16"),
        (("backward", sizes, {"q": "f32"}), "there is no tensor 'q'"),
    ):
        with pytest.raises(ValueError, match=message):
            norm.workspace(*arguments)
