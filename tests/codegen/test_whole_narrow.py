"""Rows of 2-byte elements in planes of odd length: each element takes a register, as one of 4 bytes does."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.errors import ToolchainMissing
from normgen.families.rows.launch.lower import Rows
from normgen.launching.call import Call
from normgen.runtime.planning.choose import alternatives, choose_strategy, plan_launches
from tests.codegen.norms import H200, bound, packaged
from tests.codegen.test_nvcc import DEVICES

ARCHS = ("sm_90", "sm_100")
DIRECTIONS = ("forward", "backward")
PLANES = (1, 9, 25, 49, 81, 225, 961)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("batch", [32, 64, 128, 256, 512])
def test_batchnorm_of_the_last_stage_of_a_resnet_is_one_kernel(batch: int, direction: str) -> None:
    record = getattr(packaged("batchnorm"), direction)
    binding = bound(record, "bf16", B=batch, C=2048, rest=49)
    assert choose_strategy(alternatives(record, binding, H200)).strategy.name == "whole"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rows_fit_with_2_bytes_an_element_where_they_fit_with_4(direction: str, arch: str) -> None:
    record = getattr(packaged("batchnorm"), direction)
    (kernel,) = next(s for s in record.strategies if s.name == "whole").kernels
    device = replace(H200, arch=arch)

    def fits(dtype: str, batch: int, plane: int) -> bool:
        call = Call(bound(record, dtype, B=batch, C=64, rest=plane), device, "")
        return Rows().fits(kernel, call).ok

    fitting = [each for each in product((8, 32, 100, 128, 256, 500, 512), PLANES) if fits("f32", *each)]
    assert fitting
    assert [each for each in fitting if not fits("bf16", *each)] == []


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_is_spilled(direction: str, arch: str) -> None:
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    package = packaged("batchnorm")
    record = getattr(package, direction)
    for batch, plane in ((131, 81), (256, 49), (256, 225), (512, 49)):
        binding = bound(record, "bf16", B=batch, C=2048, rest=plane)
        rows, *_ = plan_launches(record, binding, DEVICES[arch], package.header, "whole").launches
        (usage,) = compile_text(rows.source, arch)[1]
        assert usage.spilled == 0, f"{batch} planes of {plane}: {usage}"
