"""Calls that differ in the lengths of open axes: formulas prepare them as planning would."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import normgen
from normgen import bundled
from normgen.launching.launch import HOST, DeviceKey, Launch
from normgen.launching.machine import HOST_MACHINE, Machine, usual_machine
from normgen.runtime.calls.assemble import Assembler
from normgen.runtime.calls.cases import MOST_PINNED, PreparedCases
from normgen.runtime.calls.look import ViewedCall
from normgen.runtime.calls.prepared import PreparedCall
from normgen.runtime.calls.sizes import imagined
from normgen.runtime.norm import Norm
from tests.kinds import ATTRS

CUDA: DeviceKey = ("cuda", 0)
# What a call enters of ours and of the standard library, for a further number of rows.
MOST_CALLS = 40
DRAWN = tuple(each for each in Phase if each is not Phase.shrink)  # a norm is planned for each example


class Compiling:
    """An executor that counts what it compiles, and launches nothing."""

    def __init__(self, device: Machine) -> None:
        self.device = device
        self.compiled = 0
        self.placed: list[Launch] = []

    def function(self, source: str, entry: str, shared: int) -> Any:
        self.compiled += 1
        return source, entry

    def prepare(self, function: Any, launch: Launch) -> Any:
        self.placed.append(launch)
        return None


@cache
def norm_of(name: str) -> Norm:
    """A bundled norm."""
    return normgen.load(name, **ATTRS.get(name, {}))


class Bench:
    """A direction of a norm, prepared by cases and plainly."""

    def __init__(self, name: str, direction: str, device: DeviceKey = CUDA) -> None:
        assembler = norm_of(name).dispatcher(direction).assembler
        self.executor = Compiling(HOST_MACHINE if device == HOST else usual_machine("sm_90"))
        self.direction, self.device = assembler.direction, device
        self.plain = Assembler(assembler.direction, lambda _: self.executor, assembler.planner)
        self.cases = PreparedCases(self.plain)

    def call(self, sizes: dict[str, Any], dtype: str = "bf16") -> ViewedCall:
        return imagined(self.direction, sizes, dtype, self.device)


def numbers(prepared: PreparedCall) -> dict[str, Any]:
    """All of a prepared call but what has no equality."""
    found = {each.name: getattr(prepared, each.name) for each in fields(prepared)}
    found["fields"] = found["fields"]([*range(len(prepared.given) + len(prepared.made)), None])
    found["steps"] = [(each.launch, each.function, each.places, each.buffers) for each in prepared.steps]
    return found


@settings(max_examples=15, deadline=None, phases=DRAWN)
@given(drawn=st.data())
def test_cases_prepare_calls_as_planning_does(drawn: st.DataObject) -> None:
    """Grids, arguments, shapes, scratch memory and guards, on a GPU and on the host."""
    check(drawn, drawn.draw(st.sampled_from(sorted(bundled.names()))))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(bundled.names()))
@settings(max_examples=10, deadline=None, phases=DRAWN)
@given(drawn=st.data())
def test_cases_of_every_norm_prepare_calls_as_planning_does(name: str, drawn: st.DataObject) -> None:
    check(drawn, name)


def check(drawn: st.DataObject, name: str) -> None:
    """Calls of a norm with drawn lengths of its open axes."""
    directions = [each for each in ("forward", "backward") if getattr(norm_of(name).package, each)]
    device = drawn.draw(st.sampled_from([CUDA, CUDA, HOST]))
    bench = Bench(name, drawn.draw(st.sampled_from(directions)), device)
    dtype = drawn.draw(st.sampled_from(["bf16", "f32"]))
    short, long = st.integers(2, 9), st.integers(1, 300)
    fixed = {axis.name: axis.extent for axis in bench.direction.axes if axis.extent is not None}
    every = {axis for each in bench.direction.operands.values() for axis in each.axes}
    axes = every - fixed.keys() - {"..."}
    open_ones = set(bench.direction.record.open)
    rows = {axis: 8 * drawn.draw(short) for axis in sorted(axes - open_ones)}
    for _ in range(6):
        sizes: dict[str, Any] = rows | {axis: drawn.draw(long) for axis in sorted(axes & open_ones)}
        if "..." in every:
            sizes["..."] = drawn.draw(
                st.sampled_from([(drawn.draw(short), drawn.draw(long)), (1, 1), (1, 40), (7, 1)])
            )
        call = bench.call(sizes, dtype)
        assert numbers(bench.cases.prepare(call)) == numbers(bench.plain.prepare(call))


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "add_rmsnorm", "rmsnorm_quantized_row"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_further_number_of_rows_plans_and_compiles_nothing(name: str, direction: str, batch: int) -> None:
    """Within a case none is compiled for, and each enters few functions."""
    bench = Bench(name, direction)
    for rows in (6000, 7000):
        bench.cases.prepare(bench.call({"D": 4096, "...": (batch, rows)}))
    bench.executor.compiled = 0
    for rows in range(6001, 6200, 20):
        call = bench.call({"D": 4096, "...": (batch, rows)})
        assert entered(bench, call) <= MOST_CALLS
    assert bench.executor.compiled == 0
    assert bench.executor.placed[-1].grid == bench.plain.prepare(call).steps[-1].launch.grid


def entered(bench: Bench, call: ViewedCall) -> int:
    """How many functions preparing a call enters."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        bench.cases.prepare(call)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.kernels
