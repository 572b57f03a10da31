"""`normgen compile`: write the files of a spec."""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from pathlib import Path

import click

from normgen.cli import exits, files
from normgen.cli.bench import DIRECTIONS
from normgen.cli.options import (
    Command,
    arch_option,
    attr_option,
    dtype_option,
    given_options,
    read_spec,
    size_option,
    spec_argument,
)
from normgen.cli.sizes import BOTH

TEXTS = ("module", "cu")
BINARIES = ("ptx", "cubin", "header")
# What only code for one shape depends on, by the name of the parameter.
SHAPE_OPTIONS = {
    "sizes": size_option("Set the length of an axis, to compile for one shape. All axes of a row need one."),
    "dtype": dtype_option("Element type, with --size."),
    "arch": arch_option("GPU architecture, with --size."),
    "direction": click.option(
        "--direction",
        type=click.Choice((*DIRECTIONS, BOTH)),
        default=BOTH,
        show_default=True,
        help="Direction, with --size.",
    ),
    "no_save": click.option(
        "--no-save", is_flag=True, help="Do not write what the forward saves for the backward, with --size."
    ),
}


def _shape_options(command: Command) -> Command:
    for option in reversed(SHAPE_OPTIONS.values()):
        command = option(command)
    return command


@click.command("compile", short_help="Compile a spec into a Python module or CUDA text.")
@spec_argument
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    default=".",
    help="Directory of the files (default: the current one), or - for stdout.",
)
@attr_option
@click.option(
    "--emit",
    "emits",
    type=click.Choice(TEXTS + BINARIES),
    multiple=True,
    default=("module",),
    help="What to write: the Python module (default), its CUDA text (cu), or for one shape the compiled "
    "kernels (ptx, cubin) or a C header that launches them. May be repeated.",
)
@_shape_options
@click.option(
    "--check", is_flag=True, help="Write nothing; exit with 1 if a file is missing or would change."
)
@click.option("--no-verify", is_flag=True, help="Do not compile the kernels on the host before writing them.")
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

    The module contains the spec, the derived formulas as comments, and the CUDA text. It is named after the
    norm and imports only normgen.runtime. The same spec always gives the same text. With --size the module is
    short: it is for calls of one shape.
    """
    from normgen.cli.binaries import Shape, binaries, header
    from normgen.cli.one_shape import one_shape
    from normgen.cli.outputs import cuda, module
    from normgen.cli.stages import checked, verifying

    files.require_directory(output)
    if output == "-" and check:
        raise click.UsageError("--check compares files: give it a directory instead of -o -")
    shaped = bool(sizes) and "module" in emits
    if not (shaped or set(emits) & set(BINARIES)) and (given := given_options(SHAPE_OPTIONS)):
        where = "with --emit module, ptx, cubin or header" if sizes else "with --size, as in --size D=4096"
        raise click.UsageError(f"{given[0]} is for code of one shape: give it {where}")
    shape = Shape(sizes, dtype, arch, direction, not no_save)
    source = read_spec(spec)
    compilation = cache(partial(checked, source, attrs))
    verify = not (check or no_verify)

    def outputs(emit: str) -> tuple[files.Output, ...]:
        if emit == "header":
            return (header(compilation().package, shape),)
        if emit in BINARIES:
            return binaries(compilation().package, emit, shape)
        if emit == "cu":
            return (cuda(compilation()),)
        return (one_shape(compilation(), shape, verify) if shaped else module(source, attrs, compilation),)

    made = tuple(chain.from_iterable(map(outputs, dict.fromkeys(emits))))
    verify = verify and not {*emits}.isdisjoint(("cu",) if shaped else TEXTS)
    if verify and (output == "-" or not files.up_to_date(made, Path(output))):
        from normgen.verify.texts import check_texts

        with verifying():
            check_texts(compilation().definition, compilation().package)
    if output == "-":
        files.to_stdout(made)
    elif check:
        if files.differing(made, Path(output)):
            click.get_current_context().exit(exits.FAULTS)
    else:
        files.write(made, Path(output), force)
