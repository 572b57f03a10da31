"""Backwards of few rows: where one unit has all of them, it stores what is summed over rows as the gradients
that this is, and nothing is left for a second launch to add up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS, DtypeSet
from tests.codegen.ways import Offers, first, of_form, shared
from tests.sampling import paired
from tests.verify.subjects import BF16, F32, bundled_subject, case_of, prove, same_bits

MIXED = next(d for d in DTYPE_SETS if d.name == "bf16, params f32")
WAYS: dict[str, tuple[int, Offers]] = {
    "pipeline": (520, of_form("pipeline", cluster=1)),
    "pipeline of a cluster": (2056, of_form("pipeline", cluster=2)),
    "pipeline, misaligned": (519, of_form("pipeline", realigned=True, cluster=1)),
    "pipeline, bulk copies": (2056, of_form("pipeline", cluster=2, bulk=True)),
    "word_aligned": (519, of_form("word_aligned")),
    "multipass": (1030, shared(1)),
    "multipass of several blocks": (1030, shared(3)),
}


def ran(executor: HostExecutor) -> list[str]:
    return [entry.removeprefix("layernorm_backward_") for entry, _ in executor.history]


@pytest.mark.parametrize(("way", "dtypes"), paired(WAYS, [F32, BF16, MIXED]))
def test_one_row_has_no_second_stage(way: str, dtypes: DtypeSet) -> None:
    width, ways = WAYS[way]
    found = bundled_subject("layernorm")
    for how in ({}, {"accumulate": True}):
        executor, subject = HostExecutor(checked=True), replace(found, norm=Norm(found.norm.package))
        with first(ways):
            prove(subject, case_of(subject, 1, width, dtypes, **how), executor, directions=("backward",))
        assert set(ran(executor)) == {way.partition(" ")[0].strip(",")}


@pytest.mark.parametrize("way", WAYS)
def test_bits_are_those_of_two_stages(way: str) -> None:
    """Which gradients take that begin where no vector does."""
    width, ways = WAYS[way]
    rng = np.random.default_rng(3)
    x, dy, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, width), (1, width), width))
    given = {"x": x, "dy": dy, "w": w, "mu": x.mean(1), "rstd": 1 / x.std(1)}
    made = {}
    for offset in (0, 1):
        executor = HostExecutor(checked=True)
        norm = Norm(bundled_subject("layernorm").norm.package).on(executor)
        memory = {name: np.zeros(width + 4, np.float32) for name in ("dw", "db")}
        place = {name: (-array.ctypes.data % 16) // 4 + offset for name, array in memory.items()}
        out = {name: array[place[name] :][:width] for name, array in memory.items()}
        with first(ways):
            norm.backward(**given, out=out)
        made[offset] = out
        assert ("second_stage" in ran(executor)) == bool(offset)
    assert all(same_bits(made[0][name].copy(), made[1][name].copy()) for name in ("dw", "db"))


@pytest.mark.parametrize(("rows", "width", "dtypes"), [(2, 6248, BF16), (3, 792, MIXED), (4, 1023, F32)])
def test_one_unit_has_a_few_rows(rows: int, width: int, dtypes: DtypeSet) -> None:
    executor = HostExecutor(checked=True)
    found = bundled_subject("layernorm")
    subject = replace(found, norm=Norm(found.norm.package))
    with first(of_form("pipeline")):
        prove(subject, case_of(subject, rows, width, dtypes), executor, directions=("backward",))
    assert ran(executor) == ["pipeline"]


def test_many_rows_leave_partials() -> None:
    executor = HostExecutor(checked=True)
    found = bundled_subject("layernorm")
    prove(found, case_of(found, 40, 2056), executor, directions=("backward",))
    assert ran(executor)[-1] == "second_stage"
