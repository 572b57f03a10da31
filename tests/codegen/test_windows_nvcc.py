"""What nvcc makes of the windows family's kernels: no spills, and the registers that schedules count on."""

from __future__ import annotations

import pytest

from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.errors import ToolchainMissing
from normgen.families.windows.launch.lower import Windows
from normgen.launching.call import Call
from normgen.launching.machine import Machine
from tests.codegen.norms import H200, bound
from tests.codegen.windowing import LAST, WITHIN, kernel, subject, text

A100 = Machine("A100", "sm_80", 108, 166912, 167936)
ALEXNET = {"B": 128, "C": 96, "rest": 55 * 55}
EVEN = {"B": 128, "C": 64, "rest": 56 * 56}
IMAGES = {"B": 128, "C": 64, "H": 56, "W": 56}
BOX = "H: -2 .. 2, W: -2 .. 2"

# spec, direction, element type, lengths, form
KERNELS = [
    (text(), "forward", "bf16", ALEXNET, "march"),
    (text(), "forward", "f32", ALEXNET, "march"),
    (text(), "backward", "bf16", ALEXNET, "march"),
    (text(), "backward", "f32", EVEN, "march"),
    (text(window="C: -4 .. 4"), "forward", "bf16", EVEN, "march"),
    (text(keep="let"), "backward", "bf16", ALEXNET, "march"),
    (text(keep="let"), "backward", "bf16", EVEN, "march"),
    (text(keep="let"), "backward", "f32", EVEN, "march"),
    (text(WITHIN, BOX), "forward", "bf16", IMAGES, "march"),
    (text(WITHIN, BOX), "backward", "f32", IMAGES, "march"),
    (text(LAST), "backward", "bf16", ALEXNET, "span"),
    (text(LAST, keep="let"), "backward", "f32", ALEXNET, "span"),
    (text(window="C: -20 .. 20"), "backward", "f32", EVEN, "direct"),
]


@pytest.fixture(autouse=True)
def _needs_nvcc() -> None:
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(str(reason))


@pytest.mark.nvcc
@pytest.mark.parametrize("device", [A100, H200], ids=lambda d: d.arch)
@pytest.mark.parametrize(("spec", "direction", "dtype", "lengths", "form"), KERNELS)
def test_registers(spec, direction, dtype, lengths, form, device):
    package = subject(spec).norm.package
    record = kernel(package, direction)
    call = Call(bound(getattr(package, direction), dtype, **lengths), device, package.header)
    chosen = next(s for s in Windows().space(record, call) if s.form == form)
    (launch,) = Windows().lower(record, call, chosen).launches
    _, usages = compile_text(launch.source, device.arch)
    usage = next(u for u in usages if u.entry == launch.entry)
    assert usage.spilled == 0
    blocks = chosen.blocks if form == "march" else 1
    assert -(-usage.registers // 8) * 8 * chosen.threads * blocks <= device.registers_per_multiprocessor
