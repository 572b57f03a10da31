"""`normgen compile`: a spec becomes files."""

from __future__ import annotations

from pathlib import Path

import click

from normgen.cli import exits, files
from normgen.cli.options import attr_option, spec_argument

EMITS = ("module", "cu")


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
    type=click.Choice(EMITS),
    multiple=True,
    default=("module",),
    help="What to write: the Python module (the default), or the CUDA text alone. May be given twice.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is missing or would change.")
@click.option("--force", is_flag=True, help="Replace files that normgen did not write.")
def compile_command(
    spec: str, output: str, attrs: dict[str, object], emits: tuple[str, ...], check: bool, force: bool
) -> None:
    """Compile SPEC into a Python module with `forward` and `backward`.

    The module holds the spec, the derived mathematics as comments, and the CUDA text; to run it needs
    normgen's runtime and nothing else of normgen. The same spec always gives the same text.
    """
    from normgen.cli import outputs
    from normgen.cli.stages import checked

    if output != "-" and not Path(output).is_dir() and Path(output).suffix in (".py", ".cu"):
        raise click.BadParameter(
            f"{output!r} should be a directory: files are named after the norm", param_hint="-o"
        )
    if output == "-" and check:
        raise click.UsageError("--check compares files: it cannot be used with -o -")
    definition = checked(spec, attrs)
    made = tuple(outputs.BY_NAME[emit](definition) for emit in dict.fromkeys(emits))
    if output == "-":
        files.to_stdout(made)
    elif check:
        if files.differing(made, Path(output)):
            raise SystemExit(exits.FAULTS)
    else:
        files.write(made, Path(output), force)