def test_arrays_that_do_not_agree_are_refused_as_ever() -> None:
    """A case is for calls whose arrays agree in open lengths, and have as many dimensions."""
    norm = normgen.load("rmsnorm")
    x, w = np.ones((4, 8), np.float32), np.ones(8, np.float32)
    for rows in (2, 3, 4, 5):
        norm.backward(
            np.ones((rows, 8), np.float32), np.ones((rows, 8), np.float32), w, np.ones(rows, np.float32)
        )
    with pytest.raises(ValueError, match=r"\.\.\. is \(4,\) in dy\[\.\.\., D\] but \(5,\) in x\[\.\.\., D\]"):
        norm.backward(x, np.ones((5, 8), np.float32), w, np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"but \(4, 1\) in rstd"):
        norm.backward(x, x, w, np.ones((4, 1), np.float32))
    with pytest.raises(ValueError, match=r"D is 8 in .* but 9 in w"):
        norm.backward(x, x, np.ones(9, np.float32), np.ones(4, np.float32))


@pytest.mark.kernels
def test_a_growing_batch_on_the_host_is_right() -> None:
    norm = normgen.load("layernorm")
    rng = np.random.default_rng(3)
    w, b = rng.standard_normal(24, np.float32), rng.standard_normal(24, np.float32)
    for rows in (1, 2, 3, 5, 8, 40, 41, 300):
        x = rng.standard_normal((rows, 24), np.float32)
        centred = x - x.mean(1, keepdims=True)
        expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w + b
        np.testing.assert_allclose(norm.forward(x, w, b, eps=1e-5).y, expected, rtol=2e-5, atol=2e-5)


def test_a_length_that_texts_depend_on_is_closed() -> None:
    """Where cases are for a single length each, that is part of what names a call."""
    bench = Bench("local_response_norm", "forward")
    calls = [bench.call({"B": batch, "C": 16, "...": 49}) for batch in range(2, 12)]
    made = [bench.cases.prepare(call) for call in calls]
    assert [numbers(each) for each in made] == [numbers(bench.plain.prepare(call)) for call in calls]
    assert all(pinned.count("B") <= MOST_PINNED for pinned in bench.cases._pinned.values())


def test_forgotten_cases_are_compiled_anew() -> None:
    bench = Bench("rmsnorm", "forward")
    calls = [bench.call({"D": 64, "...": (rows,)}) for rows in (100, 101, 102)]
    for call in calls:
        bench.cases.prepare(call)
    compiled = bench.executor.compiled
    bench.cases.prepare(calls[2])
    assert bench.executor.compiled == compiled
    bench.cases.forget()
    bench.cases.prepare(calls[2])
    assert bench.executor.compiled > compiled


def test_strides_that_are_not_packed_are_part_of_what_names_a_call() -> None:
    bench = Bench("rmsnorm", "forward")

    def sliced(rows: int, step: int) -> ViewedCall:
        call = bench.call({"D": 64, "...": (rows,)})
        view = call.views["x"]
        return call._replace(views={**call.views, "x": view._replace(strides=(step, 1))})

    for rows, step in ((50, 128), (51, 128), (52, 256), (53, 256), (54, 128), (55, 64), (56, 1024)):
        call = sliced(rows, step)
        assert numbers(bench.cases.prepare(call)) == numbers(bench.plain.prepare(call))


def test_addresses_count_by_how_they_are_aligned() -> None:
    bench = Bench("rmsnorm", "forward")
    for rows, address in ((50, 256), (51, 512), (52, 258), (53, 260), (54, 274)):
        call = bench.call({"D": 64, "...": (rows,)})
        moved = {name: view._replace(pointer=address) for name, view in call.views.items()}
        call = call._replace(views=moved)
        assert numbers(bench.cases.prepare(call)) == numbers(bench.plain.prepare(call))
