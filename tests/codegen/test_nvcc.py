"""What nvcc makes of the kernels: no spills, what a multiprocessor has room for, and wide memory accesses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from normgen import bundled
from normgen.devices.cuda.compile import compile_text
from normgen.launching.launch import Launch
from normgen.runtime.planning.choose import plan_launches
from tests.codegen import windowing
from tests.codegen.holding import subject
from tests.codegen.norms import H200, bound, package_of, packaged
from tests.codegen.ways import first, of_form, only
from tests.covering import AMPERE

DEVICES = {"sm_80": AMPERE, "sm_90": H200, "sm_100": replace(H200, arch="sm_100")}
BLOCK_SHARED = 48 * 1024  # what a block may have without asking for more; scratch of fixed size counts here


class Kernel(NamedTuple):
    """A kernel of a norm, which is bundled or a text, and for which lengths: what is taken of a form, if a
    strategy is named or by itself."""

    name: str
    direction: str
    form: str
    extents: dict[str, int]
    dtype: str = "bf16"
    strategy: str | None = None
    alignment: int = 16


def rows(
    name: str, direction: str, form: str, length: int, dtype: str = "bf16", alignment: int = 16
) -> Kernel:
    return Kernel(name, direction, form, {"rest": 4096, "D": length}, dtype, alignment=alignment)


GROUPS = {"B": 8, "G": 32, "C": 10, "rest": 4096}
IMAGES = {"B": 128, "C": 96, "rest": 3136}
LAST, BATCHNORM = "groupnorm_channels_last", "batchnorm_channels_last"
# One of each form.
KERNELS = (
    rows("rmsnorm", "forward", "registers", 4096),
    rows("softmax", "forward", "multipass", 1200000, "f32"),
    rows("layernorm", "backward", "pipeline", 4096),
    rows("layernorm", "backward", "second_stage", 8192),
    rows("layernorm", "backward", "pipeline", 131072),
    rows("layernorm", "backward", "word_aligned", 5119),
    rows("layernorm", "forward", "row_tile", 151),
    rows("rmsnorm", "forward", "cooperative", 262144, "f32"),
    Kernel(LAST, "forward", "resident", GROUPS, strategy="resident"),
    Kernel(BATCHNORM, "backward", "resident", {"C": 512, "rest": 12544}, strategy="resident"),
    Kernel("layernorm2d", "backward", "registers", IMAGES, strategy="fused"),
    Kernel("groupnorm", "backward", "registers", GROUPS, strategy="whole"),
    Kernel(LAST, "forward", "pipeline", GROUPS, strategy="folded"),
    Kernel("rmsnorm_fp8", "forward", "tiles", {"rest": 8192, "G": 256, "E": 16}),
    Kernel("local_response_norm", "backward", "march", IMAGES),
    Kernel("local_response_norm", "backward", "pixels", IMAGES | {"rest": 3025}),
)
# Others whose registers are near to what there is; many take clusters, which are there from sm_90 on.
MORE = (
    rows("softmax", "backward", "registers", 4096),
    rows("layernorm", "backward", "multipass", 600000),
    rows("softmax", "backward", "registers", 262144),
    rows("layernorm", "forward", "pipeline", 65536),
    Kernel(LAST, "backward", "resident", GROUPS, "f32", "resident"),
    Kernel(LAST, "backward", "registers", GROUPS | {"C": 40, "rest": 256}, strategy="whole"),
    Kernel("batchnorm", "forward", "registers", {"B": 256, "C": 512, "rest": 196}, strategy="whole"),
    Kernel("layernorm2d", "forward", "multipass", {"B": 32, "C": 9000, "rest": 1024}, "f32", "fused"),
    Kernel(windowing.text(windowing.LAST), "backward", "span", IMAGES | {"rest": 3025}),
    Kernel(windowing.text(window="C: -20 .. 20"), "backward", "direct", IMAGES),
)


def launch_of(kernel: Kernel, arch: str = "sm_90") -> Launch:
    """The launch of the kernel on a device of the architecture, or the last of several."""
    return launches_of(kernel, arch)[-1]


def launches_of(kernel: Kernel, arch: str) -> list[Launch]:
    """All of them."""
    groups = kernel.extents.get("G", 0) if "E" not in kernel.extents else 0
    ours = kernel.name in bundled.names()
    package = subject(kernel.name, groups).norm.package if ours else package_of(kernel.name)
    record = getattr(package, kernel.direction)
    binding = bound(record, kernel.dtype, alignment=kernel.alignment, **kernel.extents)
    with only(kernel.form):
        launches = plan_launches(record, binding, DEVICES[arch], kernel.strategy).launches
    return [x for x in launches if x.entry.endswith(f"_{kernel.form}")]


def ptx_of(kernel: Kernel) -> str:
    """The PTX of the kernel on an H200."""
    return compile_text(launch_of(kernel).source, "sm_90", target="ptx")[0].decode()


def cases() -> Iterator[Any]:
    """Kernels with an architecture: those of half of the forms for sm_90, and all others are thorough."""
    for place, kernel in enumerate((*KERNELS, *MORE)):
        one_block = kernel.form == "registers" and not kernel.strategy and kernel.extents["D"] <= 65536
        for arch in DEVICES if one_block else ("sm_90", "sm_100"):
            usual = place < len(KERNELS) and place % 2 == 0 and arch == "sm_90"
            name = kernel.name.split()[1] if " " in kernel.name else kernel.name
            parts = (name, kernel.direction, kernel.form, str(kernel.extents), kernel.dtype, arch)
            yield pytest.param(
                *(kernel, arch), id="-".join(parts), marks=() if usual else pytest.mark.thorough
            )


@pytest.mark.nvcc
@pytest.mark.parametrize(("kernel", "arch"), [*cases()])
def test_a_kernel_spills_nothing_and_fits(kernel: Kernel, arch: str) -> None:
    for launch in launches_of(kernel, arch):
        spills_nothing_and_fits(launch, arch)


def spills_nothing_and_fits(launch: Launch, arch: str) -> None:
    device = DEVICES[arch]
    _, usages = compile_text(launch.source, arch)
    (usage,) = [each for each in usages if each.entry == launch.entry]
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


@pytest.mark.nvcc
@pytest.mark.parametrize("kernel", KERNELS[:3], ids=lambda k: f"{k.name}-{k.direction}-{k.form}")
def test_rows_move_sixteen_bytes_at_a_time_in_single_precision(kernel: Kernel) -> None:
    ptx = ptx_of(kernel)
    found = widths(ptx)
    assert ".f64" not in ptx and ".local" not in ptx
    if kernel.form == "pipeline":
        assert set(found["copy"]) == {16}
    else:
        assert "ld.global.v4.u32" in ptx
        assert not found["copy"]
    assert re.search(r"st\.global(\.cs)?\.v4\.u32", ptx)
    # what is narrower: scalars of the row, partials of column sums, and what blocks leave of a row they share
    narrow = kernel.direction == "backward" or "Shares<" in launch_of(kernel).source
    assert set(found["load"]) <= ({16, 4} if narrow else {16})
    # one block of all rows stores gradients of gains, element by element
    finished = {2} if kernel.direction == "backward" and kernel.form == "pipeline" else set()
    assert not {1, 2, 8} & set(found["store"]) - finished


@pytest.mark.nvcc
def test_rows_that_begin_anywhere_move_in_narrower_words_or_together() -> None:
    moved = widths(ptx_of(rows("softmax", "forward", "registers", 4096, "bf16", 8)))
    assert max(moved["load"]) == max(moved["store"]) == 8
    # a long one by the words around it; what is narrower are its ends
    moved = widths(ptx_of(rows("softmax", "forward", "multipass", 1200000, "bf16", 4)))
    assert max(moved["load"]) == 16 and max(moved["store"]) == 16
    # several short ones by words; what is narrower is the end of the last of them
    found = widths(ptx_of(rows("softmax", "forward", "row_tile", 151)))
    assert set(found["copy"]) == {16} and found["load"] == {2: 1}
    assert found["store"] == {16: found["copy"][16], 2: 1}


@pytest.mark.nvcc
def test_tags_of_the_cache_are_set_and_cleared() -> None:
    """As PTX has them: the host has no caches to look at."""
    package = packaged("rmsnorm")
    binding = bound(package.forward, "f32", rest=32768, D=4096)
    with first(of_form("registers", teams=1)):
        (launch,) = plan_launches(package.forward, binding, H200).launches
    ptx = compile_text(launch.source, "sm_90", target="ptx")[0].decode()
    assert "applypriority.global.L2::evict_normal" in ptx
    assert "createpolicy.fractional.L2::evict_last" in ptx
    assert re.search(r"ld\.global\.L2::cache_hint", ptx)
