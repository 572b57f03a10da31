"""`normgen compile --emit ptx|cubin|header`: the kernels of one shape, compiled by nvcc or NVRTC, with
everything that launches them. Needs no GPU."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from normgen.cli.files import MARK, Output
from normgen.cli.sizes import BOTH

if TYPE_CHECKING:
    from normgen.ahead.cases import Cases
    from normgen.launching.launch import Launch
    from normgen.package.direction import Direction
    from normgen.package.records import Package


MOST_COMPILERS = 8  # at a time


@dataclass(frozen=True, slots=True)
class Shape:
    """The calls that binaries are for, as the command line describes them."""

    sizes: dict[str, int]
    dtype: str
    arch: str
    direction: str  # forward, backward or both
    saves: bool


def binaries(package: Package, target: str, shape: Shape) -> tuple[Output, ...]:
    """For each kernel a binary (`target`: ptx or cubin) and its description."""
    from normgen.ahead.description import description
    from normgen.ahead.interface import file_stem, kernel_names

    made: list[Output] = []
    every = cases_of_shape(package, target, shape)
    compiled = _compiled(package, every, target)
    for cases in every:
        for kernel, name in kernel_names(cases).items():
            stem = f"{name}.{file_stem(cases)}"
            binary = compiled[kernel]
            told = description(cases, kernel, f"{stem}.{target}", binary, package.spec, _writer(package))
            made += [Output(f"{stem}.{target}", binary), Output(f"{stem}.json", told.encode())]
    return tuple(made)


def header(package: Package, shape: Shape) -> Output:
    """One C header with the kernels of all directions, and functions that launch them."""
    from normgen.ahead.header import header_name, header_text

    every = cases_of_shape(package, "header", shape)
    text = header_text(every, _compiled(package, every, "cubin"), package, _writer(package))
    return Output(header_name(every), text.encode())


def cases_of_shape(package: Package, emit: str, shape: Shape) -> tuple[Cases, ...]:
    """The launches of the requested directions. Lengths that kernels depend on must be given."""
    from dataclasses import replace

    from normgen.ahead.cases import cases_of
    from normgen.cli.sizes import usual_sizes
    from normgen.launching.machine import architecture, usual_machine

    wanted = wanted_directions(package, shape)
    inner = {axis for each in wanted for kernel in each.record.kernels for axis in kernel.inner}
    _require_lengths(package, inner, shape, emit)
    lengths = usual_sizes(package, shape.sizes)
    # programs that use these files launch by the driver API, which supports whatever the architecture does
    device = replace(usual_machine(shape.arch), programmatic=architecture(shape.arch).programmatic)
    found = tuple(cases_of(each, lengths, shape.dtype, device, shape.saves) for each in wanted)
    _require_lengths(package, {axis for cases in found for axis in cases.sizes}, shape, emit)
    return found


def wanted_directions(package: Package, shape: Shape) -> list[Direction]:
    """The requested directions that the norm has."""
    from normgen.cli.page import require_direction
    from normgen.package.direction import directions

    if shape.direction != BOTH:
        return [require_direction(package, shape.direction)]
    return [each for each in directions(package) if each is not None and each.record.strategies]


def _compiled(package: Package, every: tuple[Cases, ...], target: str) -> dict[Launch, bytes]:
    """The binaries of all kernels, several compiled at a time."""
    from normgen.devices.executors import compile_ahead

    head = f"// {_writer(package)}\n".encode() if target == "ptx" else b""
    kernels = list(dict.fromkeys(kernel for cases in every for kernel in cases.kernels))
    arch = every[0].device.arch
    with ThreadPoolExecutor(min(MOST_COMPILERS, os.cpu_count() or 1)) as threads:
        made = threads.map(lambda kernel: head + compile_ahead(kernel.source, arch, target), kernels)
        return dict(zip(kernels, made, strict=True))


def _writer(package: Package) -> str:
    from normgen import __version__

    return f"{MARK} {__version__} from {package.name}.norm"


def _require_lengths(package: Package, needed: set[str], shape: Shape, emit: str) -> None:
    """A kernel is compiled for the lengths of a row's axes, and of other axes that its text depends on."""
    fixed = {axis.name for axis in package.axes if axis.extent is not None}
    missing = sorted(needed - fixed - shape.sizes.keys())
    if missing:
        give = " ".join(f"--size {axis}={8 if axis == 'B' else 4096}" for axis in missing)
        raise click.UsageError(f"--emit {emit} needs the length of {', '.join(missing)}: give {give}")
