"""Columns kernels as compiled: every barrier is needed, and nothing spills."""

from __future__ import annotations

import pytest

from normgen.devices.host.executor import HostFault
from normgen.launching.machine import HOST_MACHINE
from tests.codegen.columns_cases import (
    LAYERNORM2D,
    ONE,
    SCALED,
    SOFTMAX2D,
    lengths,
    outcomes,
)
from tests.host.mutation import Altered, barrier_lines

# spec, direction, form, device, size: sizes at which every barrier is met, and how many there are
BARRIERS = [
    (LAYERNORM2D, "forward", "registers", HOST_MACHINE, (1, 40, 33), 2),
    (LAYERNORM2D, "backward", "registers", ONE, (7, 40, 700), 4),
    (SOFTMAX2D, "forward", "registers", HOST_MACHINE, (1, 40, 33), 2),
    (SOFTMAX2D, "forward", "multipass", HOST_MACHINE, (1, 20000, 2), 2),
    (SCALED, "backward", "registers", ONE, (7, 40, 700), 6),
]


@pytest.mark.parametrize(
    ("text", "direction", "form", "device", "size", "count"),
    BARRIERS,
    ids=[f"{b[0].split()[1]}-{b[1]}-{b[2]}" for b in BARRIERS],
)
def test_a_missing_barrier_is_reported(text, direction, form, device, size, count):
    def run(source: str = "", order: int = 0, without: int = 0) -> Altered:
        executor = Altered(device, order, source, without=without)
        for found in outcomes(text, executor, lengths(text, *size), directions=(direction,)):
            assert found.comparison.ok
        return executor

    source = next(t for entry, t in run().texts.items() if entry.endswith(f"_{form}"))
    needed = set()
    for number, _ in enumerate(barrier_lines(source), 1):
        for order in (0, 1):
            try:
                run(source, order, number)
            except HostFault:
                needed.add(number)
                break
    assert len(needed) == count
