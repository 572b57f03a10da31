"""Calls made again by compiled code (`native.c`), where a C compiler and Python's headers are there."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from normgen.cache import default_cache, digest
from normgen.devices.executors import context_of
from normgen.runtime.calls.prepared import PreparedCall, Step, Variant

_log = logging.getLogger("normgen")
_OPTIONS = ("-O2", "-shared", "-fPIC", "-Wno-missing-field-initializers")
# (stream, operands, scratch addresses) -> all results in order, or the error code of a refused first launch.
Repeat = Callable[[int, tuple[Any, ...], tuple[int, ...]], Any]


def repeat(
    prepared: PreparedCall, variant: Variant, numbers: tuple[Any, ...], layouts: tuple[Any, ...]
) -> Repeat | None:
    """A variant of a prepared call on a GPU as compiled code, which allocates on the current device. None
    where that cannot be had: the launcher keeps functions to itself, or nothing can be compiled here."""
    context = context_of(prepared.device)
    entry = context.launch_address
    compiled = _compiled() if entry and _ALLOCATE is not None else None
    if compiled is None:
        return None
    operands, made = len(prepared.operands), len(prepared.made)
    scratch = len(prepared.scratch.offsets)
    first_made = operands + len(numbers)
    sources = {place: place for place in range(operands)}
    sources |= {first_made + index: operands + index for index in range(made + scratch)}
    values = [0] * operands + [*numbers] + [0] * (made + scratch) + [*prepared.constants]
    launches = tuple(
        _launch(step, values, sources, context.function_address(step.function.handle))
        for step in variant.steps
    )
    fields = prepared.fields([*range(made), -1])
    found: Repeat = compiled(entry, torch._C.TensorBase.data_ptr, _ALLOCATE, layouts, fields, launches)
    return found


_ALLOCATE = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def _launch(step: Step, values: list[Any], sources: dict[int, int], function: int) -> tuple[Any, ...]:
    """A launch as `native.c` reads it: its arguments, and which address goes where in them."""
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


@cache
def _compiled() -> Any:
    """The type `Repeat` of `native.c`, built once and kept in the cache; None where it cannot be."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    include = Path(sysconfig.get_paths()["include"])
    if compiler is None or not (include / "Python.h").is_file():
        _log.info("launching from Python: a C compiler and Python's headers would launch faster")
        return None
    source = resources.files("normgen.torch").joinpath("native.c").read_bytes()
    key = digest("native launcher", source, sys.version, compiler, *_OPTIONS)

    def build(target: Path) -> None:
        command = [compiler, *_OPTIONS, f"-I{include}", "-x", "c", "-", "-o", str(target)]
        subprocess.run(command, input=source, capture_output=True, check=True)

    try:
        path = default_cache().get_or_build(key, build, ".so")
        found = importlib.util.spec_from_file_location("normgen_native", path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    except (OSError, ImportError, subprocess.CalledProcessError) as fault:
        _log.info("launching from Python: the native launcher was not built: %s", fault)
        return None
    return module.Repeat
