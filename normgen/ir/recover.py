"""Read what the forward kept instead of computing it again.

For a kept value s = c * b^p * rest, every power of the base b becomes a power of s, b^e = (s / (c *
rest))^(e/p), where that divides by nothing that may be zero; any other kept value replaces exactly itself.
A kept t - log(s) also gives exp(t) / s as its exponential, and a kept max(t, c) tells where t > c. Kept
values are used in the order of their definition, and later definitions are rewritten by earlier ones. A
replacement that would leave more reductions than before is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from normgen.ir.expr import ONE, add, call, compare, factors, load, mul, power, rebuild, reduce, walk
from normgen.ir.facts import is_nonnegative, is_positive
from normgen.ir.nodes import Add, Call, Const, Expr, Extent, Load, Mul, Reduce, Scalar, children
from normgen.ir.ties import is_stored, tie_of

Replace = Callable[[Expr, tuple[Expr, ...]], Expr | None]


def transform(roots: Iterable[Expr], replace: Replace, real: bool = True) -> dict[Expr, Expr]:
    """Bottom-up: `replace(node, new operands)` or, where that is None, the node on its new operands."""
    done: dict[Expr, Expr] = {}
    for node in walk(*roots):
        old = children(node)
        new = tuple(done[child] for child in old)
        found = replace(node, new)
        if found is None:
            found = node if new == old else rebuild(node, new, real)
        done[node] = found
    return done


def without_stops(roots: Iterable[Expr], lets: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """`stop(v)` as v, which means something to derivatives only; loads of opened lets as their values."""
    values: dict[Expr, Expr] = {}

    def replace(node: Expr, new: tuple[Expr, ...]) -> Expr | None:
        return new[0] if isinstance(node, Call) and node.op == "stop" else values.get(node)

    for opened, value in lets.items():  # in order of definition: a later one may load an earlier one
        values[opened] = transform([value], replace)[value]
    return transform(roots, replace)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a backward reads: values of these names as they were `kept`; no root of them where it must be
    `smooth`; none of the operands that have `moved` on."""

    kept: Collection[str]
    smooth: bool
    moved: Collection[str]


@dataclass(frozen=True, slots=True)
class _Recipe:
    """base^exponent * others = value; where `base` is the whole definition, `exponent` is 1 and
    `others` ONE."""

    base: Expr
    exponent: Fraction
    others: Expr
    value: Expr
    reading: _Reading

    def power_of_base(self, e: Fraction) -> Expr | None:
        """base^e through the kept value, if that is the same wherever the forward is a number."""
        ratio = e / self.exponent
        if ratio.denominator != 1 and (self.reading.smooth or not is_nonnegative(self.base)):
            return None
        _, others = factors(self.others)
        if not all(is_positive(b) or (ratio > 0 > f) for b, f in others):
            return None
        return mul(power(self.value, ratio), power(self.others, -ratio, real=True), real=True)

    def apply(self, roots: Iterable[Expr]) -> dict[Expr, Expr]:
        """Every node below the roots, with the base read off the kept value."""
        _, others = factors(self.others)
        frozen = {b for b, _ in others}  # these stay as they are, so that they cancel

        def replace(node: Expr, new: tuple[Expr, ...]) -> Expr | None:
            if node in frozen:
                return node
            if (tie := tie_of(node)) is not None and not self._is_stored(tie[0]):
                return self._tie(node, *tie, new)
            if node is self.base:
                return self.power_of_base(Fraction(1))
            if isinstance(node, Mul) and any(b is self.base for b, _ in node.factors):
                pieces = [self._factor(b, e, a) for (b, e), a in zip(node.factors, new, strict=True)]
                return mul(node.coefficient, *pieces, real=True)
            return None

        return transform(roots, replace)

    def _is_stored(self, value: Expr) -> bool:
        """Whether the forward looked at the very bits that the backward will."""
        return is_stored(value) and not any(_is_of(node, self.reading.kept) for node in walk(value))

    @staticmethod
    def _tie(node: Expr, value: Expr, extreme: Reduce, new: tuple[Expr, ...]) -> Expr:
        """A comparison with the extreme of the values as the backward computes them: that of the forward is
        equal to none of them where it rounded otherwise."""
        assert isinstance(node, Call)
        computed = new[node.args.index(value)]
        return call(node.op, computed, reduce(extreme.op, extreme.over, computed))

    def _factor(self, base: Expr, e: Fraction, rewritten: Expr) -> Expr:
        found = self.power_of_base(e) if base is self.base else None
        return found or power(rewritten, e, real=True)


