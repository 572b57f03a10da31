"""`normgen bench`: a norm's time on the GPU, against the fastest copy of the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from normgen.cli.options import attr_option, dtype_option, size_option, spec_argument
from normgen.cli.stages import checked

if TYPE_CHECKING:
    from normgen.measure.norms import Bench, Case, Measured
    from normgen.package.records import Package

SCHEMA = 1
DIRECTIONS = ("forward", "backward")


@click.command("bench", short_help="Measure a norm on the GPU, against a copy of the same bytes.")
@spec_argument
@size_option("The length of an axis. The others get usual lengths.")
@dtype_option("The element type of all that the spec leaves open.")
@click.option(
    "--direction",
    "wanted",
    type=click.Choice(DIRECTIONS),
    multiple=True,
    help="What to measure. Default: both, where there is a backward.",
)
@click.option(
    "--strategies", is_flag=True, help="Also each way that a direction can be run, where there are several."
)
@attr_option
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bench_command(
    spec: str,
    sizes: dict[str, int],
    dtype: str,
    wanted: tuple[str, ...],
    strategies: bool,
    attrs: dict[str, object],
    as_json: bool,
) -> None:
    """Measure SPEC on the GPU.

    Times are medians of 31 batches of calls on buffers that rotate through four times the second-level
    cache. RHO is the time of the fastest copy (two reads a write: triad) of the bytes that any implementation
    must move, in the same run, over the time of all that the norm launches. HOST US is what one call takes on
    the host, into given arrays. Nothing is checked here: `normgen check` does that.
    """
    from normgen.cli.sizes import usual_sizes
    from normgen.measure.norms import Bench, Case

    package = checked(spec, attrs).package
    require_numbers(package)
    lengths = usual_sizes(package, sizes)
    directions = directions_of(package, wanted)
    bench = Bench()
    usual = [Case(direction, lengths, dtype) for direction in directions]
    cases = [each for case in usual for each in (_ways(bench, package, case) if strategies else (case,))]
    found = [bench.measure(package, case) for case in cases]
    if as_json:
        device = {"name": bench.executor.device.name, "arch": bench.executor.device.arch}
        rows = [_row(package, measured) for measured in found]
        click.echo(json.dumps({"schema": SCHEMA, "device": device, "rows": rows}, indent=2))
    else:
        _print(found, bench.executor.device.name)


def require_numbers(package: Package) -> None:
    """Refuse a norm with float attrs that have no value."""
    missing = [attr.name for attr in package.attrs if attr.default is None]
    if missing:
        raise click.UsageError(f"{', '.join(missing)} has no default: give --attr {missing[0]}=0.1")


def directions_of(package: Package, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The directions that are wanted, by default all that there are; one that there is not is refused."""
    if package.backward is not None:
        return tuple(dict.fromkeys(wanted)) or DIRECTIONS
    if "backward" in wanted:
        raise click.BadParameter(
            f"{package.name} has no backward: no output of it can be differentiated", param_hint="--direction"
        )
    return ("forward",)


def _ways(bench: Bench, package: Package, case: Case) -> tuple[Case, ...]:
    """The case as a call would run it, and with each strategy that fits by its name, where there are
    several."""
    from normgen.measure.norms import contiguous_binding, direction_of
    from normgen.runtime.planning.choose import alternatives

    direction = direction_of(package, case.direction)
    binding = contiguous_binding(direction, case.sizes, case.dtype)
    found = alternatives(direction.record, binding, bench.executor.device)
    named = (replace(case, strategy=each.strategy.name) for each in found)
    return (case, *named) if len(found) > 1 else (case,)


def _row(package: Package, measured: Measured) -> dict[str, object]:
    case, timing = measured.case, measured.timing
    return {
        "norm": package.name,
        "direction": case.direction,
        "sizes": dict(case.sizes),
        "dtype": case.dtype,
        "strategy": case.strategy,
        "us": round(timing.us, 3),
        "host_us": round(timing.host_us, 3),
        "bytes": measured.bytes.total,
        "ceiling": measured.bytes.ceiling,
        "ceiling_us": round(measured.ceiling_us, 3),
        "rho": round(measured.rho, 4),
        "method": timing.method,
        "notes": list(measured.notes),
    }


def _print(found: list[Measured], device: str) -> None:
    from normgen.cli.table import print_columns

    case = found[0].case
    where = ", ".join(f"{axis} = {length}" for axis, length in case.sizes.items())
    click.echo(f"{where} in {case.dtype}, on {device}\n")
    headings = ("DIRECTION", "STRATEGY", "US", "RHO", "MB", "CEILING", "CEILING US", "HOST US")
    print_columns(headings, [_cells(measured) for measured in found], headings[2:5] + headings[6:])
    click.echo()
    for note in dict.fromkeys(note for measured in found for note in measured.notes):
        click.echo(note)


def _cells(measured: Measured) -> tuple[str, ...]:
    return (
        measured.case.direction,
        measured.case.strategy,
        f"{measured.timing.us:.2f}",
        f"{measured.rho:.3f}",
        f"{measured.bytes.total / 1e6:.1f}",
        measured.bytes.ceiling,
        f"{measured.ceiling_us:.2f}",
        f"{measured.timing.host_us:.1f}",
    )
