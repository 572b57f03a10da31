"""Loads a compiled kernel library and finds what the runtime must know: entry, parameters, shared memory."""

from __future__ import annotations

import ctypes as c
import threading
from dataclasses import dataclass
from pathlib import Path

from normgen.devices.host import abi
from normgen.devices.host.elf import Unloadable, read_image, read_whole

# The runtime has one launch at a time. Loading counts as one: a library's own functions are watched too.
RUNNING = threading.Lock()

_MOST_PARAMETERS = 512


@dataclass(frozen=True, slots=True, eq=False)
class HostFunction:
    """A kernel that is compiled and loaded. `parameters`: bytes and kind (see `host_abi.Parameter`)."""

    source: str
    entry: str
    shared: int
    static_shared: int
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
        static_shared=sum(size for _, size in statics),
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
