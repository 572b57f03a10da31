"""What is compiled for PyTorch (`cpp/`): whether it is there, and what it is told of a call."""

from __future__ import annotations

import importlib.util
import logging
import struct
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normgen.arrays.torch import TORCH
from normgen.cache import default_cache
from normgen.devices.executors import context_of
from normgen.launching.launch import HOST
from normgen.runtime.calls.prepared import PreparedCall, Step, Variant
from normgen.runtime.calls.workspace import GRANULE, Memory, align
from normgen.torch import extension

_log = logging.getLogger("normgen")


class _Extension:
    """The extension in C++ as this process has it. The first call on a GPU asks for it; until it is
    there, and where it cannot be built, all is done in Python."""

    def __init__(self) -> None:
        self.loaded: Any = None
        self.fault = ""  # why there will be none
        self._builder: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self) -> Any:
        """The extension, or None: it is being built, which this sees to, or cannot be."""
        if self.loaded is not None or self.fault:
            return self.loaded
        if self._builder is not None and self._builder.poll() is None:
            return None
        with self._lock:
            recipe = _recipe()
            if self.loaded is not None or isinstance(recipe, str):
                self.fault = recipe if isinstance(recipe, str) else ""
            elif recipe.place(default_cache()).exists():
                self._load(recipe)
            elif self._builder is not None:
                self.fault = "it was not built: `python -m normgen.torch.extension` says why"
            else:
                self._builder = recipe.build_aside(default_cache())
            if self.fault:
                _log.info("calls are made in Python: %s", self.fault)
        return self.loaded

    @property
    def there(self) -> bool:
        """Whether it is there now, if somebody asked for it."""
        return self.loaded is not None or (self._builder is not None and self.ask() is not None)

    def build(self) -> Any:
        """The extension, built now if it is not there; None where it cannot be."""
        with self._lock:
            recipe = _recipe()
            if self.loaded is None and not isinstance(recipe, str):
                self._load(recipe)
        return self.loaded

    def _load(self, recipe: extension.Recipe) -> None:
        try:
            path = recipe.build(default_cache())
            found = importlib.util.spec_from_file_location("normgen_node", path)
            assert found is not None and found.loader is not None
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
        except subprocess.CalledProcessError as fault:
            self.fault = f"the C++ compiler refused it: {fault.stderr.decode(errors='replace')}"
        except (OSError, ImportError) as fault:
            self.fault = str(fault)
        else:
            self.loaded = module


EXTENSION = _Extension()


def _recipe() -> extension.Recipe | str:
    return extension.recipe(Path(torch.__path__[0]))


@dataclass(frozen=True, slots=True)
class Launcher:
    """What launches, as compiled code needs it."""

    launch: int  # the address of cuLaunchKernelEx
    function: Callable[[Step], int]  # the address of what a step launches


def launcher_of(prepared: PreparedCall) -> Launcher | None:
    """What launches the kernels of a call, if compiled code can: not those of the host, nor where the
    launcher keeps functions to itself."""
    if prepared.device == HOST:
        return None
    context = context_of(prepared.device)
    if not context.launch_address:
        return None
    return Launcher(context.launch_address, lambda step: context.function_address(step.function.handle))


def told(
    launcher: Launcher,
    prepared: PreparedCall,
    numbers: tuple[Any, ...],
    layouts: tuple[Any, ...],
    memory: Memory | None,
) -> tuple[Any, ...]:
    """A call as the extension learns it. `memory`: where its scratch arrays lie, those that are to be zeros
    kept so between calls; where it is None each call has memory of its own."""
    scratch, device = prepared.scratch, prepared.device
    index = -1 if device == HOST else device[1]
    variant = prepared.usual if memory is None or not scratch.zeros else prepared.repeated
    passing = scratch.size if memory is None else 0

    def places(stream: int) -> tuple[int, ...] | None:
        assert memory is not None
        owner = torch.empty(0, device="cpu" if device == HOST else torch.device("cuda", index))
        found, chosen = prepared.place_scratch(memory, TORCH, owner, stream, {})
        return tuple(found) if chosen is variant else None

    return (
        launcher.launch,
        index,
        layouts,
        prepared.fields([*range(len(layouts)), -1]),
        tuple((*guard[:4], guard[4] if guard[4] is not None else guard[2]) for guard in variant.guards),
        _launches(launcher, prepared, variant, numbers),
        places if scratch.size and not passing else None,
        len(scratch.offsets),
        tuple(offset for _, offset in scratch.offsets) if passing else (),
        align(passing) + GRANULE,
    )


def _launches(
    launcher: Launcher, prepared: PreparedCall, variant: Variant, numbers: tuple[Any, ...]
) -> tuple[Any, ...]:
    operands, made = len(prepared.operands), len(prepared.made)
    scratch = len(prepared.scratch.offsets)
    first_made = operands + len(numbers)
    sources = {place: place for place in range(operands)}
    sources |= {first_made + index: operands + index for index in range(made + scratch)}
    values = [0] * operands + [*numbers] + [0] * (made + scratch) + [*prepared.constants]
    return tuple(_launch(step, values, sources, launcher.function(step)) for step in variant.steps)


def _launch(step: Step, values: list[Any], sources: dict[int, int], function: int) -> tuple[Any, ...]:
    """A launch as the extension reads it: its arguments, and which address goes where in them."""
    launch = step.launch
    assert len(launch.format) == len(step.places), launch.format
    patches = []
    for index, place in enumerate(step.places):
        if place in sources:
            size = struct.calcsize(launch.format[index])
            patches.append((struct.calcsize(launch.format[: index + 1]) - size, sources[place]))
    arguments = struct.pack(launch.format, *[values[place] for place in step.places])
    grid, block = tuple(launch.grid), tuple(launch.block)
    return (function, grid, block, launch.shared, launch.programmatic, arguments, tuple(patches))
