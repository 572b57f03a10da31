"""Elementwise specs as norms whose one kernel is of the tiles family."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.tiles.compile.family import Tiles
from normgen.families.tiles.compile.plan import TilesPlan, plan_tiles
from normgen.ir.nodes import walk
from normgen.ir.program import Definition
from normgen.ir.show import show_program
from normgen.kernel.group import Group
from normgen.kernel.text import Wording
from normgen.package.kernels import TilesRecord
from normgen.package.records import AttrRecord, AxisRecord, Package, PassRecord, Strategy, TensorRecord
from normgen.runtime.norm import Norm
from normgen.verify.expected import Subject


def defined(text: str, **attrs: object) -> Definition:
    """A checked spec."""
    return load_definition(Source("spec.norm", text), attrs)


def planned(definition: Definition) -> TilesPlan:
    """Its forward as one group of the tiles family."""
    program = definition.program
    space = frozenset[str]().union(*(n.axes for r in program.results for n in walk(r.expr)))
    space = space.union(*(r.tensor.axes for r in program.results))
    return plan_tiles(Group(program.name, program, space, program.results))


def emitted(definition: Definition) -> TilesRecord:
    """The kernel of its forward."""
    formulas = tuple(show_program(definition.program).splitlines())
    return Tiles().emit(planned(definition), Wording(definition.source, formulas=formulas))


@cache
def subject(text: str, **attrs: object) -> Subject:
    """Its forward, to be proved."""
    definition = defined(text, **attrs)
    program = definition.program

    def record(t) -> TensorRecord:
        default = None if t.default is None else float(t.default)
        return TensorRecord(t.name, t.role, t.dims, t.dtype, t.like, default)

    reads = tuple(map(record, program.operands))
    writes = tuple(record(r.tensor) for r in program.results)
    kernel = emitted(definition)
    package = Package(
        name=program.name,
        doc="",
        spec=text,
        attrs=tuple(AttrRecord(a.name, None) for a in program.attrs if not a.folded),
        axes=tuple(AxisRecord(a.name, a.extent) for a in program.axes),
        forward=PassRecord(reads, writes, (Strategy("tiles", (kernel,)),)),
        backward=None,
    )
    return replace(Subject(definition, None, Norm(package)))
