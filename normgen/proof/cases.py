"""The cases of a proof: which lengths, element types and layouts a spec's kernels are run on.

`covering` is a sample of rows x widths x element types x layouts in which every width occurs, every number
of rows, every set of element types (three of one type, six mixed) with aligned and misaligned, packed and
padded rows. `thorough` takes every width with every number of rows, and every set of element types at a few
widths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from normgen.ir.expr import reductions
from normgen.ir.program import Definition, Tensor
from normgen.proof.draw import cotangent_tensors

ROWS = (0, 1, 2, 3, 33)
WIDTHS = (1, 2, 3, 7, 8, 31, 32, 33, 100, 127, 128, 1000, 1023, 1024, 4097, 16385, 65537)
LARGEST = 200_000  # elements of a tensor in a case


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

    `rest`: the dimensions that `...` stands for. `dtypes`: by tensor, results included. `offset`: elements
    by which arrays start beyond an aligned address. `padded`: rows of every operand lie one element further
    apart. `absent`: params that are left out. `given_out`: the caller gives the arrays of the results.
    """

    extents: Mapping[str, int]
    rest: tuple[int, ...]
    dtypes: Mapping[str, str]
    dtype_name: str
    offset: int = 0
    padded: bool = False
    absent: tuple[str, ...] = ()
    given_out: bool = False
    accumulate: bool = False
    seed: int = 0

    @property
    def shape_text(self) -> str:
        """The lengths, for the table."""
        layout = f" +{self.offset}" if self.offset else ""
        layout += " padded" if self.padded else ""
        layout += f" without {', '.join(self.absent)}" if self.absent else ""
        layout += " accumulate" if self.accumulate else ""
        return " ".join(f"{axis}={length}" for axis, length in self.extents.items()) + layout

    def memory_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of a tensor's array."""
        shape: list[int] = []
        for group in tensor.dims:
            shape += self.rest if group == ("...",) else [prod(self.extents[axis] for axis in group)]
        return tuple(shape)


def make_case(
    definition: Definition,
    rows: int,
    width: int,
    dtypes: DtypeSet = DTYPE_SETS[0],
    sizes: Mapping[str, int] | None = None,
) -> Case:
    """A case with about so many rows of about such a width, as far as the spec leaves its lengths open."""
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


def covering(
    definition: Definition, sizes: Mapping[str, int] | None = None, sets: Sequence[DtypeSet] = DTYPE_SETS
) -> list[Case]:
    """The sample that the suite runs."""
    cases = [replace(make_case(definition, 0, 7, sets[0], sizes), given_out=True)]
    params = [t.name for t in definition.program.operands if t.role == "param" and t.default is not None]
    for index, width in enumerate(WIDTHS):
        rows = min((1, 2, 3, 33)[index % 4], max(1, LARGEST // width))
        dtypes = sets[(2 * index) % len(sets)]
        absent = tuple(params[i] for i in range(len(params)) if (index + i) % 5 == 3)
        cases.append(
            replace(
                make_case(definition, rows, width, dtypes, sizes),
                offset=(0, 0, 1, 2, 3)[index % 5],
                padded=index % 3 == 1,
                given_out=index % 2 == 1,
                accumulate=index % 4 == 3,
                absent=absent,
                seed=index,
            )
        )
    return _distinct(cases)


def thorough(
    definition: Definition, sizes: Mapping[str, int] | None = None, sets: Sequence[DtypeSet] = DTYPE_SETS
) -> list[Case]:
    """The fuller run."""
    cases = covering(definition, sizes, sets)
    for index, (width, rows) in enumerate((w, r) for w in WIDTHS for r in ROWS):
        if width * rows <= 4 * LARGEST:
            dtypes = sets[index % len(sets)]
            cases.append(replace(make_case(definition, rows, width, dtypes, sizes), seed=1000 + index))
    for index, (dtypes, width) in enumerate((d, w) for d in sets for w in (7, 33, 128, 1000, 4097)):
        for offset in range(4):
            case = replace(
                make_case(definition, 3, width, dtypes, sizes), offset=offset, padded=index % 2 == 0
            )
            cases.append(replace(case, seed=2000 + index))
    return _distinct(cases)


def statistics_axes(definition: Definition) -> tuple[str, ...]:
    """The axes that the forward reduces over, innermost last; without any, the last axis of the first
    input."""
    program = definition.program
    reduced: set[str] = set()
    for node in reductions(*(r.expr for r in program.results)):
        reduced |= node.over | {axis for axis, _, _ in node.window}
    order = _axis_order(definition)
    return tuple(axis for axis in order if axis in reduced) or order[-1:]


def _axis_order(definition: Definition) -> tuple[str, ...]:
    tensors = definition.program.operands
    return tuple(
        dict.fromkeys(axis for t in sorted(tensors, key=lambda t: t.role != "input") for axis in t.order)
    )


def _extents(definition: Definition, rows: int, width: int, sizes: Mapping[str, int]) -> dict[str, int]:
    order = _axis_order(definition)
    fixed = {axis.name: axis.extent for axis in definition.program.axes if axis.extent is not None}
    inner = statistics_axes(definition)
    rows = min(rows, max(1, LARGEST // (width * prod(fixed[axis] for axis in order if axis in fixed))))
    found: dict[str, int] = {}
    wide = [axis for axis in inner if axis not in fixed]
    outer = [axis for axis in order if axis not in inner and axis not in fixed]
    if (
        not wide and len(outer) > 1
    ):  # the spec fixes the width: let the innermost other axis have it, in reason
        wide, outer = outer[-1:], outer[:-1]
        width = min(width, 1 + LARGEST // max(1, 64 * rows))
    found |= dict(zip(wide, _factors(width, len(wide)), strict=True))
    found |= dict(zip(outer, reversed(_factors(rows, len(outer))), strict=True))
    return {axis: sizes.get(axis, fixed.get(axis, found.get(axis, 1))) for axis in order}


def _factors(number: int, count: int) -> list[int]:
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
    first, second = _factors(length, 2)
    return (first, second) if first > 1 and turn % 2 else (length,)


def _distinct(cases: Iterable[Case]) -> list[Case]:
    return list(_first_of_each(cases))


def _first_of_each(cases: Iterable[Case]) -> Iterator[Case]:
    seen = set()
    for case in cases:
        key = (tuple(case.extents.items()), tuple(case.dtypes.items()), case.offset, case.padded, case.absent)
        if key not in seen:
            seen.add(key)
            yield case
