"""`normgen compile`: a spec becomes files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from normgen.cli import exits, files
from normgen.cli.bench import DIRECTIONS
from normgen.cli.console import say
from normgen.cli.options import arch_option, attr_option, dtype_option, size_option, spec_argument
from normgen.cli.sizes import BOTH

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation

TEXTS = ("module", "cu")
BINARIES = ("ptx", "cubin", "header")
OF_ONE_SHAPE = "ptx, cubin and header, and for a module of one shape"


@click.command("compile", short_help="Compile a spec into a Python module or CUDA text.")
@spec_argument
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    default=".",
    help="Where the files go (default: here); - writes to stdout. Files are named after the norm.",
)
@attr_option
@click.option(
    "--emit",
    "emits",
    type=click.Choice(TEXTS + BINARIES),
    multiple=True,
    default=("module",),
    help="What to write: the Python module (the default; with --size for one shape), the CUDA text alone, or "
    "for one shape what a CUDA compiler makes of the kernels, or a C header that launches them. May be given "
    "more than once.",
)
@size_option(f"The length of an axis, for {OF_ONE_SHAPE}. Those of the row's axes are needed.")
@dtype_option(f"The element type, for {OF_ONE_SHAPE}.")
@arch_option(f"The GPU architecture, for {OF_ONE_SHAPE}.")
@click.option(
    "--direction",
    type=click.Choice((*DIRECTIONS, BOTH)),
    default=BOTH,
    help=f"The directions, for {OF_ONE_SHAPE} (default: both, where there is a backward).",
)
@click.option(
    "--no-save",
    is_flag=True,
    help=f"Leave out what the forward saves for the backward, for {OF_ONE_SHAPE}.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is missing or would change.")
@click.option(
    "--no-verify", is_flag=True, help="Do not compile the kernel texts on the host before they are written."
)
@click.option("--force", is_flag=True, help="Replace files that normgen did not write.")
def compile_command(
    spec: str,
    output: str,
    attrs: dict[str, object],
    emits: tuple[str, ...],
    sizes: dict[str, int],
    dtype: str,
    arch: str,
    direction: str,
    no_save: bool,
    check: bool,
    no_verify: bool,
    force: bool,
) -> None:
    """Compile SPEC into a Python module with `forward` and `backward`.

    The module holds the spec, the derived mathematics as comments, and the CUDA text; to run it needs
    normgen's runtime and nothing else of normgen. The same spec always gives the same text. With --size it is
    for calls of one shape, and short.
    """
    from normgen.cli.binaries import Shape, binaries, header
    from normgen.cli.one_shape import one_shape
    from normgen.cli.outputs import BY_NAME
    from normgen.cli.stages import checked

    files.require_directory(output)
    if output == "-" and check:
        raise click.UsageError("--check compares files: it cannot be used with -o -")
    given = "--size" if sizes else "--direction" if direction != BOTH else "--no-save" if no_save else ""
    shaped = bool(sizes) and "module" in emits
    if given and not (shaped or set(emits) & set(BINARIES)):
        raise click.UsageError(f"{given} is for --emit {OF_ONE_SHAPE}, which --size makes")
    shape = Shape(sizes, dtype, arch, direction, not no_save)
    compilation = checked(spec, attrs)
    made: tuple[files.Output, ...] = ()
    for emit in dict.fromkeys(emits):
        if emit == "header":
            made += (header(compilation.package, shape),)
        elif emit in BINARIES:
            made += binaries(compilation.package, emit, shape)
        elif emit == "module" and shaped:
            made += (one_shape(compilation, shape, verify=not (check or no_verify)),)
        else:
            made += (BY_NAME[emit](compilation),)
    if not (check or no_verify) and set(emits) & ({"cu"} if shaped else set(TEXTS)):
        _verify(compilation)
    if output == "-":
        files.to_stdout(made)
    elif check:
        if files.differing(made, Path(output)):
            click.get_current_context().exit(exits.FAULTS)
    else:
        files.write(made, Path(output), force)


def _verify(made: Compilation) -> None:
    """Compile the kernel texts on the host, where a compiler is there: none is written that is at fault."""
    from normgen.errors import ToolchainMissing
    from normgen.verify.texts import check_texts

    try:
        check_texts(made.definition, made.package)
    except ToolchainMissing as missing:
        say(f"the kernels were not compiled before they were written: {missing}")
