"""`normgen explain --emit cuda`: what the CUDA compiler is given for one call, as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.package.direction import Direction
    from normgen.package.records import Package


def page_of(package: Package, direction: str, sizes: dict[str, int], dtype: str) -> Output:
    """The page of a call with contiguous arrays of these lengths, named after the norm and the direction."""
    from normgen.cli.offered import taken
    from normgen.cli.sizes import usual_sizes
    from normgen.launching.machine import USUAL_MACHINE
    from normgen.page.page import device_macros, page
    from normgen.runtime.calls.sizes import bind_sizes

    lengths = usual_sizes(package, sizes)
    wanted = _direction(package, direction)
    device = USUAL_MACHINE
    alternative, notes = taken(wanted, bind_sizes(wanted, lengths, dtype).binding, device)
    plan = alternative.plan
    where = ", ".join(f"{axis} = {length}" for axis, length in lengths.items())
    name = f"{package.name}_{direction}.cu"
    head = [
        f"{MARK} from {package.name}.norm: the {direction} for {where} in {dtype}, on {device.name}.",
        *notes,
        f"It compiles by itself: nvcc -arch={device.arch} -cubin {name}",
        "(or NVRTC with -default-device, told where the headers of CUDA are).",
    ]
    if len(plan.launches) > 1:
        head.append("Its kernels are launched in this order, on one stream.")
    if plan.workspace:
        head += ["", "Scratch memory:"]
        head += [f"    {found}: {_shape(shape)} of {kind}" for found, shape, kind in plan.workspace]
    text = page(plan.launches, device_macros(device.arch), head)
    return Output(name, text.encode())


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _direction(package: Package, name: str) -> Direction:
    from normgen.package.direction import directions

    found = next((each for each in directions(package) if each is not None and each.name == name), None)
    if found is None:
        raise click.BadParameter(
            f"{package.name} has no backward: no output of it can be differentiated", param_hint="--direction"
        )
    return found
