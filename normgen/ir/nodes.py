"""The nodes of an expression: immutable, interned, compared by identity.

Two structurally equal nodes are one object, so common subexpressions are shared and equality costs nothing.
A node is made by the canonical constructors of `expr`, never by calling its class. Every node carries

- `axes`: the axes over which its value varies;
- `key`: a digest of its structure, the same in every process, which orders nodes deterministically;
- `reduces`: whether it is a reduction or made of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import Any, TypeVar

from normgen.ir.primitives import PRIMITIVES
from normgen.ir.work import current, spend

Axes = frozenset[str]
Window = tuple[tuple[str, int, int], ...]


class Expr:
    """What every node has in common."""

    __slots__ = ("axes", "key", "reduces")
    axes: Axes
    key: str
    reduces: bool

    def __repr__(self) -> str:
        from normgen.ir.show import show

        return f"<{show(self)}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Const(Expr):
    """An exact number."""

    value: Fraction


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scalar(Expr):
    """A float attribute given at run time; always finite."""

    name: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Extent(Expr):
    """The length of an axis as a number; at least one wherever anything is computed."""

    axis: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load(Expr):
    """The element of a declared tensor."""

    tensor: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Add(Expr):
    """A sum of `coefficient * term`; the constant term is (ONE, c)."""

    terms: tuple[tuple[Expr, Fraction], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mul(Expr):
    """`coefficient * product of base^exponent`; division and roots are exponents.

    A base to a fractional exponent is NaN where the base is negative. The coefficient is 0 only where the
    factors may be infinite or NaN, and `0 * x` then says so.
    """

    coefficient: Fraction
    factors: tuple[tuple[Expr, Fraction], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expr):
    """A primitive applied to values (see `primitives`)."""

    op: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Round(Expr):
    """The value rounded to an element type: a name ("bf16") or "like t" for that of tensor t."""

    arg: Expr
    to: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce(Expr):
    """`op` over axes; or, with a window of (axis, low, high), a windowed sum that keeps its axes."""

    op: str
    over: Axes
    window: Window
    arg: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Expr):
    """`then if condition else otherwise`, elementwise; the branch not taken never shows."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Told(Expr):
    """What one of several ranks tells the others of a value: the one at `which` of those that all of them
    exchange together. `channel`: the load of what says where that is done."""

    channel: Expr
    values: tuple[Expr, ...]
    which: int
    rank: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InOrder(Expr):
    """A sum whose terms are added one after the other, from the first one on."""

    terms: tuple[Expr, ...]


_KINDS = (Const, Extent, Scalar, Load, Reduce, Call, Select, Round, Mul, Add, Told, InOrder)
_RANK: dict[type[Expr], int] = {kind: rank for rank, kind in enumerate(_KINDS)}
_INTERNED: dict[str, Expr] = {}
Node = TypeVar("Node", bound=Expr)


def make(kind: type[Node], axes: Axes, *values: Any) -> Node:
    """The one node of this kind with these fields."""
    spend(2)
    text = f"{kind.__name__}({', '.join(map(_describe, values))})[{' '.join(sorted(axes))}]"
    key = blake2b(text.encode(), digest_size=16).hexdigest()
    found = _INTERNED.get(key)
    if found is None:
        node = kind(*values)
        object.__setattr__(node, "axes", axes)
        object.__setattr__(node, "key", key)
        object.__setattr__(node, "reduces", kind is Reduce or any(c.reduces for c in children(node)))
        found = _INTERNED.setdefault(key, node)  # atomic: two threads agree on one node
    assert isinstance(found, kind)
    return found


def _describe(value: Any) -> str:
    if isinstance(value, Expr):
        return value.key
    if isinstance(value, frozenset):
        return "{" + " ".join(sorted(value)) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_describe, value)) + ")"
    return repr(value) if isinstance(value, str) else str(value)


def order(node: Expr) -> tuple[int, int, str, str]:
    """How terms and factors are sorted: fewest axes first, so that what varies least comes first."""
    match node:
        case Load(tensor=name) | Scalar(name=name) | Extent(axis=name):
            text = name
        case _:
            text = ""
    return len(node.axes), _RANK[type(node)], text, node.key


def children(node: Expr) -> tuple[Expr, ...]:
    """The operands of a node, in order."""
    match node:
        case Add(terms=pairs) | Mul(factors=pairs):
            return tuple(e for e, _ in pairs)
        case Call(args=args):
            return args
        case Round(arg=arg) | Reduce(arg=arg):
            return (arg,)
        case Select(condition=condition, then=then, otherwise=otherwise):
            return condition, then, otherwise
        case Told(channel=channel, values=values):
            return channel, *values
        case InOrder(terms=terms):
            return terms
        case _:
            return ()


def types_named(nodes: Iterable[Expr]) -> list[str]:
    """The tensors whose element types these nodes round to, each once."""
    rounded = (node.to for node in nodes if isinstance(node, Round) and node.to.startswith("like "))
    return list(dict.fromkeys(to.removeprefix("like ") for to in rounded))


def is_condition(node: Expr) -> bool:
    """Whether the value is true or false, for an `if` to choose by."""
    return isinstance(node, Call) and PRIMITIVES[node.op].condition


def walk(
    *roots: Expr, seen: set[Expr] | None = None, into: Callable[[Expr], tuple[Expr, ...]] = children
) -> Iterator[Expr]:
    """Every node below the roots once, operands before what uses them.

    None of those `seen`, to which it adds them. `into`: which operands of a node to go on to.
    """
    seen = set() if seen is None else seen
    work = current()
    for root in roots:
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node not in seen:
                work.spend(1)
                seen.add(node)
                stack.append((node, True))
                stack.extend((child, False) for child in reversed(into(node)) if child not in seen)


def walk_finishing(*roots: Expr) -> list[tuple[Expr, list[Expr]]]:
    """`walk`, with those operands of each node that nothing after it uses and that are no roots: of large
    arrays, the values of all nodes at once would fill the memory."""
    nodes = list(walk(*roots))
    last_user = {operand: node for node in nodes for operand in children(node)}
    return [
        (node, [o for o in dict.fromkeys(children(node)) if last_user[o] is node and o not in roots])
        for node in nodes
    ]


def reductions(*roots: Expr) -> list[Reduce]:
    """Every reduction and window below the roots once, in `walk` order."""
    found = [root for root in roots if root.reduces]
    return [node for node in walk(*found, into=_reducing) if isinstance(node, Reduce)]


def made_of(tensors: Collection[str], *roots: Expr) -> set[Expr]:
    """Every node below the roots that an element of some of these tensors goes into."""
    found: set[Expr] = set()
    for node in walk(*roots):
        loaded = isinstance(node, Load) and node.tensor in tensors
        if loaded or any(child in found for child in children(node)):
            found.add(node)
    return found


def _reducing(node: Expr) -> tuple[Expr, ...]:
    """The operands with a reduction in them."""
    return tuple(child for child in children(node) if child.reduces)
