"""`bench/counters.py` without a GPU: which lines are looked at, and what is made of the profiler's table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.programs import program, row

# As the profiler prints it, below what it says first: a line of names, one of units, one for each kernel.
PRINTED = """==PROF== Connected to process 1
LAUNCHES 2
"ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread","{waits}"
"","","ns","register/thread","inst"
"0","sums(const float *, int)","12,345","32","7.25"
"1","apply(float *)","1,000","168","n/a"
"""


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Any:
    return program("counters", monkeypatch)


@pytest.mark.parametrize(
    ("mine", "peer", "expected"),
    [
        (row("normgen", 20.0), row("torch", 40.0), True),  # half of the ceiling
        (row("normgen", 11.0), row("torch", 40.0), False),
        (row("normgen", 11.0), row("torch", 10.5), True),  # behind
        (row("normgen", 11.0), row("torch", 10.9), False),
        (row("normgen", 11.0), row("torch", 5.0, wrong="relative error 1", error=1.0), False),
        (row("normgen", fault="broken"), row("torch", 40.0), False),
    ],
)
def test_lines_that_miss_the_mark(counters: Any, mine: Any, peer: Any, expected: bool) -> None:
    assert counters.short({"normgen": mine, "torch": peer}, 0.9) is expected


def test_lines_furthest_from_the_ceiling_come_first(counters: Any) -> None:
    rows = [row("normgen", 12.5), row("normgen", 20.0, dtype="f32"), row("normgen", 10.5, dtype="f16")]
    assert counters.chosen(rows, 0.9) == [
        "groupnorm:forward:8x320:f32:nchw",
        "groupnorm:forward:8x320:bf16:nchw",
    ]


def test_every_kernel_has_a_line_with_its_case(counters: Any) -> None:
    kernels = counters.parsed(PRINTED.format(waits=counters._STALLED.format("barrier")))
    shared = counters.shared_out(["a", "b"], [1, 1], kernels)
    first, second = counters.kernels_table(shared).splitlines()[2:]
    assert first.startswith("| a | `sums` | 12.3 | ") and "barrier 7.2" in first
    assert second.startswith("| b | `apply` | 1.0 | ") and " | 168 | " in second


def test_kernels_that_no_call_launched_are_no_result(counters: Any) -> None:
    with pytest.raises(AssertionError):
        list(counters.shared_out(["a"], [1], [{}, {}]))
