"""The table of which form of a kernel runs when: what each is for, and lengths with which the planner takes
it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from normgen.ahead.usual import REST, axes_of, fixed_axes, usual_lengths
from normgen.launching.launch import Launch, Printed
from normgen.launching.machine import usual_machine
from normgen.package.direction import Direction, directions
from normgen.package.records import Package, Strategy
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import plan_launches
from normgen.runtime.planning.registry import family_of

DTYPE, ARCH = "bf16", "sm_90"
LENGTHS = (64, 65, 256, 1000, 1001, 4096, 16384, 65536, 262144, 1048576)
ROWS = 1024  # where rows are counted by `...`
WIDTH = 78
_MARGIN = " " * 16


def forms_table(package: Package) -> tuple[str, ...]:
    """The table, in lines."""
    head = (
        "Which form of a kernel runs when. Lengths are examples: those with which it is taken for many rows "
        f"of {DTYPE} in contiguous arrays, on {usual_machine(ARCH).name}. `normgen explain` has other calls."
    )
    lines = textwrap.wrap(head, WIDTH)
    for direction in directions(package):
        if direction is not None:
            axis, taken = swept(package, direction), launches_taken(package, direction)
            for strategy in direction.record.strategies:
                lines += _strategy(direction, axis, strategy, taken)
    return tuple(lines)


def swept(package: Package, direction: Direction) -> str:
    """The axis that makes rows longer."""
    fixed = fixed_axes(package)
    inner = [axis for kernel in direction.record.kernels for axis in kernel.inner]
    return next((axis for axis in reversed(inner) if axis not in fixed), REST)


def launches_taken(package: Package, direction: Direction) -> dict[str, dict[int, Launch]]:
    """By the entry of a form the lengths of that axis with which it runs, each with the first launch."""
    axis, device = swept(package, direction), usual_machine(ARCH)
    rows = {REST: ROWS} if REST in axes_of(package) and axis != REST else {}
    found: dict[str, dict[int, Launch]] = {}
    for length in LENGTHS if direction.record.strategies else ():
        sizes = usual_lengths(package, rows | {axis: length})
        plan = plan_launches(direction.record, bind_sizes(direction, sizes, DTYPE).binding, device)
        for launch in plan.launches:
            found.setdefault(launch.entry, {}).setdefault(length, launch)
    return found


def texts_taken(package: Package) -> dict[str, tuple[str, str]]:
    """By the entry of a form its text for the first of these lengths, behind a digest of its constants."""
    found = {}
    for direction in filter(None, directions(package)):
        for entry, launches in launches_taken(package, direction).items():
            (first, *_) = launches.values()
            assert isinstance(first.text, Printed)
            found[entry] = first.text.given.digest, first.source
    return found


def _strategy(
    direction: Direction, axis: str, strategy: Strategy, taken: dict[str, dict[int, Launch]]
) -> Iterator[str]:
    record = direction.record
    named = f"{direction.name}, strategy {strategy.name}" if len(record.strategies) > 1 else direction.name
    for kernel in strategy.kernels:
        yield ""
        yield f"{named}: {kernel.name}" if len(record.kernels) > 1 else f"{named}:"
        for form in kernel.forms:
            yield f"  {form.form:13} {family_of(kernel).uses[form.form]}"
            if form.entry in taken:
                line = f"{axis} = {', '.join(map(str, taken[form.entry]))}"
                yield from textwrap.wrap(line, WIDTH, initial_indent=_MARGIN, subsequent_indent=_MARGIN)
