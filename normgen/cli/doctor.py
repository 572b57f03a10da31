"""`normgen doctor`: what this machine compiles and launches norms with, and what is missing."""

from __future__ import annotations

from importlib.util import find_spec

import click

from normgen.cli import exits
from normgen.cli.table import print_columns
from normgen.cli.wrap import wrapped


@click.command("doctor", short_help="Show what can run norms here, and what is missing.")
@click.pass_context
def doctor_command(context: click.Context) -> None:
    """Show what compiles and launches norms on this machine, and how to install what is missing.

    A small kernel is compiled and loaded. Exits with 0 if norms can run on a GPU, else with 1. The C++
    compiler is for kernels on the CPU; on a GPU only nvcc needs it.
    """
    from normgen.devices.inventory import inventory

    parts = inventory()
    rows = [(part.name, part.found or _why_none(part.fault)) for part in parts]
    if find_spec("torch") is not None:
        from normgen.torch.extension import described

        rows.append(("PyTorch calls", described()))
    print_columns(("PART", "FOUND"), rows)
    click.echo()
    faults = dict.fromkeys(part.fault for part in parts if part.fault and part.needed)
    for fault in faults:
        click.echo(wrapped(f"Norms cannot run on a GPU: {fault}."))
    if not faults:
        click.echo("Norms can run on this GPU.")
    for part in parts:
        if part.fault and not part.needed:
            click.echo(wrapped(f"Kernels cannot run on the CPU: {part.fault}."))
    context.exit(exits.FAULTS if faults else exits.OK)


def _why_none(fault: str) -> str:
    return "see below" if fault else "not checked"
