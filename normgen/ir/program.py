"""A program: named results as expressions over named operands. Forward and backward are both programs.

Nothing later in the stair asks which of the two it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from normgen.ir.expr import load
from normgen.ir.nodes import Axes, Expr, made_of

if TYPE_CHECKING:
    from normgen.diagnostics import Diagnostic, Source, Span


def dims_text(dims: Iterable[tuple[str, ...]]) -> str:
    """Dimensions as a declaration lists them: `B, (G C), ...`."""
    return ", ".join(dim[0] if len(dim) == 1 else f"({' '.join(dim)})" for dim in dims)


@dataclass(frozen=True, slots=True)
class Attr:
    """A number of the spec. `kind` is "float", "int" or "bool"; a folded one stands in no expression.

    `value` is what the spec or the compile-time caller gave, None where a call must give it. `low` is the
    stated lower bound, excluded where `low_strict`.
    """

    name: str
    kind: str
    value: Fraction | int | bool | None
    low: Fraction | None
    low_strict: bool
    folded: bool
    doc: str
    span: Span | None


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis; `extent` where `axis G = groups` fixes it."""

    name: str
    extent: int | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array in memory.

    `role` is input, param, state, save or output; in backward programs also cotangent, saved (a save or kept
    output read back) and gradient. `dims` are in memory order and name the axes of each: x[B, (G C), ...] is
    (("B",), ("G", "C"), ("...",)). `dtype` is fixed, or that of the tensor named by `like`, or the caller's.
    """

    name: str
    role: str
    dims: tuple[tuple[str, ...], ...]
    dtype: str | None
    like: str | None
    default: Fraction | None
    doc: str
    span: Span | None

    @property
    def axes(self) -> Axes:
        """All axes of the tensor."""
        return frozenset(self.order)

    @property
    def order(self) -> tuple[str, ...]:
        """All axes in memory order, split dimensions apart."""
        return tuple(axis for dim in self.dims for axis in dim)


@dataclass(frozen=True, slots=True)
class Binding:
    """A value by the user's name (let, save, output), for those who show or name it.

    `dims` are the axes in memory order where the spec declares them: a `let` that is differentiated must.
    """

    name: str
    expr: Expr
    span: Span | None
    doc: str
    dims: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that is written; `kept` is a save or a `save output`."""

    tensor: Tensor
    expr: Expr
    kept: bool


@dataclass(frozen=True, slots=True)
class Update:
    """The new value of a state."""

    state: str
    expr: Expr
    span: Span | None


@dataclass(frozen=True, slots=True)
class Program:
    """What is computed, from what.

    `saved_means` are the operands that hold a mean: (name, v, axes) for a saved mean[axes](v).
    """

    name: str
    doc: str
    attrs: tuple[Attr, ...]
    axes: tuple[Axis, ...]
    operands: tuple[Tensor, ...]
    bindings: tuple[Binding, ...]
    results: tuple[Result, ...]
    updates: tuple[Update, ...]
    notes: tuple[str, ...] = ()
    saved_means: tuple[tuple[str, Expr, Axes], ...] = ()


@dataclass(frozen=True, slots=True)
class Definition:
    """What the checker makes of a spec: the forward, and what is differentiated (`of`) by what (`wrt`).

    `of` names outputs and lets; where it is empty there is no backward. `wrt` may name lets too: then
    `opened` is the program to differentiate. There such a let is an operand of role "let" that its uses
    load; the binding of its name still says what it is. `moved` are the states that the forward updates,
    which hold their new values when a backward of any order runs.
    """

    program: Program
    of: tuple[str, ...]
    wrt: tuple[str, ...]
    source: Source
    warnings: tuple[Diagnostic, ...]
    opened: Program | None = None
    moved: tuple[str, ...] = ()

    @property
    def to_differentiate(self) -> Program:
        """The program in which everything of `wrt` is an operand."""
        return self.opened or self.program


def made_of_cotangents(operands: Iterable[Tensor], *roots: Expr) -> set[Expr]:
    """The values below the roots that reverse mode has made, of the cotangents among these operands."""
    return made_of({t.name for t in operands if t.role == "cotangent"}, *roots)


def is_given(tensor: Tensor) -> bool:
    """Whether every call gives this operand."""
    return tensor.role in ("input", "saved") or (tensor.role == "param" and tensor.default is None)


def determined(tensors: Iterable[Tensor], fixed: Iterable[str]) -> set[str]:
    """The axes whose lengths the shapes of these tensors tell, where those of `fixed` are known: of a
    composite dimension the one part that is not known yet."""
    dims = [dim for tensor in tensors for dim in tensor.dims]
    known, grew = set(fixed), True
    while grew:
        unknown = [[axis for axis in dim if axis not in known] for dim in dims]
        found = {axes[0] for axes in unknown if len(axes) == 1}
        grew = bool(found)
        known |= found
    return known


def value_of(program: Program, name: str) -> Expr:
    """The value of an operand, let, save or output."""
    for tensor in program.operands:
        if tensor.name == name:
            return load(name, tensor.axes)
    values = {b.name: b.expr for b in program.bindings} | {r.tensor.name: r.expr for r in program.results}
    return values[name]


def dims_of(program: Program, name: str) -> tuple[tuple[str, ...], ...]:
    """The declared axes of an operand, output, save or let, in memory order."""
    for tensor in (*program.operands, *(r.tensor for r in program.results)):
        if tensor.name == name:
            return tensor.dims
    (dims,) = (b.dims for b in program.bindings if b.name == name)
    assert dims is not None, f"{name} has no declared axes"
    return dims
