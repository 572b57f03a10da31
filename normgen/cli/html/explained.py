"""The page of `normgen explain --html`: one file that loads nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from normgen.cli.files import MARK, Output
from normgen.cli.html.drawing import drawing, legend
from normgen.cli.html.flow import Flow, flow_of
from normgen.cli.html.listing import Listing, cuda_lines, names_of, spec_lines
from normgen.cli.sizes import BOTH, Setting
from normgen.ir.mathml import math, rows_of

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.diagnostics import Diagnostic
    from normgen.ir.program import Definition, Program
    from normgen.launching.launch import Launch
    from normgen.package.direction import Direction


@dataclass(frozen=True, slots=True)
class Formula:
    """A line of the mathematics, and the line of the spec that it is of (0: of none)."""

    role: str
    left: Markup
    right: Markup
    kind: str
    line: int


@dataclass(frozen=True, slots=True)
class Explained:
    """A direction at the sizes in question."""

    name: str
    call: str
    formulas: tuple[Formula, ...]
    notes: tuple[str, ...]
    flow: Flow
    picture: Markup
    schedule: tuple[tuple[int, str], ...]  # lines, each with its depth
    moved: str
    launches: tuple[Launch, ...]


def html_of(made: Compilation, setting: Setting) -> Output:
    """The page of a norm whose kernels are known."""
    found = explained(made, setting)
    codes = {each.name: code_of(each, made.definition, setting) for each in found}
    return _page(made.definition, setting.text, found, codes, list(legend([each.flow for each in found])), ())


def html_without_kernels(made: Compilation, reasons: tuple[Diagnostic, ...]) -> Output:
    """The page of a norm that no family of kernels fits yet: its formulas, and what is missing."""
    programs = (("forward", made.definition.program), ("backward", made.derived))
    found = [
        {"name": name, "formulas": formulas(program, made.definition), "notes": program.notes}
        for name, program in programs
        if program is not None
    ]
    return _page(made.definition, "", found, {}, [], reasons)


def explained(made: Compilation, setting: Setting) -> list[Explained]:
    """The existing directions that a setting selects."""
    from normgen.package.direction import directions

    definition = made.definition
    pairs = zip(directions(made.package), (definition.program, made.derived), strict=True)
    return [
        _explained(direction, program, definition, setting)
        for direction, program in pairs
        if direction is not None and program is not None and setting.direction in (BOTH, direction.name)
    ]


def code_of(each: Explained, definition: Definition, setting: Setting) -> Listing:
    """The CUDA text of a direction."""
    from normgen.ahead.page import page

    return cuda_lines(page(each.launches), definition)


def _explained(direction: Direction, program: Program, definition: Definition, setting: Setting) -> Explained:
    from normgen.cli.offered import explained, others, taken
    from normgen.cli.traffic import count_bytes

    binding = setting.binding(direction)
    chosen, notes = taken(direction, binding, setting.device)
    flow = flow_of(direction, chosen, binding)
    said = [*notes, *explained(chosen, binding, setting.device)]
    said += [line.strip() for line in others(direction, chosen, binding, setting.device)]
    return Explained(
        name=direction.name,
        call=f"{direction.name}({', '.join(direction.reads)}) → {', '.join(setting.results(direction))}",
        formulas=formulas(program, definition),
        notes=program.notes,
        flow=flow,
        picture=Markup(drawing(flow, f"The {direction.name} of {program.name}: what it reads and writes")),
        schedule=tuple(((len(line) - len(line.lstrip())) // 2, line.strip()) for line in said),
        moved=count_bytes(chosen, binding).text,
        launches=chosen.plan.launches,
    )


def formulas(program: Program, definition: Definition) -> tuple[Formula, ...]:
    """The mathematics of a program, line by line."""
    lines = names_of(definition)
    return tuple(
        Formula(
            row.role,
            Markup(math(row.left)),
            Markup(math(f"<mo>=</mo>{row.right}")),
            row.note,
            lines.get(row.name, 0),
        )
        for row in rows_of(program)
    )


def _page(
    definition: Definition,
    setting: str,
    found: Sequence[object],
    codes: Mapping[str, Listing],
    kinds: Sequence[tuple[str, str]],
    reasons: tuple[Diagnostic, ...],
) -> Output:
    program = definition.program
    text = (
        _environment()
        .get_template("page.html.jinja")
        .render(
            mark=f"{MARK} from {program.name}.norm",
            name=program.name,
            doc=program.doc,
            setting=setting,
            spec=spec_lines(definition.source),
            directions=found,
            codes=codes,
            legend=kinds,
            reasons=reasons,
        )
    )
    return Output(f"{program.name}.html", text.encode())


@cache
def _environment() -> jinja2.Environment:
    """Templates of pages, in which everything is escaped that is not marked as markup."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("normgen", "templates/explain"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
