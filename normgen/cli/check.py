"""`normgen check`: check a spec, with progress on a terminal, and print a table."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from normgen.cli import exits
from normgen.cli.console import ask_for_a_report, colored, progress_bar, say
from normgen.cli.options import DIMENSION, attr_option, pairs, read_spec, size_option, spec_argument

if TYPE_CHECKING:
    from normgen.diagnostics import Source
    from normgen.verify.draw import Sample
    from normgen.verify.events import Event, Row
    from normgen.verify.run import Options

SCHEMA = 1
OPTIONS = {"sizes": "--size", "samples": "--sample", "shard": "--shard"}


@click.command("check", short_help="Check the derivative and the kernels of a spec.")
@spec_argument
@size_option("Set the length of an axis. The other axes take awkward lengths in turn.")
@click.option(
    "--dtype",
    type=click.Choice(("f32", "f16", "bf16")),
    help="Check only this element type, instead of nine mixtures.",
)
@click.option(
    "--executor",
    "executors",
    type=click.Choice(("host", "cuda")),
    multiple=True,
    help="Where kernels run (default: on the host, and on the GPU if there is one). May be repeated.",
)
@attr_option
@click.option(
    "--sample",
    "samples",
    metavar="NAME=DISTRIBUTION",
    multiple=True,
    callback=lambda _context, _parameter, given: _samples(given),
    help="Distribution of a tensor: normal(0, 1), uniform(0.5, 1.5) or constant(7).",
)
@click.option(
    "--shard",
    metavar="AXIS=RANKS",
    multiple=True,
    callback=lambda _context, _parameter, given: _ranks(given),
    help="Shard an axis over this many simulated ranks, and check them on the host.",
)
@click.option("--quick", is_flag=True, help="Check few cases, in seconds.")
@click.option("--thorough", is_flag=True, help="Check many more cases.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for every case.")
@click.option("--json", "as_json", is_flag=True, help="Print every case as JSON.")
def check_command(
    spec: str,
    sizes: dict[str, int],
    dtype: str | None,
    executors: tuple[str, ...],
    attrs: dict[str, object],
    samples: dict[str, Sample],
    shard: dict[str, int],
    quick: bool,
    thorough: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Check SPEC.

    The derived gradient is compared with finite differences in float64. The kernels of both directions are
    compared with a float64 interpreter, for awkward lengths, strides, offsets and mixtures of element types.
    The error bounds are derived from the formulas. On the host, every memory access is checked too.

    The table shows the worst error as a fraction of its bound, and what could not be checked. Exits with 1 if
    a check fails or the norm has no kernels, and with 70 for a bug in normgen.
    """
    from normgen.cli.verdict import check_text
    from normgen.verify.events import NO_KERNELS
    from normgen.verify.report import NOTHING_RAN, nothing_ran
    from normgen.verify.run import Options, host_threads, run

    if quick and thorough:
        raise click.UsageError("--quick and --thorough exclude each other")
    if shard and "cuda" in executors:
        raise click.UsageError("--shard simulates ranks on the host: omit --executor cuda")
    source = read_spec(spec)
    options = Options(
        attrs=attrs,
        sizes=sizes,
        dtype=dtype,
        samples=samples,
        executors=("host",) if shard else executors or None,
        thorough=thorough,
        quick=quick,
        threads=host_threads(),
        shard=shard or None,
    )
    _validate(source, options)
    rows = _collect(run(source, options))
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        click.echo(check_text(rows, verbose, colored(sys.stdout)), nl=False)
    if any(row.internal for row in rows):
        ask_for_a_report()
        click.get_current_context().exit(exits.INTERNAL)
    if any(row.status == "failed" or row.missing == NO_KERNELS for row in rows):
        click.get_current_context().exit(exits.FAULTS)
    if nothing_ran(rows):
        say(NOTHING_RAN)
        click.get_current_context().exit(exits.TOOLCHAIN)


def _collect(events: Iterator[Event]) -> list[Row]:
    """The rows, with a progress bar on stderr."""
    from normgen.verify.events import Progress

    rows = []
    with progress_bar() as advance:
        for event in events:
            if isinstance(event, Progress):
                advance(event.done, event.total, event.text)
            else:
                rows.append(event)
    return rows


def _validate(source: Source, options: Options) -> None:
    """Print the warnings of a spec, and refuse options that do not fit it."""
    from normgen.cli.console import show_diagnostics
    from normgen.verify.refused import Refused, checked_definition

    try:
        definition = checked_definition(source, options)
    except Refused as fault:
        raise click.BadParameter(str(fault), param_hint=OPTIONS[fault.option]) from fault
    show_diagnostics(definition.warnings, source)


def _ranks(given: tuple[str, ...]) -> dict[str, int]:
    found = pairs(given, "--shard", "D=3", DIMENSION)
    for axis, text in found.items():
        if not re.fullmatch(r"[1-9][0-9]?", text):
            raise click.BadParameter(f"{axis}={text}: give 1 to 99 ranks", param_hint="--shard")
    return {axis: int(text) for axis, text in found.items()}


def _samples(given: tuple[str, ...]) -> dict[str, Sample]:
    if not given:
        return {}
    from normgen.verify.draw import parse_sample

    try:
        return {name: parse_sample(text) for name, text in pairs(given, "--sample", "x=normal(0,1)").items()}
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="--sample") from fault
