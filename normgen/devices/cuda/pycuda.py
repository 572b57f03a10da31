"""CUDA through PyCUDA, the launcher where it is installed with nvcc.

Text is compiled the way PyCUDA's `SourceModule` does it (explicit arch, no extern "C"), without PyCUDA's own
cache, and loaded by `module_from_buffer`. PyCUDA keeps a stack of contexts for each thread and aborts the
process if one is left on it, so a context is only ever pushed for the length of a `with` block.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from contextlib import suppress
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from types import TracebackType
from typing import Any

from normgen.devices.cuda.compile import Nvcc, failure, find_nvcc
from normgen.devices.cuda.context import Context, LauncherDriver
from normgen.devices.cuda.driver import Loaded
from normgen.errors import DeviceMissing, NoDevice, ToolchainMissing
from normgen.launching.launch import Buffer, Fire, Launch
from normgen.locks import cached_property

# What is asked of the driver library itself: PyCUDA does not wrap it, or for its own objects alone. By name
# the parameters, of which a pointer is for what is returned.
_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetName": (POINTER(c_char * 256), c_int, c_int),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuMemAlloc": (POINTER(c_uint64), c_size_t),
    "cuMemFree": (c_uint64,),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuPointerGetAttribute": (POINTER(c_int), c_int, c_uint64),
    "cuStreamGetId": (c_void_p, POINTER(c_uint64)),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
}
_NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND
_SYMBOLS = {name: f"{name}_v2" for name in ("cuEventDestroy", "cuMemAlloc", "cuMemFree")}  # of the library


class PyCudaContext(Context):
    """One context. As a `with` block it turns PyCUDA's errors into ours."""

    driver: PyCudaDriver

    def __init__(self, driver: PyCudaDriver, handle: Any, index: int, primary: bool) -> None:
        super().__init__(driver, handle, index, primary)
        self._error = driver.api.Error
        self._wrong_context = driver.api.LogicError
        # Made now, since the first launch on a foreign stream may already be part of a graph capture.
        with self:
            self._relays = [Relay(driver.api.Stream())]

    def __enter__(self) -> None:
        try:
            self.handle.push()
        except self._error as fault:
            raise self.driver.refusal(str(fault)) from fault

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.api.Context.pop()
        if isinstance(fault, self._error):
            raise self.driver.refusal(str(fault)) from fault

    def load(self, binary: bytes) -> Any:
        with self:
            return self.driver.api.module_from_buffer(binary)

    def function(self, module: Any, entry: str) -> Any:
        with self:
            return module.get_function(entry)

    def attribute(self, function: Any, number: int) -> int:
        return int(function.get_attribute(self.driver.api.function_attribute(number)))

    def set_attribute(self, function: Any, number: int, value: int) -> None:
        function.set_attribute(self.driver.api.function_attribute(number), value)

    @property
    def address(self) -> Any:
        return self.handle.handle

    def copy_in(self, pointer: int, content: Any) -> None:
        with self:
            self.driver.api.memcpy_htod(pointer, content)

    def copy_out(self, buffer: Any, pointer: int) -> None:
        with self:
            self.driver.api.memcpy_dtoh(buffer, pointer)

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
                self.settle()
                with self:
                    self._launch(loaded.handle, launch, packed, stream)
            except error as fault:
                raise self.driver.refusal(str(fault)) from fault

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

    def drop_streams(self) -> None:
        """Let go of streams, which must happen before the context goes."""
        with suppress(Exception), self:
            self._relays.clear()


