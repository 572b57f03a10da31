"""A running error analysis: the value of every node of a program, and how far a kernel may be from it.

`analyse` returns, for each result, its value and an absolute error bound per element, for any program: no
tolerance is written for a norm by hand. The bound is what float32 evaluation in any order can do to these
very numbers:

- loads are exact; what is passed as `errors` (a saved statistic was rounded when it was stored) comes on
  top;
- every operation follows its rule in `estimate`;
- a sum of n terms adds `SUM_GROWTH` roundings of the sum of magnitudes. A kernel adds serially in a thread
  and then in a tree: sqrt(n / threads) + log2(threads) roundings or so of partial sums that are half the
  total on average;
- `minus(v, m)`, which the centring pass makes of v - mean(v), is where a naive analysis says nothing: m
  carries an error of eps * |m|. But the pass subtracts mean(v - m) again, and for that any number may stand
  for m. So m is moved by its own bound and then taken as exact, and every magnitude after it is a kernel's;
- a condition that the errors could turn takes the difference of both sides as its error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from normgen.dtypes import round_to
from normgen.ir import expr as ir
from normgen.ir.expr import Expr
from normgen.ir.facts import is_nonnegative
from normgen.ir.nodes import walk_finishing
from normgen.ir.primitives import FOLDS, PRIMITIVES
from normgen.ir.program import Program
from normgen.ir.space import Space
from normgen.ir.ties import tie_of
from normgen.verify.estimate import Arithmetic, Estimate, FloatArray, Function, change_of

# A multiple of the analysis's own count of roundings. float32 emulations of the bundled specs stay below
# half of that count and sums of two or three terms reach it; the backward has the longer chains.
FORWARD_SLACK = 2.0
BACKWARD_SLACK = 4.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is evaluated on: an array per operand, a dimension per axis; lengths; float attrs; element
    types."""

    arrays: Mapping[str, FloatArray]
    extents: Mapping[str, int]
    scalars: Mapping[str, float]
    dtypes: Mapping[str, str] = field(default_factory=dict)


def analyse(
    program: Program,
    setting: Setting,
    errors: Mapping[str, FloatArray] | None = None,
    slack: float = 1.0,
) -> dict[str, Estimate]:
    """Value and error bound of every result of a centred `program`, and of every update as
    `update:<state>`."""
    space = Space(tuple(axis.name for axis in program.axes), setting.extents)
    layouts = {t.name: t.order for t in program.operands}
    walker = _Walker(space, layouts, setting, errors or {}, Arithmetic(slack))
    wanted = [(r.tensor.name, r.expr, r.tensor.order) for r in program.results]
    wanted += [(f"update:{u.state}", u.expr, layouts[u.state]) for u in program.updates]
    roots = tuple(expr for _, expr, _ in wanted)
    found: dict[Expr, Estimate] = {}
    with np.errstate(all="ignore"):
        for node, finished in walk_finishing(*roots):
            found[node] = walker.visit(node, found)
            for operand in finished:
                del found[operand]
    return {name: walker.in_layout(found[expr], layout) for name, expr, layout in wanted}


