"""Faults planted in sound kernels, one at a time: each is reported, by the right name and at its line."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from normgen.devices.host.compile import find_compiler
from normgen.devices.host.executor import HostExecutor, HostFault
from tests.host.harness import read, run, update, write
from tests.host.sound import ROWS, SOUND, N, empty, of_rows

FORWARD = SOUND["forward"]
SECONDS = 0.2  # before a loop counts as endless
FAULT = re.compile(
    r"^## (?P<name>.*)\n\n`(?P<kernel>\w+)`: (?P<expected>.*?)(?:, at `(?P<line>.*)`)?\n\n"
    r"```diff\n(?P<what>(?:-.*\n)+)(?P<instead>(?:\+.*\n)+)```$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Fault:
    """In `kernel`, `what` becomes `instead`, once. The report must say `expected` and quote `line`."""

    name: str
    kernel: str
    expected: str
    line: str
    what: str
    instead: str


def planted() -> list[Fault]:
    text = Path(__file__).with_name("faults.md").read_text()
    found = [
        Fault(**{key: value or "" for key, value in each.groupdict().items()})
        for each in FAULT.finditer(text)
    ]
    assert len(found) == text.count("\n## ")
    return [replace(each, what=_side(each.what), instead=_side(each.instead)) for each in found]


def _side(hunk: str) -> str:
    """One side of a hunk, without its signs."""
    return "\n".join(line[1:] for line in hunk.splitlines())


@pytest.mark.parametrize("fault", planted(), ids=lambda fault: fault.name)
def test_planted_fault_is_reported(fault: Fault) -> None:
    sound = SOUND[fault.kernel]
    assert fault.what in sound.source
    broken = sound.source.replace(fault.what, fault.instead, 1)
    for order in (0,) if fault.kernel == "lock" else (0, 1):  # whose blocks wait for each other in order
        with pytest.raises(HostFault) as raised:
            sound.run(HostExecutor(True, order, maximum_seconds=SECONDS), broken)
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
        FORWARD.run(HostExecutor(True), "", read(whole[1 : 1 + ROWS * N].reshape(ROWS, N)), *of_rows()[1:])


def test_reports_are_the_same_wherever_arrays_lie() -> None:
    """A writer that has not met one of three readers: which of them are remembered differs between places."""
    text = """extern "C" __global__ void met_two(float* x, float* y) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 3) y[threadIdx.x] = x[lane];
  if (warp != 2) normgen_named_barrier(1, 96);
  if (warp == 3) x[lane] = 0.f;
}
"""
    memory = np.zeros(1 << 14, np.float32)
    reports = set()
    for start in range(0, memory.size // 2, 1 << 9):
        for first, second in ((start, start + (1 << 9)), (start + (1 << 9), start)):
            x, y = memory[first : first + 32], memory[second : second + 96]
            with pytest.raises(HostFault, match="race on global memory") as raised:
                run(HostExecutor(True), text, "met_two", 1, 128, update(x), write(y))
            reports.add(str(raised.value))
    assert len(reports) == 1


def test_calls_that_are_faults() -> None:
    with pytest.raises(HostFault, match=r"out-of-bounds shared access: byte \d+ of 1024 dynamic bytes"):
        SOUND["second_stage"].run(HostExecutor(True), shared=1024)
    x, _ = SOUND["accumulate"].arguments()
    with pytest.raises(HostFault, match="uninitialised global memory"):  # an atomic on what nobody cleared
        SOUND["accumulate"].run(HostExecutor(True), "", x, write(empty(1)))
    with pytest.raises(HostFault) as raised:  # a spin-wait on a later block
        SOUND["lock"].run(HostExecutor(True, order=1, maximum_seconds=SECONDS))
    assert str(raised.value).count("endless loop") == 1
    apart = "(atomicInc(counter + blockIdx.x % 2, gridDim.x - 1), blockIdx.x == gridDim.x - 1)"
    text = SOUND["last_block"].source.replace("atomicInc(counter, gridDim.x - 1) == gridDim.x - 1", apart)
    with pytest.raises(HostFault, match="race on global memory: read against a write by block 0"):
        SOUND["last_block"].run(HostExecutor(True), text)  # blocks meet at two counters
    far = FORWARD.source.replace("load_row(v, x + row * N);", "load_row(v, x + 1000000 + row * N);", 1)
    with pytest.raises(HostFault, match=r"(illegal address|bytes past the end of)"):
        FORWARD.run(HostExecutor(True), far)


def test_divergence_is_found_without_checking_too() -> None:
    (fault,) = [fault for fault in planted() if fault.name == "whole warps leave before a barrier"]
    with pytest.raises(HostFault, match="barrier divergence"):
        FORWARD.run(HostExecutor(), FORWARD.source.replace(fault.what, fault.instead, 1))
    FORWARD.run(HostExecutor())  # the next launch is none the worse for it


@pytest.mark.parametrize("body", ["", "__syncthreads()", "__nanosleep(1)", "sink = __expf(sink)"])
def test_endless_loops_end_without_checking_too(body: str) -> None:
    """Also where a loop is a jump to itself. The next launch, and what else the thread does, are none the
    worse for it."""
    loop = f"volatile float sink = 1.f; for (int q = 0; q < rows; q += 0) {body};"
    broken = FORWARD.source.replace("float s = 0.f;", f"float s = 0.f; {loop}", 1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMAX})
    with pytest.raises(HostFault, match=r"forward.*\n.*endless loop"):
        FORWARD.run(HostExecutor(maximum_seconds=0.1), broken)
    assert signal.pthread_sigmask(signal.SIG_SETMASK, before) == before | {signal.SIGRTMAX}
    FORWARD.run(HostExecutor())


def test_what_is_a_fault_depends_on_the_launch() -> None:
    """On whether it may start early, and whether all of its blocks run."""
    source = SOUND["early"].source
    swapped = source.replace("normgen_wait_for_earlier();", "normgen_let_next_start();", 1)
    constant = swapped.replace(
        "= x[(rows - 1) * 32 + threadIdx.x]", "= __ldg(x + (rows - 1) * 32 + threadIdx.x)"
    )
    replace(SOUND["early"], early=False).run(HostExecutor(True), constant)
    for part in (slice(1, None), slice(None, -1)):
        FORWARD.run(HostExecutor(True, blocks=part))
        SOUND["early"].run(
            HostExecutor(True, blocks=part), source.replace("  const int row", "  return; const int row", 1)
        )
    (left,) = [fault for fault in planted() if fault.name == "an exit before a copy is done"]
    with pytest.raises(HostFault):
        SOUND["exchange"].run(
            HostExecutor(True), SOUND["exchange"].source.replace(left.what, left.instead, 1)
        )
    SOUND["exchange"].run(HostExecutor(True))  # which the copies of that launch do not concern
    executor = HostExecutor(True)
    SOUND["lock"].run(executor, "", update(np.zeros(9, np.int32)), update(np.zeros(9, np.float32)))
    moved = {each.name: (each.distinct_read, each.distinct_written) for each in executor.traffic}
    assert moved["y"] == (4, 4)


def test_invalid_launch() -> None:
    for changed, expected in (
        ({"block": 1056}, "1024 threads"),
        ({"grid": 0}, "grid size"),
        ({"grid": 6, "cluster": 4}, "clusters"),
        ({"shared": 228 * 1024}, "227 KB"),
    ):
        with pytest.raises(HostFault, match=expected):
            replace(SOUND["warp"], **changed).run(HostExecutor())


def test_arguments_are_compared_with_the_parameters() -> None:
    given = of_rows()[:6]
    for rest, expected in (
        ((np.int64(ROWS), 1e-5), "rows is a 4-byte integer, but the launch passes a 8-byte integer"),
        ((1e-5, 1e-5), "rows is a 4-byte integer, but the launch passes a 4-byte float"),
        ((ROWS, 1), "eps is a 4-byte float, but the launch passes a 4-byte integer"),
        ((ROWS,), "has 8 parameters, but the launch passes 7"),
    ):
        with pytest.raises(HostFault, match=expected):
            FORWARD.run(HostExecutor(), "", *given, *rest)
