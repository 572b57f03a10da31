"""What all launchers have in common: contexts, memory, events and streams, by the driver's API.

Kernels are loaded and launched by it too, so that they may start early and on anyone's stream, and so that
compiled code launches the same functions. A launcher adds how that API is called (`LauncherDriver.ask`), and
how contexts are retained and made current.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from normgen.devices.cuda.driver import Compiler, FunctionReport, Loaded
from normgen.devices.launch_kernel import address_of, starter
from normgen.errors import DeviceMissing, DriverError
from normgen.launching.launch import DEFAULT_STREAM, Buffer, Fire, Launch
from normgen.launching.machine import Machine, architecture
from normgen.locks import cached_property, new_lock

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
# CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_EVENT_DISABLE_TIMING and CUDA_ERROR_NOT_READY.
_POINTER_DEVICE = 9
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

    def load(self, binary: bytes) -> Owned:
        """A module. DriverError where the driver does not take the binary."""
        return Owned(self, "cuModuleLoadData", "cuModuleUnload", binary)

    def function(self, module: Owned, entry: str) -> Function:
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

    def report(self, function: Function) -> FunctionReport:
        call = self.driver.call
        with self:
            found = (call("cuFuncGetAttribute", number, function.address) for number in _REPORTED)
            return FunctionReport(*map(int, found))

    def allow_shared(self, function: Function, size: int) -> None:
        """Let launches ask for up to `size` bytes of dynamic shared memory, beyond the usual 48 KiB."""
        self._call("cuFuncSetAttribute", function.address, _MOST_DYNAMIC_SHARED, size)

    def allow_large_clusters(self, function: Function) -> None:
        """Let the function's clusters have more than the portable 8 blocks."""
        self._call("cuFuncSetAttribute", function.address, _LARGE_CLUSTERS, 1)

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
            return stream if code else int(number)

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


C = TypeVar("C", bound=Context)


class LauncherDriver(ABC, Generic[C]):
    """A driver, as far as it is the same for every launcher: imported and initialised when first needed.

    `programmatic`: whether launches may start while the kernel before them ends, on devices that can.
    """

    name: str
    usual_compiler: Compiler

    def __init__(self, programmatic: bool = True, compiler: Compiler | None = None) -> None:
        self.programmatic = programmatic
        self.compiler = compiler or self.usual_compiler
        self.closed = False
        self._guard = new_lock()
        self._process = os.getpid()
        self._primaries: dict[int, C] = {}
        self._others: dict[Any, C] = {}

    @cached_property
    def library(self) -> Any:
        """The driver library. Whoever calls it has had CUDA initialised."""
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")

    @cached_property
    def launch_kernel(self) -> int:
        """The address of cuLaunchKernelEx."""
        return self._address("cuLaunchKernelEx")

    @cached_property
    def is_capturing(self) -> int:
        """The address of cuStreamIsCapturing."""
        return self._address("cuStreamIsCapturing")

    def _address(self, name: str) -> int:
        try:
            return address_of(getattr(self.library, name))
        except AttributeError as fault:
            raise DeviceMissing(f"the CUDA driver is too old: it has no {name}; update it") from fault

    @abstractmethod
    def ask(self, name: str, *arguments: Any) -> tuple[int, Any]:
        """Call a function of the driver API by its plain name: its code, and what it returns beside that."""

    @abstractmethod
    def retain(self, index: int) -> C:
        """The primary context of a device that is there."""

    @abstractmethod
    def release(self, context: C) -> None:
        """Give back what `retain` got."""

    def call(self, name: str, *arguments: Any) -> Any:
        """`ask`, where a code is an error."""
        code, found = self.ask(name, *arguments)
        if code:
            raise self.refused(name, code)
        return found

    def refused(self, name: str, code: Any) -> DriverError:
        """Our error for a code of the driver's."""
        return self.refusal(f"{name} failed: {self.text(code)}")

    def refusal(self, said: str) -> DriverError:
        """Our error for what CUDA said."""
        if os.getpid() != self._process:
            return DriverError(
                "CUDA cannot be used in a process forked after CUDA was: start it with the 'spawn' method"
            )
        return DriverError(f"CUDA: {said.strip()}")

    def text(self, code: Any) -> str:
        """An error in the driver's words."""
        found = self.ask("cuGetErrorString", code)[1]
        return found.decode() if found else f"error {int(code)}"

    def version(self) -> tuple[int, int]:
        major, rest = divmod(int(self.call("cuDriverGetVersion")), 1000)
        return major, rest // 10

    def device_count(self) -> int:
        return int(self.call("cuDeviceGetCount"))

    def primary(self, index: int) -> C:
        found = self._primaries.get(index)
        if found is None:
            with self._guard:
                found = self._primaries.get(index)
                if found is None:
                    count = self.device_count()
                    if not 0 <= index < count:
                        raise DeviceMissing(f"no CUDA device {index}: there are {count}")
                    found = self._primaries[index] = self.retain(index)
        return found

    def device_of(self, pointer: int) -> int:
        if self.device_count() == 1 or not pointer:
            return 0
        with self.primary(0):
            return int(self.call("cuPointerGetAttribute", _POINTER_DEVICE, pointer))

    def close(self) -> None:
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        for context in self._primaries.values():
            with suppress(Exception):
                self.release(context)
        self._others.clear()
        self._primaries.clear()


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
