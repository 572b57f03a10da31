"""`normgen check`: the proof of a spec."""

from __future__ import annotations

import click

from normgen.cli.options import attr_option, spec_argument


@click.command("check", short_help="Prove a spec: its derivative, its kernels.")
@spec_argument
@attr_option
def check_command(spec: str, attrs: dict[str, object]) -> None:
    """Prove SPEC: its derivative against differences, its kernels against float64."""
    raise click.UsageError("not wired in yet")
