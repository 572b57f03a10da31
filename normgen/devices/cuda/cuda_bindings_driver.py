"""CUDA through cuda-bindings, NVIDIA's own wrapping: launches with attributes, on anyone's stream.

PyCUDA is the default; this is what programmatic dependent launch needs.  Text is compiled by nvcc, found and
called as for binaries ahead of time, so that PyCUDA need not be there.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import cached_property
from typing import Any

from normgen.devices.cuda.compile import compile_text, find_nvcc, nvcc_version
from normgen.devices.cuda.cuda_bindings_context import CudaBindingsContext
from normgen.errors import DeviceMissing, DriverError, refusal


class CudaBindingsDriver:
    """cuda-bindings, imported and initialised when it is first needed.

    `programmatic`: whether launches may start while the kernel before them ends, on devices that can.
    """

    name = "cuda-bindings"

    def __init__(self, programmatic: bool = True) -> None:
        self.programmatic = programmatic
        self._guard = threading.Lock()
        self._process = os.getpid()
        self._primaries: dict[int, CudaBindingsContext] = {}
        self._others: dict[int, CudaBindingsContext] = {}
        self._closed = False

    @cached_property
    def api(self) -> Any:
        """The module `cuda.bindings.driver`, with CUDA initialised."""
        try:
            from cuda.bindings import driver as api
        except ImportError as fault:
            raise DeviceMissing(
                "the launcher cuda-bindings needs its package: pip install 'normgen[cuda-bindings]'"
            ) from fault
        try:
            (code,) = api.cuInit(0)
        except RuntimeError as fault:
            raise DeviceMissing(f"cuda-bindings finds no CUDA driver: {fault}") from fault
        if code:
            raise DeviceMissing(f"the CUDA driver finds no device: {_text(api, code)}")
        return api

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the driver; what it returns beside its error code."""
        code, *found = getattr(self.api, name)(*arguments)
        if code:
            raise self.refusal(name, code)
        return found[0] if len(found) == 1 else tuple(found)

    def refusal(self, name: str, code: Any) -> DriverError:
        """Our error for one of the driver's."""
        return refusal(f"{name} failed: {_text(self.api, code)}", self._process)

    def device_count(self) -> int:
        return int(self.call("cuDeviceGetCount"))

    def primary(self, index: int) -> CudaBindingsContext:
        found = self._primaries.get(index)
        if found is None:
            with self._guard:
                found = self._primaries.get(index)
                if found is None:
                    count = self.device_count()
                    if not 0 <= index < count:
                        raise DeviceMissing(f"no CUDA device {index}: there are {count}")
                    handle = self.call("cuDevicePrimaryCtxRetain", index)
                    found = self._primaries[index] = CudaBindingsContext(self, handle, index, True)
        return found

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

    def device_of(self, pointer: int) -> int:
        if self.device_count() == 1 or not pointer:
            return 0
        which = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self.primary(0):
            return int(self.call("cuPointerGetAttribute", which, pointer))

    def toolchain(self) -> str:
        return nvcc_version(find_nvcc())

    def compile(self, source: str, arch: str, options: tuple[str, ...]) -> bytes:
        binary, _ = compile_text(source, arch, options)
        return binary

    def close(self) -> None:
        """Let go of the contexts; modules and memory that are still held go with them."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        for index in self._primaries:
            with suppress(Exception):
                self.call("cuDevicePrimaryCtxRelease", index)
        self._others.clear()
        self._primaries.clear()

    @property
    def closed(self) -> bool:
        return self._closed


def _text(api: Any, code: Any) -> str:
    """The driver's own words for an error."""
    _, text = api.cuGetErrorString(code)
    return text.decode() if text else f"error {int(code)}"
