"""Calls drawn by class to be compared with peers: what they are, and that seeds repeat them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bench.drawn import COMPARED, DIRECTIONS, Compared, compared
from tests.bench.programs import program

MANY = compared(3, 40 * len(COMPARED))
ROWS = [call for call in MANY if call.layout == "rows"]
IMAGES = [call for call in MANY if call.layout != "rows"]


def of(kind: str) -> list[Compared]:
    return [call for call in MANY if call.kind == kind]


def test_seeds_repeat_and_a_larger_count_goes_on() -> None:
    assert compared(3, 50) == MANY[:50] != compared(4, 50)


def test_each_class_has_as_many_calls_of_both_directions() -> None:
    found = Counter((call.kind, call.direction) for call in MANY)
    assert found == {(kind, direction): 20 for kind in COMPARED for direction in DIRECTIONS}


def test_every_op_type_and_layout_is_drawn() -> None:
    assert {call.layout for call in MANY} == {"rows", "nchw", "nhwc"}
    assert {call.dtype for call in ROWS} == {call.dtype for call in IMAGES} == {"bf16", "f16", "f32"}
    assert {call.op for call in ROWS} == {"rmsnorm", "layernorm", "softmax", "add_rmsnorm"}
    ops = {"groupnorm", "batchnorm", "instancenorm", "layernorm2d", "softmax2d"}
    assert {call.op for call in IMAGES} == ops


def test_shapes_are_those_of_their_class() -> None:
    assert all(call.shape[1] % 8 == 0 and call.shape[0] > 300 for call in of("multiples of 8"))
    assert all(call.shape[1] % 8 and call.shape[0] > 300 for call in of("other widths"))
    assert all(1 <= call.shape[0] <= 1024 for call in of("few rows"))
    assert all(call.shape[1] >= 100_000 for call in of("long rows"))
    assert {(call.dtype, call.params) for call in of("f32 gains")} == {("bf16", "f32")}
    assert not any(call.op == "softmax" for call in of("f32 gains")), "it has no gains"
    assert all(call.shape[1] % 8 == 0 and 36 <= call.shape[2] * call.shape[3] < 20_000 for call in IMAGES)
    assert {call.shape[1] % 32 for call in IMAGES if call.op == "groupnorm"} == {0}
    assert {call.shape[1] % 32 for call in IMAGES if call.op != "groupnorm"} == {0, 8, 16, 24}


def test_the_bench_has_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its op in that direction and layout, and a binding of the spec: all lengths and types are known."""
    heldout = program("heldout", monkeypatch)
    ops: Any = heldout.sys.modules["problems"].OPS
    for call in MANY:
        problem = heldout.problem_of(call)
        assert call.direction in ops[call.op].directions and call.layout in ops[call.op].specs
        assert problem.bytes(call.direction).total > 0


def test_params_have_a_type_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = program("problems", monkeypatch)
    problem = problems.Problem("add_rmsnorm", (64, 128), "bf16", "rows", "f32")
    residual, gain = problems.OPS["add_rmsnorm"].operands
    assert (problem.dtype_of(residual), problem.dtype_of(gain)) == ("bf16", "f32")
    plain = problems.Problem("add_rmsnorm", (64, 128), "bf16", "rows")
    assert problem.bytes("forward").total - plain.bytes("forward").total == 128 * 2
    assert problem.text == f"{plain.text}:f32 params"
