"""Errors of the machine, as opposed to a spec or a call: no compiler, no device, the driver.

Each message says in one line what is missing and what to do; `exit_code` is what the command line returns.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import ClassVar


class MachineError(RuntimeError):
    """Base of the errors of this module."""

    exit_code: ClassVar[int] = 3


class ToolchainMissing(MachineError):
    """A compiler that is needed now is not installed, or this platform has none."""


class DeviceMissing(MachineError):
    """No CUDA driver, no such device, or no package to reach it."""

    exit_code: ClassVar[int] = 4


class NoDevice(DeviceMissing):
    """There is no CUDA driver, or none of its devices: nothing to mend on a machine without a GPU."""


class DriverError(MachineError):
    """The CUDA driver refused a request: out of memory, a fault in a kernel, a lost context."""

    exit_code: ClassVar[int] = 4


class CompileError(MachineError):
    """Generated code did not compile, which is a fault of normgen, never of its user.

    The first line of the message names the file that is kept, `source_path`, "" where none could be written;
    the compiler's first lines follow.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, source_path: str, command: tuple[str, ...], output: str, shown: int = 8) -> None:
        lines = [line for line in output.splitlines() if line.strip()]
        self.source_path = source_path
        self.command = command
        self.output = output
        kept = f" (kept as {source_path}; please report it with that file)" if source_path else ""
        head = f"internal error: generated code does not compile{kept}"
        super().__init__("\n".join([head, *(f"  {line}" for line in lines[:shown])]))


class TextFault(MachineError):
    """A generated text does not compile, found before anyone runs it: a fault of normgen, said in a line."""

    exit_code: ClassVar[int] = 70


@cache
def warn_once(message: str) -> None:
    """Warn of what goes on in another way than was asked for; once in a process for each message."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)
