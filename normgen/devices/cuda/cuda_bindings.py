"""CUDA through cuda-bindings, NVIDIA's own wrapping: launches with attributes, on anyone's stream.

It is what pip alone installs, and what programmatic dependent launch needs. PyCUDA need not be there.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from normgen.devices.cuda.compile import Nvcc
from normgen.devices.cuda.context import Context, LauncherDriver, Owned
from normgen.devices.cuda.driver import Compiler, Loaded
from normgen.errors import DeviceMissing, NoDevice
from normgen.launching.launch import Buffer, Fire, Launch
from normgen.locks import cached_property

# What CUDA's header calls CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END: a launch's arguments as one
# buffer in their native layout.
_BUFFER, _SIZE, _END = 1, 2, 0
_Extra = ctypes.c_void_p * 5
# No context is current, or another one than the function's.
_WRONG_CONTEXT = (201, 400)
# Functions whose first argument is no number here but of an enumeration.
_ENUMERATIONS = {
    "cuDeviceGetAttribute": "CUdevice_attribute",
    "cuFuncGetAttribute": "CUfunction_attribute",
    "cuPointerGetAttribute": "CUpointer_attribute",
}


class CudaBindingsContext(Context):
    """One context."""

    driver: CudaBindingsDriver

    def load(self, binary: bytes) -> Owned:
        return Owned(self, "cuModuleLoadData", "cuModuleUnload", binary)

    def function(self, module: Owned, entry: str) -> CudaBindingsFunction:
        with self:
            handle = self.driver.call("cuModuleGetFunction", module.handle, entry.encode())
        return CudaBindingsFunction(handle, module)

    @cached_property
    def launch_addresses(self) -> tuple[int, int] | None:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        functions = library.cuLaunchKernelEx, library.cuStreamIsCapturing
        launch, capturing = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions)
        return launch, capturing

    def function_address(self, function: CudaBindingsFunction) -> int:
        return int(function.handle)

    def attribute(self, function: CudaBindingsFunction, number: int) -> int:
        return int(self.driver.call("cuFuncGetAttribute", number, function.handle))

    def set_attribute(self, function: CudaBindingsFunction, number: int, value: int) -> None:
        which = self.driver.api.CUfunction_attribute(number)
        self.driver.call("cuFuncSetAttribute", function.handle, which, value)

    def launcher(self, loaded: Loaded, launch: Launch) -> Fire:
        def fire(packed: bytes, buffers: tuple[Buffer, ...], stream: int) -> None:
            # The size of clusters is part of the kernel, so that it takes no attribute.
            config = self.driver.api.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
            config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
            config.sharedMemBytes = launch.shared
            config.hStream = stream
            if launch.programmatic:
                config.attrs, config.numAttrs = self.driver.early, 1
            content, size = ctypes.create_string_buffer(packed, len(packed)), ctypes.c_size_t(len(packed))
            extra = _Extra(_BUFFER, ctypes.addressof(content), _SIZE, ctypes.addressof(size), _END)
            arguments = (config, loaded.handle.handle, 0, ctypes.addressof(extra))
            (code,) = self.driver.api.cuLaunchKernelEx(*arguments)
            if code in _WRONG_CONTEXT:
                # Mostly the caller's framework has this context current; a thread that never used CUDA does
                # not.
                self.settle()
                with self:
                    (code,) = self.driver.api.cuLaunchKernelEx(*arguments)
            if code:
                raise self.driver.refused("cuLaunchKernelEx", code)

        return fire


class CudaBindingsFunction:
    """A kernel, which keeps its module."""

    def __init__(self, handle: Any, module: Owned) -> None:
        self.handle = handle
        self.module = module


class CudaBindingsDriver(LauncherDriver[CudaBindingsContext]):
    """cuda-bindings."""

    name = "cuda-bindings"
    usual_compiler = Nvcc()

    def __init__(self, programmatic: bool = True, compiler: Compiler | None = None) -> None:
        super().__init__(programmatic, compiler)

    @cached_property
    def api(self) -> Any:
        """The module `cuda.bindings.driver`, with CUDA initialised."""
        try:
            from cuda.bindings import driver as api
        except ImportError as fault:
            raise DeviceMissing(
                "launching on a GPU takes the package cuda-bindings: pip install 'normgen[cuda-bindings]'"
            ) from fault
        try:
            (code,) = api.cuInit(0)
        except RuntimeError as fault:
            raise NoDevice(f"cuda-bindings finds no CUDA driver: {fault}") from fault
        if code:
            said = api.cuGetErrorString(code)[1].decode()
            raise NoDevice(f"the CUDA driver finds no device: {said}")
        return api

    @cached_property
    def early(self) -> list[Any]:
        """The launch attribute that lets a kernel start while the one before it ends."""
        attribute = self.api.CUlaunchAttribute()
        attribute.id = self.api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        return [attribute]

    def ask(self, name: str, *arguments: Any) -> tuple[int, Any]:
        if kind := _ENUMERATIONS.get(name):
            arguments = (getattr(self.api, kind)(arguments[0]), *arguments[1:])
        function = getattr(self.api, name)
        try:
            code, *found = function(*arguments)
        except RuntimeError as fault:  # the installed driver does not have the function
            raise DeviceMissing(
                f"the CUDA driver is too old for this cuda-bindings: update it ({fault})"
            ) from fault
        return code, found[0] if len(found) == 1 else tuple(found)

    def retain(self, index: int) -> CudaBindingsContext:
        return CudaBindingsContext(self, self.call("cuDevicePrimaryCtxRetain", index), index, True)

    def release(self, context: CudaBindingsContext) -> None:
        self.call("cuDevicePrimaryCtxRelease", context.index)

    def current(self) -> CudaBindingsContext | None:
        handle = self.call("cuCtxGetCurrent")
        if not int(handle):
            return None
        index = int(self.call("cuCtxGetDevice"))
        _, active = self.call("cuDevicePrimaryCtxGetState", index)
        if active and int(self.primary(index).handle) == int(handle):
            return self.primary(index)
        # A handle may come again when its context is gone, this number does not.
        key = int(self.call("cuCtxGetId", handle))
        found = self._others.get(key)
        if found is None:
            with self._guard:
                found = self._others.setdefault(key, CudaBindingsContext(self, handle, index, False))
        return found
