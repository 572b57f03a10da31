"""Loads a compiled kernel library and finds what the runtime must know: entry, parameters, shared memory.

Where its shared memory lies, and whether the file is all there, is read from the library's ELF file.
"""

from __future__ import annotations

import ctypes as c
import struct
from dataclasses import dataclass
from pathlib import Path

from normgen.devices.host import abi
from normgen.locks import new_lock

# The runtime has one launch at a time. Loading counts as one: a library's own functions are watched too.
RUNNING = new_lock()

_MOST_PARAMETERS = 4096  # of 8 bytes each: as many as CUDA takes

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PT_LOAD, _PT_TLS = 1, 7
_SHT_SYMTAB, _SHT_NOBITS = 2, 8
_X86_64 = 62
_STT_TLS = 6
_SHN_UNDEF = 0

_Parts = list[tuple[int, ...]]


class Unloadable(Exception):
    """A file in the cache is not what it should be: cut off, for another machine, or no program at all.

    `path`: the file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} does not load: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True, eq=False)
class HostFunction:
    """A kernel that is compiled and loaded. `parameters`: bytes and kind (see `abi.Parameter`)."""

    source: str
    entry: str
    shared: int
    parameters: tuple[tuple[int, str], ...]
    library: Path
    runtime: c.CDLL
    module: abi.Module
    kept_alive: tuple[object, ...]


_runtimes: dict[str, c.CDLL] = {}


def load_runtime(path: Path) -> c.CDLL:
    """The runtime; kernel libraries loaded later find it by its name, so it must be loaded before them.

    A process has one of each content, from whichever cache it came first: a second would be nobody's.
    Unloadable where the file is not what it should be.
    """
    with RUNNING:
        runtime = _runtimes.get(path.name)
        if runtime is None:
            runtime = _runtimes[path.name] = _library(path, "simt_run", "simt_report")
    runtime.simt_run.argtypes = (c.POINTER(abi.HostLaunch),)
    runtime.simt_run.restype = c.c_int
    runtime.simt_report.restype = c.c_char_p
    return runtime


def load_function(runtime: c.CDLL, path: Path, source: str, entry: str, shared: int) -> HostFunction:
    """Load the library at `path`, which stays loaded. Unloadable where the file is not what it should be."""
    image = read_image(path)
    sizes, kinds = (c.c_uint32 * _MOST_PARAMETERS)(), c.create_string_buffer(_MOST_PARAMETERS)
    with RUNNING:
        library = _library(path, "simt_entry", "simt_parameters", "simt_shared_memory")
        count = library.simt_parameters(sizes, kinds, _MOST_PARAMETERS)
    entry_address = _address(library.simt_entry)
    statics = [(offset, size) for name, offset, size in image.shared if name != "smem"]
    arrays = (abi.Array * max(1, len(statics)))(*(abi.Array(offset, size) for offset, size in statics))
    module = abi.Module(
        entry=entry_address,
        shared_memory=_address(library.simt_shared_memory),
        base=entry_address - image.symbols["simt_entry"],
        image_bytes=image.bytes,
        segment_bytes=image.segment_bytes,
        dynamic_offset=next(offset for name, offset, _ in image.shared if name == "smem"),
        arrays=arrays,
        array_count=len(statics),
    )
    return HostFunction(
        source=source,
        entry=entry,
        shared=shared,
        parameters=tuple(zip(sizes[:count], kinds.raw[:count].decode(), strict=True)),
        library=path,
        runtime=runtime,
        module=module,
        kept_alive=(library, arrays),
    )


def _library(path: Path, *functions: str) -> c.CDLL:
    read_whole(path)
    try:
        library = c.CDLL(str(path))
    except OSError as fault:
        raise Unloadable(path, str(fault)) from fault
    for name in functions:
        if not hasattr(library, name):
            raise Unloadable(path, f"it has no {name}")
    return library


def _address(function: object) -> int:
    address = c.cast(function, c.c_void_p).value  # type: ignore[arg-type]
    assert address
    return address


# ------------------------------------------------------------------------------------------------ ELF


@dataclass(frozen=True, slots=True)
class Image:
    """A shared library. `shared`: (name, offset in the thread-local segment, bytes) of each __shared__ array;
    `symbols`: addresses relative to where the library is loaded."""

    bytes: int
    segment_bytes: int
    shared: tuple[tuple[str, int, int], ...]
    symbols: dict[str, int]


def read_whole(path: Path) -> bytes:
    """The contents of an object or a library for this machine; Unloadable unless all of it is there.

    A library that is cut off must not be loaded: what lacks of it is a bus error on the first touch.
    """
    return _parts(path)[0]


def read_image(path: Path) -> Image:
    """Read a shared library that still has its symbol table. Unloadable where the file is none of ours."""
    data, segments, sections = _parts(path)
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
    loaded = [s[3] + s[6] for s in segments if s[0] == _PT_LOAD]
    local = [s[6] for s in segments if s[0] == _PT_TLS]
    if not loaded or not local or not any(name == "smem" for name, _, _ in shared):
        raise Unloadable(path, "it has no shared memory")
    return Image(
        bytes=max(loaded),
        segment_bytes=local[0],
        shared=tuple(sorted(shared, key=lambda entry: entry[1])),
        symbols=symbols,
    )


def _parts(path: Path) -> tuple[bytes, _Parts, _Parts]:
    """The contents of a 64-bit little-endian ELF file for x86-64, its segments and its sections."""
    try:
        data = path.read_bytes()
        header = _HEADER.unpack_from(data)
        segments = [_SEGMENT.unpack_from(data, header[5] + i * _SEGMENT.size) for i in range(header[10])]
        sections = [_SECTION.unpack_from(data, header[6] + i * _SECTION.size) for i in range(header[12])]
    except OSError as fault:
        raise Unloadable(path, fault.strerror or str(fault)) from fault
    except struct.error:
        raise Unloadable(path, "it is cut off, or not a library") from None
    if header[0][:6] != b"\x7fELF\x02\x01" or header[2] != _X86_64:
        raise Unloadable(path, "it is not a library for this machine")
    ends = [s[2] + s[5] for s in segments] + [s[4] + s[5] for s in sections if s[1] != _SHT_NOBITS]
    if max(ends, default=0) > len(data):
        raise Unloadable(path, "it is cut off")
    return data, segments, sections
