"""Texts of the tiles family: every barrier is needed, and nvcc makes wide accesses of them without spills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.devices.host.executor import HostFault
from normgen.errors import ToolchainMissing
from normgen.launching.launch import Launch
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import H200, bound
from tests.codegen.test_nvcc import widths
from tests.codegen.test_tiles import CHANNELS, QUANTISED, subject
from tests.host.mutation import Altered, barrier_lines

ONE = replace(HOST_MACHINE, multiprocessors=1)


def call(executor: Altered) -> None:
    random = np.random.default_rng(7)
    shapes = {"x": (2, 40, 24), "g": (2, 24, 40), "w": (40,), "mean": (2, 40)}
    arrays = {name: random.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    subject(CHANNELS).norm.on(executor).forward(**arrays)


@pytest.mark.parametrize("order", [0, 1], ids=["ascending", "descending"])
def test_a_missing_barrier_is_reported(order):
    sound = Altered(ONE, order)
    call(sound)
    (text,) = sound.texts.values()
    kernel = text.count("\n", 0, text.index("_tiles("))
    numbers = [number for number, line in enumerate(barrier_lines(text), 1) if line > kernel]
    assert len(numbers) == 2
    for number in numbers:
        with pytest.raises(HostFault):
            call(Altered(ONE, order, text, without=number))


COMPILED = [
    ("quantised", QUANTISED, "bf16", {"rest": 8192, "G": 256, "E": 16}),
    ("channels", CHANNELS, "f32", {"B": 64, "C": 256, "S": 3136}),
]
IDS = [f"{name}-{dtype}" for name, _, dtype, _ in COMPILED]


@pytest.fixture
def _needs_nvcc() -> None:
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")


def launch(text: str, dtype: str, alignment: int, extents: dict[str, int]) -> Launch:
    package = subject(text).norm.package
    binding = bound(package.forward, dtype, alignment=alignment, **extents)
    return plan_launches(package.forward, binding, H200).launches[0]


@pytest.mark.nvcc
@pytest.mark.usefixtures("_needs_nvcc")
@pytest.mark.parametrize(("name", "text", "dtype", "extents"), COMPILED, ids=IDS)
def test_matrices_move_sixteen_bytes_at_a_time(name, text, dtype, extents):
    ptx = compile_text(launch(text, dtype, 16, extents).source, "sm_90", target="ptx")[0].decode()
    assert ".local" not in ptx
    assert "ld.global.nc.v4.u32" in ptx
    assert set(widths(ptx)["store"]) == {16}
