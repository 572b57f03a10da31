"""Whole calls on device arrays, over the imaginary driver: what is launched, where, on which stream,
with what."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.runtime.norm import Norm
from tests.fakes.arrays import TorchTensor
from tests.fakes.driver import FakeDriver, Launched
from tests.runtime import calling

SPEC = """norm scaled
attr   eps = 1e-6
input  x[..., D]
param  a[] = 1
param  w[D] = 1
save   rstd[...] = rsqrt(mean[D](x^2) + eps)
output y[..., D] = x * rstd * w * a
"""


tensor = partial(calling.tensor, dtype="bfloat16")
pytestmark = pytest.mark.usefixtures("streams")


@pytest.fixture
def norm() -> Norm:
    return normgen.load(SPEC)


def pointers(launched: Launched) -> set[int]:
    """What may be pointers among the arguments of a launch."""
    return set(struct.unpack_from("P" * (len(launched.packed) // 8), launched.packed))


def test_results_are_tensors_on_the_same_device_and_the_work_is_on_its_current_stream(
    driver: FakeDriver, streams: dict[int, int], norm: Norm
) -> None:
    streams[1] = 0x55
    x, w = tensor(6, 64, device=1), tensor(64, device=1)
    y, rstd = norm.forward(x, w=w)
    assert (y.shape, repr(y.dtype), repr(y.device)) == ((6, 64), "torch.bfloat16", "cuda:1")
    assert (rstd.shape, repr(rstd.dtype)) == ((6,), "torch.float32")
    (launched,) = driver.launches
    assert launched.context.index == 1 and launched.stream == 0x55
    assert {x.data_ptr(), w.data_ptr(), y.data_ptr(), rstd.data_ptr()} <= pointers(launched)


def test_the_backward_has_two_launches_and_scratch_memory_of_its_stream(
    driver: FakeDriver, norm: Norm
) -> None:
    x, w, rstd = tensor(600, 64), tensor(64), tensor(600, dtype="float32")
    partials = []
    for stream in (1, 5, 1, 5):
        gradients = norm.backward(dy=x, x=x, w=w, rstd=rstd, stream=stream, wrt=("x", "w"))
        assert gradients.da is None
        first, second = driver.launches[-2:]
        assert first.stream == second.stream == (0 if stream == 1 else 5)
        known = set(range(2**20)) | {a.data_ptr() for a in (x, w, rstd, gradients.dx, gradients.dw)}
        partials.append(pointers(first) & pointers(second) - known)
    # The library's memory on its own stream, which each call has anew; one arena on any other.
    assert partials[0] and partials[2] and partials[1] and partials[1] == partials[3]
    assert not (partials[0] | partials[2]) & partials[1]


def test_numbers_and_views_are_made_arrays_on_the_device(driver: FakeDriver, norm: Norm) -> None:
    for number in (1.5, 2):
        norm.forward(tensor(6, 64, strides=(1, 6)), number, stream=0x77)
        copy, fill, kernel = driver.launches[-3:]
        assert (copy.entry, fill.entry) == ("normgen_copy", "normgen_fill")
        assert {copy.stream, fill.stream, kernel.stream} == {0x77}
        target, count, bits = struct.unpack("PqI", fill.packed)
        assert (count, bits) == (1, int(np.float32(number).view(np.uint32))) and target in pointers(kernel)


def test_empty_tensors_and_absent_cotangents_give_zeros_without_a_launch(
    driver: FakeDriver, norm: Norm
) -> None:
    x, w, rstd = tensor(0, 64), tensor(64), tensor(0, dtype="float32")
    assert norm.forward(x, w=w).y.shape == (0, 64)
    dx, _, dw = norm.backward(dy=x, x=x, w=w, rstd=rstd, stream=0x77)
    assert (dw.data_ptr(), 128, 0x77) in driver.fills and dx.shape == (0, 64)
    assert not driver.launches and not driver.compiled


def test_refusals_are_in_the_words_of_the_library_and_compile_nothing(driver: FakeDriver, norm: Norm) -> None:
    for w, where in ((np.zeros(64, np.float32), "the host"), (tensor(64, device=1), "cuda:1")):
        with pytest.raises(ValueError, match=f"x is on cuda:0 but w is on {where}"):
            norm.forward(tensor(6, 64), w=w)
    with pytest.raises(TypeError, match=r"x is float64.*x\.to\(torch\.float32\)"):
        norm.forward(tensor(6, 64, dtype="float64"))
    assert not driver.compiled


def test_a_norm_that_has_run_runs_on_another_driver(driver: FakeDriver, norm: Norm) -> None:
    x = tensor(8, 64)
    norm.forward(x)
    other = FakeDriver(devices=2)
    normgen.use_driver(other)
    norm.forward(x)
    assert len(driver.launches) == len(other.launches) == 1


# What is ready afterwards is so for any number of rows.
@pytest.mark.parametrize(("columns", "ready"), [(64, "plan"), (1003, "warmup"), (24001, "plan")])
def test_no_number_of_rows_compiles_anything_later(driver: FakeDriver, columns: int, ready: str) -> None:
    norm = normgen.load("layernorm")
    w = b = tensor(columns)

    def operands(rows: int) -> dict[str, TorchTensor]:
        statistic, x = tensor(rows, dtype="float32"), tensor(rows, columns)
        return {"dy": x, "x": x, "w": w, "mu": statistic, "rstd": statistic}

    if ready == "warmup":
        norm.warmup({"...": 600, "D": columns}, "bf16", "cuda:0")
    else:
        norm.plan("forward", tensor(600, columns), w, b)
        norm.plan("backward", **operands(600))
    compiled = len(driver.compiled)
    assert compiled and not driver.launches
    for rows in (n for n in (1, 100, 132, 133, 529, 4096, 65536, 1 << 20) if n * columns < 1 << 30):
        norm.forward(tensor(rows, columns), w, b)
        norm.backward(**operands(rows))
    assert len(driver.compiled) == compiled


def test_texts_are_compiled_side_by_side(
    driver: FakeDriver, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    together, met, compile_one = threading.Barrier(2, timeout=60), threading.Event(), driver.compile

    def compiling(*given: Any) -> bytes:
        if not met.is_set():
            together.wait()  # breaks where one text waits for the other
            met.set()
        return compile_one(*given)

    monkeypatch.setattr(driver, "compile", compiling)
    norm.warmup({"...": 600, "D": 64}, "bf16", "cuda:0")
    assert met.is_set()
    with pytest.raises(ValueError, match="is not a device: write 'host'"):
        norm.warmup({"...": 600, "D": 64}, "bf16", "gpu")


@pytest.mark.parametrize("able", [True, False])
def test_kernels_start_early_where_the_device_lets_them(driver: FakeDriver, norm: Norm, able: bool) -> None:
    driver.device = replace(driver.device, programmatic=able)
    turned = tensor(6, 64, strides=(1, 6))
    norm.backward(dy=turned, x=tensor(6, 64), w=tensor(64), rstd=tensor(6, dtype="float32"))
    # What makes a view contiguous does not wait for anything, and so may not.
    found = [(launched.entry.removeprefix("scaled_"), launched.programmatic) for launched in driver.launches]
    assert found == [("normgen_copy", False), ("backward_pipeline", able), ("backward_second_stage", able)]
    texts = [text for text, _, _ in driver.compiled]
    assert sum("programmatic_wait();" in text for text in texts) == 2 * able
