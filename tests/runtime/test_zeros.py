"""Scratch memory that is zeros between calls: who clears it, and when."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import normgen
from normgen import arrays
from normgen.devices.host.executor import HostExecutor
from normgen.families.resident.launch import residence
from normgen.package.records import Package
from normgen.runtime.calls.workspace import ThreadMemory
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
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
    assert len(places) == 2
    filled = {address // 256 for address, _, _ in driver.fills}
    assert len(filled) == len(driver.fills) == 3, "for two streams, and for the one that may come"
    assert {stream for _, _, stream in driver.fills} == set(driver.finished) == {0x10, 0x20}
    streams[0] = 0x77
    driver.captured.add(0x77)  # a graph takes what was cleared before
    for _ in range(2):
        assert entries(driver, norm.forward, x) == [KERNEL] and len(driver.fills) == 3
    assert words_of(driver) not in places


def test_a_graph_that_comes_first_clears_by_itself(driver: FakeDriver, streams: dict[int, int]) -> None:
    norm, x = meeting(), tensor(*SHAPE)
    streams[0] = 0x77
    driver.captured.add(0x77)
    for _ in range(2):
        assert entries(driver, norm.forward, x) == [CLEAR, KERNEL]
    assert entries(driver, norm.plan("forward", x), x) == [CLEAR, KERNEL]
    # Memory comes from the library, whose stream it is that is captured.
    assert entries(driver, norm.forward, x, stream=0x10) == [CLEAR, KERNEL]
    streams[0] = 0x30
    assert entries(driver, norm.forward, x, stream=0x77) == [CLEAR, KERNEL]
    assert not driver.fills
    driver.captured.clear()
    assert entries(driver, norm.forward, x) == [KERNEL] and len(driver.fills) == 2


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


def test_zeros_that_are_outgrown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger ones are further memory; the old stays, since launches that are queued use it."""
    made: list[int] = []
    capturing = False

    def allocate(library: Any, owner: Any, device: Any, size: int, stream: int) -> tuple[int, object] | None:
        made.append(size)
        return None if capturing else (0x1000 * len(made), object())

    monkeypatch.setattr(arrays, "zero_scratch", allocate)
    memory, library, device = ThreadMemory(spare=True), arrays.view(1.0).library, ("cuda", 0)
    small = memory.zeros(library, None, device, 1, 100)
    assert memory.zeros(library, None, device, 1, 80) == small
    large = memory.zeros(library, None, device, 1, 5000)
    assert large != small and memory.zeros(library, None, device, 1, 100) == large
    capturing = True
    assert memory.zeros(library, None, device, 2, 100) not in (0, small, large), "the one kept ready"
    assert memory.zeros(library, None, device, 3, 100) == 0


@pytest.mark.parametrize("samples", [1, 3])
def test_kernels_leave_zeros(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """Whatever ran before, a call has the bits of one that nothing ran before."""
    monkeypatch.setattr(residence, "LEAST_SLICE", 2048)
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
