"""Lengths that people have: activations of a language model, images of a diffusion model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from normgen.package.records import Package, TensorRecord

Axes = Sequence[str]
Dims = Sequence[tuple[str, ...]]

REST = "..."
# Activations of a language model of 8 billion parameters, and of the inner levels of a diffusion U-net.
ROW, ROWS = 4096, 32768
BATCH, CHANNELS, SIDE = 32, 320, 64


def tensors_of(package: Package) -> list[TensorRecord]:
    """All that either direction reads or writes."""
    passes = [package.forward, *([package.backward] if package.backward else [])]
    return [tensor for one in passes for tensor in (*one.reads, *one.writes)]


def axes_of(package: Package) -> list[str]:
    """The axes of a norm, in the order of its tensors."""
    return list(dict.fromkeys(axis for tensor in tensors_of(package) for dim in tensor.dims for axis in dim))


def fixed_axes(package: Package) -> dict[str, int]:
    """The axes whose lengths the spec fixes, with these."""
    return {axis.name: axis.extent for axis in package.axes if axis.extent is not None}


def usual_lengths(package: Package, given: Mapping[str, int]) -> dict[str, int]:
    """A length for every axis: where none is given, rows as a language model has them, or images."""
    axes, tensors = axes_of(package), tensors_of(package)
    passes = [package.forward, *([package.backward] if package.backward else [])]
    lengths = {**fixed_axes(package), **given}
    inner = [axis for one in passes for kernel in one.kernels for axis in kernel.inner]
    composite = [dim for tensor in tensors for dim in tensor.dims if len(dim) > 1]
    beside = {*inner, *(axis for dim in composite for axis in dim)}
    for some, total in (
        *_totals(tensors[0].dims, package.forward.writes),
        *((dim, ROW) for dim in composite),
        (list(dict.fromkeys(inner)), ROW),
        ([axis for axis in axes if axis not in beside], ROWS),
    ):
        lengths |= _share(some, lengths, total)
    return {axis: lengths[axis] for axis in axes}


def _totals(dims: Dims, results: Sequence[TensorRecord]) -> Iterator[tuple[Axes, int]]:
    """Axes of the first input, and what their lengths come to together, where it is an image [B, C, ...],
    [B, ..., C] or [B, C, H, W], a weight [K, ...], or [..., C] with statistics of each channel."""
    spatial: Dims = [dim for dim in dims[1:] if dim == (REST,)] or dims[2:]
    if len(dims) == 4 or (len(dims) == 3 and (REST,) in dims[1:]):
        yield dims[0], BATCH
        yield next(dim for dim in dims[1:] if dim not in spatial), CHANNELS
        for dim in spatial:
            yield dim, SIDE * SIDE if dim == (REST,) else SIDE
    elif len(dims) == 2 and dims[1] == (REST,):
        yield dims[0], ROW
    elif len(dims) == 2 and dims[0] == (REST,) and any(dims[1] == result.axes for result in results):
        yield dims[1], CHANNELS
        yield dims[0], BATCH * SIDE * SIDE


def _share(axes: Axes, known: dict[str, int], total: int) -> dict[str, int]:
    """Lengths of the unknown axes: 8 each, and the last as long as the total then asks for."""
    unknown = [axis for axis in axes if axis not in known]
    for axis in axes:
        total = -(-total // max(1, known.get(axis, 1)))
    lengths = {}
    for axis in unknown[:-1]:
        lengths[axis] = min(8, total)
        total = -(-total // lengths[axis])
    return lengths | dict.fromkeys(unknown[-1:], total)
