"""Rows that begin anywhere in a word of memory: their schedules, and results on the checked host executor."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from normgen.dtypes import DTYPES
from normgen.families.rows.launch import shape as rows_shape
from normgen.launching.launch import Binding
from normgen.runtime.norm import Norm
from tests.codegen.norms import H200, bound, packaged, schedules
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove

NORMS = ("layernorm", "softmax", "add_rmsnorm", "dyt")


def schedule(name, direction, dtype="bf16", binding=None, **how):
    record = getattr(packaged(name), direction)
    return schedules(record, binding or bound(record, dtype, rest=16384, **how), H200)[0][0]


def moved(binding: Binding, name: str, alignment: int) -> Binding:
    """The binding with one operand at another alignment."""
    operands = [(n, replace(o, alignment=alignment) if n == name else o) for n, o in binding.operands]
    return replace(binding, operands=tuple(operands))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "add_rmsnorm"])
@pytest.mark.parametrize(("dtype", "vector"), [("bf16", 8), ("f32", 4)])
def test_odd_widths_have_wide_vectors(name, direction, dtype, vector):
    chosen = schedule(name, direction, dtype, D=5119)
    assert chosen.shifted and chosen.vector == vector
    assert not schedule(name, direction, dtype, D=5120).shifted


def test_rows_that_are_not_shifted():
    assert not schedule("rmsnorm", "forward", D=5116).shifted  # vectors of 8 bytes
    for dtype in ("bf16", "f32"):
        assert not schedule("rmsnorm", "forward", dtype, D=255).shifted  # mostly ends
    assert not schedule("dyt", "backward", D=1023).shifted  # a sum over all elements
    record = packaged("rmsnorm").forward
    plain = bound(record, "bf16", rest=8, D=1024)
    assert schedule("rmsnorm", "forward", binding=moved(plain, "x", 2)).shifted
    assert not schedule("rmsnorm", "forward", binding=moved(plain, "w", 2)).shifted
    operands = dict(plain.operands)
    overlapping = replace(operands["x"], strides=(("...", 1), ("D", 1)))
    found = replace(plain, operands=tuple((operands | {"x": overlapping}).items()))
    assert not schedule("rmsnorm", "forward", binding=found).shifted


@pytest.mark.parametrize(
    ("name", "direction", "width", "threads", "vectors"),
    [
        ("rmsnorm", "forward", 767, 32, 3),
        ("rmsnorm", "forward", 1535, 32, 6),
        ("softmax", "forward", 2047, 64, 4),
        ("layernorm", "forward", 3001, 64, 6),
        ("add_rmsnorm", "forward", 1535, 64, 3),  # of two operands four in each of 32 are enough
        ("softmax", "backward", 1023, 32, 4),
        ("rmsnorm", "forward", 3583, 128, 4),
        ("rmsnorm", "forward", 516, 32, 5),  # four elements at once: not cut out of words, as few threads
        ("layernorm", "forward", 1028, 32, 9),
        ("add_rmsnorm", "forward", 1028, 64, 5),
    ],
)
def test_short_rows_have_few_warps(name, direction, width, threads, vectors):
    """Each warp has two ends of its own, and a narrow vector is little for a thread."""
    record = getattr(packaged(name), direction)
    chosen, _ = schedules(record, bound(record, "bf16", rest=4096, D=width), H200)[0]
    assert (chosen.form, chosen.team, chosen.items) == ("registers", threads, vectors)
    assert chosen.shifted == (width % 4 != 0)


def test_teams_of_whole_blocks():
    for name, length, items in (("add_rmsnorm", 3000, 3), ("softmax", 5120, 5), ("softmax", 7168, 7)):
        chosen = schedule(name, "forward", D=length)
        assert (chosen.team, chosen.items) == (128, items)
    assert schedule("rmsnorm", "backward", D=5120).cluster == 2
    # a quarter of 128 threads, or of 256, would have no vector
    assert schedule("add_rmsnorm", "forward", D=1536).team == 96


# Elements of a thread, threads of a block, blocks of a row and of a multiprocessor.
ONE_PLACE = [
    ("rmsnorm", "bf16", (32, 160, 1, 2)),
    ("layernorm", "bf16", (16, 160, 2, 3)),
    ("rmsnorm", "f32", (16, 160, 2, 2)),
    ("layernorm", "f32", (16, 160, 2, 2)),
]


@pytest.mark.parametrize(("name", "dtype", "expected"), ONE_PLACE)
def test_sums_over_shifted_rows_have_a_ring_of_one_place(name, dtype, expected):
    """Where they are not slanted, since nothing is known of where one of the operands begins."""
    binding = bound(packaged(name).backward, dtype, rest=16384, D=5119)
    chosen = schedule(name, "backward", binding=moved(binding, "x", DTYPES[dtype].bytes))
    assert (chosen.items * chosen.vector, chosen.threads, chosen.cluster, chosen.blocks) == expected
    assert chosen.stages == 1


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_gradients_in_a_ring_of_one_place(name, dtypes):
    subject = bundled_subject(name)
    prove(subject, case_of(subject, 31, 5119, dtypes), directions=("backward",))


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("width", [257, 1023, 1025])
@pytest.mark.parametrize("name", NORMS)
def test_results(name, width, dtypes):
    subject = bundled_subject(name)
    prove(subject, case_of(subject, 11, width, dtypes))


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("width", [1, 2, 7, 9, 17, 31, 33, 100])
def test_short_rows_too(width, dtypes, monkeypatch):
    """A row of few words has both ends in most of them."""
    monkeypatch.setattr(rows_shape, "_SHIFTED_FROM", 0)
    monkeypatch.setattr(rows_shape, "_SHIFTED_ELEMENTS", 0)
    subject = bundled_subject("layernorm")
    prove(replace(subject, norm=Norm(subject.norm.package)), case_of(subject, 37, width, dtypes))


def test_what_rows_share_begins_anywhere_too():
    """Each sample's scale lies one element further from the one before than it is long."""
    subject = bundled_subject("adaln_modulate")
    prove(subject, replace(case_of(subject, 3, 2048, F32), offset=2, padded=True))


@pytest.mark.parametrize("offset", [1, 4, 7])
def test_an_operand_at_any_element(offset):
    """Alone: what all rows share is aligned. Rows of one content have the same bits wherever they begin."""
    width, random = 515, np.random.default_rng(offset)
    row = random.standard_normal(width).astype(ml_dtypes.bfloat16)
    memory = np.empty(offset + 9 * width, ml_dtypes.bfloat16)
    x = memory[offset:].reshape(9, width)
    x[...] = row
    w = random.standard_normal(width).astype(ml_dtypes.bfloat16)
    norm = Norm(packaged("rmsnorm")).on(CHECKED)
    y, rstd = norm.forward(x=x, w=w)
    assert (y == y[0]).all() and (rstd == rstd[0]).all()
    want = row.astype(float) * w.astype(float) / np.sqrt((row.astype(float) ** 2).mean() + 1e-6)
    np.testing.assert_allclose(y[0].astype(float), want, rtol=5e-3)
    dx, _ = norm.backward(dy=x, x=x, w=w, rstd=rstd)
    assert (dx == dx[0]).all()
