"""The CUDA executor: generated text -> binary (from the cache or compiled once) -> function -> launch.

One executor serves one context.  Whatever is compiled or loaded is kept for the life of the process; at its
end the functions and modules go first, then the driver lets go of its contexts.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from normgen.cache import Cache, default_cache, digest
from normgen.devices.cuda.compile import dotted
from normgen.devices.cuda.context import Context
from normgen.devices.cuda.driver import Driver, FunctionReport
from normgen.devices.cuda.spills import compiled
from normgen.devices.cuda.toolchains import make_driver
from normgen.errors import DeviceMissing, DriverError
from normgen.launching.launch import Buffer, DeviceKey, Fire, Launch
from normgen.launching.machine import ORDINARY_SHARED, PORTABLE_CLUSTER, Machine, is_too_old, too_old
from normgen.locks import new_lock, new_reentrant_lock
from normgen.package.device_functions import inlined

_log = logging.getLogger("normgen")

_CUBIN = ".cubin"


class CudaFunction:
    """A loaded kernel. `shared`: the dynamic shared memory that a launch of it may ask for."""

    __slots__ = ("entry", "handle", "large_clusters", "report", "shared")

    def __init__(self, handle: Any, entry: str, report: FunctionReport) -> None:
        self.handle = handle
        self.entry = entry
        self.report = report
        self.shared = max(0, ORDINARY_SHARED - report.shared)
        self.large_clusters = False


class CudaExecutor:
    """Compiles for and launches on one context: by default the primary one of device `index`."""

    def __init__(
        self,
        index: int = 0,
        driver: Driver | None = None,
        context: Context | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.driver = driver or default_driver()
        self.context = context or self.driver.primary(index)
        self.device: Machine = self.context.device
        if is_too_old(self.device.arch):
            raise DeviceMissing(too_old(self.device.arch, self.device.name))
        self._cache = cache
        self._lock = new_lock()
        self._gates: dict[str, threading.Lock] = {}
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], CudaFunction] = {}
        _executors.add(self)

    def function(self, source: str, entry: str, shared: int) -> CudaFunction:
        """The kernel `entry` of a text, ready for launches with `shared` bytes of dynamic shared memory.

        However many threads ask, a text is compiled and loaded once; different texts at the same time.
        """
        found = self._functions.get((source, entry))
        if found is None or found.shared < shared:
            with self._gate(source):
                found = self._functions.get((source, entry)) or self._load(source, entry)
                if found.shared < shared:
                    self._allow_shared(found, shared)
        return found

    def launch(
        self,
        function: CudaFunction,
        launch: Launch,
        packed: bytes,
        buffers: tuple[Buffer, ...] = (),
        stream: int = 0,
    ) -> None:
        """Enqueue one launch on a stream; its arguments are `packed`. The buffers serve other executors."""
        self.prepare(function, launch)(packed, buffers, stream)

    def prepare(self, function: CudaFunction, launch: Launch) -> Fire:
        """`launch` for one function and record."""
        if launch.cluster > PORTABLE_CLUSTER and not function.large_clusters:
            self.context.allow_large_clusters(function.handle)
            function.large_clusters = True
        return self.context.launcher(function, launch)

    def binary(self, source: str) -> bytes:
        """The cubin of a text for this device: cached, or compiled now."""
        return self._binary(source, lambda text: self.driver.compiler.compile(text, self.device.arch))

    def close(self) -> None:
        """Forget every function and module, inside their context. The executor is of no use afterwards."""
        with self._lock, suppress(DriverError), self.context:
            for function in self._functions.values():
                function.handle = None
            self._functions.clear()
            self._modules.clear()

    def _gate(self, source: str) -> threading.Lock:
        with self._lock:
            return self._gates.setdefault(source, new_lock())

    def _load(self, source: str, entry: str) -> CudaFunction:
        module = self._modules.get(source)
        if module is None:
            try:
                module = self.context.load(self._binary(source, self.context.compile))
            except DriverError:
                # Sound on disk, and yet not what this driver takes: compile again, once.
                store = self._store()
                store.discard(store.path(self._key(inlined(source)), _CUBIN))
                module = self._load_anew(source)
            self._modules[source] = module
        handle = self.context.function(module, entry)
        loaded = CudaFunction(handle, entry, self.context.report(handle))
        self._functions[source, entry] = loaded
        return loaded

    def _load_anew(self, source: str) -> Any:
        """The module of a text; where the driver refuses it because it is too old, DeviceMissing says so."""
        try:
            return self.context.load(self._binary(source, self.context.compile))
        except DriverError as fault:
            known, needed = self.driver.version(), self.driver.compiler.version()
            if needed is None or known[0] >= needed[0]:  # of one major version all go together
                raise
            raise DeviceMissing(
                f"the CUDA driver is too old: it supports CUDA {dotted(known)}, and kernels are compiled by "
                f"{self.driver.compiler.name} of CUDA {dotted(needed)}: update the driver, or install a "
                f"compiler of CUDA {known[0]}"
            ) from fault

    def _allow_shared(self, function: CudaFunction, shared: int) -> None:
        limit = self.device.shared_per_block - function.report.shared
        if shared > limit:
            raise ValueError(
                f"{function.entry} needs {shared} bytes of shared memory; {self.device.name} has {limit}"
            )
        self.context.allow_shared(function.handle, shared)
        function.shared = shared

    def _store(self) -> Cache:
        return self._cache or default_cache()

    def _key(self, text: str) -> str:
        compiler = self.driver.compiler
        return digest(_CUBIN, text, self.device.arch, *compiler.options, compiler.toolchain())

    def _binary(self, source: str, compile_text: Callable[[str], bytes]) -> bytes:
        text = inlined(source)

        def build() -> bytes:
            begin = time.monotonic()
            binary = compiled(compile_text, text)
            _log.info("compiled a kernel for %s in %.1f s", self.device.arch, time.monotonic() - begin)
            return binary

        return self._store().get_or_build_bytes(self._key(text), build, _CUBIN)


# Process-wide: the driver, the executors to take down, the contexts that are not primary ones by name.

_guard = new_reentrant_lock()
_driver: Driver | None = None
_executors: weakref.WeakSet[CudaExecutor] = weakref.WeakSet()
_by_context: dict[Context, CudaExecutor] = {}
_numbered: dict[str, Context] = {}


def default_driver() -> Driver:
    """The process's way to CUDA: what `use_driver` said, or else what `toolchains` chooses."""
    global _driver
    if _driver is not None:
        return _driver
    with _guard:
        if _driver is None:
            _driver = _made()
        return _driver