class Relay:
    """A stream of PyCUDA's own through which a launch reaches a foreign one: PyCUDA launches on its own
    streams only, and wraps no handle.

    The handle in an owned stream is replaced for the length of a launch. `cell` is where it lies, or None
    where that cannot be told for sure; then events tie the two streams together.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.own: int = stream.handle
        self.cell = _handle_cell(stream)


def _handle_cell(stream: Any) -> ctypes.c_void_p | None:
    """The memory that holds the stream's handle, found by following the object's layout and checked by use.

    Read through the kernel first, which answers a wrong address with an error and not with a crash.
    """
    own: int = stream.handle
    if type(stream).__basicsize__ < 48 or not own:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:

        def word(address: int) -> int:
            return int.from_bytes(os.pread(memory, 8, address), sys.byteorder)

        holder = word(id(stream) + 40)
        held = word(holder + 16)
        if word(held + 32) != own:
            return None
    except (OSError, OverflowError):
        return None
    finally:
        os.close(memory)
    cell = ctypes.c_void_p.from_address(held + 32)
    cell.value = own + 16
    followed = stream.handle == own + 16
    cell.value = own
    return cell if followed and stream.handle == own else None


class PyCudaCompiler(Nvcc):
    """nvcc, run by PyCUDA."""

    def compile(self, source: str, arch: str) -> bytes:
        from pycuda import compiler, driver
        from pytools.prefork import ExecError

        nvcc = find_nvcc()
        command = [nvcc, "--cubin", *self.options, "-arch", arch, "kernel.cu"]
        try:
            binary: bytes = compiler.compile(
                source, nvcc=nvcc, options=list(self.options), no_extern_c=True, arch=arch, cache_dir=False
            )
        except ExecError as fault:
            raise ToolchainMissing(f"{nvcc} does not run: {fault}") from fault
        except driver.CompileError as fault:
            _remove_leavings(fault)
            output = f"{fault.stdout or ''}{fault.stderr or ''}"
            raise failure(source, list(fault.command_line or command), output) from fault
        except UnboundLocalError as fault:  # PyCUDA's own, when nvcc is content and silent and writes nothing
            _remove_leavings(fault)
            binary = b""
        if not binary:
            raise failure(source, command, "", 0)
        return binary


def _remove_leavings(fault: BaseException) -> None:
    """Remove the temporary directory in which PyCUDA compiled, which it leaves behind when that fails."""
    trace = fault.__traceback__
    while trace is not None:
        directory = trace.tb_frame.f_locals.get("file_dir")
        if directory is not None and trace.tb_frame.f_code.co_name == "compile_plain":
            shutil.rmtree(directory, ignore_errors=True)
        trace = trace.tb_next


class _Missing:
    """A function that an older driver lacks."""

    argtypes: tuple[Any, ...] = ()

    def __call__(self, *_: Any) -> int:
        return _NOT_FOUND


class PyCudaDriver(LauncherDriver[PyCudaContext]):
    """PyCUDA."""

    name = "pycuda"
    usual_compiler = PyCudaCompiler()

    @cached_property
    def api(self) -> Any:
        """The module `pycuda.driver`, with CUDA initialised."""
        try:
            import pycuda
        except ImportError as fault:
            raise DeviceMissing(
                "CUDA arrays need PyCUDA: pip install 'normgen[cuda]' builds it with a CUDA toolkit, "
                "python -m normgen.build_pycuda without one"
            ) from fault
        try:
            import pycuda.driver as api
        except ImportError as fault:
            raise NoDevice(f"PyCUDA {pycuda.VERSION_TEXT} finds no CUDA driver: {fault}") from fault
        try:
            api.init()
        except api.Error as fault:
            raise NoDevice(f"the CUDA driver finds no device: {fault}") from fault
        return api

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The driver library's own functions, by name."""
        assert self.api
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        found = {}
        for name, parameters in _PARAMETERS.items():
            found[name] = function = getattr(library, _SYMBOLS.get(name, name), None) or _Missing()
            function.argtypes = parameters
        return found

    def ask(self, name: str, *arguments: Any) -> tuple[int, Any]:
        function, parameters = self.functions[name], _PARAMETERS[name]
        place = next((i for i, kind in enumerate(parameters) if hasattr(kind, "contents")), None)
        if place is None:
            return function(*arguments), None
        found = parameters[place]._type_()
        code = function(*arguments[:place], ctypes.byref(found), *arguments[place:])
        return code, found.value

    def retain(self, index: int) -> PyCudaContext:
        try:
            return PyCudaContext(self, self.api.Device(index).retain_primary_context(), index, True)
        except self.api.Error as fault:
            raise self.refusal(str(fault)) from fault

    def close(self) -> None:
        if not self.closed and os.getpid() == self._process:
            for context in (*self._others.values(), *self._primaries.values()):
                context.drop_streams()
        super().close()

    def release(self, context: PyCudaContext) -> None:
        # The destructor of PyCUDA's object would detach it as if it had been created.
        context.handle.detach()

    def current(self) -> PyCudaContext | None:
        handle = self.api.Context.get_current()
        if handle is None:
            return None
        # The hash holds the identity of PyCUDA's object, which we keep alive: a handle alone may come again.
        key = (handle.handle, hash(handle))
        found = self._others.get(key)
        if found is None:
            for primary in self._primaries.values():
                if primary.handle == handle:
                    return primary
            device = self.api.Context.get_device()
            index = next(i for i in range(self.device_count()) if self.api.Device(i) == device)
            with self._guard:
                found = self._others.setdefault(key, PyCudaContext(self, handle, index, False))
        return found
