"""The seam between normgen and CUDA: what a launcher and a compiler offer (those there are: `toolchains`).

`Driver` finds devices and their contexts (`context.Context`); `Compiler` makes binaries of text. Anything
else that can launch a function from a cubin fits too, and the tests put a pure-Python imitation here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from normgen.devices.cuda.context import Context


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """The compiler's report on a loaded function."""

    registers: int  # per thread
    local: int  # bytes that a thread spills or indexes
    shared: int  # bytes of static shared memory
    threads: int  # of a block, at most


class Loaded(Protocol):
    """A function, until its module goes: whoever launches it looks for `handle` each time, and keeps none."""

    handle: Any


class Compiler(Protocol):
    """What makes a cubin of CUDA text. ToolchainMissing where it is not there, CompileError for bad text."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> tuple[str, ...]:
        """What it is told beside text and architecture: part of the key of every binary."""

    def toolchain(self) -> str:
        """Which compiler of which version this is: part of the key of every binary."""

    def describe(self) -> str:
        """What it is and where it was found, for people."""

    def headers(self) -> str:
        """Where CUDA's headers are, for people."""

    def version(self) -> tuple[int, int] | None:
        """The version of CUDA that it belongs to, where it says."""

    def compile(self, source: str, arch: str) -> bytes:
        """The cubin of a text for one architecture, such as sm_90."""


class Driver(Protocol):
    """A way to CUDA. Its methods raise DeviceMissing when there is none here."""

    @property
    def name(self) -> str: ...

    @property
    def compiler(self) -> Compiler: ...

    def version(self) -> tuple[int, int]:
        """The newest version of CUDA that the installed driver knows."""

    def device_count(self) -> int: ...

    def primary(self, index: int) -> Context:
        """The primary context of a device, which frameworks share: retained once, never left current."""

    def current(self) -> Context | None:
        """The context that the caller made current through this driver's own package, if there is one."""

    def device_of(self, pointer: int) -> int:
        """The ordinal of the device that memory lies on."""

    def close(self) -> None:
        """Let go of the contexts, before the interpreter goes down."""
