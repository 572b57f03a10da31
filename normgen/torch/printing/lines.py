"""Lines of text, the memory that they write to, and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from normgen.ir.nodes import (
    Add,
    Axes,
    Call,
    Const,
    Expr,
    Extent,
    Load,
    Mul,
    Reduce,
    Round,
    Scalar,
    Select,
    children,
)
from normgen.ir.program import Program
from normgen.torch.printing.plan import Form, Plan

# How conditions of tensors and of numbers are written.
SIGNS = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
BUILT_IN = {"max", "min", "abs"}  # Python's own, of numbers
LOGIC = {"and": ("&", "and"), "or": ("|", "or"), "not": ("~", "not ")}  # of tensors, of numbers


class Value(NamedTuple):
    """The text of a value. `axes`: over which it varies, None for a number. `own`: whether it is a tensor
    that was made for it."""

    text: str
    axes: Axes | None
    own: bool = False

    @property
    def width(self) -> int:
        return -1 if self.axes is None else len(self.axes)


class Lines(Plan):
    """The lines of a text so far, and the values that they have computed."""

    def __init__(self, program: Program, form: Form) -> None:
        super().__init__(program, form)
        self.values: dict[Expr, Value] = {}
        self.free: dict[Axes, list[str]] = {}  # tensors that no longer count
        self.lines: list[str] = []
        self.read: set[str] = set()  # what the node that is computed is made of
        self.count = self.buffers = 0

    @property
    def scalars(self) -> list[str]:
        return [attr.name for attr in self.program.attrs if not attr.folded]

    def _leave(self, used: list[Expr], made: Value) -> None:
        """Count what was read, whose memory others may have then."""
        for node in used:
            self.uses[node] -= 1
            value = self.values[node]
            if not self.uses[node] and value.own and value.text != made.text:
                assert value.axes is not None
                self.free.setdefault(value.axes, []).append(value.text)

    def _line(self, text: str, axes: Axes | None, own: bool = True) -> Value:
        self.count += 1
        self.lines.append(f"v{self.count} = {text}")
        return Value(f"v{self.count}", axes, own and axes is not None)

    def _elementwise(self, function: str, *given: Value, over: Iterable[Value] = (), **named: str) -> Value:
        """A function of `torch`, written over one of the values `over` if it can be."""
        axes = frozenset[str]().union(*(each.axes or () for each in given))
        options = "".join(f", {name}={value}" for name, value in named.items())
        text = f"torch.{function}({', '.join(each.text for each in given)}{options}"
        room = next((e.text for e in over if e.own and e.axes == axes), None) or self._room(axes)
        if room is None or not self.form.reuses:
            return self._line(f"{text})", axes)
        self.lines.append(f"{text}, out={room})")
        return Value(room, axes, own=True)

    def _room(self, axes: Axes) -> str | None:
        """A tensor to write to, for a value that varies over these axes."""
        if not self.form.reuses:
            return None
        if self.free.get(axes):
            return self.free[axes].pop()
        if axes != self.wide:
            return None
        self.buffers += 1
        return f"b{self.buffers - 1}"

    def _last(self, node: Expr) -> bool:
        """Whether what is being computed is the last that reads a node."""
        return self.uses[node] == 1

    def value(self, node: Expr) -> Value:
        """The value of a node, which is computed unless it is a number."""
        node = self.real(node)
        if node not in self.values:
            assert node in self.numbers, node
            self.values[node] = Value(self._number(node), None)
        return self.values[node]

    def _number(self, node: Expr) -> str:
        """The text of a number."""
        args = [self.value(child).text for child in children(node)]
        match node:
            case Const(value=value):
                return f"{float(value)!r}"
            case Scalar(name=name):
                return f"a{self.scalars.index(name)}"
            case Extent(axis=axis):
                return f"n{self.axes.index(axis)}"
            case Load(tensor=name):
                default = self.operands[name].default
                return "0.0" if name in self.form.zeros or default is None else f"{float(default)!r}"
            case Add(terms=terms):
                text = " + ".join(times(arg, c) for arg, (_, c) in zip(args, terms, strict=True))
            case Mul(coefficient=coefficient, factors=factors):
                powers = [raised(arg, e) for arg, (_, e) in zip(args, factors, strict=True)]
                text = " * ".join([*([] if coefficient == 1 else [exact(coefficient)]), *powers])
            case Call(op=op):
                text = called(op, args)
            case Round():
                text = f"rounded({args[0]}, {self._type(node)!r})"
            case Select():
                text = f"{args[1]} if {args[0]} else {args[2]}"
            case Reduce(op="sum", over=over, window=()):
                text = " * ".join([args[0], *self._lengths(over)])
            case Reduce():
                return args[0]
            case _:
                raise AssertionError(type(node))
        return self._line(text, None).text

    def _lengths(self, axes: Iterable[str]) -> list[str]:
        return [f"n{self.axes.index(axis)}" for axis in sorted(axes)]

    def _shape(self, axes: Axes) -> str:
        sizes = [f"n{place}" if axis in axes else "1" for place, axis in enumerate(self.axes)]
        return ", ".join(sizes)

    def _dims(self, axes: Iterable[str]) -> str:
        return f"({', '.join(str(place) for place in sorted(map(self.axes.index, axes)))},)"


def exact(value: Fraction) -> str:
    return f"{float(value)!r}"


def times(text: str, coefficient: Fraction) -> str:
    return text if coefficient == 1 else f"{exact(coefficient)} * {text}"


def called(op: str, args: Sequence[str]) -> str:
    if op in SIGNS:
        return f" {SIGNS[op]} ".join(args)
    if op in LOGIC:
        return LOGIC[op][1] + args[0] if len(args) == 1 else f" {LOGIC[op][1]} ".join(args)
    return f"{op}({', '.join(args)})" if op in BUILT_IN else f"number({op!r}, {', '.join(args)})"


def raised(text: str, exponent: Fraction) -> str:
    return text if exponent == 1 else f"power({text}, {exact(exponent)})"
