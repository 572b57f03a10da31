"""The table of what is measured: complete, and right about bytes."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from normgen import bundled
from normgen.package.direction import directions
from tests.bench.programs import program


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    return program("problems", monkeypatch)


def everything(table: Any) -> Any:
    return table.problems(table.OPS, table.DTYPES, [], table.LAYOUTS)


def test_every_op_has_a_spec_and_a_reference(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    references = program("references", monkeypatch)
    assert references.REFERENCES.keys() == table.OPS.keys()
    for name, op in table.OPS.items():
        assert op.specs.keys() == op.shapes.keys() <= set(table.LAYOUTS), name
        assert {spec for spec, _ in op.specs.values()} <= set(bundled.names())
        assert references.REFERENCES[name].__code__.co_argcount == 1 + len(op.operands)


def test_the_operands_of_an_op_are_those_of_its_specs(table: Any) -> None:
    for problem in {(p.op, p.layout): p for p in everything(table)}.values():
        op, norm = table.OPS[problem.op], table.norm_of(problem)
        given = {op.x, *(o.name for o in op.operands)}
        assert given == set(norm.forward_args), problem.text
        assert set(op.outputs) <= {tensor.name for tensor in norm.package.forward.writes}
        numbers = {attr.name for attr in norm.package.attrs}
        assert {a.name for a in norm.package.attrs if a.default is None} <= op.numbers.keys() & numbers
        _, backward = directions(norm.package)
        if "backward" in problem.directions:
            assert backward is not None
            wanted = [f"d{name}" for name in (op.x, *(o.name for o in op.operands if not o.state))]
            assert list(backward.results) == wanted, "gradients come in the order of the operands"


def test_every_peer_s_entry_is_measured(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = program("peers", monkeypatch)
    there = {(p.op, d, p.layout) for p in everything(table) for d in p.directions}
    for provider, entries in peers.PEERS.items():
        assert entries.keys() <= there, provider
        # A peer's rows serve where rows are measured in another way, but not for images.
        assert peers.peer(provider, "rmsnorm", "forward", "decode") is not None
        assert peers.peer(provider, "layernorm", "backward", "heads") is not None
        assert peers.peer(provider, "batchnorm", "forward", "nchw") is None


def test_bytes_are_those_of_the_arrays_that_callers_hold(table: Any) -> None:
    """Against a count by hand: x (dy) in, y (dx) out, params in or their gradients out, states twice."""
    for problem in everything(table):
        op, elements = table.OPS[problem.op], prod(problem.shape)
        size = 2 if problem.dtype == "bf16" else 4
        like_x = size * elements
        params = [o for o in op.operands if o.of == "channels"]
        small = {o.name: problem.channels * (4 if o.dtype == "f32" else size) for o in params}
        states = sum(small[o.name] for o in params if o.state)
        beside = sum(small.values()) - states
        if problem.op == "rmsnorm_fp8":
            scales = elements // 16 * 2
            wanted = elements + scales + beside, 2 * elements + 2
        elif problem.op == "rmsnorm_quantized_row":
            wanted = like_x + beside, like_x + elements + 4 * problem.shape[0]
        elif problem.op == "add_rmsnorm":
            wanted = 2 * like_x + beside, 2 * like_x
        else:
            wanted = like_x + beside + states, like_x + states
        found = problem.bytes("forward")
        assert (found.read, found.written) == wanted, problem.text
        # One row of a step of decoding takes as long to read as its gain.
        assert found.ceiling == ("triad" if problem.shape == (1, 4096) else "copy")
        if "backward" in problem.directions:
            gains = sum(small[o.name] for o in params if o.name == "w")
            biases = sum(small[o.name] for o in params if o.name == "b")
            backward = problem.bytes("backward")
            wanted = 2 * like_x + gains, like_x + gains + biases
            assert (backward.read, backward.written) == wanted, problem.text
            assert backward.ceiling == "triad"
