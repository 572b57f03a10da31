"""What a caller of a norm meets: arguments, results, scratch memory, refusals. Nothing is computed here."""

from __future__ import annotations

import sys
import threading
from collections import namedtuple
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.package.records import AttrRecord, Package
from normgen.runtime.norm import Norm, check_abi
from tests.runtime import stubs

f32 = np.float32


def zeros(*shape: int, dtype: Any = f32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def made(package: Package | None = None) -> tuple[Norm, stubs.Recorder]:
    recorder = stubs.Recorder()
    return stubs.norm(package or stubs.rows(), recorder), recorder


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


X, W, B = zeros(4, 8), zeros(8), zeros(8)
DY, RSTD = zeros(4, 8), zeros(4)


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


def test_names_of_the_arguments() -> None:
    norm, _ = made()
    assert norm.forward_args == ("x", "w", "b") and norm.backward_args == ("dy", "x", "w", "rstd")
    assert stubs.norm(stubs.groups()).backward_args == ()
    assert repr(norm) == "<rows_norm: x[..., D], w[D]=1, b[D]=0; eps=1e-05 -> y[..., D], rstd[...]>"


Results = namedtuple("Results", ["y", "rstd"])

BAD_ARGUMENTS = [
    ((), {}, r"rows_norm\.forward\(\) needs x"),
    ((None,), {}, "needs x"),
    ((X, W, B, X), {}, r"takes 3 arrays \(x, w, b\) but was given 4"),
    ((X,), {"x": X}, "was given x twice"),
    ((X,), {"epsilon": 1.0}, "unknown argument 'epsilon'; did you mean eps?"),
    ((X,), {"rstd": RSTD}, "unknown argument 'rstd'"),
    ((X,), {"zzz": 1}, "it takes x, w, b, eps, save, out, stream, workspace, sm_count"),
    ((X,), {"eps": "1e-5"}, "eps must be a number but is a str"),
    ((X,), {"eps": True}, "eps must be a number but is a bool"),
    ((X,), {"eps": np.ones(1)}, "eps must be a number but is a ndarray"),
    ((X,), {"eps": np.bytes_(b"1")}, "eps must be a number but is a bytes_"),
    ((X,), {"eps": np.complex64(1)}, "eps must be a number but is a complex64"),
    ((X,), {"eps": np.timedelta64(1)}, "eps must be a number but is a timedelta64"),
    ((np.array([["a"]]),), {}, "x: its elements are strings: a norm takes arrays of numbers"),
    ((X, np.array(["a"] * 8)), {}, "w: its elements are strings"),
    ((X,), {"out": [X]}, r"out is a list: give a dict of arrays by name, such as out=\{'y': \.\.\.\}"),
    ((X,), {"out": X}, "out is a ndarray: give a dict"),
    ((X,), {"out": []}, "out is a list"),
    ((X,), {"out": "y"}, "out is a str"),
    ((X,), {"out": Results(X, None)}, r"out is a Results: give its \._asdict\(\)"),
    ((X,), {"out": {1: X}}, "out takes names as strings, such as 'y', not a int"),
    ((X,), {"workspace": [X]}, "workspace is a list: give a dict of arrays by name, as `workspace` tells"),
    ((X,), {"workspace": X}, "workspace is a ndarray"),
    (("x",), {}, "x: expected an array, got str"),
    (([1.0],), {}, "x: expected an array, got a list"),
    ((X,), {"w": object()}, "w: expected an array, got object"),
    ((X,), {"out": {"y": [1]}}, r"out\['y'\]: expected an array"),
    ((np.zeros((4, 8)),), {}, r"x is float64.*x\.astype\(numpy\.float32\)"),
    ((X,), {"stream": 7}, "stream= is for device arrays"),
]


@pytest.mark.parametrize(("arrays", "named", "message"), BAD_ARGUMENTS)
def test_arguments_that_are_wrong(arrays: Any, named: Any, message: str) -> None:
    norm, recorder = made()
    with pytest.raises(TypeError, match=message):
        norm.forward(*arrays, **named)
    assert not recorder.launches and not recorder.compiled


@pytest.mark.parametrize(
    ("eps", "message"),
    [
        (-1e-9, "eps must be >= 0 but is -1e-09"),
        (float("nan"), "eps must be finite but is nan"),
        (float("inf"), "must be finite"),
        (1e39, "beyond the range of f32"),
        (10**400, "^eps is beyond the range of f32$"),
        (-(10**400), "^eps is beyond the range of f32$"),
    ],
)
def test_attr_values_that_are_wrong(eps: float, message: str) -> None:
    norm, recorder = made()
    with pytest.raises(ValueError, match=message):
        norm.forward(X, eps=eps)
    with pytest.raises(ValueError, match=message):
        norm.backward(DY, X, W, RSTD, eps=eps)
    assert not recorder.launches


@pytest.mark.parametrize(
    "eps", [0, 0.0, 1, np.float32(0.5), np.float64(0.25), np.int64(2), 1e-45, ml_dtypes.bfloat16(2)]
)
def test_attr_values_of_every_kind_of_number(eps: Any) -> None:
    norm, recorder = made()
    norm.forward(X, eps=eps)
    assert recorder.last()["values"][-1] == float(f32(eps))


def test_a_strict_bound_and_an_attr_without_default() -> None:
    norm, recorder = made(stubs.rows(attrs=(AttrRecord("eps", None, low=0.0, strict=True),)))
    with pytest.raises(TypeError, match=r"rows_norm\.forward\(\) needs the attr eps, which has no default"):
        norm.forward(X)
    with pytest.raises(ValueError, match="eps must be > 0 but is 0"):
        norm.forward(X, eps=0)
    norm.forward(X, eps=1)
    assert recorder.last()["values"][-1] == 1.0


def test_folded_attrs_may_be_repeated_but_not_changed() -> None:
    norm, _ = made(stubs.rows(folded=(("scale", 0.5), ("groups", 4), ("training", True))))
    norm.forward(X, scale=0.5)
    norm.backward(DY, X, W, RSTD, scale=0.5)
    with pytest.raises(ValueError, match="scale is beyond the range of f32"):
        norm.forward(X, scale=10**400)
    with pytest.raises(TypeError, match=r"scale was folded to 0\.5 when the spec was loaded"):
        norm.forward(X, scale=0.25)
    with pytest.raises(
        TypeError, match="groups is an int attr: it is fixed when the spec is loaded, here to 4"
    ):
        norm.forward(X, groups=4)
    with pytest.raises(TypeError, match="training is a bool attr"):
        norm.forward(X, training=True)


def test_cotangents_must_be_named_but_may_be_none() -> None:
    norm, recorder = made()
    with pytest.raises(TypeError, match=r"rows_norm\.backward\(\) needs dy \(None stands for zero\)"):
        norm.backward(x=X, w=W, rstd=RSTD)
    with pytest.raises(TypeError, match="needs rstd"):
        norm.backward(DY, X, W)
    gradients = norm.backward(None, X, W, RSTD, b=B)
    assert not recorder.launches
    assert all((array == 0).all() for array in gradients) and gradients.dx.shape == (4, 8)


def test_what_the_backward_does_not_read_is_welcome() -> None:
    norm, _ = made()
    half = zeros(8, dtype=np.float16)
    assert norm.backward(dy=DY, x=X, w=W, b=half, rstd=RSTD, y=X, eps=1e-3).db.dtype == np.float16
    with pytest.raises(ValueError, match=r"D is 8 in .* but 9 in b\[D\]"):
        norm.backward(dy=DY, x=X, w=W, rstd=RSTD, b=zeros(9))


def test_wrt_selects_and_a_param_left_out_has_no_gradient() -> None:
    norm, recorder = made()
    assert [g is None for g in norm.backward(DY, X, W, RSTD, wrt=("w",))] == [True, False, True]
    assert recorder.last()["values"][4] == 0
    assert [g is None for g in norm.backward(DY, X, W, RSTD, wrt="x")] == [False, True, True]
    assert [g is None for g in norm.backward(DY, X, None, RSTD)] == [False, True, False]
    count = len(recorder.launches)
    assert norm.backward(DY, X, W, RSTD, wrt=()) == (None, None, None) and len(recorder.launches) == count
    with pytest.raises(ValueError, match="wrt: rows_norm has no 'dx'; did you mean 'x'"):
        norm.backward(DY, X, W, RSTD, wrt=["dx"])
    for wrong in (X, [X], (X,), 3):
        with pytest.raises(TypeError, match="wrt takes names"):
            norm.backward(DY, X, W, RSTD, wrt=wrong)
    with pytest.raises(TypeError, match="out is a list"):
        norm.backward(DY, X, W, RSTD, out=[X])


def test_a_norm_without_a_backward_says_so() -> None:
    with pytest.raises(ValueError, match="group_norm has no backward"):
        made(stubs.groups())[0].backward(X)


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


def test_states_are_updated_where_they_are_and_need_not_be_given_if_nothing_reads_them() -> None:
    norm, recorder = made(stubs.running())
    r, s = zeros(8), zeros(8)
    assert norm.forward(X, r, s)._fields == ("y",)
    access = {b.pointer: b.access for b in recorder.launches[-1][2]}
    assert access[address(r)] == "update" and access[address(s)] == "read"
    norm.forward(X, s=s)
    with pytest.raises(TypeError, match="needs s"):
        norm.forward(X, r)
    with pytest.raises(ValueError, match="r overlaps s"):
        norm.forward(X, r, r)


def test_views_that_no_kernel_reads_are_copied_first() -> None:
    norm, recorder = made()
    norm.forward(X)
    plain = recorder.last()["values"][0]
    x = np.zeros((4, 16), f32)[:, ::2]
    norm.forward(x)
    copy, kernel = recorder.launches[-2:]
    assert (copy[0], kernel[0]) == ("normgen_copy", "f")
    source, target, count, *_ = copy[1]
    assert (source, count) == (address(x), 32) and plain == address(X)
    assert kernel[1][0] == target != address(x)
    assert {b.access for b in copy[2]} == {"read", "write"}
    assert copy[2][0].bytes == 4 * (3 * 16 + 7 * 2 + 1)


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


def test_equal_calls_are_checked_planned_and_compiled_once() -> None:
    norm, recorder = made()
    for _ in range(3):
        norm.forward(zeros(4, 8), zeros(8))
    assert len(recorder.launches) == 3 and recorder.compiled == ["f"]
    norm.forward(zeros(5, 8), zeros(8))
    assert recorder.compiled == ["f", "f"]


def test_workspace_is_kept_for_each_thread_and_grows() -> None:
    norm, recorder = made()

    def scratch(x: Any, dy: Any) -> tuple[int, ...]:
        norm.backward(dy, x, W if x.shape[1] == 8 else zeros(x.shape[1]), RSTD)
        return tuple(recorder.last()["values"][-3:-1])

    first = scratch(X, DY)
    assert first == scratch(X, DY) and all(p % 256 == 0 for p in first) and len(set(first)) == 2
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(scratch(X, DY)))
    thread.start()
    thread.join()
    assert not set(others[0]) & set(first)
    larger = scratch(zeros(4, 4096), zeros(4, 4096))
    assert larger != first and scratch(X, DY)[0] == larger[0]


