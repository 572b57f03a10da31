"""Rows that begin anywhere in a word of memory: which form is taken where, and what rules one out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.families.rows.launch.clusters import clusters
from normgen.families.rows.launch.forms import fit
from normgen.families.rows.launch.pipelines import long_rows
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.launch import Binding
from normgen.launching.machine import Machine
from normgen.package.records import PassRecord
from normgen.runtime.norm import Norm
from tests.codegen.norms import H200, bound, package_of, packaged, schedule_rows, schedules
from tests.codegen.test_nvcc import A100
from tests.verify.subjects import CHECKED

NAMES = ("layernorm", "softmax")
# From the longest row of a single block to where a copy in shared memory fits no more.
WIDTHS = tuple(base + residue for base in (16384, 32768, 56568) for residue in (1, 2, 4, 7))


def realigned(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Schedules for long rows that fit with vectors that are cut out of the words around them."""
    if not shape.realigned:
        return []
    wide = replace(shape, vector=shape.realigned, whole_words=False)
    ways = [*clusters(wide), *long_rows(wide)]
    fitted = (fit(replace(way, realigned=True), shape, device) for way in ways)
    return [each for each in fitted if isinstance(each, RowSchedule)]


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize("name", NAMES)
def test_long_rows_are_realigned_wherever_that_fits(name: str, device: Machine) -> None:
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
        assert chosen.realigned, f"{direction} {dtype} {width}: {chosen.form} by {chosen.vector} elements"
    assert realignable or not device.clusters, "one block without a cluster may have no room for them"


def chosen(record: PassRecord, binding: Binding) -> RowSchedule:
    return schedules(record, binding, H200)[0][0]


def call_of(name: str, direction: str, length: int, dtype: str = "bf16", **how: Any) -> RowSchedule:
    record = getattr(packaged(name), direction)
    return chosen(record, bound(record, dtype, rest=4096, D=length, **how))


def placed(binding: Binding, name: str, *strides: tuple[str, int], alignment: int = 16) -> Binding:
    """The binding with an operand that lies otherwise in memory."""
    operands = dict(binding.operands)
    found = replace(operands[name], alignment=alignment)
    operands[name] = replace(found, strides=strides) if strides else found
    return replace(binding, operands=tuple(operands.items()))


def test_rows_that_are_not_realigned() -> None:
    assert not call_of("rmsnorm", "forward", 5116).realigned  # vectors of 8 bytes
    assert not call_of("rmsnorm", "forward", 255).realigned  # mostly ends
    assert not call_of("dyt", "backward", 1023).realigned  # a sum over all elements
    record = packaged("rmsnorm").forward
    plain = bound(record, "bf16", rest=8, D=1024)
    assert chosen(record, placed(plain, "x", alignment=2)).realigned
    assert not chosen(record, placed(plain, "w", alignment=2)).realigned
    assert not chosen(record, placed(plain, "x", ("...", 1), ("D", 1))).realigned  # rows overlap


def test_rows_that_do_not_come_in_row_tiles() -> None:
    assert call_of("softmax", "forward", 151).form == "row_tile"
    assert call_of("softmax", "forward", 152).form != "row_tile"  # rows begin where words do
    assert call_of("softmax", "forward", 151, padding=1).form != "row_tile"  # rows are apart
    assert call_of("softmax", "forward", 151, alignment=2).form != "row_tile"  # the first begins anywhere
    assert call_of("softmax", "forward", 151, dtypes={"y": "f32"}).form != "row_tile"  # results have no place
    assert call_of("layernorm", "backward", 151).form != "row_tile"  # sums over rows
    record = package_of("norm images\ninput x[B, S, D]\noutput y[B, S, D] = softmax[D](x)\n").forward
    found = bound(record, "bf16", B=64, S=128, D=151)
    assert chosen(record, found).form == "row_tile"
    assert chosen(record, placed(found, "x", ("B", 151), ("S", 64 * 151), ("D", 1))).form != "row_tile"
    assert chosen(record, placed(found, "x", ("B", 129 * 151), ("S", 151), ("D", 1))).form != "row_tile"


def test_rows_that_are_not_word_aligned() -> None:
    record = packaged("layernorm").backward
    usual = bound(record, "bf16", rest=16384, D=1023)
    assert chosen(record, usual).form == "word_aligned"
    # rows of two operands begin at different elements, or it is not known at which
    assert chosen(record, placed(usual, "dy", ("...", 1025), ("D", 1))).form != "word_aligned"
    assert chosen(record, placed(usual, "x", alignment=2)).form != "word_aligned"
    assert call_of("layernorm", "backward", 1023, without=("dy", "db")).form != "word_aligned"
    assert call_of("gated_rmsnorm", "backward", 1023).form != "word_aligned"  # its functions twice
    assert call_of("softmax", "backward", 1023).form != "word_aligned"  # nothing is accumulated
    # no one step leads through the rows of two axes
    text = "norm pairs\ninput x[B, S, D]\nparam w[D]\noutput y[B, S, D] = x * rsqrt(mean[D](x^2)) * w\n"
    record = package_of(text).backward
    found = bound(record, "bf16", B=64, S=128, D=1023)
    assert chosen(record, found).form == "word_aligned"
    for name in ("x", "dy", "dx"):
        found = placed(found, name, ("B", 128 * 1023 + 3), ("S", 1023), ("D", 1))
    assert chosen(record, found).form != "word_aligned"


@pytest.mark.parametrize("offset", [1, 4])
def test_an_operand_at_any_element(offset: int) -> None:
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
