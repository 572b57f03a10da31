"""The bytes that `normgen explain` states are those that the checked host executor sees moved."""

from __future__ import annotations

import numpy as np
import pytest

from normgen import bundled
from normgen.cli.sizes import usual_sizes
from normgen.cli.traffic import count_bytes
from normgen.codegen.package import package
from normgen.diagnostics import SpecError
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.proof.draw import attr_choices
from normgen.runtime.binding import bind
from normgen.runtime.direction import directions
from normgen.runtime.host import HostExecutor
from normgen.runtime.launch import alternatives, choose_strategy
from normgen.runtime.norm import Norm
from normgen.runtime.query import stand_ins
from normgen.runtime.records import WindowsRecord

# Rows and columns: kept in registers, and too long for that. There is a row for every team; one without would
# read the last one again.
SHAPES = ((64, 512), (2, 40000))


@pytest.mark.parametrize("name", bundled.names())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_stated_bytes_are_the_moved_ones(
    name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normgen.cli.sizes.ROWS", shape[0])
    monkeypatch.setattr("normgen.cli.sizes.ROW", shape[1])
    source = bundled.read(name)
    assert source is not None
    definition = load_definition(source, attr_choices(parse(source), {})[-1])
    try:
        compiled = package(definition)
    except SpecError:
        pytest.skip("no kernels yet")
    executor = HostExecutor(checked=True)
    norm = Norm(compiled).on(executor)
    sizes = usual_sizes(compiled, {})
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for direction in directions(compiled):
        assert direction is not None
        views = stand_ins(direction, sizes, "f32", 16, ("host", 0))
        for tensor, view in views.items():
            fresh = np.array(random.uniform(0.5, 1.5, view.shape), np.float32)
            arrays.setdefault(tensor, fresh)
        executor.history.clear()
        made = getattr(norm, direction.name)(**{tensor: arrays[tensor] for tensor in direction.reads})
        arrays |= {field: array for field, array in made._asdict().items() if array is not None}

        binding = bind(direction, views, {}, tuple(direction.results)).binding
        stated = count_bytes(
            choose_strategy(alternatives(direction.record, binding, executor.device)), binding
        ).moved
        moved: dict[str, int] = {}
        distinct: dict[str, int] = {}
        for _, traffic in executor.history:
            for seen in traffic:
                array = seen.name.removesuffix("_ptr")
                moved[array] = moved.get(array, 0) + seen.read + seen.written
                distinct[array] = distinct.get(array, 0) + seen.distinct_read + seen.distinct_written
        # Partial sums go by the kernel's name and theirs in the plan.
        stated = {
            array.partition(".")[2] + "_partial" if "." in array else array: count
            for array, count in stated.items()
        }
        assert stated.keys() == moved.keys()
        neighbours = {
            operand.tensor
            for kernel in direction.record.kernels
            if isinstance(kernel, WindowsRecord)
            for operand in kernel.reads
        }
        wide = {tensor for tensor, view in views.items() if np.prod(view.shape) == shape[0] * shape[1]}
        for array, count in stated.items():
            # What all rows share is read by each of them, and what lies in several windows more than once;
            # the count is of what leaves the cache.
            again = (array in views and array not in wide) or array in neighbours
            assert count == (distinct if again else moved)[array], array
