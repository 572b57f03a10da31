"""Rows that begin anywhere in a word of memory: which form is taken where, and what rules one out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normgen.families.rows.launch.schedule import RowSchedule
from normgen.launching.launch import Binding
from normgen.package.records import PassRecord
from tests.codegen.norms import H200, bound, package_of, packaged, schedules


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
