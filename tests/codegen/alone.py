"""Norms whose forward is one kernel, of the rows or the tiles family, whatever a package would have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.rows.compile.family import Rows
from normgen.families.rows.compile.plan import plan_rows
from normgen.families.tiles.compile.family import Tiles
from normgen.families.tiles.compile.plan import plan_tiles
from normgen.ir.centre import centre
from normgen.ir.nodes import walk
from normgen.ir.program import Definition, Program, Result
from normgen.ir.show import show_program
from normgen.kernel.group import Group
from normgen.kernel.text import Wording
from normgen.package.records import Strategy
from normgen.runtime.norm import Norm
from normgen.verify.expected import Subject

Planner = Callable[[Group], Any]


def defined(text: str, **attrs: object) -> Definition:
    """A checked spec."""
    return load_definition(Source("spec.norm", text), attrs)


def _with_updates(program: Program) -> Program:
    """The program with its states as results, of the arrays that they are read from."""
    states = {t.name: t for t in program.operands}
    updates = tuple(Result(states[u.state], u.expr, False) for u in program.updates)
    return replace(program, results=program.results + updates, updates=())


def planned(definition: Definition, planner: Planner = plan_rows) -> Any:
    """Its forward, updates of states included, as one group."""
    program = _with_updates(definition.program)
    program = program if planner is plan_tiles else centre(program)
    space = frozenset[str]().union(*(n.axes for r in program.results for n in walk(r.expr)))
    space = space.union(*(r.tensor.axes for r in program.results))
    return planner(Group(program.name, program, space, program.results))


def emitted(definition: Definition, planner: Planner = plan_rows) -> Any:
    """The kernel of its forward."""
    family = Tiles() if planner is plan_tiles else Rows()
    formulas = tuple(show_program(definition.program).splitlines())
    return family.emit(planned(definition, planner), Wording(definition.source, formulas=formulas))


@cache
def subject(text: str, planner: Planner = plan_rows, **attrs: object) -> Subject:
    """Its forward, to be checked."""
    definition = replace(defined(text, **attrs), of=())
    made = package(definition)
    forward = replace(made.forward, strategies=(Strategy("alone", (emitted(definition, planner),)),))
    return Subject(definition, None, Norm(replace(made, forward=forward)))
