"""Where launches run: the host for host arrays, for the others the device and context that hold them."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

from normgen.arrays.views import HOST, DeviceKey
from normgen.launching.launch import Buffer, Device, Fire, Launch


class Executor(Protocol):
    """What compiles and runs launches on one device. Safe to share between threads."""

    @property
    def device(self) -> Device: ...

    def function(self, source: str, entry: str, shared: int) -> Any:
        """The compiled function, from a cache or after one compile for each text."""

    def launch(
        self, function: Any, launch: Launch, packed: bytes, buffers: tuple[Buffer, ...], stream: int
    ) -> None:
        """Run or enqueue one launch. `packed` are its arguments, `buffers` the memory it may touch."""

    def prepare(self, function: Any, launch: Launch) -> Fire:
        """`launch` for one function and record, which calls will repeat."""


def executor_of(device: DeviceKey) -> Executor:
    """The process's executor of a device."""
    if device == HOST:
        return _host()
    from normgen.devices.cuda import executor as cuda

    return cuda.executor_of(device)


def device_key(name: object) -> DeviceKey:
    """A device as people name it: "host" or "cpu", "cuda", "cuda:1", an ordinal, or a key."""
    match name:
        case "host" | "cpu":
            return HOST
        case "cuda":
            return ("cuda", 0)
        case str() if name.startswith("cuda:") and name[5:].isdigit():
            return ("cuda", int(name[5:]))
        case (str(kind), int(index)):
            return (kind, index)
        case int() if not isinstance(name, bool) and name >= 0:
            return ("cuda", name)
    raise ValueError(f"{name!r} is no device: write 'host', 'cuda' or 'cuda:1'")


@cache
def _host() -> Executor:
    from normgen.devices.host.executor import HostExecutor

    return HostExecutor()
