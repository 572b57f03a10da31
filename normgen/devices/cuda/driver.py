"""The seam between normgen and CUDA: all that the runtime asks of a driver, in two protocols.

`Driver` finds devices and compiles; `Context` is one CUDA context, in which modules are loaded, functions
launched and memory held.  PyCUDA or cuda-bindings stands behind it (`drivers`); anything else that can
launch a function from a cubin fits too, and the tests put a pure-Python imitation here.  Functions, modules
and memory are opaque outside of the driver that made them.  Every method may be called from any thread, and
leaves the thread's current context as it found it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from normgen.launching.launch import Fire, Launch
from normgen.launching.machine import Machine


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """The compiler's report: `local` is bytes that a thread spills or indexes, `shared` is static."""

    registers: int
    local: int
    shared: int
    threads: int


class Memory(Protocol):
    """Device memory; freed when the object is."""

    @property
    def pointer(self) -> int: ...


class Loaded(Protocol):
    """A function, until its module goes: whoever launches it looks for `handle` each time, and keeps none."""

    handle: Any


class Context(Protocol):
    """One CUDA context of one device. In a `with` block it is current, whatever was current before."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, fault: Any, trace: Any) -> None: ...

    @property
    def index(self) -> int:
        """The device's ordinal."""

    @property
    def primary(self) -> bool:
        """Whether it is the device's primary context, which frameworks share."""

    @property
    def device(self) -> Machine: ...

    @property
    def cache_bytes(self) -> int:
        """The size of the device's second-level cache."""

    def load(self, binary: bytes) -> Any:
        """A module. DriverError where the driver does not take the binary."""

    def function(self, module: Any, entry: str) -> Any: ...

    def report(self, function: Any) -> FunctionReport: ...

    def allow_shared(self, function: Any, size: int) -> None:
        """Let launches ask for up to `size` bytes of dynamic shared memory, beyond the usual 48 KiB."""

    def allow_large_clusters(self, function: Any) -> None:
        """Let the function's clusters have more than the portable 8 blocks."""

    def launcher(self, loaded: Loaded, launch: Launch) -> Fire:
        """What launches a function on anyone's stream, with the parameters' bytes in their native layout.
        (Nothing here looks at the memory that it touches.)

        `launch.programmatic`: it may start while the kernel before it ends. A permission, asked for only
        where the device says that it is one.
        """

    def allocate(self, size: int) -> Memory: ...

    def fill_zero(self, pointer: int, size: int, stream: int) -> None: ...

    def copy_in(self, pointer: int, content: Any) -> None:
        """Copy a contiguous host buffer to the device, and wait for it."""

    def copy_out(self, buffer: Any, pointer: int) -> None:
        """Copy from the device into a contiguous writable host buffer, and wait for it."""

    def wait(self, stream: int, other: int) -> None:
        """Let what is put into `stream` from now on run after what is in `other` now."""

    def capturing(self, stream: int) -> bool:
        """Whether a graph is made of what is put into a stream now, or that cannot be told."""

    def finish(self, stream: int) -> None:
        """Wait for what is in a stream now."""

    def synchronize(self) -> None:
        """Wait for everything in this context."""

    def mark(self) -> Any:
        """A mark on the default stream, after all that is queued there now."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has come to a mark."""

    def microseconds(self, begin: Any, end: Any) -> float:
        """The device's time between two marks that it has passed."""


class Driver(Protocol):
    """A way to CUDA. Its methods raise DeviceMissing, or ToolchainMissing, when there is none here."""

    @property
    def name(self) -> str: ...

    def device_count(self) -> int: ...

    def primary(self, index: int) -> Context:
        """The primary context of a device, which frameworks share: retained once, never left current."""

    def current(self) -> Context | None:
        """The context that the caller made current through this driver's own package, if there is one."""

    def device_of(self, pointer: int) -> int:
        """The ordinal of the device that memory lies on."""

    def toolchain(self) -> str:
        """What `compile` compiles with: part of the key of every binary."""

    def compile(self, source: str, arch: str, options: tuple[str, ...]) -> bytes:
        """A cubin of CUDA text, for one architecture such as sm_90."""
