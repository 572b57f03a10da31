"""`normgen bench`: the time of a norm on the GPU, compared with the fastest copy of the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from normgen.cli.options import attr_option, dtype_option, read_spec, size_option, spec_argument
from normgen.cli.stages import checked

if TYPE_CHECKING:
    from normgen.measure.norms import Bench, Case, Measured
    from normgen.package.records import Package

SCHEMA = 1
DIRECTIONS = ("forward", "backward")


@click.command("bench", short_help="Measure a norm on the GPU, next to a copy of the same bytes.")
@spec_argument
@size_option("Set the length of an axis. The other axes get typical lengths.")
@dtype_option("Element type of the tensors whose type the spec leaves open.")
@click.option(
    "--direction",
    "wanted",
    type=click.Choice(DIRECTIONS),
    multiple=True,
    help="Which direction to measure (default: both). May be repeated.",
)
@click.option(
    "--strategies", is_flag=True, help="Also measure every strategy of a direction that has several."
)
@attr_option
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
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

    A time is the median of 31 batches of calls. Caches are cold: calls rotate through buffers of four times
    the size of L2. RHO compares the norm with the fastest copy of the bytes that it has to move: 1 is as fast
    as the copy, 0.5 takes twice as long. For a norm that reads at least 1.5 times what it writes, a triad
    replaces the copy. HOST US is the time of one call on the host, with given output arrays. Results are not
    checked: use `normgen check`.
    """
    from normgen.cli.sizes import usual_sizes
    from normgen.measure.norms import Bench, Case

    package = checked(read_spec(spec), attrs).package
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
    """Refuse a norm with a float attr that has no value."""
    missing = [attr.name for attr in package.attrs if attr.default is None]
    if missing:
        raise click.UsageError(f"{', '.join(missing)} has no default: set it with --attr {missing[0]}=0.1")


def directions_of(package: Package, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The directions to run, by default all of the norm; one that it does not have is refused."""
    from normgen.cli.page import require_direction

    usual = DIRECTIONS if package.backward is not None else DIRECTIONS[:1]
    return tuple(require_direction(package, name).name for name in dict.fromkeys(wanted or usual))


def _ways(bench: Bench, package: Package, case: Case) -> tuple[Case, ...]:
    """The case as a call would run it; if several strategies fit, also the case with each of them."""
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
