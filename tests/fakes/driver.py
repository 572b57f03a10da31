"""A CUDA driver in pure Python, behind the runtime's seam: it compiles to a digest and only records launches.

Device memory has addresses that mean nothing to the host, so that touching them would crash, and every copy
between host and device is counted. What a driver refuses of a launch, it refuses (`refusals`).
"""

from __future__ import annotations

import hashlib
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from normgen.devices.cuda.compile import OPTIONS
from normgen.devices.cuda.driver import FunctionReport, Loaded
from normgen.errors import CompileError, DeviceMissing, DriverError
from normgen.launching.launch import Buffer, Fire, Launch
from normgen.launching.machine import ORDINARY_SHARED, PORTABLE_CLUSTER, Machine
from tests.fakes.refusals import why_refused

BASE = 0x7F00_0000_0000


class Launched(NamedTuple):
    """One recorded launch."""

    context: FakeContext
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    packed: bytes
    stream: int
    programmatic: bool


@dataclass
class FakeFunction:
    context: FakeContext
    module: bytes
    entry: str
    shared: int = 0  # that was asked for
    large_clusters: bool = False


class FakeMemory:
    def __init__(self, driver: FakeDriver, size: int) -> None:
        self.driver = driver
        self.content = mmap.mmap(-1, max(size, 1))  # which takes no memory until it is touched
        with driver.guard:
            self.pointer = driver.next_address
            driver.next_address += (size + 511) // 256 * 256
        driver.memory[self.pointer] = self.content

    def __del__(self) -> None:
        self.driver.memory.pop(self.pointer, None)


class FakeContext:
    def __init__(self, driver: FakeDriver, index: int, primary: bool) -> None:
        self.driver, self.index, self.primary, self.device = driver, index, primary, driver.device

    def __enter__(self) -> None:
        self.driver.stack.append(self)

    def __exit__(self, *_: Any) -> None:
        assert self.driver.stack.pop() is self

    def compile(self, source: str) -> bytes:
        return self.driver.compile(source, self.device.arch)

    def load(self, binary: bytes) -> bytes:
        if not binary.startswith(b"fake cubin for " + self.device.arch.encode()):
            raise DriverError("CUDA: no kernel image is available")
        self.driver.loads += 1
        return binary

    def function(self, module: bytes, entry: str) -> FakeFunction:
        return FakeFunction(self, module, entry)

    def report(self, function: FakeFunction) -> FunctionReport:
        return FunctionReport(registers=32, local=0, shared=self.driver.static_shared, threads=1024)

    def allow_shared(self, function: FakeFunction, size: int) -> None:
        if size > self.device.shared_per_block - self.driver.static_shared:
            raise DriverError(f"CUDA: cuFuncSetAttribute failed: {size} bytes of shared memory")
        function.shared = size

    def allow_large_clusters(self, function: FakeFunction) -> None:
        if not self.device.clusters:
            raise DriverError("CUDA: cuFuncSetAttribute failed: there are no clusters")
        function.large_clusters = True

    def launcher(self, loaded: Loaded, launch: Launch) -> Fire:
        grid, block, early = launch.grid, launch.block, launch.programmatic
        most = self.device.max_cluster
        assert type(grid) is tuple and type(block) is tuple
        assert self.device.programmatic or not early, "what the device does not allow"

        def fire(packed: bytes, buffers: tuple[Buffer, ...], stream: int) -> None:
            function: FakeFunction = loaded.handle
            assert function.context is self, "launched in another context than it was loaded in"
            allowed = max(function.shared, ORDINARY_SHARED - self.driver.static_shared)
            largest = most if function.large_clusters else min(PORTABLE_CLUSTER, most)
            if why := why_refused(grid, block, launch.shared, allowed, launch.cluster, largest):
                raise DriverError(f"CUDA: cuLaunchKernelEx failed: {why}")
            made = Launched(self, function.entry, grid, block, launch.shared, packed, stream, early)
            self.driver.launches.append(made)

        return fire

    def allocate(self, size: int) -> FakeMemory:
        return FakeMemory(self.driver, size)

    def fill_zero(self, pointer: int, size: int, stream: int) -> None:
        self.driver.fills.append((pointer, size, stream))
        content, offset = self.driver.find(pointer, size)
        content[offset : offset + size] = bytes(size)

    def copy_in(self, pointer: int, content: Any) -> None:
        data = bytes(memoryview(content).cast("B"))
        self.driver.copies.append(("in", pointer, len(data)))
        memory, offset = self.driver.find(pointer, len(data))
        memory[offset : offset + len(data)] = data

    def copy_out(self, buffer: Any, pointer: int) -> None:
        target = memoryview(buffer).cast("B")
        self.driver.copies.append(("out", pointer, len(target)))
        memory, offset = self.driver.find(pointer, len(target))
        target[:] = memory[offset : offset + len(target)]

    def wait(self, stream: int, other: int) -> None:
        self.driver.waits.append((stream, other))

    def name_of(self, stream: int) -> int | None:
        return None if stream in self.driver.captured else self.driver.names.get(stream, stream)

    def finish(self, stream: int) -> None:
        assert stream not in self.driver.captured, "a stream that is captured cannot be waited for"
        self.driver.finished.append(stream)

    def synchronize(self) -> None:
        self.driver.synchronized += 1

    def mark(self) -> int:
        return len(self.driver.launches)

    def passed(self, mark: int) -> bool:
        return False  # whatever is queued runs when it is waited for

    def microseconds(self, begin: int, end: int) -> float:
        return sum(self.driver.launch_us(launched) for launched in self.driver.launches[begin:end])


