"""Rows that stream by and begin anywhere in a word of memory: vectors are cut out of the words around them,
and results go by whole words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.rows.compile.plan import plan_rows
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.machine import Machine
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS, DtypeSet
from normgen.verify.expected import Subject
from tests.codegen.alone import subject as alone
from tests.codegen.norms import H200, planned
from tests.codegen.test_barriers import NARROW, WIDE
from tests.codegen.ways import Offers, first
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove, same_bits

MIXED = next(d for d in DTYPE_SETS if d.name == "bf16, params f32")
HOWS: dict[str, dict[str, object]] = {
    "usual": {},
    "accumulated": {"accumulate": True},
    "in place": {"in_place": True},
    "padded": {"pitch": "padded"},
}


def cutting(members: int, threads: int = 64) -> Offers:
    """Rows of which so many blocks have each, by vectors that are cut out."""

    def ways(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
        if shape.realigned:
            wide, team = replace(shape, vector=shape.realigned), members * threads
            items = -(-wide.vectors // team)
            yield RowSchedule("multipass", wide.vector, team, 1, items, members=members, realigned=True)

    return ways


def ran(subject: Subject, members: int, rows: int, width: int, dtypes: DtypeSet, **how: object) -> list[str]:
    """The kernels of both directions, whose results are right."""
    executor, anew = HostExecutor(checked=True), replace(subject, norm=Norm(subject.norm.package))
    with first(cutting(members)):
        prove(anew, case_of(anew, rows, width, dtypes, **how), executor)
    return [entry for entry, _ in executor.history]


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    ("name", "rows", "width", "dtypes"),
    [
        ("layernorm", 1, 2999, BF16),
        ("layernorm", 3, 2999, BF16),
        ("softmax", 3, 1501, F32),
        ("rmsnorm", 5, 1777, MIXED),
    ],
)
def test_results(name: str, rows: int, width: int, dtypes: DtypeSet, how: str, members: int) -> None:
    entries = ran(bundled_subject(name), members, rows, width, dtypes, **HOWS[how])
    assert {entry.rpartition("_")[2] for entry in entries} <= {"multipass", "stage"}


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda found: found.name)
@pytest.mark.parametrize("text", [WIDE, NARROW], ids=["of each element", "of all elements"])
@pytest.mark.parametrize("members", [1, 3])
def test_accumulators(text: str, dtypes: DtypeSet, members: int) -> None:
    """Elements beyond the end of a row are in none of them."""
    subject = alone(text, plan_rows)
    with first(cutting(members)):
        prove(subject, case_of(subject, 9, 1003, dtypes), CHECKED, directions=("forward",))


def test_bits_do_not_depend_on_where_a_row_begins() -> None:
    norm = bundled_subject("layernorm").norm.on(CHECKED)
    x = np.random.default_rng(1).standard_normal((6, 1501)).astype(np.float32)
    w = b = np.ones(1501, np.float32)
    with first(cutting(4)):
        together = norm.forward(x=x, w=w, b=b)
        for row in range(1, 5):
            apart = norm.forward(x=x[row : row + 1].copy(), w=w, b=b)
            assert all(same_bits(one[row : row + 1], own) for one, own in zip(together, apart, strict=True))


@pytest.mark.parametrize("rows", [1, 3])
def test_long_rows_go_by_whole_words(rows: int) -> None:
    plan = planned("layernorm", "forward", "bf16", H200, rest=rows, D=1_587_971)
    assert all("constexpr int VEC = 8;" in launch.source for launch in plan.launches)