@dataclass(frozen=True, slots=True)
class _Walker:
    """The rules of estimates on the nodes of a program, whose arrays lie in one space."""

    space: Space
    layouts: Mapping[str, tuple[str, ...]]
    setting: Setting
    errors: Mapping[str, FloatArray]
    arithmetic: Arithmetic

    def visit(self, node: Expr, found: Mapping[Expr, Estimate]) -> Estimate:
        """The estimate of a node from those of its operands."""
        rules = self.arithmetic
        match node:
            case ir.Const(value=value):
                return self._constant(float(value))
            case ir.Scalar(name=name):
                return self._constant(float(self.setting.scalars[name]))
            case ir.Extent(axis=axis):
                return self._constant(float(self.setting.extents[axis]))
            case ir.Load(tensor=tensor):
                return self._load(tensor)
            case ir.Add(terms=terms):
                return rules.add([(found[term], coefficient) for term, coefficient in terms])
            case ir.Mul(coefficient=coefficient, factors=factors):
                powers = [rules.power(found[base], e, is_nonnegative(base)) for base, e in factors]
                return rules.multiply(coefficient, powers)
            case ir.Round(arg=arg, to=to):
                dtype = self.setting.dtypes[to.split()[1]] if to.startswith("like ") else to
                return rules.increasing(_rounding(dtype), [found[arg]], 0.0)
            case ir.Reduce(window=(), op=op, over=over, arg=arg):
                return self._reduce(op, over, found[arg])
            case ir.Reduce(window=window, arg=arg):
                return self._window(window, found[arg])
            case ir.Select(condition=condition, then=then, otherwise=otherwise):
                return rules.select(found[condition], found[then], found[otherwise])
            case ir.Call(args=args):
                return self._call(node, [found[arg] for arg in args])
        raise AssertionError(f"no error rule for {type(node).__name__}")

    def _constant(self, value: float) -> Estimate:
        scalar = self.arithmetic.constant(value)
        return Estimate(self.space.number(value), self.space.number(float(scalar.error)))

    def _load(self, tensor: str) -> Estimate:
        layout, given = self.layouts[tensor], self.errors.get(tensor)
        value = self.space.align(self.setting.arrays[tensor], layout)
        return Estimate(value, np.zeros_like(value) if given is None else self.space.align(given, layout))

    def in_layout(self, estimate: Estimate, layout: tuple[str, ...]) -> Estimate:
        """An estimate in a tensor's own axis order."""
        value, error = (self.space.extract(each, layout)[0] for each in (estimate.value, estimate.error))
        return Estimate(value, error)

    def _call(self, node: ir.Call, found: list[Estimate]) -> Estimate:
        rules, op = self.arithmetic, node.op
        primitive = PRIMITIVES[op]
        if primitive.increasing:
            return rules.increasing(primitive.meaning, found, primitive.roundings)
        if primitive.steepest is not None:
            return rules.steady(primitive.meaning, found[0], primitive.steepest, primitive.roundings)
        match op:
            case "stop":
                return found[0]
            case "minus":
                return rules.minus(*found)
            case "pow":
                return rules.general_power(*found)
            case "not":
                return Estimate(1.0 - found[0].value, found[0].error)
            case "and" | "or":
                pick = np.minimum if op == "and" else np.maximum
                a, b = found
                return Estimate(pick(a.value, b.value), np.maximum(a.error, b.error))
            case "lt" | "le" | "eq" | "ne":
                return rules.compare(op, found[0], found[1], tie_of(node) is not None)
        raise AssertionError(f"no error rule for primitive {op}")

    def _reduce(self, op: str, over: frozenset[str], arg: Estimate) -> Estimate:
        places = tuple(sorted(map(self.space.dimension, over)))
        full = self._spread(arg, over)
        pick = FOLDS[op]

        def fold(array: FloatArray) -> FloatArray:
            return np.asarray(pick(array, axis=places, keepdims=True))

        if op == "sum":
            return self.arithmetic.summed(full, int(np.prod([self.setting.extents[a] for a in over])), fold)
        value = fold(full.value)
        above = change_of(value, fold(full.value + full.error))
        below = change_of(value, fold(full.value - full.error))
        return self.arithmetic.finish(value, np.maximum(above, below), 0.0, [])

    def _spread(self, arg: Estimate, axes: frozenset[str]) -> Estimate:
        """An estimate at full length along these axes."""
        return Estimate(self.space.spread(arg.value, axes), self.space.spread(arg.error, axes))

    def _window(self, window: ir.Window, arg: Estimate) -> Estimate:
        length = int(np.prod([high - low + 1 for _, low, high in window]))
        return self.arithmetic.summed(arg, length, lambda array: self.space.neighbours(array, window))


def _rounding(dtype: str) -> Function:
    return lambda values: np.asarray(round_to(values, dtype), dtype=np.float64)