def use_driver(driver: Driver | str | None = None, compiler: str | None = None) -> None:
    """Reach CUDA another way from now on, and forget what was loaded so far.

    `driver`: "pycuda", "cuda-bindings", one of one's own, or None for the usual one. `compiler`: "nvcc",
    "nvrtc", or None for the usual one.
    """
    global _driver
    if isinstance(driver, str) or (driver is None and compiler is not None):
        driver = _made(driver, compiler)
    elif compiler is not None:
        raise ValueError("compiler= requires driver= by name or None: a driver object has its own compiler")
    with _guard:
        for executor in list(_executors):
            executor.close()
        _by_context.clear()
        _numbered.clear()
        _driver = driver


def device_key(context: Context) -> DeviceKey:
    """What names a context: ("cuda", ordinal) for a primary one, a word of its own for any other."""
    if context.primary:
        return ("cuda", context.index)
    with _guard:
        for word, known in _numbered.items():
            if known is context:
                return (word, context.index)
        word = f"cuda context {len(_numbered) + 1}"
        _numbered[word] = context
        return (word, context.index)


def context_of(device: DeviceKey) -> Context:
    """The context that a device key names."""
    word, index = device
    return _numbered[word] if word in _numbered else default_driver().primary(index)


def executor_of(device: DeviceKey) -> CudaExecutor:
    """The one executor of a device key's context."""
    context = context_of(device)
    with _guard:
        found = _by_context.get(context)
        if found is None:
            found = _by_context[context] = CudaExecutor(context.index, default_driver(), context)
        return found


def _made(launcher: str | None = None, compiler: str | None = None) -> Driver:
    """A driver of ours, taken down when the interpreter ends."""
    driver = make_driver(launcher, compiler)
    atexit.register(_take_down, driver)
    return driver


def _take_down(driver: Driver) -> None:
    for executor in list(_executors):
        if executor.driver is driver:
            executor.close()
    driver.close()
