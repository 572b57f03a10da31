"""`normgen explain`: any stage of the compiler as text, or a summary of what it decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from normgen.cli.options import attr_option, dtype_option, read_spec, size_option, spec_argument
from normgen.cli.stages import checked, derivative, packaged

if TYPE_CHECKING:
    from normgen.ir.program import Definition, Program

STAGES = ("ast", "ir", "grad", "plan", "cuda")


@click.command("explain", short_help="Show formulas, kernels and schedules, or any stage.")
@spec_argument
@attr_option
@click.option(
    "--emit",
    "stage",
    type=click.Choice(STAGES),
    help="Print one stage: syntax tree, forward, derived backward, plans of the kernels, or their text.",
)
@size_option("The length of an axis for the summary and the plan; the others get usual lengths.")
@dtype_option("The element type for the summary and the plan.")
def explain_command(
    spec: str, attrs: dict[str, object], stage: str | None, sizes: dict[str, int], dtype: str
) -> None:
    """Say what normgen makes of SPEC.

    Without --emit: the formulas in both directions; the kernels, the schedule that each takes and why, and
    why the others were rejected; the bytes moved against the least possible. With --emit plan: every kernel
    of every strategy, then for these sizes the schedules that are taken, the next few, and why they are
    passed over. Nothing is run; the device is taken to be an H200, and what was tuned for one counts.
    """
    if stage == "ast":
        from normgen.dsl.show import show_ast
        from normgen.dsl.syntax import parse

        click.echo(show_ast(parse(read_spec(spec))), nl=False)
        return
    definition = checked(spec, attrs)
    derived = derivative(definition)
    if stage is None:
        click.echo(_summary(definition, derived, sizes, dtype), nl=False)
    else:
        text = _stage(stage, definition, derived)
        if stage == "plan":
            text += f"\n{_schedules(definition, sizes, dtype)}"
        click.echo(text, nl=False)


def _stage(stage: str, definition: Definition, derived: Program | None) -> str:
    from normgen.ir.show import show_program

    if stage == "ir":
        return show_program(definition.program)
    if stage == "grad":
        return show_program(derived) if derived is not None else "nothing is differentiated\n"
    if stage == "plan":
        from normgen.codegen.show import show_strategies
        from normgen.codegen.strategies.cut import strategies

        programs = [
            (definition.program, "forward"),
            *([(derived, "backward")] if derived is not None else []),
        ]
        return "\n".join(
            show_strategies(strategies(program, definition.source, f"{program.name}_{name}"))
            for program, name in programs
        )
    from normgen.cli.outputs import cuda_text

    return cuda_text(packaged(definition))


def _schedules(definition: Definition, sizes: dict[str, int], dtype: str) -> str:
    from normgen.cli.offered import schedules
    from normgen.cli.sizes import usual_sizes
    from normgen.launching.machine import USUAL_MACHINE

    package = packaged(definition)
    return schedules(package, usual_sizes(package, sizes), dtype, USUAL_MACHINE)


def _summary(definition: Definition, derived: Program | None, sizes: dict[str, int], dtype: str) -> str:
    from normgen.cli.sizes import usual_sizes
    from normgen.cli.summary import Setting, summarise, without_kernels
    from normgen.diagnostics import SpecError
    from normgen.launching.machine import USUAL_MACHINE

    try:
        package = packaged(definition)
    except SpecError as fault:
        return without_kernels(definition.program, derived, fault.diagnostics)
    setting = Setting(usual_sizes(package, sizes), dtype, USUAL_MACHINE)
    return summarise(definition, derived, package, setting)
