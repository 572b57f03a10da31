"""Kernels whose registers the compiler spills are compiled for fewer blocks per multiprocessor."""

from __future__ import annotations

import pytest

from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.devices.cuda.spills import SPILLED, compiled, stack_of, with_fewer_blocks

# A thread has so many values at once; or an array that it indexes, which lies on the stack in any case.
HELD = """
#pragma unroll
    for (int i = 0; i < 48; ++i) values[i] = from[threadIdx.x + 256 * i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 48; ++i) from[threadIdx.x + 256 * i] = values[i] * values[47 - i] + values[i / 2];
"""
INDEXED = """
    for (int i = 0; i < 48; ++i) values[int(from[i]) % 48] = from[threadIdx.x + i];
    from[threadIdx.x] = values[int(from[threadIdx.x]) % 48];
"""


def text(body: str, blocks: int) -> str:
    return f"""constexpr int MIN_BLOCKS = {blocks};  // per multiprocessor
extern "C" __global__ void __launch_bounds__(256, MIN_BLOCKS) kernel(float* from) {{
    float values[48];{body}}}
"""


class Counting:
    """NVRTC, which remembers the blocks that texts asked for."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def __call__(self, source: str) -> bytes:
        self.blocks.append(int(source.partition("MIN_BLOCKS = ")[2].partition(";")[0]))
        return Nvrtc().compile(source, "sm_90")


@pytest.mark.nvrtc
def test_what_spills_is_compiled_for_fewer_blocks() -> None:
    compiler = Counting()
    assert stack_of(Counting()(text(HELD, 8))) > SPILLED
    assert stack_of(compiled(compiler, text(HELD, 8))) <= SPILLED
    assert compiler.blocks == list(range(8, compiler.blocks[-1] - 1, -1)) and 1 < compiler.blocks[-1] < 7


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("body", "blocks", "compiled_for"), [(HELD, 2, [2]), (INDEXED, 4, [4, 3, 2]), (INDEXED, 1, [1])]
)
def test_what_does_not_is_left_as_it_is(body: str, blocks: int, compiled_for: list[int]) -> None:
    compiler = Counting()
    made = compiled(compiler, text(body, blocks))
    assert compiler.blocks == compiled_for
    assert stack_of(made) == stack_of(Counting()(text(body, blocks)))


def test_texts_and_binaries_of_another_kind() -> None:
    assert with_fewer_blocks("constexpr int MIN_BLOCKS = 1;") == "" == with_fewer_blocks("no kernel")
    assert with_fewer_blocks("constexpr int MIN_BLOCKS = 12;") == "constexpr int MIN_BLOCKS = 11;"
    for content in (b"", b"//", b"\x7fELF\x02", b"\x7fELF\x01" + bytes(80), b"\x7fELF\x02" + bytes(80)):
        assert stack_of(content) == 0
    assert (
        compiled(lambda source: source.encode(), "constexpr int MIN_BLOCKS = 3;")
        == b"constexpr int MIN_BLOCKS = 3;"
    )
