"""`normgen compile --size`: the Python module for calls of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from normgen.cli.files import Output
from normgen.cli.sizes import BOTH

if TYPE_CHECKING:
    from normgen.ahead.cases import Cases
    from normgen.cli.binaries import Shape
    from normgen.codegen.compilation import Compilation


def one_shape(compilation: Compilation, shape: Shape, verify: bool) -> Output:
    """The module. `verify`: first compile its kernels on the host, if it has a compiler."""
    from normgen import __version__
    from normgen.ahead.interface import file_stem
    from normgen.ahead.made import made_package
    from normgen.cli.binaries import cases_of_shape
    from normgen.cli.stages import verifying
    from normgen.verify.texts import check_made

    if shape.direction not in (BOTH, "forward"):
        raise click.UsageError(
            "a module of one shape always has the forward: give --direction forward, or omit it"
        )
    package = compilation.package
    every = cases_of_shape(package, "module", shape)
    if not shape.saves:  # a backward needs them
        every = every[:1]
    made = made_package(package, every, compilation.command)
    if verify:
        with verifying():
            for cases in every:
                check_made(getattr(made, cases.direction.name), cases.binding)
    stem = file_stem(every[0]).replace(".", "_")
    text = compilation.one_shape(made, __version__, _options(every, shape))
    return Output(f"{package.name}_{stem}.py", text.encode())


def _options(every: tuple[Cases, ...], shape: Shape) -> str:
    """The options of the command that makes this module."""
    sizes = dict(size for cases in every for size in cases.sizes.items() if size[0] in shape.sizes)
    found = [*(f"--size {axis}={length}" for axis, length in sizes.items())]
    found += [f"--dtype {shape.dtype}", f"--arch {shape.arch}"]
    found += [f"--direction {shape.direction}"] * (shape.direction != BOTH)
    return " ".join([*found, *(["--no-save"] * (not shape.saves))])
