"""The syntax tree of a `.norm` file: frozen, positioned, and nothing but what the text says.

Two trees are equal when they say the same thing: spans take no part in a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction

from normgen.diagnostics import Span

NOWHERE = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Node:
    """Anything with a place in the source text."""

    span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Identifier(Node):
    """A name, an axis, or `...`, where it is written."""

    text: str


# Expressions.


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A numeral as written: `448`, `1e-6`, `.5`."""

    text: str

    @property
    def value(self) -> Fraction:
        return Fraction(self.text)

    @property
    def integral(self) -> bool:
        """Written as an integer: digits alone."""
        return self.text.isdigit()


@dataclass(frozen=True, slots=True)
class Truth(Node):
    """`true` or `false`."""

    value: bool


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A use of an attr, a tensor, a `let`, or a function's parameter."""

    text: str


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """`-v` or `not v`."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Arithmetic `+ - * / // ^`, comparison `< <= > >= == !=`, or `and`, `or`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    """`then if condition else otherwise`."""

    then: Expression
    condition: Expression
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Window(Node):
    """`C: low .. high` inside brackets, both ends included."""

    axis: Identifier
    low: Expression
    high: Expression


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`name(arguments)`, or `name[over](arguments)`; `over` is empty where there are no brackets."""

    function: Identifier
    over: tuple[Reach, ...]
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Subscript(Node):
    """`name[over]`: an extent if the name is `size`, else a mistake that the checker explains."""

    function: Identifier
    over: tuple[Reach, ...]


Expression = Number | Truth | Name | Unary | Binary | Conditional | Call | Subscript
Reach = Identifier | Window

# Statements.

Dimension = tuple[Identifier, ...]


@dataclass(frozen=True, slots=True)
class Bound(Node):
    """`>= low` or `> low` on an attr."""

    operator: str
    low: Expression


@dataclass(frozen=True, slots=True)
class ElementType(Node):
    """The dtype of a tensor: its name, or `like` another tensor."""

    name: Identifier
    like: bool = False


@dataclass(frozen=True, slots=True)
class ElementChoice(Node):
    """`then if condition else otherwise`, decided when the spec is compiled."""

    then: ElementType
    condition: Expression
    otherwise: ElementType | ElementChoice


@dataclass(frozen=True, slots=True)
class Attr(Node):
    name: Identifier
    kind: Identifier | None = None
    bound: Bound | None = None
    default: Expression | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Axis(Node):
    """`axis G = groups`: fixes the length of an axis."""

    name: Identifier
    extent: Expression
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Tensor(Node):
    """`role name[dimensions]: dtype = value`; `head` is the part before the colon or the equals sign."""

    role: str
    name: Identifier
    dimensions: tuple[Dimension, ...]
    dtype: ElementType | ElementChoice | None = None
    value: Expression | None = None
    doc: str = ""
    head: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Let(Node):
    """`let name = value`; with brackets it says its axes, as one that is differentiated must."""

    name: Identifier
    dimensions: tuple[Dimension, ...] | None
    value: Expression
    doc: str = ""
    head: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Update(Node):
    name: Identifier
    value: Expression
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Gradient(Node):
    """`grad y wrt x, w`."""

    of: tuple[Identifier, ...]
    wrt: tuple[Identifier, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Function(Node):
    name: Identifier
    axis: Identifier | None
    parameters: tuple[Identifier, ...]
    body: Expression
    doc: str = ""


Statement = Attr | Axis | Tensor | Let | Update | Gradient | Function


@dataclass(frozen=True, slots=True)
class Spec(Node):
    name: Identifier
    doc: str = ""
    statements: tuple[Statement, ...] = ()


def children(node: Node | tuple[object, ...]) -> Iterator[Node]:
    """The nodes directly below a node, or those of a tuple."""
    parts = node if isinstance(node, tuple) else [getattr(node, f.name) for f in fields(node)]
    for part in parts:
        if isinstance(part, Node):
            yield part
        elif isinstance(part, tuple):
            yield from children(part)
