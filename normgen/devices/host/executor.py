"""The host executor: runs the same CUDA text on the CPU, for NumPy arrays and for tests without a GPU.

Checked, it watches every access of a kernel, as compute-sanitizer does on a GPU: addresses, alignment,
memory that nobody wrote, races, diverging barriers; and, where a launch may start early, that nothing is
touched before the kernel has waited. Checked or not, it ends a kernel that comes to no end. It raises what it
finds as a `HostFault` that quotes the lines of the kernel, and counts the bytes that each buffer's accesses
moved.
"""

from __future__ import annotations

import ctypes as c
import logging
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from normgen.cache import Cache, default_cache
from normgen.devices.host import abi
from normgen.devices.host.abi import packed_parameters
from normgen.devices.host.compile import build_kernel, build_runtime, find_compiler
from normgen.devices.host.load import RUNNING, HostFunction, Unloadable, load_function, load_runtime
from normgen.devices.host.report import tell
from normgen.errors import ToolchainMissing
from normgen.launching.launch import Buffer, Fire, Launch, parameters_of
from normgen.launching.machine import HOST_MACHINE, ORDINARY_SHARED, Machine
from normgen.locks import new_lock
from normgen.package.device_functions import inlined

_log = logging.getLogger("normgen")

# What a block may take beside, for all bytes of a launch's arrays: many times what the slowest kernel does.
_SECONDS_PER_BYTE = 1e-6

_FLAGS = {"read": abi.READ_ONLY, "write": abi.UNDEFINED | abi.WRITE_ONCE, "update": 0}


class HostFault(Exception):
    """A kernel did what it must not. The text names the faults, each with its place in the source."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a launch moved of one buffer, in bytes: all accesses, and the distinct elements among them."""

    name: str
    read: int
    written: int
    distinct_read: int
    distinct_written: int


class HostExecutor:
    """Compiles and runs kernels on this machine's CPU. Safe to share between threads, which take turns.

    A sound kernel does the same in any `order`.

    `traffic` is what the last launch moved, `history` that of all launches, with their entry (checked only).
    """

    def __init__(
        self,
        checked: bool = False,  # watch every access
        order: int = 0,  # threads and blocks run ascending, descending (1) or at random (2)
        seed: int = 0,  # of a random order
        *,
        contracted: bool = False,  # fuse multiplications and additions, as nvcc does
        blocks: slice | None = None,  # run only these of a launch, and say nothing of what stays unwritten
        maximum_seconds: float = 10,  # processor time of a block or cluster before it counts as endless
        cache: Cache | None = None,
    ) -> None:
        if order not in (0, 1, 2):
            raise ValueError(f"order must be 0 (ascending), 1 (descending) or 2 (random) but is {order}")
        self.checked = checked
        self.order = order
        self.seed = seed
        self.contracted = contracted
        self.blocks = blocks
        self.maximum_seconds = maximum_seconds
        self.traffic: tuple[Traffic, ...] = ()
        self.history: deque[tuple[str, tuple[Traffic, ...]]] = deque(maxlen=1024)
        self._cache = cache
        self._functions: dict[tuple[str, str, int], HostFunction] = {}
        self._locks: dict[tuple[str, str, int], threading.Lock] = {}
        self._guard = new_lock()

    @property
    def device(self) -> Machine:
        return HOST_MACHINE

    def function(self, source: str, entry: str, shared: int) -> HostFunction:
        """The kernel `entry` of a text, which may use `shared` bytes of dynamic shared memory."""
        key = source, entry, shared
        known = self._functions.get(key)
        if known is not None:
            return known
        with self._guard:
            lock = self._locks.setdefault(key, new_lock())
        with lock:
            if key not in self._functions:
                self._functions[key] = self._load(source, entry, shared)
            return self._functions[key]

    def launch(
        self, function: HostFunction, launch: Launch, packed: bytes, buffers: tuple[Buffer, ...], stream: int
    ) -> None:
        """Run one launch to its end. There are no streams on the host: `stream` is ignored."""
        del stream
        arguments = _Arguments(function, launch, packed)
        assert launch.shared <= max(function.shared, ORDINARY_SHARED), (launch.shared, function.shared)
        names = arguments.buffer_names(buffers)
        regions, region_of = _merge(buffers) if self.checked else ((), (None,) * len(buffers))
        table = self._table(regions)
        request = self._request(function, launch, arguments, table, len(regions))
        request.maximum_seconds = self.maximum_seconds + _SECONDS_PER_BYTE * sum(b.bytes for b in buffers)
        with RUNNING:
            faults = function.runtime.simt_run(c.byref(request))
            report = function.runtime.simt_report().decode(errors="replace") if faults else ""
        if self.checked:
            self.traffic = tuple(
                _traffic(name, table[i] if i is not None else abi.CheckedBuffer())
                for name, i in zip(names, region_of, strict=True)
            )
            self.history.append((launch.entry, self.traffic))
        if faults:
            region_names = [
                " = ".join(name for name, i in zip(names, region_of, strict=True) if i == number)
                for number in range(len(regions))
            ]
            told = tell(report, function.library, function.module.base or 0, function.source, region_names)
            raise HostFault(f"{launch.entry} (grid {launch.grid}, block {launch.block}):\n{told}")

    def prepare(self, function: HostFunction, launch: Launch) -> Fire:
        """`launch` for one function and record."""
        return partial(self.launch, function, launch)

    def _table(self, regions: tuple[Buffer, ...]) -> c.Array[abi.CheckedBuffer]:
        table = (abi.CheckedBuffer * max(1, len(regions)))()
        for slot, region in zip(table, regions, strict=False):
            slot.address, slot.bytes, slot.item_bytes = region.pointer, region.bytes, region.itemsize
            slot.flags = _FLAGS[region.access]
        return table

    def _request(
        self,
        function: HostFunction,
        launch: Launch,
        arguments: _Arguments,
        table: c.Array[abi.CheckedBuffer],
        count: int,
    ) -> abi.HostLaunch:
        total = launch.grid[0] * launch.grid[1] * launch.grid[2]
        first, end, step = (self.blocks or slice(None)).indices(total)
        if step != 1:
            raise ValueError(f"blocks must have step 1 but is {self.blocks}")
        return abi.HostLaunch(
            module=c.pointer(function.module),
            arguments=arguments.pointers,
            buffers=table,
            buffer_count=count,
            first_block=first,
            end_block=max(first, end),
            grid=abi.Dimensions(*launch.grid),
            block=abi.Dimensions(*launch.block),
            cluster=launch.cluster,
            shared=launch.shared,
            order=self.order,
            seed=self.seed & 0xFFFFFFFF,
            checked=self.checked,
            early=launch.programmatic,
        )

    def _load(self, source: str, entry: str, shared: int) -> HostFunction:
        compiler = find_compiler()
        cache = self._cache or default_cache()
        text = inlined(source)
        put_aside: set[Path] = set()
        while True:
            try:
                runtime = load_runtime(build_runtime(cache, compiler))
                library = build_kernel(cache, compiler, text, entry, self.checked, self.contracted)
                return load_function(runtime, library, text, entry, shared)
            except Unloadable as fault:
                # Sound on disk, and yet not what this machine takes: build it again, once. One that another
                # process has removed meanwhile is no fault of what was built.
                if fault.path in put_aside and fault.path.exists():
                    raise ToolchainMissing(
                        f"a library that {compiler.path} built does not load: {fault}"
                    ) from fault
                _log.warning("cache entry %s: building it again", fault)
                cache.discard(fault.path)
                put_aside.add(fault.path)


