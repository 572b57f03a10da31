"""Reads from a kernel library's ELF file where its shared memory lies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PT_LOAD, _PT_TLS = 1, 7
_SHT_SYMTAB = 2
_STT_TLS = 6
_SHN_UNDEF = 0


@dataclass(frozen=True, slots=True)
class Image:
    """A shared library. `shared`: (name, offset in the thread-local segment, bytes) of each __shared__ array;
    `symbols`: addresses relative to where the library is loaded."""

    bytes: int
    segment_bytes: int
    shared: tuple[tuple[str, int, int], ...]
    symbols: dict[str, int]


def read_image(path: Path) -> Image:
    """Read a 64-bit little-endian ELF shared library that still has its symbol table."""
    data = path.read_bytes()
    header = _HEADER.unpack_from(data)
    assert header[0][:6] == b"\x7fELF\x02\x01", path
    segments = [_SEGMENT.unpack_from(data, header[5] + i * _SEGMENT.size) for i in range(header[10])]
    sections = [_SECTION.unpack_from(data, header[6] + i * _SECTION.size) for i in range(header[12])]
    shared: list[tuple[str, int, int]] = []
    symbols: dict[str, int] = {}
    for section in sections:
        if section[1] != _SHT_SYMTAB:
            continue
        offset, size, strings = section[4], section[5], sections[section[6]][4]
        for name_offset, info, _, where, value, length in _SYMBOL.iter_unpack(data[offset : offset + size]):
            start = strings + name_offset
            name = data[start : data.index(b"\0", start)].decode()
            if where == _SHN_UNDEF or not name:
                continue
            if info & 15 == _STT_TLS:
                shared.append((name, value, length))
            else:
                symbols[name] = value
    return Image(
        bytes=max(s[3] + s[6] for s in segments if s[0] == _PT_LOAD),
        segment_bytes=next(s[6] for s in segments if s[0] == _PT_TLS),
        shared=tuple(sorted(shared, key=lambda entry: entry[1])),
        symbols=symbols,
    )
