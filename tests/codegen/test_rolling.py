"""Rings that hold vectors of whatever row: one that was read for the last time leaves its place at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.families.rows.launch import choose
from normgen.families.rows.launch.forms import fit
from normgen.families.rows.launch.rings import ring
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from tests.codegen.norms import H200, bound, packaged, schedules
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove


def rolling(shape, threads, cluster, more):
    """A row in so many blocks, and places for so many vectors of the rows that follow."""
    made = ring(shape, threads, cluster, reload=True, stages=1)
    return replace(made, bulk=False, places=made.items + more)


def shape_of_rows(name, length):
    """Of a backward in float32."""
    record = packaged(name).backward
    (kernel, *_) = record.strategies[0].kernels
    return shape_of(kernel, Call(bound(record, "f32", rest=64, D=length), H200, ""))


def rolled(monkeypatch, width, dtypes, more):
    """Four vectors of the row in each thread of two blocks; the shapes that asked."""
    asked = []

    def tiers(shape, device):
        asked.append(shape)
        return [[rolling(shape, width // 2 // (4 * shape.vector), 2, more)]] if shape.columns else []

    monkeypatch.setattr(choose, "tiers", tiers)
    return asked


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("more", [1, 3, 4])
@pytest.mark.parametrize(
    ("name", "rows", "width"),
    [("rmsnorm", 40, 16384), ("layernorm", 23, 8192), ("add_rmsnorm", 17, 8192), ("layernorm", 1, 16384)],
)
def test_results(monkeypatch, name, rows, width, dtypes, more):
    asked = rolled(monkeypatch, width, dtypes, more)
    subject = bundled_subject(name)
    fresh = replace(subject, norm=Norm(subject.norm.package))
    prove(fresh, case_of(subject, rows, width, dtypes), CHECKED, directions=("backward",))
    assert any(
        fit(rolling(shape, width // 8 // shape.vector, 2, more), shape, HOST_MACHINE).places
        for shape in asked
    )


@pytest.mark.parametrize(
    ("name", "dtype", "length", "places"),
    [
        ("rmsnorm", "f32", 262144, 27),  # no room for two rows of 16 vectors
        ("layernorm", "f32", 262144, 27),
        ("add_rmsnorm", "f32", 262144, 18),
        ("rmsnorm", "f32", 196608, 24),
        ("layernorm", "bf16", 262144, 16),
        ("rmsnorm", "bf16", 196608, 0),  # row by row is faster
        ("rmsnorm", "f32", 200000, 0),  # some vectors are beyond the row
        ("rmsnorm", "f32", 131072, 0),  # registers have the row
        ("rmsnorm", "bf16", 131072, 0),
    ],
)
def test_rows_of_which_two_find_no_room(name, dtype, length, places):
    record = packaged(name).backward
    chosen, _ = schedules(record, bound(record, dtype, rest=1024, D=length), H200)[0]
    assert chosen.places == places
    assert not places or (chosen.cluster, chosen.threads, chosen.bulk) == (16, 256, False)


def test_a_ring_without_places_to_spare_is_refused():
    shape = shape_of_rows("rmsnorm", 16384)
    assert "too few" in str(fit(rolling(shape, 128, 2, 0), shape, H200))
    assert "one after the other" in str(fit(rolling(shape, 128, 2, 4), replace(shape, rolls=False), H200))
    assert "beyond the row" in str(fit(rolling(shape, 160, 2, 4), shape, H200))


@pytest.mark.parametrize(
    ("name", "length", "form", "stages"),
    [
        ("rmsnorm", 229376, "ring", 2),
        ("add_rmsnorm", 229376, "ring", 1),
        ("l2norm", 262144, "registers", 0),  # it has no weights
        ("rmsnorm", 131072, "registers", 0),
    ],
)
def test_rows_that_fill_registers_come_through_a_ring(name, length, form, stages):
    record = packaged(name).forward
    chosen, _ = schedules(record, bound(record, "f32", rest=1024, D=length), H200)[0]
    assert (chosen.form, chosen.stages) == (form, stages)
