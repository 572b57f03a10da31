"""Definitions for tensors whose channels lie innermost."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.dsl import load_definition
from normgen.ir.channels_last import channels_last

ATTRS = {"groupnorm": {"groups": 2}}


def _bundled(name, attrs):
    source = bundled.read(name)
    assert source is not None
    return load_definition(source, attrs)


@pytest.mark.parametrize("name", ("batchnorm", "groupnorm"))
def test_a_spec_written_for_that_order_says_the_same(name):
    attrs = ATTRS.get(name, {})
    moved = channels_last(_bundled(name, attrs))
    written = _bundled(f"{name}_channels_last", attrs).program
    assert moved is not None and moved.program.name == written.name
    found = [
        [(t.name, t.dims) for t in (*program.operands, *(r.tensor for r in program.results))]
        for program in (moved.program, written)
    ]
    if name == "batchnorm":  # which has no use for an axis of its own there
        found[0] = [(n, dims if len(dims) == 1 else dims[1:]) for n, dims in found[0]]
    assert found[0] == found[1]


def test_explicit_axes_move_as_well_and_what_has_no_channels_is_left():
    moved = channels_last(_bundled("softmax2d", {}))
    assert moved is not None
    assert moved.program.operands[0].dims == (("B",), ("H",), ("W",), ("C",))
    assert channels_last(_bundled("layernorm", {})) is None
