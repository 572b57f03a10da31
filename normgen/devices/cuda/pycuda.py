"""CUDA through PyCUDA, the launcher where it is installed with nvcc.

Text is compiled the way PyCUDA's `SourceModule` does it (explicit arch, no extern "C"), without PyCUDA's own
cache. PyCUDA keeps a stack of contexts for each thread and aborts the process if one is left on it, so a
context is only ever pushed for the length of a `with` block. Kernels are loaded and launched in PyCUDA's
contexts, but by the driver itself: PyCUDA launches on its own streams only, and without attributes.
"""

from __future__ import annotations

import ctypes
import shutil
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from types import TracebackType
from typing import Any

from normgen.devices.cuda.compile import Nvcc, failure, find_nvcc
from normgen.devices.cuda.context import Context
from normgen.devices.cuda.launcher import LauncherDriver
from normgen.errors import DeviceMissing, NoDevice, ToolchainMissing
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
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuMemAlloc": (POINTER(c_uint64), c_size_t),
    "cuMemFree": (c_uint64,),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
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

    def __enter__(self) -> None:
        try:
            self.handle.push()
        except self.driver.api.Error as fault:
            raise self.driver.refusal(str(fault)) from fault

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.api.Context.pop()
        if isinstance(fault, self.driver.api.Error):
            raise self.driver.refusal(str(fault)) from fault

    @property
    def address(self) -> Any:
        return self.handle.handle

    def copy_in(self, pointer: int, content: Any) -> None:
        with self:
            self.driver.api.memcpy_htod(pointer, content)

    def copy_out(self, buffer: Any, pointer: int) -> None:
        with self:
            self.driver.api.memcpy_dtoh(buffer, pointer)


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
                "CUDA arrays need PyCUDA: pip install pycuda builds it with a CUDA toolkit, "
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
        found = {}
        for name, parameters in _PARAMETERS.items():
            found[name] = function = getattr(self.library, _SYMBOLS.get(name, name), None) or _Missing()
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
