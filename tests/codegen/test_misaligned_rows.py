"""Long rows that begin anywhere in a word of memory go by realigned vectors, not element by element."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from normgen.families.rows.launch.clusters import clusters
from normgen.families.rows.launch.forms import fit
from normgen.families.rows.launch.rings import long_rows
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.machine import Machine
from normgen.runtime.planning.choose import candidates
from tests.codegen.norms import H200, bound, packaged, schedule_rows
from tests.codegen.test_nvcc import A100

DEVICES = (
    H200,
    replace(H200, name="H100", cache=50 << 20),
    replace(H200, name="B200", arch="sm_100", multiprocessors=148),
    Machine("RTX 5090", "sm_120", 170, 101376, 102400, threads_per_multiprocessor=1536),
    A100,
)
NAMES = ("rmsnorm", "layernorm", "softmax", "log_softmax", "l2norm", "add_rmsnorm", "gated_rmsnorm")
# From the longest row of a single block to where a copy in shared memory fits no more, every residue.
WIDTHS = tuple(base + residue for base in (16384, 24576, 32768, 49152, 56568) for residue in range(1, 10))


def realigned(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Schedules for long rows that fit with vectors that are cut out of the words around them."""
    if not shape.shifted:
        return []
    wide = replace(shape, vector=shape.shifted, whole_words=False)
    ways = [*clusters(wide), *long_rows(wide)]
    fitted = (fit(replace(way, shifted=True), shape, device) for way in ways)
    return [each for each in fitted if isinstance(each, RowSchedule)]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_realigned_wherever_that_fits(name: str, device: Machine) -> None:
    realignable = 0
    for direction, dtype, width in product(("forward", "backward"), ("bf16", "f32"), WIDTHS):
        record = getattr(packaged(name), direction)
        (kernel,) = record.strategies[0].kernels
        call = Call(bound(record, dtype, rest=2048, D=width), device, "")
        shape = shape_of(kernel, call)
        if shape.columns or not realigned(shape, device):
            continue
        realignable += 1
        chosen, _ = schedule_rows(kernel, call)
        assert chosen.shifted, f"{direction} {dtype} {width}: {chosen.form} by {chosen.vector} elements"
    assert realignable or not device.clusters, "one block without a cluster may have no room for them"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES[:2], ids=lambda device: device.name)
def test_no_offer_is_expected_to_take_half_the_time_of_the_one_taken(name: str, device: Machine) -> None:
    """Streams of single elements were expected to take 2.3 to 3.8 times as long as realigned vectors."""
    for direction, dtype, width in product(("forward", "backward"), ("bf16", "f32"), WIDTHS[::9]):
        record = getattr(packaged(name), direction)
        (offers,) = candidates(record.strategies[0], bound(record, dtype, rest=2048, D=width), device)
        best = min(offers, key=lambda each: each.cost.microseconds)
        assert offers[0].cost.microseconds < 2 * best.cost.microseconds, (
            f"{direction} {dtype} {width}: {best.text}"
        )
