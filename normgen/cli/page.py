"""`normgen explain --emit cuda`: the CUDA text of one call, as it is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.cli.sizes import Setting
    from normgen.package.direction import Direction
    from normgen.package.records import Package


def page_of(package: Package, setting: Setting) -> Output:
    """The page of a call with contiguous arrays, named after the norm and the direction."""
    from normgen.ahead.page import page
    from normgen.cli.offered import taken

    direction, device = setting.direction, setting.device
    wanted = require_direction(package, direction)
    alternative, notes = taken(wanted, setting.binding(wanted), device)
    plan = alternative.plan
    name = f"{package.name}_{direction}.cu"
    head = [
        f"{MARK} from {package.name}.norm: the {direction} for {setting.text}.",
        *notes,
        f"It compiles by itself: nvcc -arch={device.arch} -cubin {name}",
        "(or NVRTC with -default-device and -I for CUDA's headers).",
    ]
    if len(plan.launches) > 1:
        head.append("Its kernels are launched in this order, on one stream.")
    if plan.workspace:
        head += ["", "Scratch memory:"]
        head += [f"    {found}: {_shape(shape)} of {kind}" for found, shape, kind in plan.workspace]
    return Output(name, page(plan.launches, head).encode())


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def require_direction(package: Package, name: str) -> Direction:
    """A direction of a norm; a usage error if the norm does not have it."""
    from normgen.package.direction import directions

    found = next((each for each in directions(package) if each is not None and each.name == name), None)
    if found is None:
        raise click.BadParameter(
            f"{package.name} has no backward: none of its outputs can be differentiated",
            param_hint="--direction",
        )
    return found
