"""A CUDA context through cuda-bindings: modules are loaded in it, functions launched, memory held."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from normgen.devices.cuda.driver import FunctionReport, Loaded
from normgen.launching.launch import Buffer, Fire, Launch
from normgen.launching.machine import Machine, architecture

if TYPE_CHECKING:
    from normgen.devices.cuda.cuda_bindings_driver import CudaBindingsDriver

# What CUDA's header calls CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END: a launch's arguments as one
# buffer in their native layout.
_BUFFER, _SIZE, _END = 1, 2, 0
_Extra = ctypes.c_void_p * 5
# No context is current, or another one than the function's.
_WRONG_CONTEXT = (201, 400)
_NOT_READY = 600


class CudaBindingsContext:
    """One context. As a `with` block: current for its length."""

    def __init__(self, driver: CudaBindingsDriver, handle: Any, index: int, primary: bool) -> None:
        self.driver = driver
        self.handle = handle
        self.index = index
        self.primary = primary
        self.device = _describe(driver, index)
        self._attributes = [_programmatic(driver.api)]

    def __enter__(self) -> None:
        self.driver.call("cuCtxPushCurrent", self.handle)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.call("cuCtxPopCurrent")

    @property
    def cache_bytes(self) -> int:
        return _ask(self.driver, self.index, "L2_CACHE_SIZE")

    def load(self, binary: bytes) -> CudaBindingsModule:
        return CudaBindingsModule(self, binary)

    def function(self, module: CudaBindingsModule, entry: str) -> CudaBindingsFunction:
        with self:
            handle = self.driver.call("cuModuleGetFunction", module.handle, entry.encode())
        return CudaBindingsFunction(handle, module)

    def report(self, function: CudaBindingsFunction) -> FunctionReport:
        which = self.driver.api.CUfunction_attribute
        with self:
            registers, local, shared, threads = (
                int(self.driver.call("cuFuncGetAttribute", attribute, function.handle))
                for attribute in (
                    which.CU_FUNC_ATTRIBUTE_NUM_REGS,
                    which.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                    which.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                    which.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                )
            )
        return FunctionReport(registers, local, shared, threads)

    def allow_shared(self, function: CudaBindingsFunction, size: int) -> None:
        which = self.driver.api.CUfunction_attribute
        with self:
            self.driver.call(
                "cuFuncSetAttribute",
                function.handle,
                which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                size,
            )

    def allow_large_clusters(self, function: CudaBindingsFunction) -> None:
        which = self.driver.api.CUfunction_attribute
        with self:
            self.driver.call(
                "cuFuncSetAttribute",
                function.handle,
                which.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                1,
            )

    def launcher(self, loaded: Loaded, launch: Launch) -> Fire:
        def fire(packed: bytes, buffers: tuple[Buffer, ...], stream: int) -> None:
            # The size of clusters is part of the kernel, so that it takes no attribute.
            config = self.driver.api.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
            config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
            config.sharedMemBytes = launch.shared
            config.hStream = stream
            if launch.programmatic:
                config.attrs, config.numAttrs = self._attributes, 1
            content, size = ctypes.create_string_buffer(packed, len(packed)), ctypes.c_size_t(len(packed))
            extra = _Extra(_BUFFER, ctypes.addressof(content), _SIZE, ctypes.addressof(size), _END)
            arguments = (config, loaded.handle.handle, 0, ctypes.addressof(extra))
            (code,) = self.driver.api.cuLaunchKernelEx(*arguments)
            if code in _WRONG_CONTEXT:
                # Mostly the caller's framework has this context current; a thread that never used CUDA does
                # not.
                with self:
                    (code,) = self.driver.api.cuLaunchKernelEx(*arguments)
            if code:
                raise self.driver.refusal("cuLaunchKernelEx", code)

        return fire

    def allocate(self, size: int) -> CudaBindingsMemory:
        return CudaBindingsMemory(self, size)

    def fill_zero(self, pointer: int, size: int, stream: int) -> None:
        if size:
            with self:
                self.driver.call("cuMemsetD8Async", pointer, 0, size, stream)

    def copy_in(self, pointer: int, content: Any) -> None:
        with self:
            self.driver.call("cuMemcpyHtoD", pointer, content, memoryview(content).nbytes)

    def copy_out(self, buffer: Any, pointer: int) -> None:
        with self:
            self.driver.call("cuMemcpyDtoH", buffer, pointer, memoryview(buffer).nbytes)

    def wait(self, stream: int, other: int) -> None:
        call = self.driver.call
        with self:
            event = call("cuEventCreate", self.driver.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            try:
                call("cuEventRecord", event, other)
                call("cuStreamWaitEvent", stream, event, 0)
            finally:
                call("cuEventDestroy", event)

    def capturing(self, stream: int) -> bool:
        with self:
            code, status = self.driver.api.cuStreamIsCapturing(stream)
        # of the default stream the driver refuses to tell while others are captured
        return bool(code) or int(status) != 0

    def finish(self, stream: int) -> None:
        with self:
            self.driver.call("cuStreamSynchronize", stream)

    def synchronize(self) -> None:
        with self:
            self.driver.call("cuCtxSynchronize")

    def mark(self) -> CudaBindingsMark:
        return CudaBindingsMark(self)

    def passed(self, mark: CudaBindingsMark) -> bool:
        with self:
            (code,) = self.driver.api.cuEventQuery(mark.handle)
        if code not in (0, _NOT_READY):
            raise self.driver.refusal("cuEventQuery", code)
        return int(code) == 0

    def microseconds(self, begin: CudaBindingsMark, end: CudaBindingsMark) -> float:
        with self:
            return float(self.driver.call("cuEventElapsedTime", begin.handle, end.handle)) * 1000


class CudaBindingsMark:
    """An event on the default stream, destroyed inside its context."""

    def __init__(self, context: CudaBindingsContext) -> None:
        self._context = context
        with context:
            self.handle = context.driver.call("cuEventCreate", 0)
            context.driver.call("cuEventRecord", self.handle, 0)

    def __del__(self) -> None:
        if hasattr(self, "handle") and not self._context.driver.closed:
            with suppress(Exception), self._context:
                self._context.driver.call("cuEventDestroy", self.handle)


class CudaBindingsModule:
    """A loaded binary; unloaded inside its context when the last function of it is gone."""

    def __init__(self, context: CudaBindingsContext, binary: bytes) -> None:
        self._context = context
        with context:
            self.handle = context.driver.call("cuModuleLoadData", binary)

    def __del__(self) -> None:
        if hasattr(self, "handle") and not self._context.driver.closed:
            with suppress(Exception), self._context:
                self._context.driver.call("cuModuleUnload", self.handle)


class CudaBindingsFunction:
    """A kernel, which keeps its module."""

    def __init__(self, handle: Any, module: CudaBindingsModule) -> None:
        self.handle = handle
        self.module = module


class CudaBindingsMemory:
    """Device memory, freed inside its context."""

    def __init__(self, context: CudaBindingsContext, size: int) -> None:
        self._context = context
        with context:
            self.pointer = int(context.driver.call("cuMemAlloc", max(size, 1)))

    def __del__(self) -> None:
        if hasattr(self, "pointer") and not self._context.driver.closed:
            with suppress(Exception), self._context:
                self._context.driver.call("cuMemFree", self.pointer)


def _programmatic(api: Any) -> Any:
    """The launch attribute that lets a kernel start while the one before it ends."""
    attribute = api.CUlaunchAttribute()
    attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def _ask(driver: CudaBindingsDriver, index: int, name: str) -> int:
    attribute = getattr(driver.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(driver.call("cuDeviceGetAttribute", attribute, index))


def _describe(driver: CudaBindingsDriver, index: int) -> Machine:
    def ask(name: str) -> int:
        return _ask(driver, index, name)

    major, minor = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
    arch = f"sm_{major}{minor}"
    return Machine(
        name=driver.call("cuDeviceGetName", 256, index).split(b"\0")[0].decode(),
        arch=arch,
        multiprocessors=ask("MULTIPROCESSOR_COUNT"),
        shared_per_block=max(ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"), ask("MAX_SHARED_MEMORY_PER_BLOCK")),
        shared_per_multiprocessor=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        registers_per_multiprocessor=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        threads_per_multiprocessor=ask("MAX_THREADS_PER_MULTIPROCESSOR"),
        cache=ask("L2_CACHE_SIZE"),
        programmatic=driver.programmatic and architecture(arch).programmatic,
    )
