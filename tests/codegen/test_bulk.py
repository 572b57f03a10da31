"""Rings whose slices arrive as bulk copies: kept in registers from then on, or the only one that there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.families.rows.launch import choose
from normgen.families.rows.launch.rings import ring
from normgen.runtime.norm import Norm
from tests.codegen.norms import bulk_pair
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove


@pytest.fixture
def kept_bulk_first(monkeypatch):
    """Such rings, in clusters of two blocks, before all that would be taken."""
    usual = choose.tiers

    monkeypatch.setattr(
        choose, "tiers", lambda shape, device: [bulk_pair(shape, device), *usual(shape, device)]
    )


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("name", "rows", "width"), [("rmsnorm", 70, 4096), ("layernorm", 67, 5000), ("softmax", 65, 2048)]
)
def test_a_slot_is_filled_again_when_all_warps_have_read_it(name, rows, width, dtypes, kept_bulk_first):
    subject = bundled_subject(name)
    fresh = replace(subject, norm=Norm(subject.norm.package))
    prove(fresh, case_of(subject, rows, width, dtypes), CHECKED)


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_a_ring_of_one_slice_is_filled_again_when_it_has_been_read(name, dtypes, monkeypatch):
    usual = choose.tiers
    one_slice = {"threads": 64, "cluster": 2, "reload": True, "stages": 1}
    monkeypatch.setattr(
        choose, "tiers", lambda shape, device: [[ring(shape, **one_slice)], *usual(shape, device)]
    )
    subject = bundled_subject(name)
    fresh = replace(subject, norm=Norm(subject.norm.package))
    prove(fresh, case_of(subject, 37, 4096, dtypes), CHECKED, directions=("backward",))
