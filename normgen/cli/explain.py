"""`normgen explain`: any stage of the compiler as text, or a summary of what it decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from normgen.cli import files
from normgen.cli.bench import DIRECTIONS
from normgen.cli.options import arch_option, attr_option, dtype_option, read_spec, size_option, spec_argument
from normgen.cli.page import page_of
from normgen.cli.sizes import BOTH, Setting, usual_sizes
from normgen.cli.stages import checked
from normgen.cli.wrap import wrapped

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation

STAGES = ("ast", "ir", "grad", "plan", "cuda")


@click.command("explain", short_help="Show formulas, kernels and schedules, or any stage.")
@spec_argument
@attr_option
@click.option(
    "--emit",
    "stage",
    type=click.Choice(STAGES),
    help="Print one stage: syntax tree, forward, derived backward, plans of the kernels, or the CUDA text of "
    "one call.",
)
@size_option("The length of an axis for the summary, the plan and the text; the others get usual lengths.")
@dtype_option("The element type for the summary, the plan and the text.")
@arch_option("The GPU architecture that kernels and schedules are for.")
@click.option(
    "--direction",
    type=click.Choice((*DIRECTIONS, BOTH)),
    help="The directions of the summary, the plan (default: both) and the CUDA text (default: forward).",
)
@click.option(
    "--shard",
    "axes",
    metavar="AXIS",
    multiple=True,
    help="Spread this axis over ranks, and show what they compute and exchange. May be given several times.",
)
@click.option("--html", is_flag=True, help="Write all of it as one page for a browser.")
@click.option("--no-save", is_flag=True, help="Leave out what the forward saves for the backward.")
@click.option(
    "-o",
    "--output",
    metavar="DIR|FILE",
    default="-",
    help="The folder for the CUDA text, in a file named after the norm and the direction, or the file for "
    "--html (default: stdout).",
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
    """Say what normgen makes of SPEC.

    Without --emit: the formulas in both directions; the kernels, the schedule that each takes, what is
    predicted of it and of the next best; the bytes moved against the least possible. With --emit plan: every
    kernel of every strategy, then for these sizes the schedules that are taken, more of the next best, and
    how many there are. With --emit cuda: the kernels of one call, with its constants and without what these
    decide, as one text for nvcc or NVRTC. With --html: mathematics, flow of data, kernels and their text,
    with links between spec and statements, in one file that needs no network. With --shard: what ranks
    compute that have a run of an axis each, what they exchange, and what each has of a result. Nothing is
    run; the device is taken to be the usual one of the architecture, such as an H200 for sm_90, and what was
    tuned for one counts.
    """
    if axes and (html or stage is not None):
        raise click.UsageError("--shard shows what ranks exchange: leave out --emit and --html")
    if html and stage is not None:
        raise click.UsageError("--html shows every stage: leave out --emit")
    if stage != "cuda" and not html and output != "-":
        raise click.UsageError("-o is for --emit cuda, the text of one call, and for --html")
    if stage == "cuda" and direction == BOTH:
        raise click.UsageError("--emit cuda prints one call: give --direction forward or backward")
    from normgen.cli.offered import schedules
    from normgen.launching.machine import usual_machine

    if html:
        files.require_file(output)
    else:
        files.require_directory(output)
    if stage == "ast":
        from normgen.dsl.show import show_ast
        from normgen.dsl.syntax import parse

        click.echo(wrapped(show_ast(parse(read_spec(spec)))), nl=False)
        return
    made = checked(spec, attrs)
    if axes:
        from normgen.cli.ranks import explained

        shown = DIRECTIONS if direction in (None, BOTH) else (direction,)
        click.echo(wrapped(explained(made, axes, shown)), nl=False)
        return

    def setting(usual: str) -> Setting:
        lengths = usual_sizes(made.package, sizes)
        return Setting(lengths, dtype, usual_machine(arch), direction or usual, not no_save)

    if html:
        made_html = _html(made, setting)
        if output == "-":
            files.to_stdout((made_html,))
        else:
            files.write((replace(made_html, name=Path(output).name),), Path(output).parent, force)
        return
    if stage == "cuda":
        made_page = (page_of(made.package, setting(DIRECTIONS[0])),)
        if output == "-":
            files.to_stdout(made_page)
        else:
            files.write(made_page, Path(output), force)
        return
    if stage is None:
        text = _summary(made, setting)
    else:
        text = _stage(stage, made)
        if stage == "plan":
            text += f"\n{schedules(made.package, setting(BOTH))}"
    click.echo(wrapped(text), nl=False)


def _stage(stage: str, made: Compilation) -> str:
    from normgen.ir.show import show_program

    match stage:
        case "ir":
            return show_program(made.definition.program)
        case "grad":
            found = made.derived
            return show_program(found) if found is not None else "nothing is differentiated\n"
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
