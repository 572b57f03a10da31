"""What all launchers have in common.

A launcher adds how the driver's API is called (`LauncherDriver.ask`), and how contexts are retained and made
current.
"""

from __future__ import annotations

import ctypes
import os
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Generic, TypeVar

from normgen.devices.cuda.context import Context
from normgen.devices.cuda.driver import Compiler
from normgen.devices.launch_kernel import address_of
from normgen.errors import DeviceMissing, DriverError, NoDevice
from normgen.locks import cached_property, new_lock

_POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_CAPTURING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE

C = TypeVar("C", bound=Context)


def driver_library() -> Any:
    """The CUDA driver's library. NoDevice says what to install where it is missing."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as fault:
        raise NoDevice(
            "no CUDA driver is found: install NVIDIA's driver (on Ubuntu: sudo ubuntu-drivers install)"
        ) from fault


class LauncherDriver(ABC, Generic[C]):
    """A driver, as far as it is the same for every launcher: imported and initialised when first needed.

    `programmatic`: whether launches may start while the kernel before them ends, on devices that can.
    """

    name: str
    usual_compiler: Compiler

    def __init__(self, programmatic: bool = True, compiler: Compiler | None = None) -> None:
        self.programmatic = programmatic
        self.compiler = compiler or self.usual_compiler
        self.closed = False
        self._guard = new_lock()
        self._process = os.getpid()
        self._primaries: dict[int, C] = {}
        self._others: dict[Any, C] = {}

    @cached_property
    def library(self) -> Any:
        """The driver library. Whoever calls it has had CUDA initialised."""
        return driver_library()

    @cached_property
    def launch_kernel(self) -> int:
        """The address of cuLaunchKernelEx."""
        return self._address("cuLaunchKernelEx")

    @cached_property
    def is_capturing(self) -> int:
        """The address of cuStreamIsCapturing."""
        return self._address("cuStreamIsCapturing")

    def capture(self, stream: int) -> int:
        """A number that tells the capture of a graph by a stream from others; 0 where there is none."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        told = ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)
        # (neither its graph nor what the stream waits for in there)
        code = self.library.cuStreamGetCaptureInfo_v2(*told, None, None, None)
        if code:
            raise self.refused("cuStreamGetCaptureInfo", code)
        return number.value if status.value == _CAPTURING else 0

    def _address(self, name: str) -> int:
        try:
            return address_of(getattr(self.library, name))
        except AttributeError as fault:
            raise DeviceMissing(f"the CUDA driver is too old, it has no {name}: update the driver") from fault

    @abstractmethod
    def ask(self, name: str, *arguments: Any) -> tuple[int, Any]:
        """Call a function of the driver API by its plain name: its code, and what it returns beside that."""

    @abstractmethod
    def retain(self, index: int) -> C:
        """The primary context of a device that is there."""

    @abstractmethod
    def release(self, context: C) -> None:
        """Give back what `retain` got."""

    def call(self, name: str, *arguments: Any) -> Any:
        """`ask`, where a code is an error."""
        code, found = self.ask(name, *arguments)
        if code:
            raise self.refused(name, code)
        return found

    def refused(self, name: str, code: Any) -> DriverError:
        """Our error for a code of the driver's."""
        return self.refusal(f"{name} failed: {self.text(code)}")

    def refusal(self, said: str) -> DriverError:
        """Our error for what CUDA said."""
        if os.getpid() != self._process:
            return DriverError(
                "CUDA does not work in a process forked after CUDA was initialized: use start method 'spawn'"
            )
        return DriverError(f"CUDA: {said.strip()}")

    def text(self, code: Any) -> str:
        """An error in the driver's words."""
        found = self.ask("cuGetErrorString", code)[1]
        return found.decode() if found else f"error {int(code)}"

    def version(self) -> tuple[int, int]:
        major, rest = divmod(int(self.call("cuDriverGetVersion")), 1000)
        return major, rest // 10

    def device_count(self) -> int:
        return int(self.call("cuDeviceGetCount"))

    def primary(self, index: int) -> C:
        found = self._primaries.get(index)
        if found is None:
            with self._guard:
                found = self._primaries.get(index)
                if found is None:
                    count = self.device_count()
                    if not 0 <= index < count:
                        raise DeviceMissing(f"no CUDA device {index}: the number of devices is {count}")
                    found = self._primaries[index] = self.retain(index)
        return found

    def device_of(self, pointer: int) -> int:
        if self.device_count() == 1 or not pointer:
            return 0
        with self.primary(0):
            return int(self.call("cuPointerGetAttribute", _POINTER_DEVICE, pointer))

    def close(self) -> None:
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        for context in self._primaries.values():
            with suppress(Exception):
                self.release(context)
        self._others.clear()
        self._primaries.clear()
