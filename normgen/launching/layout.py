"""Shapes to axes and back: the lengths of a call's axes, found and compared across its tensors, and
strides by axis.

`...` is one axis here, named "...", whose length is the product of the dimensions it stands for;
`Lengths.rest` keeps those dimensions.  Every disagreement is a ValueError that names both tensors, the
axis and both lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from normgen.package.kernels import Kernel
from normgen.package.records import AxisRecord, TensorRecord, dims_text

Shape = tuple[int, ...]
REST = "..."


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of the axes of one call."""

    axes: dict[str, int]
    rest: Shape | None  # the dimensions of `...`; None where no tensor has any


def solve(tensors: Iterable[tuple[TensorRecord, Shape]], axes: Iterable[AxisRecord]) -> Lengths:
    """The length of every axis that the given shapes and the spec determine."""
    axes = tuple(axes)
    fixed: dict[tuple[str, ...], tuple[int, str]]
    fixed = {(axis.name,): (axis.extent, "the spec") for axis in axes if axis.extent is not None}
    found: dict[tuple[str, ...], tuple[int, str]] = {}
    rest: tuple[Shape, str] | None = None
    for record, shape in tensors:
        text = record.text
        for group, lengths in _split(record, shape):
            if group == (REST,):
                rest = rest or (tuple(lengths), text)
                _agree(REST, rest, (tuple(lengths), text))
                continue
            name, length = group[0] if len(group) == 1 else dims_text((group,)), (lengths[0], text)
            _agree(name, fixed.get(group, length), length)
            _agree(name, found.setdefault(group, length), length)
    found |= {group: length for group, length in fixed.items() if group not in found}
    known = {group[0]: length for group, length in found.items() if len(group) == 1}
    _split_groups({group: length for group, length in found.items() if len(group) > 1}, known)
    result = {name: length for name, (length, _) in known.items()}
    for axis in axes:
        if (told := axis.length(result)) is not None:
            _agree(axis.name, (told, "the spec"), known.setdefault(axis.name, (told, "the spec")))
            result[axis.name] = told
    if rest is not None:
        result[REST] = prod(rest[0])
    return Lengths(result, rest[0] if rest is not None else None)


def shape_of(record: TensorRecord, lengths: Lengths) -> Shape:
    """The shape of a tensor that the call does not give."""
    shape: list[int] = []
    for group in record.dims:
        if group == (REST,):
            if lengths.rest is None:
                raise ValueError(
                    f"the dimensions of ... in {record.text} are unknown: no given array has them"
                )
            shape.extend(lengths.rest)
            continue
        for axis in group:
            if axis not in lengths.axes:
                raise ValueError(
                    f"the length of {axis} in {record.text} is unknown: no given array determines it"
                )
        shape.append(prod([lengths.axes[axis] for axis in group]))
    return tuple(shape)


def dimension_of(record: TensorRecord, axis: str, count: int) -> int:
    """The dimension at which an axis begins in an array of `count` dimensions: its own, or one of several
    axes of which it is the outer one."""
    group = next(place for place, group in enumerate(record.dims) if group[0] == axis)
    after_rest = (REST,) in record.dims[:group]
    return group + (count - len(record.dims) if after_rest else 0)


def packed_strides(record: TensorRecord, lengths: Lengths) -> dict[str, int]:
    """Elements per step of each axis of a contiguous tensor."""
    strides: dict[str, int] = {}
    step = 1
    for axis in reversed(record.axes):
        strides[axis] = step
        step *= lengths.axes[axis]
    return dict(reversed(strides.items()))


def axis_strides(
    record: TensorRecord, shape: Shape, strides: Shape, lengths: Lengths
) -> dict[str, int] | None:
    """Elements per step of each axis of a view, or None where `...` has no single stride.

    An axis of length 1 is never stepped along, so it gets the stride it would have in a contiguous
    array: views that differ only there are the same to a kernel.
    """
    result = packed_strides(record, lengths)
    for (group, sizes), (_, steps) in zip(_split(record, shape), _split(record, strides), strict=True):
        step = _one_stride(sizes, steps)
        if step is None:
            return None
        for axis in reversed(group):
            if lengths.axes[axis] != 1:
                result[axis] = step
            step *= lengths.axes[axis]
    return result


