"""Compiles a kernel for fewer blocks per multiprocessor where the compiler spills its registers: each thread
then has more of them. The planner expects most spills and avoids them; these are the others.

The bits of results do not depend on that, and neither does anything that is planned: at worst fewer blocks
run at once than were counted on.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

# Bytes of a thread's stack from which a kernel is slower than with fewer blocks.
SPILLED = 64
# After so many steps without a gain it is no spilling. One is none: registers are given out in eights.
_IN_VAIN = 2

_BLOCKS = re.compile(r"(?<=constexpr int MIN_BLOCKS = )\d+(?=;)")
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # of an ELF file of 64 bits
_SECTION = struct.Struct("<IIQQQQIIQQ")
# CUDA's own sections (SHT_CUDA_INFO): attributes, of which those with a value of a given size have it behind
# them. That of the stack is a function's number and how many bytes a thread has there.
_INFO, _SIZED, _STACK = 0x70000000, 4, 0x12


def compiled(compile_text: Callable[[str], bytes], text: str) -> bytes:
    """The binary of a text. Where threads spill more than `SPILLED` bytes, that of the same text for the most
    blocks per multiprocessor with which they do not, or with which they spill least."""
    binary = compile_text(text)
    spilled = stack_of(binary)
    in_vain = 0
    while spilled > SPILLED and in_vain < _IN_VAIN and (text := with_fewer_blocks(text)):
        other = compile_text(text)
        in_vain += 1
        if (rest := stack_of(other)) < spilled:
            binary, spilled, in_vain = other, rest, 0
    return binary


def with_fewer_blocks(text: str) -> str:
    """The same kernel with the registers of one block less per multiprocessor; "" where it has one."""
    found = _BLOCKS.search(text)
    blocks = int(found[0]) if found else 1
    return _BLOCKS.sub(str(blocks - 1), text) if blocks > 1 else ""


def stack_of(cubin: bytes) -> int:
    """The bytes of stack that a thread of the binary's kernels takes at most; 0 of what is no such binary."""
    if len(cubin) < _HEADER.size or cubin[:5] != b"\x7fELF\x02":
        return 0
    return max((size for section in _sections(cubin) for size in _stacks(section)), default=0)


def _sections(cubin: bytes) -> Iterator[bytes]:
    """What stands in CUDA's sections of attributes."""
    fields = _HEADER.unpack_from(cubin)
    start, each, count = fields[6], fields[11], fields[12]
    for number in range(count):
        _, kind, _, _, at, size, *_ = _SECTION.unpack_from(cubin, start + number * each)
        if kind == _INFO:
            yield cubin[at : at + size]


def _stacks(section: bytes) -> Iterator[int]:
    place = 0
    while place + 4 <= len(section):
        form, attribute, size = struct.unpack_from("<BBH", section, place)
        place += 4
        if form != _SIZED:
            continue
        if attribute == _STACK and size == 8:
            yield struct.unpack_from("<II", section, place)[1]
        place += size
