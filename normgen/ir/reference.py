"""The meaning of a program in NumPy, and its gradient by differences: what everything else is held to.

Arrays are indexed by axes in the tensor's memory order, split dimensions apart and `...` flattened to one
axis. The f64 interpreter is exact in every practical sense; `dtype=np.float32` shows how the expressions
themselves behave in the precision that kernels compute in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import round_to
from normgen.ir.expr import load, mul, reduce
from normgen.ir.nodes import (
    Add,
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
    walk,
    walk_finishing,
)
from normgen.ir.primitives import FOLDS, PRIMITIVES
from normgen.ir.program import Definition, Program, Tensor, dims_of, value_of
from normgen.ir.space import Array, Space

# Operands of so many elements are moved element by element; differences evaluate so many elements at once.
_MOVED_WHOLE, _DIFFERENCED = 2000, 4_000_000
_STEP = 2e-4  # by which an element is moved for its difference quotient


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What the values of nodes depend on beside arrays.

    `roundings`: the element types of tensors where roundings apply. `frozen` presets the values of nodes.
    """

    space: Space
    scalars: Mapping[str, float]
    roundings: Mapping[str, str] | None
    frozen: Mapping[Expr, Array] = field(default_factory=dict)


def evaluate(
    program: Program,
    arrays: Mapping[str, Array],
    extents: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    rounding: bool = False,
    dtypes: Mapping[str, str] | None = None,
    dtype: Any = np.float64,
) -> dict[str, Array]:
    """All results of a program by tensor name, new states as "update:<state>", before any store rounds them.

    `rounding` applies the roundings that the spec writes; `dtypes` then tells the element type of tensors
    (for `cast(v, t)`), which is otherwise the declared one, or f32.
    """
    known = {t.name: t.dtype or "f32" for t in program.operands} | dict(dtypes or {})
    space = Space(_all_axes(program), extents, np.dtype(dtype))
    evaluation = _Evaluation(space, _scalars(program, scalars), known if rounding else None)
    wanted: list[tuple[str, Expr, tuple[str, ...]]] = [
        (result.tensor.name, result.expr, result.tensor.order) for result in program.results
    ]
    by_name = {t.name: t for t in program.operands}
    wanted += [(f"update:{u.state}", u.expr, by_name[u.state].order) for u in program.updates]
    values = _values([e for _, e, _ in wanted], _loads(program.operands, arrays, space), evaluation)
    return {name: space.extract(values[e], order)[0].copy() for name, e, order in wanted}


def finite_differences(
    definition: Definition,
    arrays: Mapping[str, Array],
    extents: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
) -> dict[str, Array]:
    """Gradients d<name> by fourth-order central differences of sum(d<output> * output), element by element.

    Roundings are the identity, and what stands in `stop` keeps its value at the base point. `arrays` hold
    operands and cotangents. An operand left out has its default. Of an operand of more than 2000 elements,
    only some spread over it are moved, and the gradient is NaN at the others.
    """
    program = definition.to_differentiate
    space = Space(_all_axes(program), extents)
    evaluation = _Evaluation(space, _scalars(program, scalars), None)
    loads = _loads(program.operands, arrays, space)
    parts = []
    for name in definition.of:
        value = value_of(program, name)
        cotangent = load(f"d{name}", value.axes)
        loads[cotangent] = space.align(arrays[f"d{name}"], _order(program, name))
        parts.append(reduce("sum", value.axes, mul(cotangent, value)))
    targets = {name: value_of(program, name) for name in definition.wrt}
    lets = {b.name: b.expr for b in program.bindings}
    for tensor in program.operands:
        if tensor.role == "let":  # in order of definition: a later one may load an earlier one
            value = lets[tensor.name]
            loads[load(tensor.name, tensor.axes)] = _values([value], loads, evaluation)[value]
    stopped = [node for node in walk(*parts) if isinstance(node, Call) and node.op == "stop"]
    base = _values([*parts, *targets.values(), *stopped], loads, evaluation)
    frozen: dict[Expr, Array] = {node: base[node] for node in stopped}
    gradients: dict[str, Array] = {}
    for name, node in targets.items():
        centre = space.extract(base[node], _order(program, name))[0]
        slopes = np.full(centre.size, np.nan)
        for places in _places(centre.size):
            batch = np.repeat(centre[None], 4 * len(places), axis=0)
            flat = batch.reshape(4 * len(places), centre.size)
            for index, offset in enumerate((-2, -1, 1, 2)):
                flat[np.arange(len(places)) * 4 + index, places] += offset * _STEP
            moved = replace(evaluation, frozen={**frozen, node: space.align(batch, _order(program, name))})
            found = _values(parts, loads, moved)
            total = sum(
                (np.broadcast_to(found[e].reshape(-1), 4 * len(places)) for e in parts),
                start=np.zeros(4 * len(places)),
            )
            slopes[places] = total.reshape(-1, 4) @ np.array([1.0, -8.0, 8.0, -1.0]) / (12 * _STEP)
        gradients[f"d{name}"] = slopes.reshape(centre.shape)
    return gradients


