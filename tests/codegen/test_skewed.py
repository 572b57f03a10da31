"""Rings whose exchange of a row is on its way while the row before it is finished."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.dtypes import DTYPES
from normgen.families.rows.launch import choose
from normgen.families.rows.launch.cluster_sums import skewed_sums
from normgen.families.rows.launch.rings import skewed
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from tests.codegen.norms import H200, bound, packaged, schedules
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove


def schedule(name, direction, dtype, length, alignment=16):
    record = getattr(packaged(name), direction)
    return schedules(record, bound(record, dtype, alignment=alignment, rest=4096, D=length), H200)[0][0]


def skewed_rings(shape, device):
    return skewed_sums(shape, device) if shape.columns else skewed(shape, device)


@pytest.mark.parametrize(
    ("name", "direction", "dtype", "length", "cluster", "threads"),
    [
        ("rmsnorm", "forward", "bf16", 131072, 8, 512),
        ("layernorm", "backward", "bf16", 131072, 16, 256),
        ("layernorm", "forward", "bf16", 131072, 8, 512),
        ("layernorm", "forward", "bf16", 262144, 16, 256),
    ],
)
def test_wide_rows_are_skewed(name, direction, dtype, length, cluster, threads):
    chosen = schedule(name, direction, dtype, length)
    assert (chosen.form, chosen.cluster, chosen.threads) == ("skewed", cluster, threads)
    assert chosen.stages >= 5  # with fewer nothing is on its way while a row waits for its exchange


@pytest.mark.parametrize(
    ("name", "direction", "length", "alignment"),
    [
        ("layernorm", "backward", 8192, 16),  # two small blocks keep the row
        ("rmsnorm", "backward", 65536, 16),  # registers have the slices of a row
        ("layernorm", "forward", 65536, 16),  # so they have here
        ("layernorm", "backward", 262144, 16),  # five slices of 64 KB find no place
        ("layernorm", "backward", 131072, 8),  # no bulk copies
        ("rmsnorm", "forward", 65536, 16),  # the shared memory of a block has the row
        ("softmax", "forward", 131072, 16),  # its exponentials would be computed twice
        ("gated_rmsnorm", "forward", 131072, 16),  # so would its sigmoids
    ],
)
def test_rows_that_are_not_skewed(name, direction, length, alignment):
    assert schedule(name, direction, "bf16", length, alignment).form != "skewed"


@pytest.fixture
def skewed_first(monkeypatch):
    """Skewed rings before all that would be taken."""
    usual = choose.tiers
    monkeypatch.setattr(
        choose, "tiers", lambda shape, device: [skewed_rings(shape, device), *usual(shape, device)]
    )


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("name", "rows", "width"),
    [
        ("rmsnorm", 40, 16384),
        ("layernorm", 23, 20000),  # the last block has a part of a slice
        ("add_rmsnorm", 17, 24584),
        ("log_softmax", 5, 36864),
        ("layernorm", 1, 70000),
    ],
)
def test_results(name, rows, width, dtypes, skewed_first):
    subject = bundled_subject(name)
    fresh = replace(subject, norm=Norm(subject.norm.package))
    prove(fresh, case_of(subject, rows, width, dtypes), CHECKED)


def test_with_one_row_on_its_way(monkeypatch):
    """The shortest ring: a slot is filled as soon as it may be."""
    usual = choose.tiers

    def tiers(shape, device):
        return [[replace(s, stages=4) for s in skewed_rings(shape, device)], *usual(shape, device)]

    monkeypatch.setattr(choose, "tiers", tiers)
    assert schedule("layernorm", "backward", "bf16", 131072).stages == 4
    subject = bundled_subject("layernorm")
    fresh = replace(subject, norm=Norm(subject.norm.package))
    prove(fresh, case_of(subject, 23, 20000, BF16), CHECKED)


def test_in_place(skewed_first):
    """A row that is in the ring still is not the memory that a row before it went to."""
    x = np.random.default_rng(4).standard_normal((9, 40000)).astype(np.float32)
    norm = Norm(packaged("layernorm")).on(CHECKED)
    expected = norm.forward(x=x.copy()).y
    assert norm.forward(x=x, out={"y": x}).y.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("dtype", "length"), [("f32", 80002), ("bf16", 40962)])
def test_few_rows_have_the_bits_of_many(dtype, length):
    """Few long rows are in registers where many come through a ring."""
    norm = Norm(packaged("layernorm"))
    x = np.random.default_rng(3).standard_normal((70, length)).astype(DTYPES[dtype].numpy)
    many, few = norm.forward(x=x), norm.forward(x=x[:3])
    record = packaged("layernorm").forward
    forms = [
        schedules(record, bound(record, dtype, rest=rows, D=length), HOST_MACHINE)[0][0].form
        for rows in (70, 3)
    ]
    assert forms == ["ring", "registers"]
    for one, other in zip(many, few, strict=True):
        assert one[:3].tobytes() == other.tobytes()