def use_kept(
    roots: Sequence[Expr],
    kept: Sequence[tuple[str, Expr]],
    also: Sequence[Expr] = (),
    smooth: bool = False,
    moved: Collection[str] = (),
) -> dict[Expr, Expr]:
    """The image of every node below `roots` and `also`, reading kept values (name, definition) where
    possible. `smooth`: only so that derivatives by the kept values exist wherever those by the operands do.
    `moved`: operands that can no longer be read, and so are recovered themselves.
    """
    image = {node: node for node in walk(*roots, *(d for _, d in kept), *also)}
    reading = _Reading(frozenset(name for name, _ in kept), smooth, moved)
    for name, original in kept:
        value = load(name, original.axes)
        copied = isinstance(image[original], Load)
        # What else is known by a definition has a turn of its own.
        for recipes in (_recipes, _exponential_recipes, _side_recipes):
            best, cost = image, _cost((image[root] for root in roots), moved)
            present = set(walk(*(image[root] for root in roots)))
            for recipe in recipes(image[original], value, reading):
                if recipe.base not in present and not copied:
                    continue  # nothing to replace
                table = recipe.apply(image.values())
                attempt = {node: table[e] for node, e in image.items()}
                now = _cost((attempt[root] for root in roots), moved)
                # A copy of a state is read even where that is dearer: another call may update the state.
                if now < cost or copied:
                    best, cost = attempt, now
            image = best
    return image


def _cost(roots: Iterable[Expr], moved: Collection[str]) -> tuple[int, int, int]:
    nodes = list(walk(*roots))
    gone = sum(_is_of(n, moved) for n in nodes)
    return gone, sum(isinstance(n, Reduce) for n in nodes), len(nodes)


def _is_of(node: Expr, tensors: Collection[str]) -> bool:
    return isinstance(node, Load) and node.tensor in tensors


def _recipes(definition: Expr, value: Expr, reading: _Reading) -> Iterator[_Recipe]:
    """What may be read off a kept value: itself, or a base of a product."""
    if isinstance(definition, Const | Scalar | Extent):
        return
    yield _Recipe(definition, Fraction(1), ONE, value, reading)
    if isinstance(definition, Mul):
        for base, e in definition.factors:
            if children(base) or _is_of(base, reading.moved):
                rest = [power(b, f) for b, f in definition.factors if b is not base]
                yield _Recipe(base, e, mul(definition.coefficient, *rest), value, reading)


def _exponential_recipes(definition: Expr, value: Expr, reading: _Reading) -> Iterator[_Recipe]:
    """exp(t + c * log(u)) is exp(t) * u^c."""
    if not isinstance(definition, Add):
        return
    powers = [power(t.args[0], c) for t, c in definition.terms if isinstance(t, Call) and t.op == "log"]
    rest = [mul(c, t) for t, c in definition.terms if not (isinstance(t, Call) and t.op == "log")]
    if powers and rest:
        yield _Recipe(call("exp", add(*rest)), Fraction(1), mul(*powers), call("exp", value), reading)


def _side_recipes(definition: Expr, value: Expr, reading: _Reading) -> Iterator[_Recipe]:
    """max(t, c) > c where t > c, and min(t, c) < c where t < c."""
    match definition:
        case Call(op="max" | "min" as op, args=(inner, Const() as bound)):
            sign = ">" if op == "max" else "<"
            told = compare(sign, value, bound)
            yield _Recipe(compare(sign, inner, bound), Fraction(1), ONE, told, reading)
