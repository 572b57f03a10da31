"""Group -> plan of a windows kernel: programs whose only reductions are sums over neighbours.

A windowed sum keeps its axes, so every value of the group ranges over all of them, and every result has one
element for each place. Windows may be nested, as in a backward that computes a denominator again: the sums
of level 2 add up values that contain sums of level 1.

    y = x * (k + sum[C: -2..2](x^2))^-3/4      one level, over places along C

Where all windows run along one axis, `image` is that axis with the axes inside it. An image that lies in one
piece of memory can be walked from one end to the other (see the `march` form): neighbours along the window
then are a fixed distance apart, and a window ends where the image does. Windows over both of the two
innermost axes have an image too, which is walked row by row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from normgen.ir.expr import add, children, mul, power, rebuild, reductions, scalar, walk
from normgen.ir.nodes import Add, Const, Expr, Extent, Load, Mul, Reduce, Scalar, is_condition
from normgen.kernel.group import Group, Misfit, Order
from normgen.kernel.levels import levels_of
from normgen.kernel.phases import is_function
from normgen.kernel.plan import KernelPlan, Operand, Parts, elementwise_plan, operand_of

# The most neighbours, counted through nested windows, that an element may look at one by one.
NEIGHBOURS = 128


@dataclass(frozen=True, slots=True)
class WindowsPlan(Parts):
    """A kernel of the windows family: elementwise but for sums over neighbours."""

    parts: KernelPlan  # what it computes, as elements of all axes that stand alone
    image: Order  # the axis of all windows and those inside it, or the two innermost axes; else empty
    operands: tuple[Operand, ...]  # `inner`: the axes in the image, or the innermost axis where there is none
    levels: tuple[tuple[Reduce, ...], ...]  # windowed sums, each level over values of those before it
    constants: tuple[tuple[Expr, Expr], ...]  # scalars of the plan's own, and what they stand for

    @property
    def axes(self) -> Order:
        """All axes, in the memory order of the results."""
        return self.parts.kept

    @property
    def inner(self) -> Order:
        """The axes that `Operand.inner` is about."""
        return self.image or self.axes[-1:]

    @property
    def outer(self) -> Order:
        """The axes outside of those."""
        return self.axes[: len(self.axes) - len(self.inner)]

    @property
    def windowed(self) -> Order:
        """The axes along which some window runs."""
        found = {axis for level in self.levels for s in level for axis, _, _ in s.window}
        return tuple(axis for axis in self.axes if axis in found)

    @property
    def boxed(self) -> bool:
        """Whether windows run along rows of the image as well as from row to row."""
        return bool(self.image) and len(self.windowed) > 1

    def bounds(self, node: Reduce) -> tuple[int, int]:
        """How far a window reaches along the first axis of the image."""
        return _bounds(node, self.image[0])

    def bounds_across(self, node: Reduce) -> tuple[int, int]:
        """How far it reaches along the rows of the image."""
        return _bounds(node, self.image[-1]) if self.boxed else (0, 0)

    @property
    def reaches(self) -> tuple[tuple[int, int], ...]:
        """For each level how far its windows reach back and ahead, the element itself included."""
        return tuple(map(_joined, ([self.bounds(s) for s in level] for level in self.levels)))

    @property
    def reaches_across(self) -> tuple[int, ...]:
        """For each level how far its windows reach along a row, to either side."""
        joined = map(_joined, ([self.bounds_across(s) for s in level] for level in self.levels))
        return tuple(max(-low, high) for low, high in joined)

    @property
    def lags(self) -> tuple[int, ...]:
        """For each level, and then the results, how far behind the elements that arrive it is."""
        ahead = [high for _, high in self.reaches]
        return tuple(sum(ahead[:k]) for k in range(len(ahead) + 1))

    @property
    def lead(self) -> int:
        """How many elements before its first result a walk along an image begins."""
        return -sum(low for low, _ in self.reaches)

    @property
    def marches(self) -> bool:
        """Whether images can be walked: operands have an element for each of their places, or one for all."""
        return bool(self.image) and all(o.inner in ((), self.image) for o in self.operands)

    @property
    def spans(self) -> bool:
        """Whether neighbours along the windows lie next to each other."""
        return self.marches and len(self.image) == 1

    @property
    def walks(self) -> bool:
        """Whether neighbours lie apart, so that images are walked from one end to the other."""
        return self.marches and len(self.image) > 1


def plan_windows(group: Group) -> WindowsPlan:
    """The kernel of a group whose only reductions are sums over neighbours; raises `Misfit`."""
    sums, name = reductions(*group.roots), group.program.name
    if not sums:
        raise Misfit(f"`{name}` sums over no window")
    for node in sums:
        if not node.window:
            raise Misfit(f"`{name}` reduces over [{', '.join(sorted(node.over))}] as well as over windows")
    axes = _order(group)
    _check_cost(name, sums)
    image = _image(axes, {axis for node in sums for axis, _, _ in node.window})
    inner = image or axes[-1:]
    parts, constants = elementwise_plan(group, axes), Constants()
    results = tuple(replace(r, expr=constants.rewrite(r.expr)) for r in parts.results)
    bindings = tuple(replace(b, expr=constants.rewrite(b.expr)) for b in parts.bindings)
    return WindowsPlan(
        parts=replace(parts, results=results, bindings=bindings),
        image=image,
        operands=tuple(operand_of(o.tensor, axes[: -len(inner)], inner) for o in parts.operands),
        levels=tuple(level.sums for level in levels_of([r.expr for r in results], frozenset())),
        constants=tuple(constants.values.items()),
    )


def _order(group: Group) -> Order:
    """The axes as the results have them in memory."""
    for result in group.results:
        if result.tensor.axes != group.space:
            lacking = ", ".join(sorted(group.space - result.tensor.axes))
            raise Misfit(f"`{result.tensor.name}` does not have {lacking}, over which its value varies")
    orders = {r.tensor.order for r in group.results}
    if len(orders) > 1:
        names = ", ".join(f"`{r.tensor.name}[{', '.join(r.tensor.order)}]`" for r in group.results)
        raise Misfit(f"{names} have their axes in different orders")
    (order,) = orders
    return order


def _image(axes: Order, windowed: set[str]) -> Order:
    """The axes that a kernel can walk along, if any."""
    if len(windowed) == 1:
        (axis,) = windowed
        return axes[axes.index(axis) :]
    return axes[-2:] if windowed == set(axes[-2:]) else ()


def _bounds(node: Reduce, axis: str) -> tuple[int, int]:
    return next(((low, high) for found, low, high in node.window if found == axis), (0, 0))


def _joined(bounds: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """How far several windows reach between them, the element itself included."""
    found = [(0, 0), *bounds]
    return min(low for low, _ in found), max(high for _, high in found)


def _check_cost(name: str, sums: list[Reduce]) -> None:
    """Windows of windows are evaluated for each neighbour anew where an image cannot be walked."""
    looks: dict[Expr, int] = {}
    for node in walk(*sums):
        below = max((looks[c] for c in children(node)), default=1)
        own = prod(high - low + 1 for _, low, high in node.window) if isinstance(node, Reduce) else 1
        looks[node] = below * own
        if below > 1 and own > 1 and looks[node] > NEIGHBOURS:
            raise Misfit(f"`{name}` sums windows of {below} elements within windows of {own}")


def is_costly(node: Expr) -> bool:
    """Whether a value takes a root, a power or another function."""
    match node:
        case Mul(factors=factors):
            return any(exponent.denominator > 1 for _, exponent in factors)
        case _:
            return is_function(node)


class Constants:
    """Rewrites expressions: what has no axes is computed once per thread, so that each such value becomes a
    scalar of its own, but for operands. In a product or a sum of mixed rates the part without axes is
    gathered into one value first.

        k + 0.2 * alpha * sum[C: -2..2](x^2)     becomes     k + (0.2 * alpha) * sum[C: -2..2](x^2)

    `values` are what the new scalars stand for, in the order of their making.
    """

    def __init__(self) -> None:
        self.values: dict[Expr, Expr] = {}
        self._done: dict[Expr, Expr] = {}

    def rewrite(self, node: Expr) -> Expr:
        """The expression with its values without axes as scalars."""
        if node not in self._done:
            self._done[node] = self._rewrite(node)
        return self._done[node]

    def _rewrite(self, node: Expr) -> Expr:
        if _is_fixed(node):
            return self._leaf(node)
        match node:
            case Mul(coefficient=c, factors=pairs):
                fixed = mul(c, *(power(b, e) for b, e in pairs if _is_fixed(b)))
                rest = (power(self.rewrite(b), e) for b, e in pairs if not _is_fixed(b))
                return mul(self._leaf(fixed), *rest)
            case Add(terms=pairs):
                fixed = add(*(mul(c, t) for t, c in pairs if _is_fixed(t)))
                rest = (self._term(t, c) for t, c in pairs if not _is_fixed(t))
                return add(self._leaf(fixed), *rest)
            case _:
                return rebuild(node, tuple(map(self.rewrite, children(node))))

    def _term(self, term: Expr, coefficient: Fraction) -> Expr:
        """A term of a sum; its coefficient joins what is gathered, if anything is."""
        if isinstance(term, Mul) and any(_is_fixed(b) for b, _ in term.factors):
            return self.rewrite(mul(coefficient, term))
        return mul(coefficient, self.rewrite(term))

    def _leaf(self, node: Expr) -> Expr:
        if isinstance(node, Const | Scalar | Extent) or is_condition(node):
            return node
        leaf = scalar(f"%{node.key}")
        self.values[leaf] = node
        return leaf


def _is_fixed(node: Expr) -> bool:
    """Whether a value is the same everywhere, and made of nothing that is read."""
    return not node.axes and not any(isinstance(n, Load) for n in walk(node))
