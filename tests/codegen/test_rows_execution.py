"""Kernels of the rows family, form by form, on the checked host executor, which has three multiprocessors: by
itself at lengths that take the form, or forced to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from normgen.families.rows.launch import shape as rows_shape
from normgen.families.rows.launch.legal import fit
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS, DtypeSet
from tests.codegen.norms import H200, bound, bulk_pair, host_launches, package_of, packaged, schedules
from tests.codegen.ways import Offers, first, of_form, pipeline
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove, same_bits

F16, MIXED = DTYPE_SETS[3], next(d for d in DTYPE_SETS if d.name == "bf16, params f32")


class Rows(NamedTuple):
    name: str
    direction: str
    rows: int
    width: int
    dtypes: DtypeSet
    form: str
    cluster: int = 1


# Blocks that have more rows than places, fewer, and one that not all have; threads without a vector; the last
# slice a part of one; few rows, which leave blocks idle.
USUAL = [
    Rows("rmsnorm", "backward", 40, 3992, BF16, "pipeline", 2),
    Rows("add_rmsnorm", "backward", 23, 8192, BF16, "pipeline", 4),
    Rows("layernorm", "backward", 11, 9224, BF16, "pipeline", 4),
    Rows("layernorm", "backward", 1, 3000, F32, "pipeline", 2),
    # rows of heads, one vector a thread; rows that blocks would share unevenly; two elements at a time
    Rows("rmsnorm", "backward", 901, 64, BF16, "pipeline"),
    # clusters
    Rows("add_rmsnorm", "forward", 2, 131080, F32, "registers", 16),
    Rows("layernorm", "forward", 20, 65536, F32, "pipeline", 8),
    # short rows that begin anywhere, moved together: a lane for a row, several; two operands; some shared
    Rows("softmax", "forward", 1, 5, F16, "row_tile"),
    Rows("layernorm", "forward", 131, 33, BF16, "row_tile"),
    Rows("log_softmax", "forward", 33, 131, MIXED, "row_tile"),
    Rows("add_layernorm", "forward", 9, 639, BF16, "row_tile"),
    # sums over rows that begin anywhere, stored by aligned words
    Rows("layernorm", "backward", 61, 511, BF16, "word_aligned"),
    Rows("add_layernorm", "backward", 26, 2562, BF16, "word_aligned"),
    # rows that begin anywhere, loaded by realigned vectors
    Rows("add_rmsnorm", "forward", 11, 1023, F32, "registers"),
    Rows("layernorm", "backward", 31, 5119, F32, "pipeline", 2),
]


def element(case: Rows) -> str:
    return case.dtypes.name.partition(",")[0]


def prove_rows(case: Rows, fresh: bool = False, **how: Any) -> None:
    """A call. `fresh`: with plans of its own."""
    found = bundled_subject(case.name)
    if fresh:
        found = replace(found, norm=Norm(found.norm.package))
    prove(found, case_of(found, case.rows, case.width, case.dtypes, **how), directions=(case.direction,))


@pytest.mark.parametrize("case", USUAL, ids=lambda c: f"{c.form}-{c.name}-{c.direction}-{c.rows}x{c.width}")
def test_lengths_that_can_take_a_form(case: Rows) -> None:
    with first(of_form(case.form, cluster=case.cluster)):
        launch = host_launches(case.name, case.direction, element(case), rest=case.rows, D=case.width)[0]
        assert launch.entry.endswith(f"_{case.form}") and launch.cluster == case.cluster
        prove_rows(case, fresh=True)


# In the memory of an operand, of rows that are apart, that begin elsewhere; added to what is there.
OTHERWISE = [
    ("softmax", 151, "in_place"), ("add_rmsnorm", 151, "offset"), ("softmax", 151, "pitch"),
    ("layernorm", 1023, "in_place"), ("layernorm", 1023, "accumulate"), ("layernorm", 1023, "offset"),
    ("layernorm", 1022, "pitch"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "width", "how"), OTHERWISE)
def test_rows_that_begin_anywhere_otherwise(name: str, width: int, how: str) -> None:
    found = bundled_subject(name)
    for value in {"offset": (1, 8), "pitch": ("padded", "rounded")}.get(how, (True,)):
        prove(found, case_of(found, 41, width, BF16, **{how: value}))


# ------------------------------------------------------------------------------------------------ forced


def one_slice(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """A pipeline of one slice, which is filled again when it has been read."""
    return [pipeline(shape, threads=64, cluster=2, reload=True, stages=1)] if shape.columns else []


def refilled(shape: RowShape, more: int, threads: int = 128, cluster: int = 2) -> RowSchedule:
    """A row in so many blocks, and places for so many vectors of the rows that follow."""
    made = pipeline(shape, threads, cluster, reload=True, stages=1)
    return replace(made, bulk=False, places=made.items + more)


def refills(shape: RowShape, device: Machine) -> list[RowSchedule]:
    return [refilled(shape, 3, shape.length // 8 // shape.vector)] if shape.columns else []


def row_tiles(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """A block of 4 rows or more, of which some are beyond the last."""
    every = of_form("row_tile")(shape, device)
    return [s for s in every if (s.team, s.threads) == (1, 128)]


pipelines: Offers = of_form("pipeline", cluster=8)
FORCED = {
    "pipelines of rows, clusters": (Rows("softmax", "forward", 20, 65544, BF16, "pipeline"), pipelines),
    "bulk copies kept in registers": (Rows("layernorm", "forward", 67, 5000, BF16, "pipeline"), bulk_pair),
    "bulk copies and sums": (Rows("rmsnorm", "backward", 70, 4096, F32, "pipeline"), bulk_pair),
    "one slice": (Rows("layernorm", "backward", 37, 4096, BF16, "pipeline"), one_slice),
    "refilled, two operands": (Rows("add_rmsnorm", "backward", 17, 8192, F32, "pipeline"), refills),
    "row_tile, a lane": (Rows("layernorm", "forward", 37, 35, BF16, "row_tile"), row_tiles),
}  # fmt: skip


@pytest.mark.parametrize(("case", "ways"), FORCED.values(), ids=FORCED)
def test_schedules_that_are_asked_for(case: Rows, ways: Offers) -> None:
    with first(ways):
        launch = host_launches(case.name, case.direction, element(case), rest=case.rows, D=case.width)[0]
        assert launch.entry.endswith(f"_{case.form}")
        prove_rows(case, fresh=True)


def test_a_pipeline_without_places_to_spare_is_refused() -> None:
    record = packaged("rmsnorm").backward
    (kernel, *_) = record.strategies[0].kernels
    shape = shape_of(kernel, Call(bound(record, "f32", rest=64, D=16384), H200, ""))
    assert "too few" in str(fit(refilled(shape, 0), shape, H200))
    assert "one after the other" in str(fit(refilled(shape, 4), replace(shape, refills=False), H200))
    assert "beyond the row" in str(fit(refilled(shape, 4, 160), shape, H200))


def test_in_place() -> None:
    """A row that is in the pipeline still is not the memory that a row before it went to."""
    found = bundled_subject("layernorm")
    case = case_of(found, 9, 20000, F32, in_place=True)
    with first(pipelines):
        prove(replace(found, norm=Norm(found.norm.package)), case, directions=("forward",))


@pytest.mark.parametrize(("width", "dtypes"), [(1, BF16), (2, F32), (7, BF16), (17, F32), (33, BF16)])
def test_short_rows_by_realigned_vectors(
    width: int, dtypes: DtypeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of few words has both ends in most of them."""
    monkeypatch.setattr(rows_shape, "_REALIGNED_FROM", 0)
    monkeypatch.setattr(rows_shape, "_REALIGNED_ELEMENTS", 0)
    found = bundled_subject("layernorm")
    prove(replace(found, norm=Norm(found.norm.package)), case_of(found, 37, width, dtypes))