def _places(count: int) -> Iterator[NDArray[np.intp]]:
    """The elements that are moved, in groups of which the copies fit memory."""
    wanted = count if count <= _MOVED_WHOLE else max(8, _DIFFERENCED // (8 * count))
    places = np.unique(np.linspace(0, count - 1, wanted).astype(np.intp)) if count else np.empty(0, np.intp)
    group = max(1, _DIFFERENCED // max(1, 4 * count))
    for begin in range(0, len(places), group):
        yield places[begin : begin + group]


def check_gradient(
    definition: Definition,
    derived: Program,
    arrays: Mapping[str, Array],
    extents: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The largest error of each derived gradient, relative to the largest difference quotient of it; NaN if
    no difference is a number.

    `arrays` hold operands and cotangents; statistics that the backward reads come from the forward program,
    and so do the states that it updates.
    """
    saved = evaluate(definition.program, arrays, extents, scalars)
    got = evaluate(derived, {**saved, **arrays, **new_states(definition.program, saved)}, extents, scalars)
    want = finite_differences(definition, arrays, extents, scalars)
    return {name: _relative(got[name], want[name]) for name in want}


def new_states(program: Program, results: Mapping[str, Array]) -> dict[str, Array]:
    """What the states of a program hold after its updates, of the results of `evaluate`."""
    return {u.state: results[f"update:{u.state}"] for u in program.updates}


def _relative(got: Array, want: Array) -> float:
    if not want.size:
        return 0.0
    known = ~np.isnan(want)
    if not known.any():
        return np.nan
    with np.errstate(invalid="ignore"):
        error = float(np.abs(got - want)[known | np.isnan(got)].max())
    return np.inf if np.isnan(error) else error / max(float(np.abs(want[known]).max()), 1e-3)


# --------------------------------------------------------------------------- evaluation


def _all_axes(program: Program) -> tuple[str, ...]:
    named = [axis.name for axis in program.axes]
    tensors = [*program.operands, *(r.tensor for r in program.results)]
    return tuple(dict.fromkeys([*(a for t in tensors for a in t.order), *named]))


def _scalars(program: Program, given: Mapping[str, float] | None) -> dict[str, float]:
    values = {a.name: float(a.value) for a in program.attrs if a.value is not None and a.kind == "float"}
    return values | dict(given or {})


def _loads(tensors: Sequence[Tensor], arrays: Mapping[str, Array], space: Space) -> dict[Load, Array]:
    found: dict[Load, Array] = {}
    for tensor in tensors:
        array = arrays.get(tensor.name)
        if array is None and tensor.default is not None:
            array = np.full([space.extents[a] for a in tensor.order], float(tensor.default))
        if array is not None:
            found[load(tensor.name, tensor.axes)] = space.align(array, tensor.order)
    return found


def _order(program: Program, name: str) -> tuple[str, ...]:
    return tuple(axis for dim in dims_of(program, name) for axis in dim)


def _values(roots: Iterable[Expr], loads: Mapping[Load, Array], evaluation: _Evaluation) -> dict[Expr, Array]:
    """The values of the roots."""
    done: dict[Expr, Array] = dict(evaluation.frozen)
    with np.errstate(all="ignore"):
        for node, finished in walk_finishing(*roots):
            if isinstance(node, Load) and node not in done:
                done[node] = loads[node]
            elif node not in done:
                value = _value(node, [done[child] for child in children(node)], evaluation)
                done[node] = np.asarray(value, dtype=evaluation.space.dtype)
            for operand in finished:
                del done[operand]
    return done


def _value(node: Expr, args: list[Array], evaluation: _Evaluation) -> Array:
    space, roundings = evaluation.space, evaluation.roundings
    real = np.dtype(space.dtype).type
    match node:
        case Const(value=value):
            return space.number(float(value))
        case Scalar(name=name):
            return space.number(evaluation.scalars[name])
        case Extent(axis=axis):
            return space.number(space.extents[axis])
        case Add(terms=terms):
            total = args[0] * real(float(terms[0][1]))
            for arg, (_, c) in zip(args[1:], terms[1:], strict=True):
                total = total + arg * real(float(c))
            return total
        case Mul(coefficient=coefficient, factors=factors):
            total = space.number(float(coefficient))
            for arg, (_, e) in zip(args, factors, strict=True):
                total = total * _power(arg, e)
            return total
        case Call(op=op):
            return PRIMITIVES[op].meaning(*args)
        case Round(to=to):
            if roundings is None:
                return args[0]
            like = to.removeprefix("like ")
            return round_to(args[0], roundings[like] if like != to else to).astype(space.dtype)
        case Reduce(op=op, over=over, window=()):
            spread = space.spread(args[0], over)
            where = tuple(space.dimension(axis) for axis in sorted(over))
            return FOLDS[op](spread, axis=where, keepdims=True)
        case Reduce(window=window):
            return space.neighbours(args[0], window)
        case Select():
            return np.where(args[0] != 0, args[1], args[2])
        case _:
            raise AssertionError(type(node))


def _power(base: Array, exponent: Any) -> Array:
    """base^exponent as a kernel computes it: roots by sqrt, whole powers by multiplication."""
    if exponent < 0:
        return 1 / _power(base, -exponent)
    if exponent.denominator == 2:
        return np.sqrt(base) * _power(base, exponent - exponent % 1)
    if exponent.denominator != 1:  # NaN below zero, at -inf too
        return np.where(base < 0, np.nan, np.power(base, base.dtype.type(float(exponent))))
    result = np.ones_like(base)
    for _ in range(min(int(exponent), 16)):
        result = result * base
    return result if exponent <= 16 else np.power(base, base.dtype.type(float(exponent)))
