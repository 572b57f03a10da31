"""Sums over rows that begin anywhere, whose results go by words of memory: where they are taken, that all
rows of a team begin at the same element, and results on the checked host executor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.families.rows.launch.blocks import RowBlocks
from normgen.families.rows.launch.schedule import RowSchedule
from normgen.launching.call import Call
from normgen.launching.launch import Binding
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS
from tests.codegen.norms import H200, bound, package_of, packaged, schedules
from tests.verify.subjects import BF16, bundled_subject, case_of, prove

HALVES = [each for each in DTYPE_SETS if each.name in ("bf16", "f16", "bf16, params f32")]


def binding_of(name: str, length: int, rows: int = 16384, dtype: str = "bf16", **how: Any) -> Binding:
    return bound(packaged(name).backward, dtype, rest=rows, D=length, **how)


def schedule(name: str, binding: Binding, device: Machine = H200) -> RowSchedule:
    return schedules(packaged(name).backward, binding, device)[0][0]


# Columns, and vectors of a thread, threads of a row, rows of a block.
TAKEN = [
    (271, (2, 32, 16)),  # most threads have one
    (511, (2, 32, 16)),
    (639, (3, 32, 12)),
    (767, (3, 32, 12)),
    (1023, (4, 32, 8)),
    (1279, (5, 32, 8)),
    (2303, (3, 96, 4)),
    (3001, (3, 128, 3)),
    (3583, (4, 128, 2)),  # an eighth of the places is empty
    (5003, (5, 128, 2)),
    (5119, (5, 128, 2)),
    (6143, (4, 192, 2)),
    (7167, (4, 224, 1)),
    (8191, (4, 256, 1)),
]


@pytest.mark.parametrize(("length", "expected"), TAKEN)
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "add_rmsnorm"])
def test_sums_over_rows_of_odd_widths(name, length, expected):
    chosen = schedule(name, binding_of(name, length))
    assert chosen.form == "slanted"
    assert (chosen.items, chosen.team, chosen.teams) == expected


def with_strides(binding: Binding, name: str, *strides: tuple[str, int], alignment: int = 16) -> Binding:
    """The binding with an operand that lies otherwise in memory."""
    operands = dict(binding.operands)
    found = replace(operands[name], alignment=alignment)
    operands[name] = replace(found, strides=strides) if strides else found
    return replace(binding, operands=tuple(operands.items()))


def test_what_is_not_slanted():
    usual = binding_of("layernorm", 1023)
    assert schedule("layernorm", usual).form == "slanted"
    assert schedule("layernorm", binding_of("layernorm", 1024)).form != "slanted"  # vectors are words
    assert schedule("layernorm", binding_of("layernorm", 1023, dtype="f32")).form != "slanted"
    assert (
        schedule("gated_rmsnorm", binding_of("gated_rmsnorm", 1023)).form != "slanted"
    )  # its functions twice
    assert schedule("softmax", binding_of("softmax", 1023)).form != "slanted"  # nothing is accumulated
    # rows of two operands begin at different elements, or it is not known at which
    assert schedule("layernorm", with_strides(usual, "dy", ("...", 1025), ("D", 1))).form != "slanted"
    assert schedule("layernorm", with_strides(usual, "x", alignment=2)).form != "slanted"
    # without one of the operands
    assert schedule("layernorm", binding_of("layernorm", 1023, without=("dy", "db"))).form != "slanted"


TWO_AXES = "norm pairs\ninput x[B, S, D]\nparam w[D]\noutput y[B, S, D] = x * rsqrt(mean[D](x^2)) * w\n"


def test_rows_that_one_step_does_not_lead_through():
    record = package_of(TWO_AXES).backward
    found = bound(record, "bf16", B=64, S=128, D=1023)
    assert schedules(record, found, H200)[0][0].form == "slanted"
    for name in ("x", "dy", "dx"):
        found = with_strides(found, name, ("B", 128 * 1023 + 3), ("S", 1023), ("D", 1))
    assert schedules(record, found, H200)[0][0].form != "slanted"


@pytest.mark.parametrize("multiprocessors", [1, 7, 132, 148])
@pytest.mark.parametrize("rows", [1, 5, 100, 16384])
@pytest.mark.parametrize("length", [511, 767, 1023, 3071, 5119, 8191])
def test_rows_of_a_team_begin_at_one_element(length, rows, multiprocessors):
    record = packaged("layernorm").backward
    device = replace(H200, multiprocessors=multiprocessors)
    call = Call(binding_of("layernorm", length, rows), device, "")
    (kernel,) = record.strategies[0].kernels
    chosen = schedule("layernorm", binding_of("layernorm", length, rows), device)
    blocks = RowBlocks(kernel, chosen, call)
    step = blocks.blocks * chosen.teams
    assert step >= rows or step % 8 == 0
    assert blocks.partials <= max(blocks.most_partials(), blocks.blocks)


@pytest.mark.parametrize("dtypes", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("name", "rows", "width"),
    [
        ("layernorm", 61, 511),
        ("layernorm", 37, 1023),
        ("layernorm", 23, 641),  # threads without a vector
        ("layernorm", 1, 5119),
        ("rmsnorm", 50, 301),
        ("rmsnorm", 29, 2303),
        ("add_rmsnorm", 40, 1019),
        ("add_layernorm", 26, 2562),  # every fourth row begins where a word does
        ("rmsnorm_llama", 33, 1279),
    ],
)
def test_results(name, rows, width, dtypes):
    subject = bundled_subject(name)
    assert schedule(name, binding_of(name, width, rows), HOST_MACHINE).form == "slanted"
    prove(subject, case_of(subject, rows, width, dtypes), directions=("backward",))


@pytest.mark.parametrize("how", [{"accumulate": True}, {"in_place": True}, {"padded": True}, {"offset": 8}])
def test_results_otherwise(how):
    """Added to what is there, in the memory of an operand, rows of which each is a word's element further."""
    subject = bundled_subject("layernorm")
    prove(subject, case_of(subject, 41, 1022 if "padded" in how else 1023, BF16, **how))


def test_bits_do_not_depend_on_where_a_row_lies():
    random = np.random.default_rng(5)
    x, dy = (random.standard_normal((45, 1023)).astype(ml_dtypes.bfloat16) for _ in range(2))
    w = random.standard_normal(1023).astype(ml_dtypes.bfloat16)
    norm = Norm(packaged("layernorm"))
    _, mu, rstd = norm.forward(x=x, w=w)
    whole = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
    for begin in (1, 2, 7, 12):
        cut = (each[begin:].copy() for each in (dy, x, mu, rstd))
        part = norm.backward(**dict(zip(("dy", "x", "mu", "rstd"), cut, strict=True)), w=w)
        assert part.dx.tobytes() == whole.dx[begin:].tobytes()
