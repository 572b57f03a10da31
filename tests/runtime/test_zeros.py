"""Scratch memory: whose it is, for how long, and who clears what must be zeros."""

from __future__ import annotations

import ctypes
import gc
import threading
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.launching.launch import HOST
from normgen.package.records import Package
from normgen.runtime.calls.prepared import Placed, fire
from normgen.runtime.calls.workspace import MEMORY, Memory
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.residing import small_slices
from tests.fakes.arrays import CupyArray, GpuArray
from tests.fakes.driver import FakeDriver
from tests.runtime.calling import tensor

NAME, SHAPE = "groupnorm_channels_last", (2, 32, 64, 32)
WORDS = f"{NAME}_forward_resident.words"
BACKWARD = f"{NAME}_backward_resident"
CLEAR, KERNEL = f"{NAME}_forward_resident_clear", f"{NAME}_forward_resident"


@cache
def package() -> Package:
    return normgen.load(NAME, groups=4).package


def meeting() -> Norm:
    """A norm whose blocks exchange through memory, by words."""
    return Norm(package(), planner=partial(plan_launches, strategy="resident"))


def entries(driver: FakeDriver, run: Any, *given: Any, **named: Any) -> list[str]:
    """What a call launches."""
    before = len(driver.launches)
    run(*given, **named)
    return [each.entry for each in driver.launches[before:]]


def words_of(driver: FakeDriver) -> int:
    """The address of the words that the last launch was given: the last but one of its arguments."""
    return int.from_bytes(driver.launches[-1].packed[-16:-8], "little")


def test_a_stream_has_zeros_of_its_own_cleared_once(driver: FakeDriver, streams: dict[int, int]) -> None:
    norm, x, places = meeting(), tensor(*SHAPE), set()
    for streams[0] in (0x10, 0x20):
        for _ in range(3):
            assert entries(driver, norm.forward, x) == [KERNEL]
        places.add(words_of(driver))
    assert len(places) == len(driver.fills) == 2
    assert {stream for _, _, stream in driver.fills} == set(driver.finished) == {0x10, 0x20}
    driver.names[0x20] = 0x1020  # the handle is given out again
    assert entries(driver, norm.forward, x) == [KERNEL] and len(driver.fills) == 3
    assert words_of(driver) not in places


def test_a_graph_clears_memory_of_its_own(driver: FakeDriver, streams: dict[int, int]) -> None:
    norm, x = meeting(), tensor(*SHAPE)
    streams[0] = 0x77
    assert entries(driver, norm.forward, x) == [KERNEL]
    eager = words_of(driver)
    driver.captured.add(0x77)
    filled = len(driver.fills)
    for _ in range(2):
        assert entries(driver, norm.forward, x) == [CLEAR, KERNEL] and words_of(driver) != eager
    assert entries(driver, norm.plan("forward", x), x) == [CLEAR, KERNEL]
    streams[0] = 0x30
    assert entries(driver, norm.forward, x, stream=0x77) == [CLEAR, KERNEL]
    assert len(driver.fills) == filled
    driver.captured.clear()
    assert entries(driver, norm.forward, x, stream=0x77) == [KERNEL] and words_of(driver) == eager


@pytest.mark.parametrize("make", [tensor, lambda *shape: CupyArray(shape, np.float32)], ids=["torch", "cupy"])
def test_who_keeps_the_memory_that_a_graph_writes(
    driver: FakeDriver, streams: dict[int, int], make: Any
) -> None:
    """PyTorch's graphs keep memory of their pool. For others we keep it, whichever thread has made them."""
    norm, x = meeting(), make(*SHAPE)
    streams[0] = 0x77
    driver.captured.add(0x77)
    thread = threading.Thread(target=norm.forward, args=(x,))
    thread.start()
    thread.join()
    gc.collect()
    alive = any(start <= words_of(driver) < start + len(each) for start, each in driver.memory.items())
    assert alive == (make is not tensor)


