"""The summary of `normgen explain`: formulas, kernels with the reasons for their schedules, bytes moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from normgen.cli.sizes import BOTH
from normgen.counting import counted

if TYPE_CHECKING:
    from normgen.cli.sizes import Setting
    from normgen.diagnostics import Diagnostic
    from normgen.ir.program import Definition, Program
    from normgen.package.direction import Direction
    from normgen.package.records import Package


def summarise(definition: Definition, derived: Program | None, package: Package, setting: Setting) -> str:
    """The whole summary."""
    from normgen.package.direction import directions

    device = setting.device
    where = ", ".join(f"{axis} = {length}" for axis, length in setting.sizes.items())
    lines = [f"{package.name}: {package.doc}" if package.doc else package.name, ""]
    lines.append(
        f"for {where} in {setting.dtype}, "
        f"on {device.name} ({device.arch}, {counted(device.multiprocessors, 'multiprocessor')})"
    )
    for direction, program in zip(directions(package), (definition.program, derived), strict=True):
        if direction is None or program is None:
            lines += ["", "no backward: no output can be differentiated"] if setting.direction == BOTH else []
        elif setting.direction in (BOTH, direction.name):
            lines += ["", *_direction(direction, program, setting)]
    return "\n".join(lines) + "\n"


def without_kernels(forward: Program, backward: Program | None, reasons: Sequence[Diagnostic]) -> str:
    """The summary of a norm that has no kernels yet: its formulas, and the reason."""
    lines = [f"{forward.name}: {forward.doc}" if forward.doc else forward.name]
    for title, program in (("forward", forward), ("backward", backward)):
        if program is not None:
            lines += ["", title, *(f"  {line}" for line in formulas(program))]
    lines.append("")
    for reason in reasons:
        lines += [reason.message, *(f"  {text}" for text in reason.help)]
    return "\n".join(lines) + "\n"


def formulas(program: Program) -> list[str]:
    """The lines of a program that define something."""
    from normgen.ir.show import show_program

    lines = show_program(program).splitlines()
    return [
        line
        for line in lines
        if line.startswith(("let ", "save ", "output ", "gradient ", "update ", "note: "))
    ]


def _direction(direction: Direction, program: Program, setting: Setting) -> Iterator[str]:
    from normgen.cli.offered import explained, others, taken
    from normgen.cli.traffic import count_bytes

    results = setting.results(direction)
    yield f"{direction.name}({', '.join(direction.reads)}) -> {', '.join(results)}"
    for line in formulas(program):
        yield f"  {line}" if setting.saves else f"  {line}".replace("  save ", "  let ", 1)
    binding = setting.binding(direction)
    chosen, notes = taken(direction, binding, setting.device)
    yield from (f"  {note}" for note in notes)
    yield from (f"  {line}" for line in explained(chosen, binding, setting.device))
    yield from others(direction, chosen, binding, setting.device)
    yield f"  memory: {count_bytes(chosen, binding).text}"
