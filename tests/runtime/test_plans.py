"""Calls like one before, and plans: the same launches and the same refusals as the first call, by a short
way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.arrays.device_array import DeviceArray
from normgen.runtime.calls import dispatch
from tests.counting import entered
from tests.fakes.arrays import CupyArray, GpuArray, Interface, TorchTensor
from tests.fakes.driver import FakeDriver
from tests.memory import at_offset
from tests.runtime import stubs
from tests.runtime.calling import DY, RSTD, W, X, address, f32, made, tensor, zeros
from tests.threads import at_once

pytestmark = pytest.mark.usefixtures("streams")
KINDS: dict[str, Callable[..., Any]] = {
    "torch": tensor,
    "cupy": lambda *shape: CupyArray(shape, f32),
    "pycuda": lambda *shape: GpuArray(shape, f32),
    "ours": lambda *shape: DeviceArray(shape, "f32", ("cuda", 0)),
}


def launched(driver: FakeDriver, run: Callable[..., Any], *arrays: Any, **named: Any) -> list[Any]:
    """What a call launches."""
    before = len(driver.launches)
    run(*arrays, **named)
    return driver.launches[before:]


@pytest.mark.parametrize(("kind", "spec"), [*zip(KINDS, ["layernorm", "batchnorm"] * 2, strict=True)])
def test_a_second_call_and_a_plan_launch_what_the_first_call_did(
    driver: FakeDriver, kind: str, spec: str
) -> None:
    driver.make_current(0)
    norm, make = normgen.load(spec), KINDS[kind]
    shape, columns, saves = ((6, 64), 64, 6) if spec == "layernorm" else ((4, 8, 6, 6), 8, 8)
    x, dy, y, dx, w, dw = *(make(*shape) for _ in range(4)), make(columns), make(columns)
    saved = {name: make(saves) for name in ("mu", "rstd")}
    forward = {"x": x, "w": w, "out": {"y": y, **saved}, "eps": 1e-5}
    backward = {"dy": dy, "x": x, "w": w, **saved, "wrt": ("x", "w"), "out": {"dx": dx, "dw": dw}}
    for direction, named in (("forward", forward), ("backward", backward)):
        method, plan = getattr(norm, direction), norm.plan(direction, **named)
        given = [named[name] for name in plan.args]
        first = launched(driver, method, **named)
        second, again = launched(driver, method, **named), launched(driver, plan, *given)
        for others in (second, again):
            assert [(each.entry, each.grid) for each in others] == [(each.entry, each.grid) for each in first]
        if len(first) == 1:  # otherwise plans, and calls with PyTorch, have scratch memory of their own
            assert again == second == first
        made, fresh = plan(*given), method(**named)
        assert type(made) is type(fresh)
        for name, array in named["out"].items():
            assert getattr(made, name) is getattr(fresh, name) is array


def test_results_are_new_arrays_where_out_does_not_hold_them(driver: FakeDriver) -> None:
    norm, x, w, y = normgen.load("rmsnorm"), tensor(6, 64), tensor(64), tensor(6, 64)
    plan = norm.plan("forward", x, w, out={"y": y})
    first, second = plan(x, w), plan(x=x, w=w)
    assert first.y is second.y is y and first.rstd is not second.rstd
    assert first.rstd.shape == (6,) and type(first.rstd) is TorchTensor
    assert norm.plan("forward", x, w, save=False)(x, w).rstd is None
    warm = [norm.forward(x, w).y for _ in range(3)]
    assert len({each.data_ptr() for each in warm}) == 3


def test_a_plan_with_all_results_allocates_nothing_and_waits_for_nothing(
    driver: FakeDriver, streams: dict[int, int]
) -> None:
    """What a CUDA graph may capture: launches alone, and on the stream that is current by then."""
    norm = normgen.load("rmsnorm")
    given = tensor(600, 64), tensor(600, 64), tensor(64), tensor(600)
    plan = norm.plan("backward", *given, out={"dx": tensor(600, 64), "dw": tensor(64)})
    assert not driver.launches
    used = driver.next_address
    streams[0] = 0x99
    assert {each.stream for each in launched(driver, plan, *given)} == {0x99}
    assert driver.next_address == used and not (driver.waits or driver.fills)


def test_streams_are_asked_for_at_each_call_unless_given(driver: FakeDriver, streams: dict[int, int]) -> None:
    norm, x, w = normgen.load("rmsnorm"), tensor(6, 64), tensor(64)
    free, bound = norm.plan("forward", x, w), norm.plan("forward", x, w, stream=0x40)
    for streams[0] in (0x10, 0x20):
        for run in (free, bound, norm.forward, lambda *arrays: norm.forward(*arrays, stream=0x50)):
            run(x, w)
        assert [each.stream for each in driver.launches[-4:]] == [streams[0], 0x40, streams[0], 0x50]


def test_gpuarrays_run_in_the_context_that_is_current(driver: FakeDriver) -> None:
    norm = normgen.load("rmsnorm")
    for _ in range(2):
        context = driver.make_current(0)
        x, w = GpuArray((6, 64), f32), GpuArray((64,), f32)
        for _ in range(2):
            norm.forward(x, w)
            assert driver.launches[-1].context is context
    plan = norm.plan("forward", x, w)
    driver.make_current(0)
    with pytest.raises(ValueError, match=r"x was planned with shape .* but has shape"):
        plan(x, w)


def test_calls_that_differ_are_not_taken_for_each_other() -> None:
    """In pairs that a careless key would take for the same."""
    norm, recorder = made()
    b = np.ones(8, f32)

    def pointers(*arrays: Any, **named: Any) -> tuple[Any, ...]:
        norm.forward(*arrays, **named)
        return recorder.launches[-1][1][:3]

    for _ in range(3):
        x, w, other = map(address, (X, W, b))
        assert pointers(X, W) == (x, w, 0)
        assert pointers(X, None, W) == pointers(X, b=W) == (x, 0, w)
        assert pointers(X, W, b) == pointers(b=b, w=W, x=X) == (x, w, other)
        assert pointers(X, w=b, b=W) == (x, other, w)
        assert norm.forward(X, save=False).rstd is None and norm.forward(X, save=True).rstd is not None
        assert [g is None for g in norm.backward(DY, X, W, RSTD, wrt="x")] == [False, True, True]
        assert [g is None for g in norm.backward(DY, X, W, RSTD, wrt="w")] == [True, False, True]
        for named, eps in (({"eps": 0.5}, 0.5), ({"eps": 2}, 2.0), ({}, f32(1e-5))):
            norm.forward(X, W, **named)
            assert recorder.launches[-1][1][-1] == eps
        norm.forward(zeros(4, 16)[:, ::2], W)
        assert [each[0] for each in recorder.launches[-2:]] == ["normgen_copy", "rows_norm_forward"]


def test_states_that_became_read_only_and_memory_that_overlaps_are_refused_later() -> None:
    norm, _ = made(stubs.package(stubs.RUNNING))
    r, s, y = zeros(8), zeros(8), zeros(4, 8)
    plan = norm.plan("forward", X, r, s, out={"y": y})
    for run in (partial(norm.forward, out={"y": y}), plan):
        run(X, r, s)
        run(y, r, s)  # exactly in place
        frozen = r.copy()
        frozen.flags.writeable = False
        for given, message in (
            ((X, r, r), "r overlaps s"),
            ((X, frozen, s), "r is read-only, but the call writes it"),
            ((X, y[1], s), r"out\['y'\] overlaps r"),
        ):
            with pytest.raises(ValueError, match=message):
                run(*given)


def test_shortcuts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SHORTCUTS_KEPT", 4)
    norm, _ = made()
    for rows in (*range(1, 9), *range(1, 9)):
        assert norm.forward(zeros(rows, 8)).y.shape == (rows, 8)
    assert len(norm._forward._shortcuts) == 4


def test_arrays_that_take_a_full_look_have_no_shortcut_and_no_plan(driver: FakeDriver) -> None:
    norm = normgen.load("rmsnorm")
    x = Interface(driver, (6, 64), "<f4", stream=0x60, version=3)
    made = norm.forward(x)
    assert type(made.y) is DeviceArray and made.y.stream == driver.launches[-1].stream == 0x60
    for _ in range(2):
        norm.forward(x, stream=0x70)
    assert driver.waits == [(0x70, 0x60)] * 2 and not norm._forward._shortcuts
    with pytest.raises(TypeError, match=r"not a Interface: call rmsnorm\.forward"):
        norm.plan("forward", x)


# Plans


FAULTS: list[tuple[tuple[Any, ...], dict[str, Any], type, str]] = [
    ((X,), {}, TypeError, r"takes 2 arrays \(x, w\) but got 1"),
    ((X, W), {"w": W}, TypeError, "got w twice"),
    ((X, W), {"eps": 1.0}, TypeError, "got 'eps'; it takes x, w"),
    ((X, None), {}, TypeError, "w: expected an array, got NoneType"),
    ((X, 1.0), {}, ValueError, r"w was planned with shape \(8,\)"),
    ((X, W.astype(np.float16)), {}, TypeError, "w was planned as f32 but is f16"),
    ((X[:2], W), {}, ValueError, r"x was planned with shape \(4, 8\) and strides \(8, 1\) on the host but"),
    ((zeros(8, 4).T, W), {}, ValueError, r"strides \(1, 4\)"),
    ((X, at_offset(4, 8, f32)), {}, ValueError, "w was planned with an alignment of 8 bytes but is at 0x"),
]


def test_what_a_plan_was_not_made_for() -> None:
    norm, recorder = made()
    plan = norm.plan("forward", X, at_offset(8, 8, f32))
    assert repr(plan) == "<plan of rows_norm.forward(x, w) on the host>"
    for arrays, named, kind, message in FAULTS:
        with pytest.raises(kind, match=message):
            plan(*arrays, **named)
    assert not recorder.launches
    plan(X, at_offset(0, 8, f32))
    assert len(recorder.launches) == 1
    with pytest.raises(ValueError, match="group_norm has no backward"):
        made(stubs.without_backward())[0].plan("backward", X)
    with pytest.raises(ValueError, match="rows_norm has no direction 'sideways'"):
        norm.plan("sideways", X)
    with pytest.raises(TypeError, match="unknown argument 'wrt'"):
        norm.plan("forward", X, wrt="x")


def test_numbers_are_those_of_the_plan(driver: FakeDriver) -> None:
    spec = "norm scaled\ninput x[..., D]\nparam a[] = 1\noutput y[..., D] = x / sqrt(mean[D](x^2)) * a\n"
    norm, x = normgen.load(spec), tensor(6, 64)
    plan = norm.plan("forward", x, 1.5)
    assert plan.args == ("x",)
    fill, _ = launched(driver, plan, x)
    assert fill.entry == "normgen_fill" and int(f32(1.5).view(np.uint32)).to_bytes(4, "little") in fill.packed


@pytest.mark.kernels
def test_a_plan_repeats_its_last_call_only_on_the_same_memory() -> None:
    norm, memory = normgen.load("rmsnorm"), np.random.default_rng(1).standard_normal((9, 64)).astype(f32)
    first, second, astride = memory[:2], memory[2:4], memory[5:7]
    out = {"y": memory[6:8]}
    plan = norm.plan("forward", first, out=out)
    for x in (first, first, second, first, second):
        for got, want in zip(plan(x), norm.forward(x=x), strict=True):
            assert got.tobytes() == want.tobytes()
            got.fill(0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"out\['y'\] overlaps x"):
            plan(astride)
    assert plan(second).y.tobytes() == norm.forward(x=second).y.tobytes()


def test_scratch_memory_of_a_plan() -> None:
    norm, recorder = made()
    told = norm.workspace("backward", {"...": 4, "D": 8}, sm_count=4)
    mine = {name: zeros(*shape) for name, (shape, _) in told.items()}
    plans = [norm.plan("backward", DY, X, W, RSTD, workspace=each) for each in (None, None, mine)]
    used = []
    for plan in plans * 2:
        plan(DY, X, W, RSTD)
        used.append(recorder.launches[-1][1][-3:-1])
    assert used[:3] == used[3:] and used[2] == tuple(address(array) for array in mine.values())
    assert len({place for each in used for place in each}) == 6
    with pytest.raises(ValueError, match=r"workspace\['dw_sum'\] overlaps x"):
        plans[2](DY, mine["dw_sum"], W, RSTD)


def test_launches_of_calls_that_share_scratch_memory_do_not_mingle() -> None:
    entries: list[tuple[int, str]] = []

    class Slow(stubs.Recorder):
        def launch(self, function: str, *_: Any) -> None:
            entries.append((threading.get_ident(), function))
            threading.Event().wait(0.001)

    norm, strided = stubs.norm(stubs.package(), Slow()), zeros(4, 16)[:, ::2]
    plan = norm.plan("backward", DY, strided, W, RSTD)
    at_once(*[partial(plan, DY, strided, W, RSTD)] * 6)
    assert len(entries) == 12
    assert all(entries[i] == (entries[i + 1][0], "normgen_copy") for i in range(0, 12, 2))


def test_calls_of_the_same_kind_take_few_steps(driver: FakeDriver) -> None:
    driver.make_current(0)
    norm = normgen.load("rmsnorm")
    for make in (KINDS["torch"], KINDS["pycuda"]):
        x, w, y, rstd = make(6, 64), make(64), make(6, 64), make(6)
        out = {"y": y, "rstd": rstd}
        plan = norm.plan("forward", x, w, out=out)
        assert warm(norm.forward, x, w, eps=1e-6, out=out) <= 20
        assert warm(plan, x, w) <= 12


def warm(run: Callable[..., Any], *arrays: Any, **named: Any) -> int:
    """How many functions of the package a call enters, once it is warm."""
    call = partial(run, *arrays, **named)
    call()
    call()
    return entered(call)
