"""`normgen check`: the check of a spec, with its progress on a terminal and an honest table."""

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


@click.command("check", short_help="Check a spec: its derivative, its kernels.")
@spec_argument
@size_option("Fix the length of an axis. The others take awkward lengths in turn.")
@click.option(
    "--dtype",
    type=click.Choice(("f32", "f16", "bf16")),
    help="One element type for all that the spec leaves open, in place of nine mixtures.",
)
@click.option(
    "--executor",
    "executors",
    type=click.Choice(("host", "cuda")),
    multiple=True,
    help="Where kernels run. Default: on the host, and on the GPU if there is one. May be given twice.",
)
@attr_option
@click.option(
    "--sample",
    "samples",
    metavar="NAME=DISTRIBUTION",
    multiple=True,
    callback=lambda _context, _parameter, given: _samples(given),
    help="What a tensor is drawn from: normal(0, 1), uniform(0.5, 1.5), constant(7).",
)
@click.option(
    "--shard",
    metavar="AXIS=RANKS",
    multiple=True,
    callback=lambda _context, _parameter, given: _ranks(given),
    help="Spread an axis over so many simulated ranks, on the host, and check these in place of one.",
)
@click.option("--quick", is_flag=True, help="Few cases, for an answer within seconds.")
@click.option("--thorough", is_flag=True, help="Many more cases.")
@click.option("-v", "--verbose", is_flag=True, help="Every case in a line of its own.")
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

    The derived gradient is compared with finite differences in float64, and the kernels, as emitted, with a
    float64 interpreter under error bounds that are derived and not chosen: forward and backward, over awkward
    lengths, strides, offsets and mixtures of element types. On the host every memory access is checked.

    The table shows the worst error as a share of its bound: 1 is the whole of it. Exits with 1 if anything
    fails or the norm has no kernels, with 70 where the fault is in normgen itself. What could not be checked
    is in the table too.
    """
    from normgen.cli.verdict import check_text
    from normgen.verify.events import NO_KERNELS
    from normgen.verify.report import NOTHING_RAN, nothing_ran
    from normgen.verify.run import Options, host_threads, run

    if quick and thorough:
        raise click.UsageError("--quick and --thorough contradict each other")
    if shard and "cuda" in executors:
        raise click.UsageError("--shard simulates ranks on the host: leave out --executor cuda")
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
    """The rows, with a bar on stderr while they are being made."""
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
    """Show the warnings of a spec, and refuse options that do not fit it."""
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
            raise click.BadParameter(f"{axis}={text}: from 1 to 99 ranks", param_hint="--shard")
    return {axis: int(text) for axis, text in found.items()}


def _samples(given: tuple[str, ...]) -> dict[str, Sample]:
    if not given:
        return {}
    from normgen.verify.draw import parse_sample

    try:
        return {name: parse_sample(text) for name, text in pairs(given, "--sample", "x=normal(0,1)").items()}
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="--sample") from fault
