"""Definitions built by hand, without the language: `Spec().input(...).save(...).output(...).define()`."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from normgen.diagnostics import Source
from normgen.ir.expr import Expr, div, extent, load, mul, reduce, rewrite, scalar
from normgen.ir.program import Attr, Axis, Binding, Definition, Program, Result, Tensor


def dims(text: str) -> tuple[tuple[str, ...], ...]:
    """`B (G C) ...` as dimensions."""
    groups = re.findall(r"\(([^)]*)\)|(\S+)", text)
    return tuple(tuple(group.split()) or (single,) for group, single in groups)


def mean(axes: str, value: Expr) -> Expr:
    names = axes.split()
    return div(reduce("sum", names, value), mul(*map(extent, names)))


class Spec:
    """A definition in the making."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operands: list[Tensor] = []
        self.attrs: list[Attr] = []
        self.bindings: list[Binding] = []
        self.results: list[Result] = []

    def tensor(
        self, role: str, name: str, axes: str, default: int | None = None, dtype: str | None = None
    ) -> Expr:
        value = None if default is None else Fraction(default)
        tensor = Tensor(name, role, dims(axes), dtype, None, value, "", None)
        self.operands.append(tensor)
        return load(name, tensor.axes)

    def input(self, name: str, axes: str, dtype: str | None = None) -> Expr:
        return self.tensor("input", name, axes, dtype=dtype)

    def param(self, name: str, axes: str, default: int | None = None) -> Expr:
        return self.tensor("param", name, axes, default)

    def attr(self, name: str, value: str) -> Expr:
        self.attrs.append(Attr(name, "float", Fraction(value), None, False, False, "", None))
        return scalar(name)

    def let(self, name: str, value: Expr, axes: str | None = None, opened: bool = False) -> Expr:
        """A let; an opened one is differentiated by, so that its uses load it."""
        self.bindings.append(Binding(name, value, None, "", None if axes is None else dims(axes)))
        return self.tensor("let", name, axes or "") if opened else value

    def save(self, name: str, axes: str, value: Expr) -> Expr:
        return self._result("save", name, axes, value, True)

    def output(self, name: str, axes: str, value: Expr, kept: bool = False) -> Expr:
        return self._result("output", name, axes, value, kept)

    def _result(self, role: str, name: str, axes: str, value: Expr, kept: bool) -> Expr:
        tensor = Tensor(name, role, dims(axes), "f32" if role == "save" else None, None, None, "", None)
        assert tensor.axes == value.axes, (name, tensor.axes, value.axes)
        self.results.append(Result(tensor, value, kept))
        self.bindings.append(Binding(name, value, None, ""))
        return value

    def define(self, of: str = "", wrt: str = "") -> Definition:
        axes = dict.fromkeys(a for t in self.operands for a in t.order)
        opened = Program(
            self.name, "", tuple(self.attrs), tuple(Axis(a, None) for a in axes), tuple(self.operands),
            tuple(self.bindings), tuple(self.results), (),
        )  # fmt: skip
        values = {b.name: b.expr for b in self.bindings}
        lets = {load(t.name, t.axes): values[t.name] for t in self.operands if t.role == "let"}
        program = replace(
            opened,
            operands=tuple(t for t in self.operands if t.role != "let"),
            bindings=tuple(replace(b, expr=rewrite(b.expr, lets)) for b in self.bindings),
            results=tuple(replace(r, expr=rewrite(r.expr, lets)) for r in self.results),
        )
        outputs = tuple(r.tensor.name for r in self.results if r.tensor.role == "output")
        inputs = tuple(t.name for t in self.operands if t.role in ("input", "param"))
        source: Source = None  # type: ignore[assignment]
        return Definition(
            program, tuple(of.split()) or outputs, tuple(wrt.split()) or inputs, source, (), opened
        )
