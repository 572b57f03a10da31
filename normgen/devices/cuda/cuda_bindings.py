"""CUDA through cuda-bindings, NVIDIA's own wrapping, which pip alone installs. PyCUDA need not be there."""

from __future__ import annotations

from typing import Any

from normgen.devices.cuda.compile import Nvcc
from normgen.devices.cuda.context import Context
from normgen.devices.cuda.launcher import LauncherDriver, driver_library
from normgen.errors import DeviceMissing, NoDevice
from normgen.locks import cached_property

# Functions one of whose arguments, by place, is no number here but of an enumeration.
_ENUMERATIONS = {
    "cuDeviceGetAttribute": (0, "CUdevice_attribute"),
    "cuFuncGetAttribute": (0, "CUfunction_attribute"),
    "cuFuncSetAttribute": (1, "CUfunction_attribute"),
    "cuPointerGetAttribute": (0, "CUpointer_attribute"),
}


class CudaBindingsDriver(LauncherDriver[Context]):
    """cuda-bindings."""

    name = "cuda-bindings"
    usual_compiler = Nvcc()

    @cached_property
    def api(self) -> Any:
        """The module `cuda.bindings.driver`, with CUDA initialised."""
        driver_library()  # without a driver no package helps
        try:
            from cuda.bindings import driver as api
        except ImportError as fault:
            raise DeviceMissing(
                "launching on a GPU needs the package cuda-bindings: pip install cuda-bindings"
            ) from fault
        try:
            (code,) = api.cuInit(0)
        except RuntimeError as fault:
            raise NoDevice(f"cuda-bindings finds no CUDA driver: {fault}") from fault
        if code:
            said = api.cuGetErrorString(code)[1].decode()
            raise NoDevice(f"the CUDA driver finds no device: {said}")
        return api

    def ask(self, name: str, *arguments: Any) -> tuple[int, Any]:
        if name in _ENUMERATIONS:
            place, kind = _ENUMERATIONS[name]
            told = getattr(self.api, kind)(arguments[place])
            arguments = (*arguments[:place], told, *arguments[place + 1 :])
        function = getattr(self.api, name)
        try:
            code, *found = function(*arguments)
        except RuntimeError as fault:  # the installed driver does not have the function
            raise DeviceMissing(
                f"the CUDA driver is too old for this cuda-bindings: update it ({fault})"
            ) from fault
        return code, found[0] if len(found) == 1 else tuple(found)

    def retain(self, index: int) -> Context:
        return Context(self, self.call("cuDevicePrimaryCtxRetain", index), index, True)

    def release(self, context: Context) -> None:
        self.call("cuDevicePrimaryCtxRelease", context.index)

    def current(self) -> Context | None:
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
                found = self._others.setdefault(key, Context(self, handle, index, False))
        return found