def taken_as_is(kernels: Iterable[Kernel], tensor: str, strides: dict[str, int], lengths: Lengths) -> bool:
    """Whether every kernel that reads `tensor` can do so through these strides.

    A kernel walks a row by steps of 1, so the row must be contiguous; from row to row it takes any
    positive stride along each axis that numbers the rows.
    """
    for kernel in kernels:
        for operand in (*kernel.reads, *kernel.final_reads):
            if operand.tensor != tensor:
                continue
            stepped = (axis for axis in operand.kept if lengths.axes[axis] != 1)
            if not is_run(operand.inner, strides, lengths.axes) or any(strides[a] <= 0 for a in stepped):
                return False
    return True


def is_run(axes: tuple[str, ...], strides: Mapping[str, int], lengths: Mapping[str, int]) -> bool:
    """Whether elements along these axes lie side by side; an axis of length 1 is never stepped along."""
    return _one_stride([lengths[axis] for axis in axes], [strides[axis] for axis in axes]) == 1


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie in order without gaps; strides of unit dimensions and empty arrays do not
    matter."""
    return 0 in shape or _one_stride(shape, strides) == 1


def span(shape: Shape, strides: Shape) -> tuple[int, int]:
    """First and one past the last element that a view touches, counted from its pointer."""
    if 0 in shape:
        return 0, 0
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + 1


def _split(record: TensorRecord, shape: Shape) -> Iterable[tuple[tuple[str, ...], Shape]]:
    """Each declared dimension with the array dimensions that it covers."""
    count = _rest_count(record, shape)
    position = 0
    for group in record.dims:
        width = count if group == (REST,) else 1
        yield group, shape[position : position + width]
        position += width


def _rest_count(record: TensorRecord, shape: Shape) -> int:
    declared = len(record.dims)
    has_rest = (REST,) in record.dims
    count = len(shape) - declared + 1
    if (has_rest and count < 0) or (not has_rest and count != 1):
        least = declared - 1 if has_rest else declared
        wanted = f"{'at least ' if has_rest else ''}{least} dimension{'' if least == 1 else 's'}"
        raise ValueError(f"{record.text} needs {wanted}, but the array has shape {tuple(shape)}")
    return count


def _agree(name: str, known: tuple[int | Shape, str], given: tuple[int | Shape, str]) -> None:
    """Refuse an array that says otherwise than what was known, of an axis or of several."""
    if known[0] != given[0]:
        raise ValueError(f"{name} is {known[0]} in {known[1]} but {given[0]} in {given[1]}")


def _split_groups(groups: dict[tuple[str, ...], tuple[int, str]], found: dict[str, tuple[int, str]]) -> None:
    """Find the one unknown part of each composite dimension, as long as that finds something new."""
    pending = dict(groups)
    progress = True
    while progress:
        progress = False
        for group, (total, text) in list(pending.items()):
            unknown = [axis for axis in group if axis not in found]
            if len(unknown) > 1:
                continue
            known = [axis for axis in group if axis in found]
            product = prod([found[axis][0] for axis in known])
            parts = " and ".join(f"{axis} = {found[axis][0]}" for axis in known)
            del pending[group]
            progress = True
            if not unknown:
                if product != total:
                    where = next(
                        (found[axis][1] for axis in known if found[axis][1] != "the spec"), "the spec"
                    )
                    raise ValueError(f"{dims_text((group,))} is {total} in {text} but {parts} in {where}")
            elif product == 0 and total == 0:
                found[unknown[0]] = (0, text)
            elif product == 0 or total % product:
                raise ValueError(f"{dims_text((group,))} is {total} in {text}, not a multiple of {parts}")
            else:
                found[unknown[0]] = (total // product, text)


def _one_stride(sizes: Sequence[int], steps: Sequence[int]) -> int | None:
    """The single stride that walks all of these dimensions in order, or None; 1 for a single element."""
    first: int | None = None
    next_step = 0
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size == 1:
            continue
        if first is None:
            first = step
        elif step != next_step:
            return None
        next_step = step * size
    return 1 if first is None else first