class FakeDriver:
    """`devices` alike devices. `faults` maps a word in a text to the compiler's complaint."""

    name = "fake"

    def __init__(self, devices: int = 1, arch: str = "sm_90") -> None:
        self.devices = devices
        self.device = Machine("Imaginary", arch, 132, 227 * 1024, 228 * 1024, cache=1 << 20)
        self.compile_seconds = 0.0
        self.options = OPTIONS
        self.built = "nvcc 13.0 (fake)"
        self.static_shared = 0
        self.faults: dict[str, str] = {}
        self.guard = threading.Lock()
        self.stack: list[FakeContext] = []
        self.user: FakeContext | None = None
        self.primaries: dict[int, FakeContext] = {}
        self.compiled: list[tuple[str, str, tuple[str, ...]]] = []
        self.loads = 0
        self.launches: list[Launched] = []
        self.captured: set[int] = set()
        self.names: dict[int, int] = {}  # of streams, by handle
        self.memory: dict[int, mmap.mmap] = {}
        self.next_address = BASE
        self.fills: list[tuple[int, int, int]] = []
        self.copies: list[tuple[str, int, int]] = []
        self.waits: list[tuple[int, int]] = []
        self.finished: list[int] = []
        self.synchronized = 0
        self.launch_us: Callable[[Launched], float] = lambda _: 1.0
        self.places: dict[int, int] = {}

    @property
    def compiler(self) -> FakeDriver:
        return self

    def device_count(self) -> int:
        return self.devices

    def primary(self, index: int) -> FakeContext:
        if not 0 <= index < self.devices:
            raise DeviceMissing(f"no CUDA device {index}: there are {self.devices}")
        with self.guard:
            return self.primaries.setdefault(index, FakeContext(self, index, True))

    def current(self) -> FakeContext | None:
        return self.user

    def make_current(self, index: int) -> FakeContext:
        """What `pycuda.autoinit` does: a context of the caller's own."""
        self.user = FakeContext(self, index, False)
        return self.user

    def device_of(self, pointer: int) -> int:
        return self.places.get(pointer, 0)

    def toolchain(self) -> str:
        return self.built

    describe = toolchain

    def headers(self) -> str:
        return "none"

    def version(self) -> tuple[int, int]:
        return (13, 0)

    def compile(self, source: str, arch: str) -> bytes:
        with self.guard:
            self.compiled.append((source, arch, self.options))
        time.sleep(self.compile_seconds)
        for word, complaint in self.faults.items():
            if word in source:
                raise CompileError("kept.cu", ("nvcc",), complaint)
        return b"fake cubin for " + arch.encode() + b" " + hashlib.sha256(source.encode()).digest()

    def close(self) -> None: ...

    def find(self, pointer: int, size: int) -> tuple[mmap.mmap, int]:
        for start, content in self.memory.items():
            if start <= pointer and pointer + size <= start + len(content):
                return content, pointer - start
        raise AssertionError(f"{size} bytes at {pointer:#x} are no memory of this driver")