def test_what_rows_share_begins_anywhere_too() -> None:
    """Each sample's scale lies one element further from the one before than it is long."""
    found = bundled_subject("adaln_modulate")
    prove(found, case_of(found, 3, 2048, F32, offset=2, pitch="padded"))


# ------------------------------------------------------------------------------------------------ bits


@pytest.mark.parametrize("width", [151, 1023], ids=["row_tile", "word_aligned"])
def test_bits_do_not_depend_on_where_a_row_lies(width: int) -> None:
    """Nor on how many rows there are in a bucket. (Statistics are not rounded to 2 bytes, which hides
    differences.)"""
    random = np.random.default_rng(5)
    x, dy = (random.standard_normal((45, width)).astype(ml_dtypes.bfloat16) for _ in range(2))
    norm = Norm(packaged("layernorm")).on(CHECKED)
    whole = norm.forward(x=x)
    back = norm.backward(dy=dy, x=x, mu=whole.mu, rstd=whole.rstd, wrt=("x", "w"))
    for begin in (1, 2, 7, 12):
        part = norm.forward(x=x[begin:].copy())
        assert all(same_bits(a, b[begin:]) for a, b in zip(part, whole, strict=True))
        cut = {n: a[begin:].copy() for n, a in (("dy", dy), ("x", x), ("mu", whole.mu), ("rstd", whole.rstd))}
        assert same_bits(norm.backward(**cut, wrt=("x", "w")).dx, back.dx[begin:])


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "length"), [("layernorm", 40962), ("softmax", 1000), ("rmsnorm", 4096)])
def test_nearly_as_many_rows_have_the_same_bits(name: str, length: int) -> None:
    norm = Norm(packaged(name))
    x = np.random.default_rng(3).standard_normal((70, length)).astype(ml_dtypes.bfloat16)
    many, fewer = norm.forward(x=x), norm.forward(x=x[:33])
    assert all(same_bits(one[:33], other) for one, other in zip(many, fewer, strict=True))


def test_a_gradient_is_added_to_what_is_there() -> None:
    """That of a param with elements of each row, which lie in the row tile until they are stored."""
    package = package_of("norm t\ninput x[B, D]\nparam p[B, D]\noutput y[B, D] = softmax[D](x + p)\n")
    found = bound(package.backward, "bf16", B=37, D=151)
    random, norm = np.random.default_rng(5), Norm(package).on(CHECKED)
    drawn = {n: random.standard_normal((37, 151)).astype(ml_dtypes.bfloat16) for n in ("dy", "x", "p")}
    there = np.full((37, 151), 4, ml_dtypes.bfloat16)
    with first(of_form("row_tile")):
        assert schedules(package.backward, found, HOST_MACHINE)[0].form == "row_tile"
        added = norm.backward(**drawn, out={"dp": there}, accumulate=True).dp.astype(np.float32)
        alone = norm.backward(**drawn).dp.astype(np.float32)
    np.testing.assert_allclose(added, alone + 4, rtol=2**-8)  # one rounding of each
