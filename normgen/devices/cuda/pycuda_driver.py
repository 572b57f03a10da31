"""CUDA through PyCUDA: the driver that kernels are compiled with, and that finds devices and contexts.

Text is compiled the way PyCUDA's `SourceModule` does it (explicit arch, no extern "C"), without PyCUDA's own
cache.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import threading
from contextlib import suppress
from functools import cached_property
from typing import Any

from normgen.devices.cuda.compile import failure, find_nvcc, nvcc_version
from normgen.devices.cuda.pycuda_context import PyCudaContext
from normgen.errors import DeviceMissing, DriverError, ToolchainMissing, refusal

_POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


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
            raise DeviceMissing(
                "CUDA arrays need PyCUDA: pip install 'normgen[cuda]' builds it with a CUDA toolkit, "
                "python -m normgen.build_pycuda without one"
            ) from fault
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
        return refusal(str(fault), self._process)

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


def _remove_leavings(fault: BaseException) -> None:
    """Remove the temporary directory in which PyCUDA compiled, which it leaves behind when that fails."""
    trace = fault.__traceback__
    while trace is not None:
        directory = trace.tb_frame.f_locals.get("file_dir")
        if directory is not None and trace.tb_frame.f_code.co_name == "compile_plain":
            shutil.rmtree(directory, ignore_errors=True)
        trace = trace.tb_next