def test_streams_of_a_library_share_no_memory_and_threads_do(
    driver: FakeDriver, streams: dict[int, int]
) -> None:
    norm, arrays = meeting(), [CupyArray(SHAPE, np.float32) for _ in range(3)]
    places = []
    for array, handle in zip(arrays, (0x10, 0x20, 0x20), strict=True):
        streams[0] = handle
        thread = threading.Thread(target=norm.forward, args=(array,))
        thread.start()
        thread.join()
        places.append(words_of(driver))
    assert places[0] != places[1] == places[2]


def test_whose_zeros_calls_and_plans_take(driver: FakeDriver, streams: dict[int, int]) -> None:
    norm, x = meeting(), tensor(*SHAPE)
    told = norm.workspace("forward", {"B": 2, "...": (32, 64), "C": 8})
    given = {name: tensor(*shape) for name, (shape, _) in told.items()}
    for run in (partial(norm.forward, workspace=given), norm.plan("forward", x, workspace=given)):
        for _ in range(2):
            assert entries(driver, run, x) == [CLEAR, KERNEL], "a caller's memory is cleared each time"
        assert words_of(driver) == given[WORDS].data_ptr()
    assert not driver.fills
    places, launches = set(), len(driver.launches)
    plans = norm.plan("forward", x), norm.plan("forward", x)
    assert len(driver.fills) == 2 and len(driver.launches) == launches
    for run in (*plans, norm.forward):
        for _ in range(2):
            assert entries(driver, run, x) == [KERNEL]
        places.add(words_of(driver))
    assert len(places) == 3


def test_memory_that_is_outgrown(driver: FakeDriver) -> None:
    """Larger memory is further one; the old stays, since launches that are queued use it."""
    memory, device = Memory(), ("cuda", 0)
    small = memory.zeros(device, 1, 100)
    assert small and memory.zeros(device, 1, 80) is small
    large = memory.zeros(device, 1, 5000)
    address = small.address
    del small
    gc.collect()
    assert large and large.address != address and address in driver.memory
    assert memory.zeros(device, 1, 100) is large and memory.zeros(device, 2, 100) is not large
    driver.captured.add(1)
    assert memory.zeros(device, 1, 100) is None


@pytest.mark.parametrize("samples", [1, 3])
def test_kernels_leave_zeros(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """Whatever ran before, a call has the bits of one that nothing ran before."""
    small_slices(monkeypatch)
    executor = HostExecutor(checked=True)
    norm = meeting().on(executor)
    x = np.random.default_rng(2).standard_normal((samples, 6, 50, 32)).astype(np.float32)
    for given in (x, x[:, :4].copy()):
        alone, made = meeting().on(executor).forward(x=given), norm.forward(x=given)
        assert all(np.array_equal(a, b) for a, b in zip(made, alone, strict=True))
        rest = {"dy": given**2, "x": given, "mu": made.mu, "rstd": made.rstd}
        alone, made = meeting().on(executor).backward(**rest), norm.backward(**rest)
        assert all(np.array_equal(a, b) for a, b in zip(made, alone, strict=True))
    assert {entry for entry, _ in executor.history} == {KERNEL, BACKWARD, f"{BACKWARD}_second_stage"}


def test_a_call_that_fails_midway_leaves_zeros() -> None:
    """What a kernel wrote that ended early is not there for the next call."""
    zeros = Memory().zeros(HOST, 0, 512)
    assert zeros is not None
    words = (ctypes.c_ubyte * zeros.size).from_address(zeros.address)

    def fail(*_: object) -> None:
        words[7] = words[511] = 1
        raise ZeroDivisionError

    placed = Placed(cleared=True, lent=(zeros,), lock=zeros.lock)
    with pytest.raises(ZeroDivisionError):
        fire([(fail, b"", ())], placed, HOST, 0)
    assert not any(words)


def test_a_context_of_the_caller_is_kept_by_arrays_of_its_library(
    driver: FakeDriver, streams: dict[int, int]
) -> None:
    driver.make_current(0)
    norm, x = meeting(), GpuArray(SHAPE, np.float32)
    for _ in range(2):
        assert entries(driver, norm.forward, x) == [CLEAR, KERNEL]
    lent = [each for (device, *_), each in MEMORY._arenas.items() if device[0] not in ("cuda", "host")]
    assert lent and all(type(each.owner[0]) is GpuArray for each in lent)  # type: ignore[index]
