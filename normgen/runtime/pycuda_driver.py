"""CUDA through PyCUDA: the driver that kernels are compiled and launched with.

Text is compiled the way PyCUDA's `SourceModule` does it (explicit arch, no extern "C"), without PyCUDA's own
cache; binaries are loaded by `module_from_buffer`.  PyCUDA keeps a stack of contexts per thread and aborts
the process if one is left on it, so a context is only ever pushed for the length of a `with` block.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import threading
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import Any

from normgen.runtime.driver import FunctionReport, Triple
from normgen.runtime.errors import DeviceMissing, DriverError, ToolchainMissing
from normgen.runtime.nvcc import failure, find_nvcc, nvcc_version
from normgen.runtime.pycuda_stream import Relay
from normgen.runtime.records import Device

# A function attribute that PyCUDA has no name for: CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
_LARGE_CLUSTERS = 14
_POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class PyCudaDriver:
    """PyCUDA, imported and initialised when it is first needed."""

    name = "pycuda"

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process = os.getpid()
        self._primaries: dict[int, PyCudaContext] = {}
        self._others: dict[tuple[int, int], PyCudaContext] = {}
        self._closed = False

    @cached_property
    def api(self) -> Any:
        """The module `pycuda.driver`, with CUDA initialised."""
        try:
            import pycuda
        except ImportError as fault:
            raise DeviceMissing("CUDA arrays need PyCUDA: pip install 'normgen[cuda]'") from fault
        try:
            import pycuda.driver as api
        except ImportError as fault:
            raise DeviceMissing(f"PyCUDA {pycuda.VERSION_TEXT} finds no CUDA driver: {fault}") from fault
        try:
            api.init()
        except api.Error as fault:
            raise DeviceMissing(f"the CUDA driver finds no device: {fault}") from fault
        return api

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The driver library itself, for the few calls that PyCUDA does not wrap."""
        assert self.api
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")

    def device_count(self) -> int:
        return int(self.api.Device.count())

    def primary(self, index: int) -> PyCudaContext:
        found = self._primaries.get(index)
        if found is None:
            with self._guard:
                found = self._primaries.get(index)
                if found is None:
                    count = self.device_count()
                    if not 0 <= index < count:
                        raise DeviceMissing(f"no CUDA device {index}: there are {count}")
                    try:
                        context = self.api.Device(index).retain_primary_context()
                    except self.api.Error as fault:
                        raise self.refusal(fault) from fault
                    found = self._primaries[index] = PyCudaContext(self, context, index, True)
        return found

    def current(self) -> PyCudaContext | None:
        context = self.api.Context.get_current()
        if context is None:
            return None
        # The hash holds the identity of PyCUDA's object, which we keep alive: a handle alone may come again.
        key = (context.handle, hash(context))
        found = self._others.get(key)
        if found is None:
            for primary in self._primaries.values():
                if primary.context == context:
                    return primary
            device = self.api.Context.get_device()
            index = next(i for i in range(self.device_count()) if self.api.Device(i) == device)
            with self._guard:
                found = self._others.setdefault(key, PyCudaContext(self, context, index, False))
        return found

    def device_of(self, pointer: int) -> int:
        if self.device_count() == 1 or not pointer:
            return 0
        ordinal = ctypes.c_int(0)
        with self.primary(0):
            self.call(
                "cuPointerGetAttribute", ctypes.byref(ordinal), _POINTER_DEVICE, ctypes.c_uint64(pointer)
            )
        return ordinal.value

    def toolchain(self) -> str:
        return nvcc_version(find_nvcc())

    def compile(self, source: str, arch: str, options: tuple[str, ...]) -> bytes:
        from pycuda import compiler
        from pytools.prefork import ExecError

        nvcc = find_nvcc()
        command = [nvcc, "--cubin", *options, "-arch", arch, "kernel.cu"]
        try:
            binary: bytes = compiler.compile(
                source, nvcc=nvcc, options=list(options), no_extern_c=True, arch=arch, cache_dir=False
            )
        except self.api.CompileError as fault:
            _remove_leavings(fault)
            output = f"{fault.stdout or ''}{fault.stderr or ''}"
            raise failure(source, list(fault.command_line or command), output) from fault
        except ExecError as fault:
            raise ToolchainMissing(f"{nvcc} does not run: {fault}") from fault
        except UnboundLocalError as fault:  # PyCUDA's own, when nvcc is content and silent and writes nothing
            _remove_leavings(fault)
            raise failure(source, command, "", 0) from fault
        if not binary:
            raise failure(source, command, "", 0)
        return binary

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver library directly, in the context that is current."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise DriverError(f"CUDA: {name} failed with error {code}")

    def refusal(self, fault: BaseException) -> DriverError:
        """Our error for one of PyCUDA's."""
        if os.getpid() != self._process:
            return DriverError(
                "CUDA cannot be used in a process forked after CUDA was: start it with the 'spawn' method"
            )
        return DriverError(f"CUDA: {str(fault).strip()}")

    def close(self) -> None:
        """Let go of streams and contexts, which must happen before the interpreter goes down."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        for context in (*self._others.values(), *self._primaries.values()):
            context.close()
        for primary in self._primaries.values():
            # Its destructor would detach it as if it had been created, instead of releasing it.
            with suppress(Exception):
                primary.context.detach()
        self._others.clear()
        self._primaries.clear()

    @property
    def closed(self) -> bool:
        return self._closed


class PyCudaContext:
    """One context. As a `with` block: current for its length, with PyCUDA's errors turned into ours."""

    def __init__(self, driver: PyCudaDriver, context: Any, index: int, primary: bool) -> None:
        self.driver = driver
        self.context = context
        self.index = index
        self.primary = primary
        self.device = _describe(driver.api, index)
        self._error = driver.api.Error
        self._wrong_context = driver.api.LogicError
        # Made now, since the first launch on a foreign stream may already be part of a graph capture.
        with self:
            self._relays = [Relay(driver.api.Stream())]

    def __enter__(self) -> None:
        try:
            self.context.push()
        except self._error as fault:
            raise self.driver.refusal(fault) from fault

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.api.Context.pop()
        if isinstance(fault, self._error):
            raise self.driver.refusal(fault) from fault

    def load(self, binary: bytes) -> Any:
        with self:
            return self.driver.api.module_from_buffer(binary)

    def function(self, module: Any, entry: str) -> Any:
        with self:
            return module.get_function(entry)

    def report(self, function: Any) -> FunctionReport:
        which = self.driver.api.function_attribute
        with self:
            registers, local, shared, threads = (
                int(function.get_attribute(attribute))
                for attribute in (
                    which.NUM_REGS,
                    which.LOCAL_SIZE_BYTES,
                    which.SHARED_SIZE_BYTES,
                    which.MAX_THREADS_PER_BLOCK,
                )
            )
        return FunctionReport(registers, local, shared, threads)

    def allow_shared(self, function: Any, size: int) -> None:
        which = self.driver.api.function_attribute
        with self:
            function.set_attribute(which.MAX_DYNAMIC_SHARED_SIZE_BYTES, size)

    def allow_large_clusters(self, function: Any) -> None:
        with self:
            function.set_attribute(self.driver.api.function_attribute(_LARGE_CLUSTERS), 1)

    def launch(
        self, function: Any, grid: Triple, block: Triple, shared: int, packed: bytes, stream: int
    ) -> None:
        # Mostly the caller's framework has this context current. In a thread that never used CUDA, or on
        # another device than the current one, the driver says so, and the launch is done again inside it.
        try:
            self._launch(function, grid, block, shared, packed, stream)
        except self._wrong_context:
            with self:
                self._launch(function, grid, block, shared, packed, stream)
        except self._error as fault:
            raise self.driver.refusal(fault) from fault

    def _launch(
        self, function: Any, grid: Triple, block: Triple, shared: int, packed: bytes, stream: int
    ) -> None:
        if not stream:
            function._launch_kernel(grid, block, packed, shared, None)
            return
        try:
            relay = self._relays.pop()
        except IndexError:  # as many threads launch at once
            with self:
                relay = Relay(self.driver.api.Stream())
        try:
            if relay.cell is not None:
                try:
                    relay.cell.value = stream
                    function._launch_kernel(grid, block, packed, shared, relay.stream)
                finally:
                    relay.cell.value = relay.own
            else:
                with self:
                    self.wait(relay.own, stream)
                    function._launch_kernel(grid, block, packed, shared, relay.stream)
                    self.wait(stream, relay.own)
        finally:
            self._relays.append(relay)

    def allocate(self, size: int) -> PyCudaMemory:
        return PyCudaMemory(self, size)

    def fill_zero(self, pointer: int, size: int, stream: int) -> None:
        if size:
            with self:
                self.driver.call(
                    "cuMemsetD8Async",
                    ctypes.c_uint64(pointer),
                    ctypes.c_ubyte(0),
                    ctypes.c_size_t(size),
                    ctypes.c_void_p(stream),
                )

    def copy_in(self, pointer: int, content: Any) -> None:
        with self:
            self.driver.api.memcpy_htod(pointer, content)

    def copy_out(self, buffer: Any, pointer: int) -> None:
        with self:
            self.driver.api.memcpy_dtoh(buffer, pointer)

    def wait(self, stream: int, other: int) -> None:
        event, call = ctypes.c_void_p(), self.driver.call
        with self:
            call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMING))
            try:
                call("cuEventRecord", event, ctypes.c_void_p(other))
                call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, ctypes.c_uint(0))
            finally:
                call("cuEventDestroy_v2", event)

    def synchronize(self) -> None:
        with self:
            self.driver.api.Context.synchronize()

    def close(self) -> None:
        with suppress(Exception), self:
            self._relays.clear()


