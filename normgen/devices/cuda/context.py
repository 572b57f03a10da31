"""Contexts of any launcher, with their memory, events and streams, by the driver's API.

Kernels are loaded and launched by it too, unless the launcher has words of its own for that.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from normgen.devices.cuda.driver import FunctionReport, Loaded
from normgen.devices.launch_kernel import starter
from normgen.errors import DriverError
from normgen.launching.launch import DEFAULT_STREAM, Buffer, Fire, Launch
from normgen.launching.machine import Machine, architecture

if TYPE_CHECKING:
    from normgen.devices.cuda.launcher import LauncherDriver

# Numbers of CUDA's header: CU_DEVICE_ATTRIBUTE_ by what it is here,
_MAJOR, _MINOR = 75, 76
_ATTRIBUTES = {
    "multiprocessors": 16,
    "cache": 38,
    "threads_per_multiprocessor": 39,
    "shared_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "shared_per_block": 97,
}
# CU_FUNC_ATTRIBUTE_ in the order of a report, and those that are set,
_REPORTED = (4, 3, 1, 0)
_MOST_DYNAMIC_SHARED, _LARGE_CLUSTERS = 8, 14
# CU_EVENT_DISABLE_TIMING and CUDA_ERROR_NOT_READY.
_NO_TIMING = 2
_NOT_READY = 600
# No context is current, or another one than the function's.
_WRONG_CONTEXT = (201, 400)


class Context:
    """One CUDA context of one device. In a `with` block it is current, whatever was current before.

    Functions, modules and memory are opaque outside of the driver that made them. Every method may be called
    from any thread, and leaves the thread's current context as it found it; but where a thread has none, a
    launch leaves a primary one there, as CUDA's own runtime does.
    """

    def __init__(self, driver: LauncherDriver[Any], handle: Any, index: int, primary: bool) -> None:
        self.driver = driver
        self.handle = handle  # the launcher's own object
        self.index = index  # the device's ordinal
        self.primary = primary  # whether frameworks share it
        self.device = _describe(driver, index)

    def __enter__(self) -> None:
        self.driver.call("cuCtxPushCurrent", self.handle)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.call("cuCtxPopCurrent")

    def compile(self, source: str) -> bytes:
        """The binary of a text that is loaded next."""
        return self.driver.compiler.compile(source, self.device.arch)

    def load(self, binary: bytes) -> Any:
        """A module. DriverError where the driver does not take the binary."""
        return Owned(self, "cuModuleLoadData", "cuModuleUnload", binary)

    def function(self, module: Any, entry: str) -> Any:
        """A kernel of a module."""
        return Function(int(self._call("cuModuleGetFunction", module.handle, entry.encode())), module)

    def launcher(self, loaded: Loaded, launch: Launch) -> Fire:
        """What launches a function on anyone's stream, with the parameters' bytes in their native layout.
        (Nothing here looks at the memory that it touches.)

        `launch.programmatic`: it may start while the kernel before it ends. A permission, asked for only
        where the device says that it is one.
        """
        start = starter(self.driver.launch_kernel, launch)

        def fire(packed: bytes, buffers: tuple[Buffer, ...], stream: int) -> None:
            function = loaded.handle.address
            code = start(function, packed, stream)
            if code in _WRONG_CONTEXT:
                # Mostly the caller's framework has this context current; a thread that never used CUDA does
                # not.
                self.settle()
                with self:
                    code = start(function, packed, stream)
            if code:
                raise self.driver.refused("cuLaunchKernelEx", code)

        return fire

    def settle(self) -> None:
        """Make a primary context current for good in a thread that has none: its launches are then plain."""
        if self.primary and not int(self.driver.call("cuCtxGetCurrent") or 0):
            self.driver.call("cuCtxSetCurrent", self.address)

    @property
    def address(self) -> Any:
        """The context as the driver's API takes it."""
        return self.handle

    def attribute(self, function: Any, number: int) -> int:
        """An attribute of a function, where the context is current."""
        return int(self.driver.call("cuFuncGetAttribute", number, function.address))

    def set_attribute(self, function: Any, number: int, value: int) -> None:
        """Set it, where the context is current."""
        self.driver.call("cuFuncSetAttribute", function.address, number, value)

    def report(self, function: Any) -> FunctionReport:
        with self:
            return FunctionReport(*(self.attribute(function, number) for number in _REPORTED))

    def allow_shared(self, function: Any, size: int) -> None:
        """Let launches ask for up to `size` bytes of dynamic shared memory, beyond the usual 48 KiB."""
        with self:
            self.set_attribute(function, _MOST_DYNAMIC_SHARED, size)

    def allow_large_clusters(self, function: Any) -> None:
        """Let the function's clusters have more than the portable 8 blocks."""
        with self:
            self.set_attribute(function, _LARGE_CLUSTERS, 1)

    def allocate(self, size: int) -> Memory:
        try:
            return Memory(self, "cuMemAlloc", "cuMemFree", max(size, 1))
        except DriverError:  # garbage may hold memory
            gc.collect()
            return Memory(self, "cuMemAlloc", "cuMemFree", max(size, 1))

    def fill_zero(self, pointer: int, size: int, stream: int) -> None:
        if size:
            self._call("cuMemsetD8Async", pointer, 0, size, stream)

    def copy_in(self, pointer: int, content: Any) -> None:
        """Copy a contiguous host buffer to the device, and wait for it."""
        self._call("cuMemcpyHtoD", pointer, content, memoryview(content).nbytes)

    def copy_out(self, buffer: Any, pointer: int) -> None:
        """Copy from the device into a contiguous writable host buffer, and wait for it."""
        self._call("cuMemcpyDtoH", buffer, pointer, memoryview(buffer).nbytes)

    def wait(self, stream: int, other: int) -> None:
        """Let what is put into `stream` from now on run after what is in `other` now."""
        call = self.driver.call
        with self:
            event = call("cuEventCreate", _NO_TIMING)
            try:
                call("cuEventRecord", event, other)
                call("cuStreamWaitEvent", stream, event, 0)
            finally:
                call("cuEventDestroy", event)

    def name_of(self, stream: int) -> int | None:
        """A number of a stream that no other has, while its handle may come again. None while a graph is made
        of what is put into it, or where that cannot be told."""
        with self:
            code, status = self.driver.ask("cuStreamIsCapturing", stream)
            # Of the default stream the driver refuses to tell while others are captured.
            if code or int(status):
                return None
            code, number = self.driver.ask("cuStreamGetId", stream)
            return int(stream if code else number)

    def capture(self, stream: int) -> int:
        """A number that tells the capture of a graph by a stream from others; 0 where there is none."""
        with self:
            return self.driver.capture(stream)

    def finish(self, stream: int) -> None:
        """Wait for what is in a stream now."""
        self._call("cuStreamSynchronize", stream)

    def synchronize(self) -> None:
        """Wait for everything in this context."""
        self._call("cuCtxSynchronize")

    def mark(self) -> Owned:
        """A mark on the default stream, after all that is queued there now."""
        with self:
            made = Owned(self, "cuEventCreate", "cuEventDestroy", 0)
            self.driver.call("cuEventRecord", made.handle, DEFAULT_STREAM)
            return made

    def passed(self, mark: Owned) -> bool:
        """Whether the device has come to a mark."""
        with self:
            code, _ = self.driver.ask("cuEventQuery", mark.handle)
        if code not in (0, _NOT_READY):
            raise self.driver.refused("cuEventQuery", code)
        return int(code) == 0

    def microseconds(self, begin: Owned, end: Owned) -> float:
        """The device's time between two marks that it has passed."""
        return float(self._call("cuEventElapsedTime", begin.handle, end.handle)) * 1000

    def _call(self, name: str, *arguments: Any) -> Any:
        with self:
            return self.driver.call(name, *arguments)


class Owned:
    """What is made in a context and given back inside it, in whatever thread its last owner dies."""

    def __init__(self, context: Context, make: str, give_back: str, *arguments: Any) -> None:
        self._context = context
        self._give_back = give_back
        with context:
            self.handle = context.driver.call(make, *arguments)

    def __del__(self) -> None:
        if hasattr(self, "handle") and not self._context.driver.closed:
            with suppress(Exception), self._context:
                self._context.driver.call(self._give_back, self.handle)


class Function(NamedTuple):
    """A kernel, which keeps its module."""

    address: int  # of its handle
    module: Owned


class Memory(Owned):
    """Device memory."""

    @property
    def pointer(self) -> int:
        return int(self.handle)


def _describe(driver: LauncherDriver[Any], index: int) -> Machine:
    def ask(number: int) -> int:
        return int(driver.call("cuDeviceGetAttribute", number, index))

    arch = f"sm_{ask(_MAJOR)}{ask(_MINOR)}"
    return Machine(
        name=bytes(driver.call("cuDeviceGetName", 256, index)).split(b"\0")[0].decode(),
        arch=arch,
        programmatic=driver.programmatic and architecture(arch).programmatic,
        **{name: ask(number) for name, number in _ATTRIBUTES.items()},
    )
