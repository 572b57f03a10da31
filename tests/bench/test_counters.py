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


def test_lines_that_miss_the_mark_come_furthest_from_the_ceiling_first(counters: Any) -> None:
    rows = [
        row("normgen", 12.5), row("torch", 40.0),
        row("normgen", 20.0, dtype="f32"), row("torch", 40.0, dtype="f32"),  # half of the ceiling
        row("normgen", 11.0, dtype="f16"), row("torch", 10.5, dtype="f16"),  # behind
        row("normgen", 11.0, layout="a"), row("torch", 10.9, layout="a"),
        row("normgen", 11.0, layout="b"), row("torch", 5.0, layout="b", wrong="relative error 1", error=1.0),
        row("normgen", layout="c", fault="broken"), row("torch", 40.0, layout="c"),
        row("normgen", 10.5, layout="d"),
    ]  # fmt: skip
    assert counters.chosen(rows, 0.9) == [f"groupnorm:forward:8x320:{t}:nchw" for t in ("f32", "bf16", "f16")]


def test_every_kernel_has_a_line_with_its_case(counters: Any) -> None:
    kernels = counters.parsed(PRINTED.format(waits=counters._STALLED.format("barrier")))
    shared = counters.shared_out(["a", "b"], [1, 1], kernels)
    first, second = counters.kernels_table(shared).splitlines()[2:]
    assert first.startswith("| a | `sums` | 12.3 | ") and "barrier 7.2" in first
    assert second.startswith("| b | `apply` | 1.0 | ") and " | 168 | " in second
    # Kernels that no call launched are no result.
    with pytest.raises(AssertionError):
        list(counters.shared_out(["a"], [1], [{}, {}]))
