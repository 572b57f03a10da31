"""A CUDA context through PyCUDA: modules are loaded in it, functions launched, memory held.

Binaries are loaded by `module_from_buffer`.  PyCUDA keeps a stack of contexts per thread and aborts the
process if one is left on it, so a context is only ever pushed for the length of a `with` block.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from normgen.devices.cuda.driver import FunctionReport, Loaded
from normgen.devices.cuda.pycuda_stream import Relay
from normgen.errors import DriverError
from normgen.launching.launch import Buffer, Fire, Launch
from normgen.launching.machine import Machine

if TYPE_CHECKING:
    from normgen.devices.cuda.pycuda_driver import PyCudaDriver

# A function attribute that PyCUDA has no name for: CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
_LARGE_CLUSTERS = 14
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


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

    @property
    def cache_bytes(self) -> int:
        api = self.driver.api
        return int(api.Device(self.index).get_attribute(api.device_attribute.L2_CACHE_SIZE))

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

    def launcher(self, loaded: Loaded, launch: Launch) -> Fire:
        assert not launch.programmatic, "PyCUDA launches without attributes, and its devices say so"
        grid, block, shared = launch.grid, launch.block, launch.shared
        wrong_context, error = self._wrong_context, self._error

        def fire(packed: bytes, buffers: tuple[Buffer, ...], stream: int) -> None:
            # Mostly the caller's framework has this context current. In a thread that never used CUDA, or on
            # another device than the current one, the driver says so, and the launch is done again inside it.
            try:
                if stream:
                    self._launch(loaded.handle, launch, packed, stream)
                else:
                    loaded.handle._launch_kernel(grid, block, packed, shared, None)
            except wrong_context:
                with self:
                    self._launch(loaded.handle, launch, packed, stream)
            except error as fault:
                raise self.driver.refusal(fault) from fault

        return fire

    def _launch(self, function: Any, launch: Launch, packed: bytes, stream: int) -> None:
        grid, block, shared = launch.grid, launch.block, launch.shared
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

    def capturing(self, stream: int) -> bool:
        status = ctypes.c_int()
        try:
            with self:
                self.driver.call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
        except DriverError:  # of the default stream the driver refuses to tell while others are captured
            return True
        return status.value != 0

    def finish(self, stream: int) -> None:
        with self:
            self.driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def synchronize(self) -> None:
        with self:
            self.driver.api.Context.synchronize()

    def mark(self) -> Any:
        with self:
            return self.driver.api.Event().record()

    def passed(self, mark: Any) -> bool:
        with self:
            return bool(mark.query())

    def microseconds(self, begin: Any, end: Any) -> float:
        with self:
            return float(begin.time_till(end)) * 1000

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


def _describe(api: Any, index: int) -> Machine:
    device, which = api.Device(index), api.device_attribute
    major, minor = device.compute_capability()
    return Machine(
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
        cache=device.get_attribute(which.L2_CACHE_SIZE),
    )
