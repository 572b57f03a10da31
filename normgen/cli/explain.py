"""`normgen explain`: any stage of the compiler as text, or a summary of its decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from normgen.cli import files
from normgen.cli.bench import DIRECTIONS
from normgen.cli.options import (
    arch_option,
    attr_option,
    dtype_option,
    given_options,
    read_spec,
    size_option,
    spec_argument,
)
from normgen.cli.page import page_of
from normgen.cli.sizes import BOTH, Setting, usual_sizes
from normgen.cli.stages import checked
from normgen.cli.wrap import wrapped

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation

FORMULAS = ("ast", "ir", "grad")
STAGES = (*FORMULAS, "plan", "cuda")
CALL_OPTIONS = ("sizes", "dtype", "arch", "no_save")  # what formulas do not depend on


@click.command("explain", short_help="Show formulas, kernels and schedules.")
@spec_argument
@attr_option
@click.option(
    "--emit",
    "stage",
    type=click.Choice(STAGES),
    help="Print one stage: syntax tree, forward, derived backward, plans of the kernels, or CUDA text of one "
    "call.",
)
@size_option("Set the length of an axis. The other axes get typical lengths.")
@dtype_option("Element type of the tensors whose type the spec leaves open.")
@arch_option("GPU architecture.")
@click.option(
    "--direction",
    type=click.Choice((*DIRECTIONS, BOTH)),
    help="Direction (default: both; for --emit cuda: forward).",
)
@click.option(
    "--shard",
    "axes",
    metavar="AXIS",
    multiple=True,
    help="Show what ranks compute and exchange if this axis is sharded over them. May be repeated.",
)
@click.option("--html", is_flag=True, help="Write everything as one HTML page.")
@click.option("--no-save", is_flag=True, help="Do not write what the forward saves for the backward.")
@click.option(
    "-o",
    "--output",
    metavar="DIR|FILE",
    default="-",
    help="Directory for --emit cuda, or file for --html (default: stdout).",
)
@click.option("--force", is_flag=True, help="Replace a file that normgen did not write.")
def explain_command(
    spec: str,
    attrs: dict[str, object],
    stage: str | None,
    sizes: dict[str, int],
    dtype: str,
    arch: str,
    direction: str | None,
    axes: tuple[str, ...],
    html: bool,
    no_save: bool,
    output: str,
    force: bool,
) -> None:
    """Show what normgen compiles SPEC into.

    By default: the formulas of both directions; the kernels, with the schedule that each takes and its
    predicted time, and the next best schedules; and the bytes moved, compared with the minimum.

    --emit plan shows every kernel of every strategy, and more schedules. --emit cuda prints the kernels of
    one call, with their constants filled in, as one text for nvcc or NVRTC. --html writes the formulas, the
    data flow, the kernels and their text into one file that needs no network. --shard shows what ranks
    compute and exchange, and what each has of a result.

    Nothing runs, and no GPU is needed: the device is the usual one of the architecture, such as an H200 for
    sm_90. Schedules that `normgen tune` keeps for it count.
    """
    _check_options(stage, direction, bool(axes), html, output)
    from normgen.cli.offered import schedules
    from normgen.launching.machine import usual_machine

    if stage == "ast":
        from normgen.dsl.show import show_ast
        from normgen.dsl.syntax import parse

        click.echo(wrapped(show_ast(parse(read_spec(spec)))), nl=False)
        return
    made = checked(read_spec(spec), attrs)
    if axes:
        from normgen.cli.ranks import explained

        shown = DIRECTIONS if direction in (None, BOTH) else (direction,)
        click.echo(wrapped(explained(made, axes, shown)), nl=False)
        return

    def setting(usual: str) -> Setting:
        lengths = usual_sizes(made.package, sizes)
        return Setting(lengths, dtype, usual_machine(arch), direction or usual, not no_save)

    if html or stage == "cuda":
        page = _html(made, setting) if html else page_of(made.package, setting(DIRECTIONS[0]))
        path = Path(output)
        if output == "-":
            files.to_stdout((page,))
        elif html:
            files.write((replace(page, name=path.name),), path.parent, force)
        else:
            files.write((page,), path, force)
        return
    if stage is None:
        text = _summary(made, setting)
    else:
        text = _stage(stage, made)
        if stage == "plan":
            text += f"\n{schedules(made.package, setting(BOTH))}"
    click.echo(wrapped(text), nl=False)


def _check_options(stage: str | None, direction: str | None, sharded: bool, html: bool, output: str) -> None:
    """Refuse options that contradict each other."""
    if (sharded or stage in FORMULAS) and (given := given_options(CALL_OPTIONS)):
        formulas = "--shard" if sharded else f"--emit {stage}"
        raise click.UsageError(f"{formulas} shows formulas, which do not depend on {given[0]}: omit it")
    if sharded and (html or stage is not None):
        raise click.UsageError("--shard shows what ranks exchange: omit --emit and --html")
    if html and stage is not None:
        raise click.UsageError("--html shows every stage: omit --emit")
    if stage != "cuda" and not html and output != "-":
        raise click.UsageError("-o is for --emit cuda and --html")
    if stage == "cuda" and direction == BOTH:
        raise click.UsageError("--emit cuda prints one direction: give --direction forward or backward")
    (files.require_file if html else files.require_directory)(output)


def _stage(stage: str, made: Compilation) -> str:
    from normgen.ir.show import show_program

    match stage:
        case "ir":
            return show_program(made.definition.program)
        case "grad":
            found = made.derived
            return show_program(found) if found else "no backward: no output can be differentiated\n"
        case _:
            return made.plans()


def _html(made: Compilation, setting: Callable[[str], Setting]) -> files.Output:
    from normgen.cli.html.explained import html_of, html_without_kernels
    from normgen.diagnostics import SpecError

    try:
        made.package  # noqa: B018  # what raises where there are no kernels
    except SpecError as fault:
        return html_without_kernels(made, fault.diagnostics)
    return html_of(made, setting(BOTH))


def _summary(made: Compilation, setting: Callable[[str], Setting]) -> str:
    from normgen.cli.summary import summarise, without_kernels
    from normgen.diagnostics import SpecError

    definition, derived = made.definition, made.derived
    try:
        package = made.package
    except SpecError as fault:
        return without_kernels(definition.program, derived, fault.diagnostics)
    return summarise(definition, derived, package, setting(BOTH))
