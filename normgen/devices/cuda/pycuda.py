"""CUDA through PyCUDA, the launcher where it is installed with nvcc.

A text becomes a `SourceModule`, and a binary that the cache has the same by `module_from_buffer`. The
`Function` of a kernel launches, prepared; the driver itself launches what PyCUDA has no word for
(`PyCudaContext.launcher`). PyCUDA keeps a stack of contexts for each thread and aborts the process if one is
left on it, so a context is only ever pushed for the length of a `with` block.
"""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from types import TracebackType
from typing import Any

from normgen.devices.cuda.context import Context
from normgen.devices.cuda.driver import Loaded
from normgen.devices.cuda.launcher import LauncherDriver, driver_library
from normgen.devices.cuda.pycuda_compiler import PyCudaCompiler
from normgen.errors import DeviceMissing, NoDevice
from normgen.launching.launch import Buffer, Fire, Launch, StreamObject
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
    "cuGraphDestroy": (c_void_p,),
    "cuGraphGetNodes": (c_void_p, POINTER(c_void_p), POINTER(c_size_t)),
    "cuGraphKernelNodeGetParams": (c_void_p, POINTER(c_uint64 * 7)),  # CUDA_KERNEL_NODE_PARAMS_v1
    "cuMemAlloc": (POINTER(c_uint64), c_size_t),
    "cuMemFree": (c_uint64,),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuPointerGetAttribute": (POINTER(c_int), c_int, c_uint64),
    "cuStreamBeginCapture": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuStreamGetId": (c_void_p, POINTER(c_uint64)),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
}
_NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
# Of the library, names that its header replaces.
_SYMBOLS = {
    name: f"{name}_v2" for name in ("cuEventDestroy", "cuMemAlloc", "cuMemFree", "cuStreamBeginCapture")
}


class Held:
    """A module or a function of PyCUDA's, let go in its context, in whatever thread its last owner dies."""

    def __init__(self, context: PyCudaContext, value: Any) -> None:
        self.context = context
        self.value = value

    def __del__(self) -> None:
        if not self.context.driver.closed:
            with suppress(Exception), self.context:
                del self.value


class Function(Held):
    """A `Function`, which keeps its module. `launch`: one of its launches."""

    launch: Launch

    @cached_property
    def address(self) -> int:
        """Its handle, which PyCUDA does not tell."""
        with self.context:
            return self._node(self.context.driver)

    def _node(self, driver: PyCudaDriver) -> int:
        """The handle in the node that a launch becomes in a graph, which never runs."""
        # Not a stream that waits for the default one: others may be using that.
        stream = driver.api.Stream(_NON_BLOCKING)
        driver.call("cuStreamBeginCapture", stream.handle, _RELAXED)
        try:
            self.run(self.launch, bytes(struct.calcsize(self.launch.format)), stream)
        finally:
            code, graph = driver.ask("cuStreamEndCapture", stream.handle)
        if code:
            raise driver.refused("cuStreamEndCapture", code)
        try:
            node = driver.call("cuGraphGetNodes", graph, ctypes.byref(c_size_t(1)))
            return int(driver.call("cuGraphKernelNodeGetParams", node)[0])
        finally:
            driver.call("cuGraphDestroy", graph)

    def run(self, launch: Launch, packed: bytes, stream: Any) -> None:
        """Launch it on a `Stream`, or on the default one: None."""
        self.value.prepared_async_call(launch.grid, launch.block, stream, packed, shared_size=launch.shared)


class Built(bytes):
    """A binary that is loaded already."""

    module: Held


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

    def compile(self, source: str) -> bytes:
        compiler = self.driver.compiler
        if not isinstance(compiler, PyCudaCompiler):
            return super().compile(source)
        with self:
            module, binary = compiler.source_module(source, self.device.arch)
            built = Built(binary)
            built.module = Held(self, module)
            return built

    def load(self, binary: bytes) -> Held:
        if isinstance(binary, Built):
            return binary.module
        with self:
            return Held(self, self.driver.api.module_from_buffer(binary))

    def function(self, module: Held, entry: str) -> Function:
        with self:
            return Function(self, module.value.get_function(entry))

    def attribute(self, function: Function, number: int) -> int:
        return int(function.value.get_attribute(self.driver.api.function_attribute(number)))

    def set_attribute(self, function: Function, number: int, value: int) -> None:
        function.value.set_attribute(self.driver.api.function_attribute(number), value)

    def launcher(self, loaded: Loaded, launch: Launch) -> Fire:
        """PyCUDA launches on the default stream and on its own. The driver launches what PyCUDA has no word
        for: a stream of another library, of which there is only a handle; with it the attribute by which a
        kernel starts early, without which it has the same results; and launches of compiled code, which take
        the function's handle. (That of a cluster's size is part of the kernel.)"""
        by_driver = super().launcher(loaded, launch)
        error, wrong_context = self.driver.api.Error, self.driver.api.LogicError
        loaded.handle.launch = launch
        loaded.handle.value.prepare([f"{struct.calcsize(launch.format)}s"])

        def fire(packed: bytes, buffers: tuple[Buffer, ...], stream: int) -> None:
            if stream and not isinstance(stream, StreamObject):
                by_driver(packed, buffers, stream)
                return
            function: Function = loaded.handle
            own = stream.owner if isinstance(stream, StreamObject) else None
            try:
                function.run(launch, packed, own)
            except wrong_context:  # as in `by_driver`
                self.settle()
                with self:
                    function.run(launch, packed, own)
            except error as fault:
                raise self.driver.refusal(str(fault)) from fault

        return fire

    def copy_in(self, pointer: int, content: Any) -> None:
        with self:
            self.driver.api.memcpy_htod(pointer, content)

    def copy_out(self, buffer: Any, pointer: int) -> None:
        with self:
            self.driver.api.memcpy_dtoh(buffer, pointer)


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
        driver_library()  # without a driver no package helps
        try:
            import pycuda
        except ImportError as fault:
            raise DeviceMissing(
                "launching on a GPU needs PyCUDA: pip install pycuda builds it with a CUDA toolkit; "
                "without one, pip install 'normgen[cuda-bindings]'"
            ) from fault
        try:
            import pycuda.driver as api
        except ImportError as fault:
            raise DeviceMissing(f"PyCUDA {pycuda.VERSION_TEXT} does not load: {fault}") from fault
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
        return code, getattr(found, "value", found)

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
