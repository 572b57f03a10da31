"""`normgen compile --emit ptx|cubin`: the kernels of one shape, compiled by nvcc or NVRTC. Needs no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.package.records import Package


def binaries(
    package: Package, target: str, sizes: dict[str, int], dtype: str, arch: str
) -> tuple[Output, ...]:
    """A file for each launch of both directions, named after its kernel."""
    from normgen.cli.sizes import usual_sizes
    from normgen.devices.executors import compile_ahead
    from normgen.launching.machine import usual_machine
    from normgen.package.direction import directions
    from normgen.runtime.calls.sizes import bind_sizes
    from normgen.runtime.planning.choose import plan_launches

    _require_row_lengths(package, sizes, target)
    lengths = usual_sizes(package, sizes)
    made = []
    for direction in directions(package):
        if direction is None:
            continue
        binding = bind_sizes(direction, lengths, dtype).binding
        plan = plan_launches(direction.record, binding, usual_machine(arch))
        for launch in plan.launches:
            binary = compile_ahead(launch.source, arch, target)
            if target == "ptx":
                binary = f"// {MARK} from {package.name}.norm\n".encode() + binary
            made.append(Output(f"{launch.entry}.{arch}.{target}", binary))
    return tuple(made)


def _require_row_lengths(package: Package, sizes: dict[str, int], target: str) -> None:
    """A kernel is compiled for the lengths of its row's axes; the others may be anything at a call."""
    fixed = {axis.name for axis in package.axes if axis.extent is not None}
    passes = [package.forward, *([package.backward] if package.backward else [])]
    inner = {axis for one in passes for kernel in one.kernels for axis in kernel.inner}
    for axis in sorted(inner - fixed - sizes.keys()):
        raise click.UsageError(f"--emit {target} compiles for one length of {axis}: give --size {axis}=4096")
