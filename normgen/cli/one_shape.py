"""`normgen compile --size`: the Python module of calls of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from normgen.cli.files import Output
from normgen.cli.sizes import BOTH

if TYPE_CHECKING:
    from normgen.ahead.cases import Cases
    from normgen.cli.binaries import Shape
    from normgen.codegen.compilation import Compilation
    from normgen.package.records import Package


def one_shape(compilation: Compilation, shape: Shape, verify: bool) -> Output:
    """The module. `verify`: compile its texts on the host first, where a compiler is there."""
    from normgen import __version__
    from normgen.ahead.interface import file_stem
    from normgen.ahead.made import made_package
    from normgen.cli.binaries import cases_of_shape

    if shape.direction not in (BOTH, "forward"):
        raise click.UsageError(
            "a module of one shape has a forward: give --direction forward, or leave it out"
        )
    package = compilation.package
    every = cases_of_shape(package, "module", shape)
    if not shape.saves:  # a backward needs them
        every = every[:1]
    made = made_package(package, every, compilation.command)
    if verify:
        _verify(made, every)
    stem = file_stem(every[0]).replace(".", "_")
    text = compilation.one_shape(made, __version__, _options(every, shape))
    return Output(f"{package.name}_{stem}.py", text.encode())


def _options(every: tuple[Cases, ...], shape: Shape) -> str:
    """What the command has for this shape."""
    sizes = dict(size for cases in every for size in cases.sizes.items() if size[0] in shape.sizes)
    found = [*(f"--size {axis}={length}" for axis, length in sizes.items())]
    found += [f"--dtype {shape.dtype}", f"--arch {shape.arch}"]
    found += [f"--direction {shape.direction}"] * (shape.direction != BOTH)
    return " ".join([*found, *(["--no-save"] * (not shape.saves))])


def _verify(package: Package, every: tuple[Cases, ...]) -> None:
    from normgen.cli.console import say
    from normgen.errors import ToolchainMissing
    from normgen.verify.texts import check_made

    try:
        for cases in every:
            check_made(getattr(package, cases.direction.name), cases.binding)
    except ToolchainMissing as missing:
        say(f"the kernels were not compiled before they were written: {missing}")