class PyCudaMemory:
    """Device memory, freed inside its context: PyCUDA alone cannot free what another thread allocated."""

    def __init__(self, context: PyCudaContext, size: int) -> None:
        self._context = context
        with context:
            self._allocation = context.driver.api.mem_alloc(max(size, 1))
        self.pointer = int(self._allocation)

    def __del__(self) -> None:
        allocation = getattr(self, "_allocation", None)
        if allocation is not None and not self._context.driver.closed:
            with suppress(Exception), self._context:
                allocation.free()


def _remove_leavings(fault: BaseException) -> None:
    """Remove the temporary directory in which PyCUDA compiled, which it leaves behind when that fails."""
    trace = fault.__traceback__
    while trace is not None:
        directory = trace.tb_frame.f_locals.get("file_dir")
        if directory is not None and trace.tb_frame.f_code.co_name == "compile_plain":
            shutil.rmtree(directory, ignore_errors=True)
        trace = trace.tb_next


def _describe(api: Any, index: int) -> Device:
    device, which = api.Device(index), api.device_attribute
    major, minor = device.compute_capability()
    return Device(
        name=device.name(),
        arch=f"sm_{major}{minor}",
        multiprocessors=device.get_attribute(which.MULTIPROCESSOR_COUNT),
        shared_per_block=max(
            device.get_attribute(which.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            device.get_attribute(which.MAX_SHARED_MEMORY_PER_BLOCK),
        ),
        shared_per_multiprocessor=device.get_attribute(which.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        registers_per_multiprocessor=device.get_attribute(which.MAX_REGISTERS_PER_MULTIPROCESSOR),
        threads_per_multiprocessor=device.get_attribute(which.MAX_THREADS_PER_MULTIPROCESSOR),
    )
