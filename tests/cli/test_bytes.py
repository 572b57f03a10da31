"""The bytes that `normgen explain` states are those that the checked host executor sees moved."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from normgen import bundled
from normgen.cli.traffic import count_bytes
from normgen.codegen.package import package
from normgen.devices.host.executor import HostExecutor
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.dtypes import DTYPES, round_to
from normgen.families.rows.launch.any_length import stream
from normgen.launching.launch import parameters_of
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.package.direction import directions
from normgen.package.kernels import Kernel, TilesRecord, WindowsRecord
from normgen.package.records import Package
from normgen.runtime.calls.binding import bind
from normgen.runtime.calls.sizes import stand_ins
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import fastest
from normgen.verify.draw import attr_choices
from tests.codegen.norms import source_of
from tests.codegen.ways import first, shared
from tests.kinds import USUAL
from tests.sampling import paired

# Rows and columns: kept in registers, and too long for that. There is a row for every thread group; one
# without would read the last one again.
SHAPES = ((64, 512), (2, 40000))
LEAST_TILE = 16  # rows
FLAGS = ("words", "published")  # by which blocks that share a row wait for one another


@pytest.mark.parametrize(("name", "shape"), paired(USUAL, SHAPES))
def test_the_stated_bytes_are_the_moved_ones(name: str, shape: tuple[int, int]) -> None:
    compare(name, shape, HostExecutor(checked=True))


@pytest.mark.parametrize("name", ["batchnorm_channels_last", "gated_rmsnorm"])
def test_blocks_with_several_long_rows(name: str) -> None:
    """What is accumulated over them stays in memory."""

    class Small(HostExecutor):
        @property
        def device(self) -> Machine:
            return replace(HOST_MACHINE, multiprocessors=1)

    compare(name, (7, 40000), Small(checked=True))


@pytest.mark.parametrize("name", ["layernorm", "softmax"])
def test_rows_that_blocks_share(name: str) -> None:
    with first(shared(3)):
        compare(name, (3, 2000), HostExecutor(checked=True))


@pytest.mark.parametrize("name", ["layernorm", "softmax", "log_softmax"])
def test_what_is_read_in_several_passes(name: str) -> None:
    """Where nothing holds a row, each pass over it reads it."""
    with first(lambda shape, device: [replace(stream(shape, device), staged=False, shared=0)]):
        compare(name, (8, 600), HostExecutor(checked=True))


@pytest.mark.parametrize("name", ["layernorm2d", "softmax2d"])
def test_columns_are_read_in_several_passes(name: str) -> None:
    """The same of columns, on a device that has place for few elements."""

    class Streaming(HostExecutor):
        @property
        def device(self) -> Machine:
            little = dict.fromkeys(("shared_per_block", "shared_per_multiprocessor"), 2048)
            return replace(HOST_MACHINE, registers_per_multiprocessor=2048, **little)

    compare(name, (8, 64), Streaming(checked=True), {"C": 2400})


def compare(
    name: str,
    shape: tuple[int, int],
    executor: HostExecutor,
    given: dict[str, int] | None = None,
) -> None:
    """Kernel by kernel, for both passes of a bundled spec. `given`: lengths of single axes."""
    source = bundled.read(name)
    assert source is not None
    definition = load_definition(source, attr_choices(parse(source), {})[-1])
    compiled = package(definition)
    norm = Norm(compiled).on(executor)
    sizes = lengths(compiled, shape, given or {})
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for direction in directions(compiled):
        assert direction is not None
        views = stand_ins(direction, sizes, "f32", 16, ("host", 0))
        for tensor, view in views.items():
            values = random.uniform(0.5, 1.5, view.shape)
            arrays.setdefault(tensor, np.asarray(round_to(values, view.dtype)))
        executor.history.clear()
        made = getattr(norm, direction.name)(**{tensor: arrays[tensor] for tensor in direction.reads})
        arrays |= {field: array for field, array in made._asdict().items() if array is not None}

        binding = bind(direction, views, {}, tuple(direction.results)).binding
        chosen = fastest(direction.record, binding, executor.device)
        launched = iter(executor.history)
        for each in chosen.kernels:
            kernel = each.kernel
            moved: Counter[str] = Counter()
            room = {n: prod(shape) * DTYPES[dtype].bytes for n, shape, dtype in each.lowered.workspace}
            for launch in each.lowered.launches:
                if launch.clears:  # not launched: the memory of the runtime is clear already
                    moved[identifier(launch.clears, kernel)] += room[launch.clears]
                    continue
                entry, traffic = next(launched)
                assert entry == launch.entry
                for seen in traffic:
                    array = seen.name.removesuffix("_ptr")
                    array = tensors_of(kernel, entry).get(array, array)
                    moved[array] += (
                        seen.distinct_read + seen.distinct_written
                        if stays_in_the_cache(array, kernel, entry, dict(binding.extents))
                        else seen.read + seen.written
                    )
            # Partial sums go by the kernel's name and theirs in the plan, operands by those of their tensors.
            stated = {
                identifier(array, kernel) if "." in array else array: count
                for array, count in each.moved.items()
            }
            assert stated == dict(moved), kernel.name
        assert not list(launched)
        total = count_bytes(chosen, binding)
        assert total.total == sum(sum(each.moved.values()) for each in chosen.kernels)


def tensors_of(kernel: Kernel, entry: str) -> dict[str, str]:
    """The operands of a kernel by what a text calls them."""
    (form,) = (form for form in kernel.forms if form.entry == entry)
    names = parameters_of(source_of(form), entry, len(form.parameters))
    given = zip(names, form.parameters, strict=True)
    return {name.removesuffix("_ptr"): each.name for name, each in given if each.kind == "pointer"}


def identifier(array: str, kernel: Kernel) -> str:
    """What a kernel calls an array of its scratch memory."""
    name = array.removeprefix(kernel.name + ".")
    return name if name in FLAGS else f"{name}_partial"


def lengths(compiled: Package, shape: tuple[int, int], given: dict[str, int]) -> dict[str, int]:
    """So many rows of so many elements: of each, all axes but the last have 8 if there is room."""
    found = given | {axis.name: axis.extent for axis in compiled.axes if axis.extent is not None}
    passes = [each for each in (compiled.forward, compiled.backward) if each]
    inner = [axis for each in passes for kernel in each.kernels for axis in kernel.inner]
    tensors = [tensor for each in passes for tensor in (*each.reads, *each.writes)]
    outer = [axis for tensor in tensors for axis in tensor.axes if axis not in inner]
    for axes, total in ((inner, shape[1]), (outer, shape[0])):
        left = -(-total // prod(found.get(axis, 1) for axis in {*axes}))
        unknown = [axis for axis in dict.fromkeys(axes) if axis not in found]
        for axis in unknown:
            found[axis] = left if axis == unknown[-1] else min(8, left)
            left = -(-left // found[axis])
    return found


def stays_in_the_cache(array: str, kernel: Kernel, entry: str, extents: dict[str, int]) -> bool:
    """Whether an array is counted once though its elements are read again: what rows share is read by each of
    them, what lies in several windows by each of those, moments in two passes by the kernel that merges them,
    slices of a row or a segment by other blocks where theirs do not run (on the host they run one after
    another), and the last row also in place of those that a tile has beyond it."""
    if isinstance(kernel, WindowsRecord) or entry.endswith(("_second_stage", "_cooperative", "_resident")):
        return True
    if isinstance(kernel, TilesRecord) and prod(extents[axis] for axis in kernel.rows) < LEAST_TILE:
        return True
    of_each_row = {
        operand.tensor
        for operand in (*kernel.reads, *kernel.writes)
        if operand.inner and {*operand.kept, *operand.inner} >= {*kernel.kept, *kernel.inner}
    }
    sums = () if isinstance(kernel, TilesRecord) else kernel.columns
    partials = {f"{column.name}_partial" for column in sums}
    return array not in of_each_row | partials
