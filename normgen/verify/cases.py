"""One case of a check: lengths, element types and layouts that a spec's kernels are run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from normgen.ir.expr import reductions, walk
from normgen.ir.program import Definition, Program, Tensor, determined, is_given
from normgen.verify.draw import cotangent_tensors
from normgen.verify.memory import PACKED

HEADS = 1024  # the longest axis beside a row whose length the spec fixes
SAMPLE = 8  # elements that a sample costs at least
WIDEST, LARGEST = 65537, 33 * 65537  # elements of the widest row, and of the largest case


@dataclass(frozen=True, slots=True)
class DtypeSet:
    """Element types of what the spec leaves open, in turn: inputs, params, cotangents."""

    name: str
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    cotangents: tuple[str, ...]


def same_dtype(dtype: str) -> DtypeSet:
    """Everything that is open in one element type."""
    return DtypeSet(dtype, (dtype,), (dtype,), (dtype,))


DTYPE_SETS: tuple[DtypeSet, ...] = (
    same_dtype("f32"),
    same_dtype("bf16"),
    DtypeSet("bf16, params f32", ("bf16",), ("f32",), ("bf16",)),
    same_dtype("f16"),
    DtypeSet("f32, params bf16", ("f32",), ("bf16",), ("f32",)),
    DtypeSet("f16, params f32, cotangents f32", ("f16",), ("f32",), ("f32",)),
    DtypeSet("bf16, params f16, cotangents f32", ("bf16",), ("f16",), ("f32",)),
    DtypeSet("f16, params bf16", ("f16",), ("bf16",), ("f16",)),
    DtypeSet(
        "inputs f32 bf16 f16, params bf16 f32, cotangents f16",
        ("f32", "bf16", "f16"),
        ("bf16", "f32"),
        ("f16",),
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a norm.

    `rest`: the dimensions that `...` stands for. `dtypes`: by tensor, results included. `offset`:
    elements by which operands start beyond an aligned address; `out_offset`: the same of results that the
    caller gives. `pitch`: how far apart the rows of every operand lie. `absent`: params, states
    and cotangents that are left out. `given_out`: the caller gives the arrays of the results; `in_place`:
    where a result may take the memory of an operand, it does. `wrt`: what to differentiate by, if not by
    everything. `save`: the forward returns its statistics. `group`: cases of one group differ in numbers
    of rows alone, and so share most of their compiled kernels.
    """

    extents: Mapping[str, int]
    rest: tuple[int, ...]
    dtypes: Mapping[str, str]
    dtype_name: str
    offset: int = 0
    out_offset: int = 0
    pitch: str = PACKED
    absent: tuple[str, ...] = ()
    given_out: bool = False
    in_place: bool = False
    accumulate: bool = False
    wrt: tuple[str, ...] | None = None
    save: bool = True
    seed: int = 0
    group: int = 0

    @property
    def shape_text(self) -> str:
        """The lengths, for the table."""
        layout = f" +{self.offset}" if self.offset else ""
        layout += f" out +{self.out_offset}" if self.given_out and self.out_offset else ""
        layout += f" {self.pitch}" if self.pitch else ""
        layout += f" without {', '.join(self.absent)}" if self.absent else ""
        layout += f" wrt {', '.join(self.wrt)}" if self.wrt is not None else ""
        layout += " in place" if self.in_place else ""
        layout += " accumulate" if self.accumulate else ""
        layout += "" if self.save else " save=False"
        return " ".join(f"{axis}={self._length_text(axis)}" for axis in self.extents) + layout

    def _length_text(self, axis: str) -> str:
        dims = self.rest if axis == "..." else (self.extents[axis],)
        return "x".join(map(str, dims)) or "()"

    def memory_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of a tensor's array."""
        shape: list[int] = []
        for group in tensor.dims:
            shape += self.rest if group == ("...",) else [prod(self.extents[axis] for axis in group)]
        return tuple(shape)

    def elements(self, definition: Definition) -> int:
        """How many elements the largest array has, or the largest value within the norm."""
        return elements(definition, self.extents)

    def work(self, definition: Definition) -> int:
        """What a case costs that is simulated, in elements: many thin samples cost their blocks."""
        return max(self.elements(definition), SAMPLE * self.extents[axis_order(definition)[0]])


def make_case(
    definition: Definition,
    rows: int,
    width: int,
    dtypes: DtypeSet = DTYPE_SETS[0],
    sizes: Mapping[str, int] | None = None,
) -> Case:
    """A case with so many rows of such a width, as far as the spec leaves its lengths open."""
    extents = _extents(definition, rows, width, sizes or {})
    return Case(
        extents, _split(extents.get("...", 1), rows + width), element_types(definition, dtypes), dtypes.name
    )


