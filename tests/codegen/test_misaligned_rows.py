"""Rows that begin anywhere in a word of memory: which form is offered where, and what rules one out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normgen.launching.launch import Binding
from normgen.package.records import PassRecord
from tests.codegen.norms import H200, bound, offers, package_of, packaged


def ways(record: PassRecord, binding: Binding) -> set[str]:
    """The forms that are offered, and whether rows may come realigned."""
    found = offers(record, binding, H200)
    return {each.form for each in found} | {"realigned" for each in found if each.realigned}


def call_of(name: str, direction: str, length: int, dtype: str = "bf16", **how: Any) -> set[str]:
    record = getattr(packaged(name), direction)
    return ways(record, bound(record, dtype, rest=4096, D=length, **how))


def placed(binding: Binding, name: str, *strides: tuple[str, int], alignment: int = 16) -> Binding:
    """The binding with an operand that lies otherwise in memory."""
    operands = dict(binding.operands)
    found = replace(operands[name], alignment=alignment)
    operands[name] = replace(found, strides=strides) if strides else found
    return replace(binding, operands=tuple(operands.items()))


def test_rows_that_are_not_realigned() -> None:
    assert "realigned" not in call_of("rmsnorm", "forward", 5116)  # vectors of 8 bytes
    assert "realigned" not in call_of("rmsnorm", "forward", 63)  # mostly ends
    record = packaged("rmsnorm").forward
    plain = bound(record, "bf16", rest=8, D=1024)
    assert "realigned" in ways(record, placed(plain, "x", alignment=2))
    assert "realigned" not in ways(record, placed(plain, "w", alignment=2))
    assert "realigned" not in ways(record, placed(plain, "x", ("...", 1), ("D", 1)))  # rows overlap


def test_rows_with_sums_over_all_elements_are_realigned() -> None:
    assert "realigned" in call_of("dyt", "backward", 1023)


def test_rows_that_do_not_come_in_row_tiles() -> None:
    assert "row_tile" in call_of("softmax", "forward", 151)
    assert "row_tile" not in call_of("softmax", "forward", 152)  # rows begin where words do
    assert "row_tile" not in call_of("softmax", "forward", 151, padding=1)  # rows are apart
    assert "row_tile" not in call_of("softmax", "forward", 151, alignment=2)  # the first begins anywhere
    assert "row_tile" not in call_of("softmax", "forward", 151, dtypes={"y": "f32"})  # results have no place
    assert "row_tile" not in call_of("layernorm", "backward", 151)  # sums over rows
    record = package_of("norm images\ninput x[B, S, D]\noutput y[B, S, D] = softmax[D](x)\n").forward
    found = bound(record, "bf16", B=64, S=128, D=151)
    assert "row_tile" in ways(record, found)
    assert "row_tile" not in ways(record, placed(found, "x", ("B", 151), ("S", 64 * 151), ("D", 1)))


def test_rows_that_are_not_word_aligned() -> None:
    record = packaged("layernorm").backward
    usual = bound(record, "bf16", rest=16384, D=1023)
    assert "word_aligned" in ways(record, usual)
    # rows of two operands begin at different elements, or it is not known at which
    assert "word_aligned" not in ways(record, placed(usual, "dy", ("...", 1025), ("D", 1)))
    assert "word_aligned" not in ways(record, placed(usual, "x", alignment=2))
    assert "word_aligned" not in call_of("layernorm", "backward", 1023, without=("dy", "db"))
    assert "word_aligned" not in call_of("softmax", "backward", 1023)  # nothing is accumulated
    # no one step leads through the rows of two axes
    text = "norm pairs\ninput x[B, S, D]\nparam w[D]\noutput y[B, S, D] = x * rsqrt(mean[D](x^2)) * w\n"
    record = package_of(text).backward
    found = bound(record, "bf16", B=64, S=128, D=1023)
    assert "word_aligned" in ways(record, found)
    for name in ("x", "dy", "dx"):
        found = placed(found, name, ("B", 128 * 1023 + 3), ("S", 1023), ("D", 1))
    assert "word_aligned" not in ways(record, found)
