"""Steps by PyTorch's operators, as their programs say: what CPU tensors run, and float64 everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from normgen.dtypes import DTYPES
from normgen.launching.layout import REST, Lengths, Shape, shape_of, solve
from normgen.locks import cached_property
from normgen.package.direction import Direction
from normgen.runtime.calls.binding import check_reductions, result_dtype
from normgen.torch import layouts
from normgen.torch.calls import Numbers, Tensors, Wanted
from normgen.torch.dtypes import NAMES, TYPES

if TYPE_CHECKING:
    from normgen.ir.nodes import Expr
    from normgen.ir.program import Program
    from normgen.torch.printing import Form


class Made(NamedTuple):
    """The results of a call in order, None for those that are not wanted, and its new states by name."""

    results: tuple[torch.Tensor | None, ...]
    states: dict[str, torch.Tensor]


class Stored(NamedTuple):
    """How a result or a new state lies. `last`: whether its channels lie innermost."""

    dtype: torch.dtype
    shape: Shape
    last: bool

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """One to be filled in."""
        if self.last:
            return layouts.empty_last(like, self.shape, self.dtype)
        return like.new_empty(self.shape, dtype=self.dtype)

    def laid(self, made: torch.Tensor) -> torch.Tensor:
        """What was made, as it is to lie. Detached, or autograd would take it for a view, and refuse what
        changes it in place."""
        made = made.reshape(self.shape)
        if not self.last:
            return made.contiguous().detach()
        return made.detach() if layouts.channels_last(made) else layouts.laid_last(made)


@dataclass(frozen=True, eq=False)
class Derived:
    """One direction of a norm. Kernels' f32 is float64 where an operand is."""

    direction: Direction
    program: Program
    numbers: tuple[str, ...]  # attrs in the order of a call

    def prepare(self, tensors: Tensors, wanted: Wanted, reuses: bool) -> Callable[[Tensors, Numbers], Made]:
        """What makes calls on tensors of such shapes and types. What is made of something without elements
        alone is zero, as with kernels. `reuses`: whether tensors are written that a call has made."""
        from normgen.torch.cutting import cut_of
        from normgen.torch.printing import Form

        direction, reads = self.direction, self.direction.reads
        given = {name: each for name, each in zip(reads, tensors, strict=True) if each is not None}
        records = direction.operands
        lengths = solve([(records[name], tuple(t.shape)) for name, t in given.items()], direction.axes)
        check_reductions(direction, lengths)
        dtypes = element_types({name: t.dtype for name, t in given.items()}, wanted)
        stored = {name: dtype_of(direction, name, dtypes) for name in wanted.names}
        stored |= {name: NAMES[given[name].dtype] for name in direction.updated if name in given}
        last = layouts.results_last(direction, tensors)
        places = [place for place, tensor in enumerate(tensors) if tensor is not None]
        computed = self._computed({*stored}, lengths)
        sizes = self._sizes(lengths)
        cut = cut_of(self.program, tuple(given), computed, sizes) if reuses and not last else None
        form = Form(
            tuple((name, stored[name]) for name in computed),
            tuple(given),
            frozenset(direction.mentioned - given.keys()),
            tuple(dtypes.items()),
            reuses,
        )
        real = TYPES[form.real]
        if cut is not None:
            form = _converted_later(form)
        step, text = self._function(form)
        made = {
            name: Stored(TYPES[dtype], shape_of(self._record(name), lengths), name in last)
            for name, dtype in stored.items()
        }
        missing = [name for name in wanted.names if name not in computed]
        wide = [size if is_wide else 1 for size, is_wide in zip(sizes, text.wide, strict=True)]

        def call(tensors: Tensors, numbers: Numbers) -> Made:
            there = [tensors[place] for place in places]
            if cut is None:
                buffers = [there[0].new_empty(wide, dtype=real) for _ in range(text.buffers)]
                values = step(*there, *numbers, *sizes, *buffers)
                results = [made[name].laid(value) for name, value in zip(computed, values, strict=True)]
            else:
                results = [made[name].empty(there[0]) for name in computed]
                cut.run(step, text, real, there, numbers, results)
            found = dict(zip(computed, results, strict=True))
            for name in missing:
                found[name] = made[name].empty(there[0]).zero_()
            return Made(
                tuple([found.get(name) for name in direction.results]),
                {name: found[name] for name in direction.updated if name in found},
            )

        return call

    def _record(self, name: str) -> Any:
        """The record of a result or of a state."""
        return self.direction.results.get(name) or self.direction.operands[name]

    def run(
        self, given: Mapping[str, torch.Tensor], scalars: Mapping[str, float], wanted: Wanted
    ) -> tuple[torch.Tensor | None, ...]:
        """The results of one call."""
        tensors = tuple(given.get(name) for name in self.direction.reads)
        numbers = tuple(scalars[name] for name in self.numbers)
        with torch.no_grad():
            return self.prepare(tensors, wanted, reuses=True)(tensors, numbers).results

    def _function(self, form: Form) -> Any:
        from normgen.torch.printing import text_of

        found = self._functions.get(form)
        if found is None:
            names = dict(_NAMES)
            text = text_of(self.program, form)
            exec(compile(text.text, f"<{self.program.name}>", "exec"), names)
            found = self._functions[form] = names["step"], text
        return found

    @cached_property
    def _functions(self) -> dict[Any, Any]:
        return {}

    def _sizes(self, lengths: Lengths) -> list[int]:
        """The length of each axis. ValueError for one that no array tells."""
        from normgen.torch.printing import axes_of

        known = {REST: 1, **lengths.axes}
        for axis in axes_of(self.program):
            if axis not in known:
                raise ValueError(f"the length of {axis} is unknown: no given array determines it")
        return [known[axis] for axis in axes_of(self.program)]

    def _computed(self, names: set[str], lengths: Lengths) -> list[str]:
        """The results, then the states, among `names` that no empty axis concerns: none that gradients are
        but sums over."""
        from normgen.ir.nodes import Reduce, walk

        empty = {axis for axis, length in lengths.axes.items() if isinstance(length, int) and not length}

        def is_made(expr: Expr, own: tuple[str, ...]) -> bool:
            if not empty.isdisjoint(own):
                return False
            if not self.direction.mentioned:
                return all(empty.isdisjoint(each.axes) for each in walk(expr))
            reduced = (each for each in walk(expr) if isinstance(each, Reduce) and each.op != "sum")
            return all(empty.isdisjoint(each.over) for each in reduced)

        every = [(r.tensor.name, r.expr, r.tensor.order) for r in self.program.results]
        every += [(u.state, u.expr, ()) for u in self.program.updates]
        return [name for name, e, own in every if name in names and (not empty or is_made(e, own))]


