"""Faults planted in sound kernels, one at a time: each is reported, by the right name and at its line."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.devices.host.compile import find_compiler
from normgen.devices.host.executor import HostExecutor, HostFault
from tests.host import standins
from tests.host.harness import read, run, write
from tests.host.planted import (
    FAULTS,
    FINALISE,
    FORWARD,
    ROWS,
    SOUND,
    THREADS,
    Fault,
    N,
    run_accumulate_into_nothing,
    run_finalise,
    run_forward,
    run_lock,
)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("kernel", [name for name in SOUND if name != "lock"])
def test_sound_kernels_are_not_blamed(kernel: str, order: int) -> None:
    source, call = SOUND[kernel]
    call(HostExecutor(True, order, seed=5), source)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("order", [0, 1])
def test_planted_fault_is_reported(fault: Fault, order: int) -> None:
    if fault.kernel == "lock" and order == 1:
        pytest.skip("a spin-wait on a later block does not end: see test_spin_wait_on_a_later_block")
    source, call = SOUND[fault.kernel]
    assert source.count(fault.what) >= 1
    broken = source.replace(fault.what, fault.instead, 1)
    with pytest.raises(HostFault) as raised:
        call(HostExecutor(True, order, maximum_steps=10**6), broken)
    report = str(raised.value)
    assert fault.expected in report, report
    if fault.line:
        quoted = [row.split(" | ", 1) for row in report.splitlines() if " | " in row]
        assert any(fault.line in text for _, text in quoted), report
        for number, text in quoted:  # and the numbers are those of the text
            assert broken.splitlines()[int(number) - 1].strip() == text


def test_misaligned_view() -> None:
    if find_compiler().is_clang:
        pytest.skip("clang++ splits vectors into their elements before the checker sees them")
    whole = np.zeros(ROWS * N + 4, np.float32)
    with pytest.raises(HostFault, match="misaligned"):
        run_forward(HostExecutor(True), FORWARD, x=whole[1 : 1 + ROWS * N].reshape(ROWS, N))


def test_dynamic_shared_memory_too_small() -> None:
    with pytest.raises(HostFault, match=r"out-of-bounds shared access: byte \d+ of 1024 dynamic bytes"):
        run_finalise(HostExecutor(True), FINALISE, shared=1024)


def test_atomic_on_memory_that_nobody_cleared() -> None:
    with pytest.raises(HostFault, match="uninitialised global memory"):
        run_accumulate_into_nothing(HostExecutor(True), standins.ACCUMULATE)


def test_spin_wait_on_a_later_block() -> None:
    with pytest.raises(HostFault, match="step limit"):
        run_lock(HostExecutor(True, order=1, maximum_steps=10**5), standins.LOCK)


def test_illegal_address_names_the_nearest_buffer() -> None:
    source = FORWARD.replace("load_row(v, x + row * N);", "load_row(v, x + 1000000 + row * N);", 1)
    with pytest.raises(HostFault, match=r"(illegal address|bytes past the end of)"):
        run_forward(HostExecutor(True), source)


def test_divergence_is_found_without_checking_too() -> None:
    source = FORWARD.replace(
        "load_row(v, x + row * N);", "if (threadIdx.x >= 96) return; load_row(v, x + row * N);", 1
    )
    with pytest.raises(HostFault, match="barrier divergence"):
        run_forward(HostExecutor(), source)
    run_forward(HostExecutor(), FORWARD)  # the next launch is none the worse for it


@pytest.mark.parametrize(
    ("grid", "block", "shared", "cluster", "expected"),
    [
        (1, 1056, 0, 1, "1024 threads"),
        (0, 32, 0, 1, "grid size"),
        (6, 32, 0, 4, "clusters"),
        (1, 32, 228 * 1024, 1, "227 KB"),
    ],
)
def test_invalid_launch(grid: int, block: int, shared: int, cluster: int, expected: str) -> None:
    y = np.zeros(32, np.float32)
    with pytest.raises(HostFault, match=expected):
        run(
            HostExecutor(),
            standins.WARP,
            "warp",
            grid,
            block,
            read(y),
            write(y.copy()),
            shared=shared,
            cluster=cluster,
        )


@pytest.mark.parametrize(
    ("rows", "eps", "expected"),
    [
        (np.int64(ROWS), 1e-5, "rows is a 4-byte integer, the launch packs a 8-byte integer"),
        (1e-5, 1e-5, "rows is a 4-byte integer, the launch packs a 4-byte float"),
        (ROWS, 1, "eps is a 4-byte float, the launch packs a 4-byte integer"),
    ],
)
def test_arguments_are_compared_with_the_parameters(rows: object, eps: object, expected: str) -> None:
    arrays = [read(np.zeros(N, np.float32)) for _ in range(6)]
    with pytest.raises(HostFault, match=expected):
        run(HostExecutor(), FORWARD, "forward", 1, THREADS, *arrays, rows, eps)  # type: ignore[arg-type]
    with pytest.raises(HostFault, match="has 8 parameters, the launch packs 7"):
        run(HostExecutor(), FORWARD, "forward", 1, THREADS, *arrays, ROWS)