class _Arguments:
    """A launch's packed arguments as the `void**` of cuLaunchKernel, checked against the parameters."""

    def __init__(self, function: HostFunction, launch: Launch, packed: bytes) -> None:
        parameters = packed_parameters(launch.format)
        given = tuple((p.bytes, p.kind) for p in parameters)
        if given != function.parameters:
            raise HostFault(_mismatch(function, given))
        self.function = function
        self.memory = c.create_string_buffer(packed, len(packed))
        start = c.addressof(self.memory)
        self.pointers = (c.c_void_p * max(1, len(parameters)))(*(start + p.offset for p in parameters))
        self.addresses = [
            c.c_void_p.from_buffer(self.memory, p.offset).value if p.kind == "p" else None for p in parameters
        ]

    def buffer_names(self, buffers: tuple[Buffer, ...]) -> tuple[str, ...]:
        """What to call each buffer: the parameter that points to it. Two of one address go in order."""
        parameters = parameters_of(self.function.source, self.function.entry, len(self.function.parameters))
        free = list(zip(self.addresses, parameters, strict=True))
        names: list[str] = []
        for number, buffer in enumerate(buffers):
            match = next((entry for entry in free if entry[0] == buffer.pointer), None)
            names.append(match[1] if match else f"buffer {number}")
            if match:
                free.remove(match)
        return tuple(names)


def _mismatch(function: HostFunction, given: tuple[tuple[int, str], ...]) -> str:
    names = parameters_of(function.source, function.entry, len(function.parameters))
    kinds = {"i": "integer", "f": "float", "p": "pointer", "s": "structure"}
    if len(given) != len(function.parameters):
        return (
            f"{function.entry} has {len(function.parameters)} parameters, but the launch passes {len(given)}"
        )
    wrong = [
        f"{name} is a {size}-byte {kinds[kind]}, but the launch passes a {other_size}-byte "
        f"{kinds[other_kind]}"
        for name, (size, kind), (other_size, other_kind) in zip(
            names, function.parameters, given, strict=True
        )
        if (size, kind) != (other_size, other_kind)
    ]
    return f"{function.entry}: " + "; ".join(wrong)


def _merge(buffers: tuple[Buffer, ...]) -> tuple[tuple[Buffer, ...], tuple[int | None, ...]]:
    """Disjoint regions, and which of them each buffer is in.

    An output in the place of an input makes one region, updated: the order of reads and writes is checked.
    """
    regions: list[Buffer] = []
    region_of: list[int | None] = [None] * len(buffers)
    for number in sorted(range(len(buffers)), key=lambda i: buffers[i].pointer):
        buffer = buffers[number]
        if buffer.bytes <= 0:
            continue
        last = regions[-1] if regions else None
        if last is not None and buffer.pointer < last.pointer + last.bytes:
            end = max(last.pointer + last.bytes, buffer.pointer + buffer.bytes)
            regions[-1] = Buffer(
                pointer=last.pointer,
                bytes=end - last.pointer,
                itemsize=min(last.itemsize, buffer.itemsize),
                access="read" if last.access == buffer.access == "read" else "update",
            )
        else:
            regions.append(buffer)
        region_of[number] = len(regions) - 1
    return tuple(regions), tuple(region_of)


def _traffic(name: str, slot: abi.CheckedBuffer) -> Traffic:
    return Traffic(
        name=name,
        read=slot.read_bytes,
        written=slot.written_bytes,
        distinct_read=min(slot.read_items * slot.item_bytes, slot.bytes),
        distinct_written=min(slot.written_items * slot.item_bytes, slot.bytes),
    )
