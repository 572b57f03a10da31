"""What is compiled for PyTorch (`cpp/`): whether it is there, and what it is told of a call."""

from __future__ import annotations

import importlib.util
import logging
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normgen import arrays
from normgen.cache import Cache, default_cache
from normgen.devices.executors import context_of, host_launcher
from normgen.launching.launch import HOST
from normgen.locks import new_lock
from normgen.runtime.calls.prepared import PreparedCall, Step
from normgen.runtime.calls.workspace import GRANULE, MEMORY, align
from normgen.torch import extension

_log = logging.getLogger("normgen")


class _Extension:
    """The extension in C++ as this process has it. The first call on a GPU asks for it; until it is
    there, and where it cannot be built, all is done in Python."""

    def __init__(self) -> None:
        self.loaded: Any = None
        self.fault = ""  # why there will be none
        self._builder: subprocess.Popen[bytes] | None = None
        self._missing = False  # it was not built when somebody looked
        self._lock = new_lock()

    def ask(self, build: bool = True) -> Any:
        """The extension, or None: it is being built, which this sees to if it is to `build`, or cannot be."""
        if self._may_be_found(build):
            with self._lock:
                if self._may_be_found(build):
                    self._look(build)
        return self.loaded

    @property
    def there(self) -> bool:
        """Whether it is there now, if somebody asked for it."""
        return self.loaded is not None or (self._builder is not None and self.ask() is not None)

    def build(self) -> Any:
        """The extension, built now if it is not there; None where it cannot be."""
        with self._lock:
            recipe = _recipe()
            cache = default_cache()
            if self.loaded is None and not isinstance(recipe, str):
                try:
                    any(self._load(recipe.build(cache), cache) for _ in range(2))
                except subprocess.CalledProcessError as fault:
                    self.fault = f"the C++ compiler refused it: {fault.stderr.decode(errors='replace')}"
                except OSError as fault:
                    self.fault = str(fault)
        return self.loaded

    def _may_be_found(self, build: bool) -> bool:
        if self.loaded is not None or self.fault:
            return False
        if self._builder is not None:
            return self._builder.poll() is not None
        return build or not self._missing

    def _look(self, build: bool) -> None:
        """Load what is built, or else have it built, once. Whatever is wrong with that, a call goes on."""
        try:
            recipe = _recipe()
            if isinstance(recipe, str):
                self.fault = recipe
            else:
                cache = default_cache()
                path = recipe.built(cache)
                if path is None or not self._load(path, cache):
                    if build or self._builder is not None:
                        self._begin(recipe, cache)
                    else:
                        self.fault, self._missing = "", True
        except (OSError, ValueError, subprocess.SubprocessError) as fault:
            self.fault = f"its build did not begin: {fault}"
        if self.fault:
            _log.info("calls are made in Python: %s", self.fault)

    def _begin(self, recipe: extension.Recipe, cache: Cache) -> None:
        if self._builder is None:
            self.fault, self._builder = "", recipe.build_aside(cache)
        elif not self.fault:
            self.fault = "it was not built: `python -m normgen.torch.extension` says why"

    def _load(self, path: Path, cache: Cache) -> bool:
        """Whether it loads. One that does not, as it was made for another machine, is put aside."""
        try:
            found = importlib.util.spec_from_file_location("normgen_node", path)
            assert found is not None and found.loader is not None
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
        except (OSError, ImportError) as fault:
            self.fault = str(fault)
            cache.discard(path)
            return False
        self.loaded, self.fault = module, ""
        return True


EXTENSION = _Extension()


def _recipe() -> extension.Recipe | str:
    return extension.recipe(Path(torch.__path__[0]))


@dataclass(frozen=True, slots=True)
class Launcher:
    """What launches, as compiled code needs it."""

    launch: int  # the address of cuLaunchKernelEx
    capturing: int  # the address of cuStreamIsCapturing; 0 where there are no graphs
    function: Callable[[Step], int]  # the address of what a step launches


def launcher_of(prepared: PreparedCall) -> Launcher:
    """What launches the kernels of a call."""
    if prepared.device == HOST:
        return Launcher(host_launcher().ADDRESS, 0, host_launcher().handle)
    driver = context_of(prepared.device).driver
    return Launcher(driver.launch_kernel, driver.is_capturing, lambda step: int(step.function.handle.address))


def prepared_in_extension(
    node: Any,
    launcher: Launcher,
    prepared: PreparedCall,
    numbers: tuple[int, ...],
    layouts: tuple[Any, ...],
) -> Any:
    """A call as the extension `node` makes it, None where it was built for no such device. `numbers`: which
    of a call's its launches take."""
    scratch, device = prepared.scratch, prepared.device
    if device != HOST and not node.has_cuda:
        return None

    def zeros(stream: int) -> tuple[int, object] | None:
        lent = MEMORY.zeros(device, stream, scratch.zero_size)
        return None if lent is None else (lent.address, lent)

    def clear(address: int, stream: int) -> None:
        arrays.clear(device, address, scratch.zero_size, stream)

    kept = dict(scratch.zeros)
    parts = prepared.operands, numbers, prepared.made, scratch.offsets
    constants = dict(enumerate(prepared.constants, sum(map(len, parts))))
    return filled(
        node.Prepared(),
        launch=launcher.launch,
        capturing=launcher.capturing,
        device=-1 if device == HOST else device[1],
        operands=len(prepared.operands),
        numbers=numbers,
        made=[node.Layout(*layout) for layout in layouts],
        fields=prepared.fields([*range(len(layouts)), -1]),
        guards=[node.Guard(*each[:4], each[2] if each[4] is None else each[4]) for each in prepared.guards],
        launches=[_launch(node.Launch(), launcher, step, constants) for step in prepared.steps],
        scratch=[node.Place(offset, kept.get(name, -1)) for name, offset in scratch.offsets],
        size=align(scratch.size) + GRANULE,
        zeros=zeros if kept else None,
        clear=clear,
        owner=prepared,
    )


def filled(record: Any, **fields: Any) -> Any:
    """A record of the extension with these fields."""
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def _launch(record: Any, launcher: Launcher, step: Step, constants: dict[int, Any]) -> Any:
    """A launch. `constants`: by place in the pool, of which all else is filled in for each call."""
    launch, patches = step.launch, []
    for index, (code, place) in enumerate(zip(launch.format, step.places, strict=True)):
        size, end = struct.calcsize(code), struct.calcsize(launch.format[: index + 1])
        if place not in constants:
            assert code in "Pf", launch.format  # an address or a number
            patches.append((end - size, place, size))
    return filled(
        record,
        function=launcher.function(step),
        grid=launch.grid,
        block=launch.block,
        shared=launch.shared,
        early=launch.programmatic,
        clears=bool(launch.clears),
        arguments=struct.pack(launch.format, *[constants.get(place, 0) for place in step.places]),
        patches=patches,
    )
