"""What nvcc makes of the kernels: no spills, what a multiprocessor has room for, and wide memory accesses."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.errors import ToolchainMissing
from normgen.launching.launch import Launch
from normgen.launching.machine import Machine
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import H200, bound, package_of, packaged

A100 = Machine("A100", "sm_80", 108, 166912, 167936, cache=40 << 20)
DEVICES = {"sm_80": A100, "sm_90": H200, "sm_100": replace(H200, arch="sm_100")}
BLOCK_SHARED = 48 * 1024  # what a block may have without asking for more; scratch of fixed size counts here


class Kernel(NamedTuple):
    """A kernel by what it computes and for which rows."""

    name: str
    direction: str
    form: str
    length: int
    alignment: int = 16


# Lengths at which both devices take the form, in either element type.
KERNELS = (
    Kernel("rmsnorm", "forward", "registers", 4096),
    Kernel("layernorm", "forward", "registers", 4096),
    Kernel("softmax", "backward", "registers", 4096),
    Kernel("add_rmsnorm", "forward", "registers", 2048),
    Kernel("softmax", "forward", "stream", 1200000),
    Kernel("layernorm", "backward", "stream", 600000),
    Kernel("l2norm", "backward", "stream", 1 << 25),
    Kernel("layernorm", "forward", "registers", 128),
    Kernel("rmsnorm", "backward", "ring", 64),
    Kernel("layernorm", "backward", "ring", 128),
    Kernel("rmsnorm", "backward", "ring", 512),
    Kernel("rmsnorm", "backward", "ring", 1024),
    Kernel("layernorm", "backward", "ring", 4096),
    Kernel("add_rmsnorm", "backward", "ring", 1024),
    Kernel("layernorm", "backward", "finalise", 8192),
)
# In clusters, from sm_90 on.
CLUSTERED = (
    Kernel("rmsnorm", "backward", "ring", 131072),
    Kernel("rmsnorm", "backward", "ring", 262144),
    Kernel("softmax", "forward", "registers", 65536),
    Kernel("softmax", "backward", "registers", 262144),
)
# Of those with one element type.
ONE_TYPE = (
    (Kernel("rmsnorm", "backward", "ring", 65536), "bf16"),
    (Kernel("rmsnorm", "backward", "skewed", 65536), "f32"),
    (Kernel("layernorm", "backward", "ring", 8192), "bf16"),
    (Kernel("layernorm", "backward", "ring", 8192), "f32"),
    (Kernel("layernorm", "backward", "skewed", 16384), "bf16"),
    (Kernel("layernorm", "backward", "skewed", 65536), "f32"),
    (Kernel("layernorm", "forward", "ring", 65536), "bf16"),
    (Kernel("rmsnorm", "backward", "ring", 4096), "bf16"),
    (Kernel("rmsnorm", "backward", "skewed", 5120), "bf16"),
    (Kernel("rmsnorm", "backward", "ring", 7168), "bf16"),
    (Kernel("rmsnorm", "backward", "skewed", 8192), "bf16"),
    (Kernel("rmsnorm", "backward", "skewed", 3000), "f32"),
    (Kernel("layernorm", "backward", "skewed", 7168), "f32"),
    (Kernel("add_rmsnorm", "backward", "skewed", 2560), "f32"),
    (Kernel("rmsnorm", "backward", "slanted", 5119), "bf16"),
    (Kernel("layernorm", "backward", "slanted", 5119), "bf16"),
    (Kernel("layernorm", "backward", "slanted", 1023), "bf16"),
    (Kernel("layernorm", "backward", "slanted", 2303), "bf16"),
    (Kernel("softmax", "forward", "slab", 151), "bf16"),
    (Kernel("softmax", "backward", "slab", 151), "bf16"),
    (Kernel("layernorm", "forward", "slab", 33), "bf16"),
    (Kernel("layernorm", "forward", "slab", 129), "bf16"),
    (Kernel("layernorm", "forward", "slab", 257), "bf16"),
    (Kernel("layernorm", "forward", "slab", 513), "bf16"),
    (Kernel("rmsnorm", "forward", "slab", 257), "bf16"),
    (Kernel("add_rmsnorm", "forward", "slab", 151), "bf16"),
    (Kernel("layernorm", "backward", "ring", 5119), "f32"),
    (Kernel("rmsnorm", "forward", "registers", 65536), "bf16"),
    (Kernel("rmsnorm", "forward", "registers", 131072), "f32"),
    (Kernel("add_rmsnorm", "forward", "registers", 131072), "f32"),
    (Kernel("softmax", "forward", "registers", 7168), "bf16"),
    (Kernel("layernorm", "forward", "ring", 32768), "bf16"),
    (Kernel("layernorm", "forward", "registers", 32768), "f32"),
    (Kernel("layernorm", "forward", "skewed", 65536), "f32"),
    (Kernel("layernorm", "forward", "ring", 262144), "f32"),
    (Kernel("rmsnorm", "forward", "ring", 229376), "f32"),
    (Kernel("add_rmsnorm", "forward", "ring", 229376), "f32"),
    (Kernel("rmsnorm", "forward", "spread", 262144), "f32"),
    (Kernel("layernorm", "backward", "ring", 262144), "f32"),
    (Kernel("layernorm", "backward", "ring", 262144), "bf16"),
    (Kernel("softmax", "forward", "registers", 3000), "bf16"),
    (Kernel("layernorm", "forward", "skewed", 131072), "bf16"),
    (Kernel("layernorm", "backward", "skewed", 131072), "bf16"),
    (Kernel("layernorm", "forward", "skewed", 262144), "bf16"),
)
_ALL = [
    (kernel, dtype, arch)
    for kernel in KERNELS + CLUSTERED
    for arch in DEVICES
    if arch != "sm_80" or kernel not in CLUSTERED
    for dtype in ("bf16", "f32")
]
COMPILED = [
    pytest.param(*case, id="-".join(map(str, (*case[0][:4], *case[1:]))))
    for case in (*_ALL, *((*each, arch) for each in ONE_TYPE for arch in ("sm_90", "sm_100")))
]


# Values that are kept from pass to pass beside more of the row than they were made of.
KEPT = {
    "weights": "norm kept\ninput x[..., D]\nparam w[D]\noutput y[..., D] = softmax[D](x) * w\n",
    "two operands": "norm kept\ninput x[..., D]\ninput z[..., D]\nparam w[D]\n"
    "let h[..., D] = x * sigmoid(z)\noutput y[..., D] = h * rsqrt(mean[D](h^2) + 0.01) * w\n",
}


@pytest.fixture(autouse=True)
def _needs_nvcc() -> None:
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")


def launch_of(kernel: Kernel, dtype: str, arch: str) -> Launch:
    """The launch of the kernel on a device of the architecture."""
    package = packaged(kernel.name)
    record = getattr(package, kernel.direction)
    binding = bound(record, dtype, alignment=kernel.alignment, rest=4096, D=kernel.length)
    launches = plan_launches(record, binding, DEVICES[arch], package.header).launches
    return next(x for x in launches if x.entry.endswith(f"_{kernel.form}"))


@cache
def ptx_of(kernel: Kernel, dtype: str) -> str:
    """The PTX of the kernel on an H200."""
    return compile_text(launch_of(kernel, dtype, "sm_90").source, "sm_90", target="ptx")[0].decode()


@pytest.mark.nvcc
@pytest.mark.parametrize(("kernel", "dtype", "arch"), COMPILED)
def test_a_kernel_spills_nothing_and_fits(kernel: Kernel, dtype: str, arch: str) -> None:
    device, launch = DEVICES[arch], launch_of(kernel, dtype, arch)
    _, usages = compile_text(launch.source, arch)
    (usage,) = usages
    assert usage.entry == launch.entry
    assert usage.spilled == 0
    threads = launch.block[0]
    blocks = int(found[1]) if (found := re.search(r"MIN_BLOCKS = (\d+);", launch.source)) else 1
    granules = -(-usage.registers // 8) * 8  # registers are dealt out eight a thread
    assert granules * threads * blocks <= device.registers_per_multiprocessor
    assert threads * blocks <= device.threads_per_multiprocessor
    assert usage.shared <= BLOCK_SHARED
    assert usage.shared + launch.shared <= device.shared_per_block
    # the driver takes 1024 bytes of each block
    assert (usage.shared + launch.shared + 1024) * blocks <= device.shared_per_multiprocessor


def widths(ptx: str) -> dict[str, Counter[int]]:
    """How many accesses of each width in bytes load from and store to global memory, and copy from it."""
    loads = re.findall(r"\bld\.global((?:\.[\w:]+)*?)(?:\.v(\d))?\.[a-z](\d+)\b", ptx)
    stores = re.findall(r"\bst\.global((?:\.[\w:]+)*?)(?:\.v(\d))?\.[a-z](\d+)\b", ptx)
    copies = re.findall(
        r"\bcp\.async\.c[ag]\.shared\.global[\w.:]*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\d+);", ptx
    )
    return {
        "load": Counter(int(lanes or 1) * int(bits) // 8 for _, lanes, bits in loads),
        "store": Counter(int(lanes or 1) * int(bits) // 8 for _, lanes, bits in stores),
        "copy": Counter(map(int, copies)),
    }


WIDE = [k for k in KERNELS if k.form != "finalise"]


@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"{k.name}-{k.direction}-{k.form}")
def test_kernels_keep_to_registers_and_single_precision(kernel: Kernel, dtype: str) -> None:
    ptx = ptx_of(kernel, dtype)
    assert f".entry {launch_of(kernel, dtype, 'sm_90').entry}(" in ptx
    assert ".f64" not in ptx
    assert ".local" not in ptx


@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("kernel", WIDE, ids=lambda k: f"{k.name}-{k.direction}-{k.form}")
def test_rows_move_sixteen_bytes_at_a_time(kernel: Kernel, dtype: str) -> None:
    ptx = ptx_of(kernel, dtype)
    found = widths(ptx)
    if kernel.form == "ring":
        assert set(found["copy"]) == {16}
    else:
        assert "ld.global.nc.v4.u32" in ptx
        assert not found["copy"]
    assert re.search(r"st\.global(\.cs)?\.v4\.u32", ptx)
    # what is narrower: scalars of the row, and partials of column sums
    assert set(found["load"]) <= ({16, 4} if kernel.direction == "backward" else {16})
    assert not {1, 2, 8} & set(found["store"])


MISALIGNED = [
    (Kernel("rmsnorm", "forward", "registers", 4096, 8), "bf16", 8),
    (Kernel("rmsnorm", "backward", "ring", 1024, 4), "bf16", 4),
    (Kernel("softmax", "forward", "stream", 1200000, 8), "f32", 8),
]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("kernel", "dtype", "width"), MISALIGNED, ids=lambda v: v.form if isinstance(v, Kernel) else str(v)
)
def test_misaligned_rows_move_in_narrower_words(kernel: Kernel, dtype: str, width: int) -> None:
    found = widths(ptx_of(kernel, dtype))
    for accesses in found.values():
        assert not accesses or max(accesses) == max(width, 4)
    moved = found["copy" if kernel.form == "ring" else "load"]
    assert moved[width] > 0


@pytest.mark.nvcc
def test_rows_that_begin_anywhere_move_together() -> None:
    """Several short ones by words; what is narrower is the end of the last of them."""
    found = widths(ptx_of(Kernel("softmax", "forward", "slab", 151), "bf16"))
    assert set(found["copy"]) == {16}
    assert found["load"] == {2: 1}
    assert found["store"] == {16: found["copy"][16], 2: 1}


@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_is_kept_in_a_cluster_leaves_room_for_the_rest(text: str, dtype: str) -> None:
    package = package_of(text)
    binding = bound(package.forward, dtype, rest=4096, D=65536)
    (launch,) = plan_launches(package.forward, binding, H200, package.header).launches
    assert launch.cluster > 1
    assert compile_text(launch.source, "sm_90")[1][0].spilled == 0