def test_workspace_may_come_from_the_caller() -> None:
    norm, recorder = made()
    told = norm.workspace("backward", {"...": 4, "D": 8}, sm_count=4)
    assert told == {"g.dw_sum": ((4, 8), "f32"), "g.db_sum": ((4, 8), "f32")}
    mine = {name: zeros(*shape) for name, (shape, _) in told.items()}
    norm.backward(DY, X, W, RSTD, workspace=mine)
    assert tuple(recorder.last()["values"][-3:-1]) == tuple(address(a) for a in mine.values())
    with pytest.raises(ValueError, match=r"workspace needs 'g\.db_sum': f32 of shape \(4, 8\)"):
        norm.backward(DY, X, W, RSTD, workspace={"g.dw_sum": mine["g.dw_sum"]})
    with pytest.raises(
        ValueError, match=r"workspace\['g\.dw_sum'\] must be contiguous f32 of shape \(4, 8\)"
    ):
        norm.backward(DY, X, W, RSTD, workspace=mine | {"g.dw_sum": zeros(3, 8)})
    with pytest.raises(ValueError, match="workspace: there is no 'more'; this call uses g"):
        norm.backward(DY, X, W, RSTD, workspace=mine | {"more": zeros(1)})
    with pytest.raises(ValueError, match=r"workspace\['g\.db_sum'\] overlaps workspace\['g\.dw_sum'\]"):
        norm.backward(DY, X, W, RSTD, workspace=dict.fromkeys(mine, mine["g.dw_sum"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sideways", {}), "has no direction 'sideways'"),
        (("backward", {"D": 8}), r"sizes: the length of \.\.\. is missing"),
        (("backward", {"D": 8, "...": 4, "E": 2}), "there is no axis 'E'; the axes are"),
        (("backward", {"D": 8, "...": 4}, "float32"), "'float32' is none of f32, f16, bf16"),
        (("backward", {"D": 8, "...": 4}, {"q": "f32"}), "there is no tensor 'q'"),
    ],
)
def test_questions_about_workspace_that_have_no_answer(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()[0].workspace(*arguments)


def test_workspace_needs_no_device() -> None:
    norm = Norm(stubs.rows(), executors=pytest.fail, planner=stubs.plan)
    assert norm.workspace("backward", {"...": (2, 3), "D": 8}, {"x": "bf16"})["g.dw_sum"] == ((132, 8), "f32")
    assert norm.workspace("forward", {"...": 0, "D": 8}) == {}


def test_warmup_prepares_the_very_call_that_comes() -> None:
    norm, recorder = made()
    norm.warmup({"...": 4, "D": 8}, "f32", "host")
    assert set(recorder.compiled) == {"f", "g"} and not recorder.launches
    compiled = len(recorder.compiled)
    x, dy, w, b, rstd = (aligned(*shape) for shape in ((4, 8), (4, 8), (8,), (8,), (4,)))
    norm.forward(x, w, b)
    norm.backward(dy, x, w, rstd)
    assert len(recorder.compiled) == compiled and len(recorder.launches) == 2
    with pytest.raises(ValueError, match="is no device: write 'host'"):
        norm.warmup({"...": 4, "D": 8}, "f32", "gpu")


def aligned(*shape: int) -> Any:
    whole = zeros(int(np.prod(shape)) + 4)
    start = -address(whole) % 16 // 4
    return whole[start : start + int(np.prod(shape))].reshape(shape)


def test_a_norm_can_be_bound_to_one_executor() -> None:
    norm, first = made()
    second = stubs.Recorder()
    norm.on(second).forward(X)
    assert not first.launches and len(second.launches) == 1
    elsewhere = stubs.Recorder(device=replace(stubs.DEVICE, name="a GPU", arch="sm_90"))
    with pytest.raises(ValueError, match="this norm runs on a GPU, but the arrays are on host"):
        norm.on(elsewhere).forward(X)


def test_calls_from_many_threads() -> None:
    norm, recorder = made()
    results: list[Any] = []

    def work(rows: int) -> None:
        for _ in range(50):
            result = norm.forward(zeros(rows, 8), W)
            results.append(result.y.shape == (rows, 8))

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(1 + i % 3,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    assert all(results) and len(results) == len(recorder.launches) == 400


def test_another_abi_is_refused_with_the_command_to_run() -> None:
    with pytest.raises(ImportError, match=r"ABI 0.*generate it again: normgen compile a\.norm"):
        check_abi(0, "normgen compile a.norm")
    with pytest.raises(ImportError, match="ABI 99"):
        stubs.norm(stubs.rows(abi=99))


def test_reference_is_only_there_where_the_spec_was_loaded() -> None:
    with pytest.raises(AttributeError, match=r"normgen\.load\(\.\.\.\)\.reference"):
        _ = made()[0].reference
    assert Norm(stubs.rows(), reference=Fraction(1)).reference == 1
