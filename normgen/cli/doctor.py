"""`normgen doctor`: what norms are compiled and launched with here, and what is missing."""

from __future__ import annotations

from importlib.util import find_spec

import click

from normgen.cli import exits
from normgen.cli.table import print_columns
from normgen.cli.wrap import wrapped


@click.command("doctor", short_help="Say what runs norms here, and what is missing.")
@click.pass_context
def doctor_command(context: click.Context) -> None:
    """Say what norms are compiled and launched with, and what is missing, with the command that gives it.

    A small kernel is compiled and loaded. The exit code is 0 where a norm would run on a GPU, else 1. The C++
    compiler is for arrays on the CPU, and no GPU needs it but by nvcc.
    """
    from normgen.devices.inventory import inventory

    parts = inventory()
    rows = [(part.name, part.found or _why_none(part.fault)) for part in parts]
    if find_spec("torch") is not None:
        from normgen.torch.extension import described

        rows.append(("PyTorch's calls", described()))
    print_columns(("PART", "USED"), rows)
    click.echo()
    faults = dict.fromkeys(part.fault for part in parts if part.fault and part.needed)
    for fault in faults:
        click.echo(wrapped(f"No norm runs on a GPU: {fault}."))
    if not faults:
        click.echo("Norms run on this GPU.")
    for part in parts:
        if part.fault and not part.needed:
            click.echo(wrapped(f"No norm runs on the CPU: {part.fault}."))
    context.exit(exits.FAULTS if faults else exits.OK)


def _why_none(fault: str) -> str:
    return "see below" if fault else "not looked at"