def _power(base: Any, exponent: float) -> Any:
    """A power of a number; infinite or NaN where Python raises an error."""
    return base**exponent if base > 0 else _number("pow", base, exponent)


def _number(op: str, *numbers: float) -> float:
    """A primitive of numbers."""
    import numpy as np

    from normgen.ir.primitives import PRIMITIVES

    with np.errstate(all="ignore"):
        return float(PRIMITIVES[op].meaning(*map(np.float64, numbers)))


def _rounded(number: float, dtype: str) -> float:
    from normgen.dtypes import round_to

    return float(round_to(number, dtype))


def _neighbours(x: torch.Tensor, dim: int, length: Any, low: int, high: int) -> torch.Tensor:
    """The sum over i + low .. i + high along a dimension; what lies outside adds nothing."""
    if isinstance(length, int):
        low, high = max(low, 1 - length), min(high, length - 1)
    left, right, width = max(-low, 0), max(high, 0), high - low + 1
    ends = [0, 0] * (x.dim() - 1 - dim)
    padded = torch.nn.functional.pad(x, [*ends, left, right])
    if width <= 0:
        return torch.zeros_like(x)
    begin = low + left
    if width <= _SLICED:
        total = padded.narrow(dim, begin, length)
        for offset in range(1, width):
            total = total + padded.narrow(dim, begin + offset, length)
        return total.clone() if width == 1 else total
    moved = padded.narrow(dim, begin, length + width - 1).movedim(dim, -1)
    rows = moved.reshape(-1, 1, 1, length + width - 1)
    sums = torch.nn.functional.avg_pool2d(rows, (1, width), stride=1, divisor_override=1)
    return sums.reshape(*moved.shape[:-1], length).movedim(-1, dim)


_SLICED = 32  # elements of a window that is added up slice by slice; wider ones are pooled
_NAMES = {
    "torch": torch, "power": _power, "number": _number, "rounded": _rounded, "neighbours": _neighbours,
}  # fmt: skip


def element_types(given: Mapping[str, torch.dtype], wanted: Wanted) -> dict[str, str]:
    """The names of element types: of the operands of a call, and of those that it is told of alone."""
    return {name: NAMES[dtype] for name, dtype in (*given.items(), *wanted.types)}


def _converted_later(form: Form) -> Form:
    """The form of results that are converted where they are copied to."""
    types = ((name, dtype if DTYPES[dtype].saturates else form.real) for name, dtype in form.stored)
    return replace(form, stored=tuple(types))


def dtype_of(direction: Direction, result: str, dtypes: Mapping[str, str]) -> str:
    """The element type of a result: beside an f64 operand, f32 is what is like an f32 operand."""
    record = direction.results[result]
    found = result_dtype(direction, record, dtypes)
    like = record.source if record.role == "gradient" else record.like
    return "f64" if found == "f32" and "f64" in dtypes.values() and like not in dtypes else found
