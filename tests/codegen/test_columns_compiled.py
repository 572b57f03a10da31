"""Columns kernels as compiled: every barrier is needed, and nothing spills."""

from __future__ import annotations

import re

import pytest

from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.devices.host.executor import HostFault
from normgen.errors import ToolchainMissing
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE
from normgen.verify.cases import DTYPE_SETS
from tests.codegen.columns_cases import (
    LAYERNORM2D,
    ONE,
    SCALED,
    SOFTMAX2D,
    kernel_of,
    lengths,
    outcomes,
    packaged,
)
from tests.codegen.norms import H200, bound, usual_launches
from tests.host.mutation import Altered, barrier_lines

BF16, F16 = DTYPE_SETS[1], DTYPE_SETS[3]


# spec, direction, form, device, size: sizes at which every barrier is met, and how many there are
BARRIERS = [
    (LAYERNORM2D, "forward", "registers", HOST_MACHINE, (1, 40, 33), 2),
    (LAYERNORM2D, "backward", "registers", ONE, (7, 40, 700), 4),
    (SOFTMAX2D, "forward", "registers", HOST_MACHINE, (1, 40, 33), 2),
    (SOFTMAX2D, "forward", "stream", HOST_MACHINE, (1, 20000, 2), 2),
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


# What an H200 takes, at lengths that fill it: elements of a column, then columns of an image.
KERNELS = [
    (SOFTMAX2D, "forward", "bf16", 151, 65536),
    (SOFTMAX2D, "forward", "f32", 512, 65536),
    (SOFTMAX2D, "backward", "bf16", 151, 65536),
    (SOFTMAX2D, "forward", "bf16", 5000, 65536),
    (SOFTMAX2D, "backward", "bf16", 20000, 1024),
    (LAYERNORM2D, "forward", "bf16", 3, 3136),
    (LAYERNORM2D, "backward", "bf16", 3, 3136),
    (LAYERNORM2D, "forward", "bf16", 96, 3136),
    (LAYERNORM2D, "forward", "bf16", 384, 3136),
    (LAYERNORM2D, "forward", "f32", 9000, 1024),
    (LAYERNORM2D, "backward", "bf16", 96, 3136),
    (LAYERNORM2D, "backward", "f32", 384, 3136),
    (LAYERNORM2D, "backward", "bf16", 9000, 1024),
]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("text", "direction", "dtype", "reduced", "across"),
    KERNELS,
    ids=[f"{k[0].split()[1]}-{k[1]}-{k[2]}-{k[3]}" for k in KERNELS],
)
def test_a_kernel_spills_nothing_and_fits(text, direction, dtype, reduced, across):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    record, kernel = getattr(packaged(text), direction), kernel_of(text, direction)
    side = int(across**0.5)
    sizes = {"H": side, "W": side} if text is SOFTMAX2D else {"rest": across}
    call = Call(bound(record, dtype, B=32, C=reduced, **sizes), H200, packaged(text).header)
    launch = usual_launches(kernel, call)[0]
    _, (usage,) = compile_text(launch.source, "sm_90")
    blocks = int(re.search(r"MIN_BLOCKS = (\d+);", launch.source)[1])
    assert usage.spilled == 0
    assert usage.shared <= 48 * 1024
    assert -(-usage.registers // 8) * 8 * launch.block[0] * blocks <= H200.registers_per_multiprocessor
