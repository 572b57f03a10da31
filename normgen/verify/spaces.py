"""The cases of norms that are not of rows: statistics of channels, of groups of channels, of windows.

Their axes play three parts. The outermost axis of the largest input is the *batch*. *Channels* are the axes
that params or states have, or else the next one; all others are *space*, and `...` may be of no dimension
at all. Where no axis is left for a part, the batch takes its length too. A group of cases is one number of
channels in one space, with one set of element types and one layout, over several batches: the length of the
batch is an argument of a kernel. Where statistics go over the batch too it is not, and each batch compiles
kernels of its own: then a space has two of them, one in turn and the longest. A large sample has one batch.
The last group has more batches than a grid
has rows of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod

from normgen.ir.expr import reductions
from normgen.ir.program import Definition
from normgen.verify.cases import (
    DTYPE_SETS,
    Case,
    DtypeSet,
    axis_order,
    element_types,
    elements,
    fixed_extents,
    reduced_axes,
)
from normgen.verify.turns import in_turn

BATCHES = (1, 2, 3, 33)
MANY = 65_537  # batches: a grid has 65535 rows of blocks
LARGEST = 200_000  # elements of a case; only what one sample has beyond that is more
# Channels (of a group, where a spec splits them) and the dimensions of the space.
SPACES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (7, (7, 7)),
    (128, ()),
    (3, (1,)),
    (1, (2, 3, 4)),
    (8, (14, 14)),
    (33, (7,)),
    (2, (100,)),
    (10, (32, 32)),
    (100, (3,)),
    (1, ()),
    (64, (2, 2, 2)),
    (31, (33,)),
    (1000, (2,)),
    (3, (4097,)),
    (32, (8, 8)),
    (2, (256, 128)),
)
THOROUGH_SPACES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, (1, 1, 1)),
    (7, (3,)),
    (10, (7, 7)),
    (64, (49,)),
    (128, (14, 14)),
    (256, (8,)),
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The free axes of a spec by the part they play: outermost first."""

    batch: tuple[str, ...]
    channels: tuple[str, ...]
    space: tuple[str, ...]


def is_of_rows(definition: Definition) -> bool:
    """Whether every statistic goes over the innermost axes of each input, which have names, and not over
    all."""
    program, reduced = definition.program, reduced_axes(definition)
    nodes = reductions(*(r.expr for r in program.results))
    if "..." in reduced or any(node.window for node in nodes):
        return False
    for tensor in (t for t in program.operands if t.role == "input" and t.order):
        inner = [axis for axis in tensor.order if axis in reduced]
        outer = tensor.order[: len(tensor.order) - len(inner)]
        if reduced & set(outer) or not outer or tensor.order[-1] == "...":
            return False
    return True


def parts(definition: Definition) -> Parts:
    """Which axis is the batch, which are channels, which are space."""
    fixed = fixed_extents(definition)
    operands = definition.program.operands
    free = tuple(axis for axis in axis_order(definition) if axis not in fixed)
    of_params = {axis for t in operands if t.role in ("param", "state") for axis in t.order}
    batch, rest = free[:1], free[1:]
    named = tuple(axis for axis in rest if axis != "...")
    channels = tuple(axis for axis in named if axis in of_params) or named[:1]
    return Parts(batch, channels, tuple(axis for axis in rest if axis not in channels))


def covering(definition: Definition, sizes: Mapping[str, int], sets: Sequence[DtypeSet]) -> Iterator[Case]:
    """Every space with several batches, and with none, which is an empty call; then many batches."""
    for index, (channels, space) in enumerate(SPACES):
        for batch in (*_batches_in_turn(definition, index, channels, space, sizes), 0):
            yield _case(definition, index, batch, channels, space, sizes, sets)
    # Two channels, for the params of each; without any one will do, of so many batches.
    of_channels = any(t.order for t in definition.program.operands if t.role in ("param", "state"))
    channels = 2 if of_channels and not fixed_extents(definition) else 1
    yield _case(definition, len(SPACES), MANY, channels, (1,), sizes, sets)


def thorough(definition: Definition, sizes: Mapping[str, int], sets: Sequence[DtypeSet]) -> Iterator[Case]:
    """Further spaces, with every set of element types and every offset."""
    group = len(SPACES) + 1
    for channels, space in (*SPACES, *THOROUGH_SPACES):
        for dtypes in sets:
            batch = _batches(definition, channels, space, sizes)[:3][-1]
            case = _case(definition, group, batch, channels, space, sizes, (dtypes,))
            yield replace(case, offset=group % 4, seed=1000 + group)
            group += 1


def _batches_in_turn(
    definition: Definition, index: int, channels: int, space: tuple[int, ...], sizes: Mapping[str, int]
) -> list[int]:
    """Those of a space: all, or two where each has kernels of its own."""
    found = _batches(definition, channels, space, sizes)
    if not set(parts(definition).batch) & reduced_axes(definition):
        return found
    return list(dict.fromkeys((found[index % len(found)], found[-1])))


def _batches(
    definition: Definition, channels: int, space: tuple[int, ...], sizes: Mapping[str, int]
) -> list[int]:
    """One batch in any case, and more as far as they are in reason."""
    sample = elements(definition, _lengths(definition, 1, channels, space, sizes)[0])
    return [batch for batch in BATCHES if batch == 1 or batch * sample <= LARGEST]


def _case(
    definition: Definition,
    index: int,
    batch: int,
    channels: int,
    space: tuple[int, ...],
    sizes: Mapping[str, int],
    sets: Sequence[DtypeSet] = DTYPE_SETS,
) -> Case:
    extents, rest = _lengths(definition, batch, channels, space, sizes)
    dtypes, offset = sets[(2 * index) % len(sets)], (0, 0, 1, 0, 2, 0, 3)[index % 7]
    case = Case(extents, rest, element_types(definition, dtypes), dtypes.name, offset)
    return in_turn(definition, case, index, batch == BATCHES[-1])


def _lengths(
    definition: Definition, batch: int, channels: int, space: tuple[int, ...], sizes: Mapping[str, int]
) -> tuple[dict[str, int], tuple[int, ...]]:
    """The length of every axis, and the dimensions of `...`."""
    axes, found = parts(definition), fixed_extents(definition)
    lead = (batch if axes.channels else batch * channels, *(() if axes.space else space))
    rest = {axes.batch: lead, axes.space: space}.get(("...",), (1,))
    for names, dims in (
        (axes.batch, (prod(lead),)),
        (axes.channels, _spread((channels,), len(axes.channels))),
        (axes.space, _spread(space, len(axes.space))),
    ):
        found |= dict(zip(names, dims, strict=True))
    if "..." in sizes or ("..." in found and prod(rest) != found["..."]):
        found["..."] = sizes.get("...", found["..."])
        rest = (found["..."],)
    order = axis_order(definition)
    return {axis: sizes.get(axis, found[axis]) for axis in order}, rest


def _spread(dims: tuple[int, ...], count: int) -> tuple[int, ...]:
    """So many lengths with the same product: the given ones, or factors as equal as can be."""
    if count in (0, len(dims)):
        return dims[:count]
    number, found = prod(dims), []
    for _ in range(count - 1):
        factor = next(f for f in range(isqrt(number), 0, -1) if number % f == 0)
        found.append(factor)
        number //= factor
    return (*found, number)
