"""`normgen tune`: measure the schedules of a norm at given sizes, and keep the fastest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from normgen.cli.bench import DIRECTIONS, directions_of, require_numbers
from normgen.cli.console import progress_bar, say
from normgen.cli.options import attr_option, dtype_option, read_spec, size_option, spec_argument
from normgen.cli.stages import checked
from normgen.counting import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from normgen.measure.trials import Outcome, Trial
    from normgen.package.records import Package

SCHEMA = 1
_SHOWN = 8  # lines of the table for each direction, without --verbose


@click.command("tune", short_help="Measure the schedules of a norm, and keep the fastest.")
@spec_argument
@size_option("Set the length of an axis. The other axes get typical lengths.")
@dtype_option("Element type of the tensors whose type the spec leaves open.")
@click.option(
    "--direction",
    type=click.Choice((*DIRECTIONS, "both")),
    default="both",
    show_default=True,
    help="Which direction to tune.",
)
@attr_option
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    metavar="N",
    help="How many schedules of each kernel to measure per round.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=None,
    metavar="SECONDS",
    help="Start no further schedule of a direction after this time (default: no limit).",
)
@click.option(
    "--device",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="K",
    help="Index of the GPU.",
)
@click.option(
    "--export",
    "exported",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also add the result to this table, in the format of the tables that ship with normgen.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print every schedule that was measured.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def tune_command(
    spec: str,
    sizes: dict[str, int],
    dtype: str,
    direction: str,
    attrs: dict[str, object],
    top: int,
    budget: float | None,
    device: int,
    exported: Path | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Find the fastest schedules of SPEC at these sizes on a GPU, and keep them for later calls.

    Schedules are timed with cold caches, as by `normgen bench`, those with the best predictions first. A
    schedule that beats the default must give the same results. If it takes at least 2 % less time, it is kept
    in the cache, and programs that start later use it for calls with the same device, kernels, lengths,
    element types and alignment. NORMGEN_TUNED=0 ignores kept schedules.
    """
    from normgen.cli import export
    from normgen.cli.sizes import usual_sizes
    from normgen.measure.norms import Bench, Case
    from normgen.measure.trials import Limits
    from normgen.measure.tuning import tune

    package = checked(read_spec(spec), attrs).package
    require_numbers(package)
    lengths = usual_sizes(package, sizes)
    wanted = directions_of(package, () if direction == "both" else (direction,))
    if exported is not None:
        export.table_in(exported)  # before anything is measured
    bench = Bench(("cuda", device))
    if exported is not None:
        export.require_architecture(exported, bench.executor.device.arch)
    limits = Limits(top, float("inf") if budget is None else budget)
    found = []
    with progress_bar() as advance:
        for one in wanted:

            def step(done: int, total: int, text: str, one: str = one) -> None:
                advance(done, total, f"{one}: {text}")

            found.append(tune(bench, package, Case(one, lengths, dtype), limits, step))
    if as_json:
        about = {"name": bench.executor.device.name, "arch": bench.executor.device.arch}
        rows = [_row(package, outcome) for outcome in found]
        click.echo(json.dumps({"schema": SCHEMA, "device": about, "rows": rows}, indent=2))
    else:
        _print(found, bench.executor.device.name, verbose)
    _say_kept(found)
    if exported is not None:
        export.export(exported, package.name, bench.executor.device, found)


def _row(package: Package, outcome: Outcome) -> dict[str, object]:
    case, kept = outcome.case, outcome.found
    return {
        "norm": package.name,
        "direction": case.direction,
        "sizes": dict(case.sizes),
        "dtype": case.dtype,
        "bytes": outcome.bytes.total,
        "ceiling": outcome.bytes.ceiling,
        "ceiling_us": round(outcome.ceiling_us, 3),
        "default_us": round(outcome.usual, 3),
        "us": round(kept.microseconds if kept else outcome.usual, 3),
        "rho": round(outcome.rho(kept.microseconds if kept else outcome.usual), 4),
        "chosen": _choice(outcome),
        "path": str(outcome.path) if kept else None,
        "left_out": outcome.left,
        "trials": [_trial_row(outcome, trial) for trial in outcome.trials],
    }


def _choice(outcome: Outcome) -> dict[str, object] | None:
    if outcome.found is None:
        return None
    choice = outcome.found.choice
    schedules = {kernel: dict(knobs) for kernel, knobs in choice.schedules.items()}
    return {"strategy": choice.strategy, "schedules": schedules}


def _trial_row(outcome: Outcome, trial: Trial) -> dict[str, object]:
    return {
        "strategy": trial.strategy,
        "kernel": trial.kernel,
        "schedule": trial.schedule,
        "predicted_us": round(trial.expected, 3),
        "us": None if trial.us is None else round(trial.us, 3),
        "rho": None if trial.us is None else round(outcome.rho(trial.us), 4),
        "registers": trial.registers,
        "spilled_bytes": trial.local,
        "verdict": trial.verdict,
        "why": trial.why,
    }


def _print(found: Sequence[Outcome], device: str, verbose: bool) -> None:
    from normgen.cli.table import print_columns

    case = found[0].case
    where = ", ".join(f"{axis} = {length}" for axis, length in case.sizes.items())
    click.echo(f"{where} in {case.dtype}, on {device}")
    headings = ("PREDICTED", "US", "RHO", "REGISTERS", "SPILLS", "VERDICT", "SCHEDULE")
    for outcome in found:
        click.echo(f"\n{outcome.case.direction}\n")
        shown = _shown(outcome, verbose)
        print_columns(headings, [_cells(outcome, trial) for trial in shown], headings[:5])
        if len(outcome.trials) > len(shown):
            click.echo(f"{len(outcome.trials) - len(shown)} more: --verbose shows them")


def _shown(outcome: Outcome, verbose: bool) -> list[Trial]:
    """The trials by time, after the default schedule of each strategy."""
    usual = [trial for trial in outcome.trials if not trial.schedule]
    tried = [trial for trial in outcome.trials if trial.schedule]
    tried.sort(key=lambda trial: (trial.us is None, trial.us))
    some = tried if verbose else [t for n, t in enumerate(tried) if n < _SHOWN or t.verdict == "wrong"]
    return [*usual, *some]


def _cells(outcome: Outcome, trial: Trial) -> tuple[str, ...]:
    compiled = bool(trial.schedule) and trial.us is not None
    named = ", ".join(filter(None, (trial.strategy, trial.kernel)))
    return (
        f"{trial.expected:.2f}",
        "" if trial.us is None else f"{trial.us:.2f}",
        "" if trial.us is None else f"{outcome.rho(trial.us):.3f}",
        str(trial.registers) if compiled else "",
        str(trial.local) if compiled else "",
        _verdict(outcome, trial),
        "; ".join(filter(None, (f"{named}: {trial.schedule or 'default'}", trial.why))),
    )


def _verdict(outcome: Outcome, trial: Trial) -> str:
    return "chosen" if outcome.found is not None and trial.chosen_by(outcome.found.choice) else trial.verdict


def _say_kept(found: Sequence[Outcome]) -> None:
    for outcome in found:
        what = outcome.case.direction
        if outcome.found is None:
            say(f"{what}: the default is as good as any, at {outcome.usual:.2f} us; nothing is kept")
        else:
            times = f"{outcome.found.microseconds:.2f} us instead of {outcome.found.usual:.2f} us"
            say(f"{what}: {times}, kept in {outcome.path}")
        if outcome.left:
            say(f"{what}: {counted(outcome.left, 'schedule')} not measured within the budget")
