"""Short rows that begin anywhere, several of which a block moves together: where they are taken, on which
banks of shared memory lanes are, and results on the checked host executor."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

from normgen.families.rows.launch import choose
from normgen.families.rows.launch.one_block import any_slab
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.launch import Binding
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS
from tests.codegen.norms import H200, bound, package_of, packaged, schedules
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove

HALVES = [each for each in DTYPE_SETS if each.name in ("bf16", "f16", "bf16, params f32")]


def schedule(
    name: str,
    length: int,
    direction: str = "forward",
    dtype: str = "bf16",
    device: Machine = H200,
    **how: Any,
) -> RowSchedule:
    record = getattr(packaged(name), direction)
    return schedules(record, bound(record, dtype, rest=4096, D=length, **how), device)[0][0]


# Columns, and lanes of a row, elements of a lane, rows of a block.
ONE_OPERAND = [
    (5, (1, 5, 128)),
    (33, (1, 33, 128)),
    (65, (2, 33, 64)),
    (129, (2, 65, 64)),
    (151, (4, 38, 32)),
    (257, (4, 65, 32)),
    (385, (8, 49, 16)),
    (513, (16, 33, 8)),
]
TWO_OPERANDS = [
    (33, (2, 17, 64)),
    (129, (4, 33, 32)),
    (151, (8, 19, 16)),
    (257, (16, 17, 8)),
    (513, (32, 17, 8)),
]


@pytest.mark.parametrize(
    ("name", "direction", "length", "expected"),
    [
        *((name, "forward", *each) for name in ("softmax", "layernorm", "rmsnorm") for each in ONE_OPERAND),
        *(("softmax", "backward", *each) for each in TWO_OPERANDS),
        *(("add_rmsnorm", "forward", *each) for each in TWO_OPERANDS),
    ],
)
def test_the_fewest_lanes_have_a_row(name, direction, length, expected):
    found = schedule(name, length, direction)
    assert found.form == "slab"
    assert (found.team, found.items * found.vector, found.teams) == expected


def modulated(length: int) -> RowSchedule:
    """Rows of three operands, of which several rows have two in common."""
    record = packaged("adaln_modulate").forward
    return schedules(record, bound(record, "bf16", B=8, S=512, D=length), H200)[0][0]


def test_what_does_not_come_in_slabs():
    assert schedule("softmax", 151).form == "slab"
    assert schedule("softmax", 152).form != "slab"  # rows begin where words do
    assert schedule("softmax", 148).form != "slab"  # or halves of them
    assert schedule("softmax", 767).form != "slab"  # vectors are cut out of words
    assert schedule("softmax", 32, dtype="f32").form != "slab"  # shorter than what was measured
    assert schedule("gated_rmsnorm", 639).form == "slab"
    assert modulated(639).form == "slab"
    assert schedule("rmsnorm", 1023, dtype="f32").form != "slab"  # the same
    assert schedule("rmsnorm", 514, dtype="f32").form != "slab"  # pairs do as well
    assert schedule("softmax", 151, padding=1).form != "slab"  # there is something between the rows
    assert schedule("softmax", 151, alignment=2).form != "slab"  # the first begins anywhere
    assert schedule("softmax", 151, dtypes={"y": "f32"}).form != "slab"  # results have no place
    assert schedule("layernorm", 151, "backward").form != "slab"  # sums over rows


@pytest.mark.parametrize(
    ("name", "dtype", "width", "lanes"),
    [
        ("softmax", "bf16", 151, 4),
        ("rmsnorm", "bf16", 34, 1),
        ("layernorm", "bf16", 130, 4),
        ("rmsnorm", "bf16", 514, 16),
        ("rmsnorm", "bf16", 1026, 32),
        ("softmax", "bf16", 2050, 32),
        ("add_rmsnorm", "bf16", 1026, 32),
        ("layernorm", "f32", 130, 4),
        ("rmsnorm", "f32", 513, 16),
        ("add_rmsnorm", "f32", 257, 16),
    ],
)
def test_lanes_of_a_row(name, dtype, width, lanes):
    """The fewest that have not too many elements of it, and of its other operands."""
    found = schedule(name, width, dtype=dtype)
    assert (found.form, found.team) == ("slab", lanes)


def with_strides(binding: Binding, name: str, *strides: tuple[str, int]) -> Binding:
    """The binding with an operand that lies otherwise in memory."""
    operands = dict(binding.operands)
    return replace(
        binding, operands=tuple((operands | {name: replace(operands[name], strides=strides)}).items())
    )


def test_rows_of_several_axes():
    record = package_of("norm images\ninput x[B, S, D]\noutput y[B, S, D] = softmax[D](x)\n").forward
    found = bound(record, "bf16", B=64, S=128, D=151)
    assert schedules(record, found, H200)[0][0].form == "slab"
    turned = with_strides(found, "x", ("B", 151), ("S", 64 * 151), ("D", 1))
    assert schedules(record, turned, H200)[0][0].form != "slab"
    apart = with_strides(found, "x", ("B", 129 * 151), ("S", 151), ("D", 1))
    assert schedules(record, apart, H200)[0][0].form != "slab"


@pytest.mark.parametrize("bytes_", [2, 4])
@pytest.mark.parametrize("length", [33, 65, 97, 129, 131, 151, 257, 385, 511])
def test_lanes_are_on_different_banks(length, bytes_):
    """Where a row has 4 or 8 lanes. Rows of 2-byte elements share a bank if they begin in the midst of it."""
    for lanes in (4, 8):
        warps, teams = lanes, 32 // lanes
        for warp in range(warps):
            elements = [
                (team * warps + warp) * length + lane for team in range(teams) for lane in range(lanes)
            ]
            words = {element * bytes_ // 4 for element in elements}
            assert max(Counter(word % 32 for word in words).values()) <= 4 // bytes_


@pytest.mark.parametrize("dtypes", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("name", "rows", "width"),
    [
        ("softmax", 70, 151),
        ("softmax", 1, 5),
        ("log_softmax", 33, 131),
        ("layernorm", 131, 33),  # a lane for a row
        ("layernorm", 45, 129),
        ("layernorm", 17, 513),
        ("rmsnorm", 100, 65),
        ("rmsnorm", 31, 257),
        ("add_rmsnorm", 40, 151),  # two operands, two results
        ("add_layernorm", 9, 639),
        ("adaln_modulate", 41, 97),  # operands of which several rows have one
        ("gated_rmsnorm", 20, 257),
        ("l2norm", 35, 35),
    ],
)
def test_results(name, rows, width, dtypes):
    subject = bundled_subject(name)
    record = subject.norm.package.forward
    found = bound(record, "bf16", rest=rows, B=1, S=rows, D=width)
    assert schedules(record, found, HOST_MACHINE)[0][0].form == "slab"
    prove(subject, case_of(subject, rows, width, dtypes), directions=("forward",))


@pytest.mark.parametrize("dtypes", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize(("rows", "width"), [(70, 151), (129, 33), (18, 513)])
def test_a_backward(rows, width, dtypes):
    subject = bundled_subject("softmax")
    prove(subject, case_of(subject, rows, width, dtypes), directions=("backward",))


def test_a_gradient_is_added_to_what_is_there():
    """That of a param with elements of each row, which lie in the slab until they are stored."""
    package = package_of("norm t\ninput x[B, D]\nparam p[B, D]\noutput y[B, D] = softmax[D](x + p)\n")
    assert (
        schedules(package.backward, bound(package.backward, "bf16", B=37, D=151), HOST_MACHINE)[0][0].form
        == "slab"
    )
    random, norm = np.random.default_rng(5), Norm(package).on(CHECKED)
    drawn = {n: random.standard_normal((37, 151)).astype(ml_dtypes.bfloat16) for n in ("dy", "x", "p")}
    there = np.full((37, 151), 4, ml_dtypes.bfloat16)
    added = norm.backward(**drawn, out={"dp": there}, accumulate=True).dp.astype(np.float32)
    alone = norm.backward(**drawn).dp.astype(np.float32)
    np.testing.assert_allclose(added, alone + 4, rtol=2**-8)  # one rounding of each


@pytest.mark.parametrize("how", [{"in_place": True}, {"padded": True}, {"offset": 1}, {"offset": 8}])
@pytest.mark.parametrize("name", ["softmax", "layernorm", "add_rmsnorm"])
def test_results_otherwise(name, how):
    """In the memory of an operand, of rows that are apart, of rows that begin elsewhere."""
    subject = bundled_subject(name)
    prove(subject, case_of(subject, 41, 151, BF16, **how))


WAYS = [(lanes, warps) for lanes in (1, 2, 4, 8, 16, 32) for warps in (4, 8, 16)]


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("width", [35, 38])  # one element at once, and two
@pytest.mark.parametrize(("lanes", "warps"), WAYS)
def test_every_way(lanes, warps, width, dtypes):
    """A block of 4 rows or more, of which some are beyond the last."""

    def tiers(shape: RowShape, device: Machine) -> list[list[RowSchedule]]:
        ways = [s for s in any_slab(shape) if (s.team, s.threads) == (lanes, 32 * warps)]
        return [[s] for s in ways] or usual(shape, device)

    usual = choose.tiers

    subject = bundled_subject("layernorm")
    with patch.object(choose, "tiers", tiers):
        fresh = replace(subject, norm=Norm(subject.norm.package))
        prove(fresh, case_of(subject, 37, width, dtypes), directions=("forward",))


def test_bits_do_not_depend_on_where_a_row_lies():
    """Nor on how many rows there are. (Statistics are not rounded to 2 bytes, which hides differences.)"""
    random = np.random.default_rng(5)
    x, dy = (random.standard_normal((77, 151)).astype(ml_dtypes.bfloat16) for _ in range(2))
    layernorm, softmax = (Norm(packaged(name)).on(CHECKED) for name in ("layernorm", "softmax"))
    whole = layernorm.forward(x=x)
    back = softmax.backward(dy=dy, y=x).dx
    for begin, end in ((1, 77), (2, 40), (7, 8), (12, 77)):
        part = layernorm.forward(x=x[begin:end].copy())
        assert all(a.tobytes() == b[begin:end].tobytes() for a, b in zip(part, whole, strict=True))
        found = softmax.backward(dy=dy[begin:end].copy(), y=x[begin:end].copy()).dx
        assert found.tobytes() == back[begin:end].tobytes()