def element_types(definition: Definition, dtypes: DtypeSet) -> dict[str, str]:
    """The element type of every operand, cotangent and result."""
    program = definition.program
    found: dict[str, str] = {}
    pools = {
        "input": dtypes.inputs,
        "param": dtypes.params,
        "cotangent": dtypes.cotangents,
        "state": ("f32",),
    }
    counts = dict.fromkeys(pools, 0)
    first = next((t.name for t in program.operands if t.role == "input"), None)
    for tensor in (*program.operands, *cotangent_tensors(definition)):
        pool = pools[tensor.role]
        found[tensor.name] = tensor.dtype or pool[counts[tensor.role] % len(pool)]
        counts[tensor.role] += tensor.dtype is None
    results = [r.tensor for r in program.results]
    for tensor in (*program.operands, *results):
        like = tensor.like or (first if tensor.role == "output" else None)
        if tensor.dtype is None and like is not None:
            found[tensor.name] = found[like]
        elif tensor.name not in found:
            found[tensor.name] = tensor.dtype or "f32"
    return found


def statistics_axes(definition: Definition) -> tuple[str, ...]:
    """The axes that the forward reduces over, innermost last; without any, the last axis of the first
    input."""
    order = axis_order(definition)
    reduced = reduced_axes(definition)
    return tuple(axis for axis in order if axis in reduced) or order[-1:]


def reduced_axes(definition: Definition) -> set[str]:
    """The axes that some reduction or window of the forward goes over."""
    program = definition.program
    reduced: set[str] = set()
    for node in reductions(*(r.expr for r in program.results), *(u.expr for u in program.updates)):
        reduced |= node.over | {axis for axis, _, _ in node.window}
    return reduced


def axis_order(definition: Definition) -> tuple[str, ...]:
    """Every axis of the operands, as the inputs have them first."""
    tensors = definition.program.operands
    return tuple(
        dict.fromkeys(axis for t in sorted(tensors, key=lambda t: t.role != "input") for axis in t.order)
    )


def elements(definition: Definition, extents: Mapping[str, int]) -> int:
    """How many elements the largest array has, or the largest value within the norm, with axes of these
    lengths: x[B, I] and w[O, I] may be small where what is summed over I is not."""
    return max(
        (prod(extents.get(axis, 1) for axis in axes) for axes in _spaces(definition.program)), default=0
    )


@lru_cache(maxsize=64)
def _spaces(program: Program) -> tuple[frozenset[str], ...]:
    """The axes of every operand and of every value that the results are made of, each set once."""
    values = walk(*(r.expr for r in program.results), *(u.expr for u in program.updates))
    found = [*(t.axes for t in program.operands), *(node.axes for node in values)]
    return tuple(dict.fromkeys(found))


def fixed_extents(definition: Definition) -> dict[str, int]:
    """The lengths that the spec itself fixes."""
    return {axis.name: axis.extent for axis in definition.program.axes if axis.extent is not None}


def _extents(definition: Definition, rows: int, width: int, sizes: Mapping[str, int]) -> dict[str, int]:
    order, fixed = axis_order(definition), fixed_extents(definition)
    inner = statistics_axes(definition)
    wide = [axis for axis in inner if axis not in fixed]
    outer = [axis for axis in order if axis not in inner and axis not in fixed]
    if not wide and len(outer) > 1:  # the spec fixes the row: the innermost other axis takes the width
        wide, outer, width = outer[-1:], outer[:-1], min(width, HEADS)
    elif width * (step := prod(fixed[axis] for axis in inner if axis in fixed)) > WIDEST:
        width = -(-width // step)  # the groups that the spec fixes are part of the row
    rows_of_each = prod(fixed[axis] for axis in order if axis in fixed and axis not in inner)
    if rows * rows_of_each * width > LARGEST:  # the heads or groups that the spec fixes are rows too
        rows = -(-rows // rows_of_each)
    found = dict(zip(wide, factors(width, len(wide)), strict=True))
    found |= dict(zip(outer, reversed(factors(rows, len(outer))), strict=True))
    return {axis: sizes.get(axis, fixed.get(axis, found.get(axis, 1))) for axis in order}


def told(definition: Definition, case: Case) -> Case:
    """The case with the lengths that a call is told of: of a dimension (S B) of length 0 where B = 0 those of
    S are anything, and then 0 too, if no other array has them."""
    if all(case.extents.values()):
        return case
    operands = [tensor for tensor in definition.program.operands if is_given(tensor)]
    plain = [replace(t, dims=tuple(d for d in t.dims if _tells(d, case.extents))) for t in operands]
    known = determined(plain, fixed_extents(definition))
    return replace(case, extents={axis: n if axis in known else 0 for axis, n in case.extents.items()})


def _tells(dims: tuple[str, ...], extents: Mapping[str, int]) -> bool:
    return len(dims) == 1 or all(extents[axis] for axis in dims)


def factors(number: int, count: int) -> list[int]:
    """`count` numbers with this product: small prime factors first, the rest last."""
    if count == 0:
        return []
    found = []
    for _ in range(count - 1):
        factor = next((p for p in (2, 3, 5, 7) if number % p == 0 and number > p), 1)
        found.append(factor)
        number //= factor
    return [*found, number]


def _split(length: int, turn: int) -> tuple[int, ...]:
    """The dimensions of a `...` of this length: none for a single row at times, two where it has a small
    factor."""
    if length == 1 and turn % 2:
        return ()
    first, second = factors(length, 2)
    return (first, second) if first > 1 and turn % 2 else (length,)
