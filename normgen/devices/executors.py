"""Where launches run: the host for host arrays, for the others the device and context that hold them."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from normgen.launching.launch import HOST, DeviceKey, Fire, Launch
from normgen.launching.machine import Machine
from normgen.package.device_functions import inlined

if TYPE_CHECKING:
    from normgen.devices.cuda.context import Context
    from normgen.devices.cuda.driver import Driver


class Executor(Protocol):
    """Compiles and runs launches on one device. Safe to share between threads."""

    @property
    def device(self) -> Machine: ...

    def function(self, source: str, entry: str, shared: int) -> Any:
        """The compiled function, from a cache or after one compilation per text."""

    def prepare(self, function: Any, launch: Launch) -> Fire:
        """A callable that runs or enqueues a launch of a function."""


def executor_of(device: DeviceKey) -> Executor:
    """The process's executor of a device."""
    if device == HOST:
        return _host()
    found: Executor = _cuda().executor_of(device)
    return found


def use_driver(driver: Driver | str | None = None, compiler: str | None = None) -> None:
    """Select how CUDA kernels are launched and compiled, and discard all loaded kernels.

    `driver`: "pycuda", "cuda-bindings", your own driver (`devices.cuda.driver`), which includes a compiler,
    or None for the default. `compiler`: "nvcc", "nvrtc", or None for the default.
    """
    _cuda().use_driver(driver, compiler)
    for each in list(_keepers):
        each.forget()


class Keeper(Protocol):
    """An object that keeps prepared calls, which hold functions of a driver."""

    def forget(self) -> None:
        """Prepare them again on their next use."""


# Those that `use_driver` notifies, while they live.
_keepers: WeakSet[Keeper] = WeakSet()


def keeps_calls(keeper: Keeper) -> None:
    """Let `use_driver` notify an object that keeps prepared calls."""
    _keepers.add(keeper)


def context_of(device: DeviceKey) -> Context:
    """The CUDA context that a key names: its memory and its streams."""
    found: Context = _cuda().context_of(device)
    return found


def current_context() -> Context | None:
    """The CUDA context that the caller made current by the package that launches, if there is one."""
    found: Context | None = _cuda().default_driver().current()
    return found


def current_device(pointer: int) -> DeviceKey:
    """The key of the current context; where there is none, of the device that memory lies on."""
    cuda = _cuda()
    context = cuda.default_driver().current()
    found: DeviceKey = device_holding(pointer) if context is None else cuda.device_key(context)
    return found


def device_holding(pointer: int) -> DeviceKey:
    """The key of the device that memory lies on, for its primary context."""
    return ("cuda", _cuda().default_driver().device_of(pointer))


def compile_ahead(source: str, arch: str, target: str) -> bytes:
    """Compile a text (`target`: cubin or ptx) for an architecture, without such a device."""
    from normgen.devices.cuda.toolchains import compiler_ahead

    return compiler_ahead().build(inlined(source), arch, target)


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
    raise ValueError(f"{name!r} is not a device: write 'host', 'cuda' or 'cuda:1'")


@cache
def host_launcher() -> ModuleType:
    """The launcher on the host for compiled code."""
    from normgen.devices.host import launcher

    return launcher


@cache
def _host() -> Executor:
    from normgen.devices.host.executor import HostExecutor

    return HostExecutor()


@cache
def _cuda() -> ModuleType:
    # Imported when a device is first asked for: calls on the host go without.
    from normgen.devices.cuda import executor

    return executor
