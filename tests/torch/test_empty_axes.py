"""Norms of specs that are drawn, of tensors that are empty along some axes: kernels and float64 agree in what
they compute, forward and backward, and in what they refuse."""

from __future__ import annotations

import os

from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from tests.axis_specs import axis_specs
from tests.strategies import COMPILED
from tests.torch.norms import nt, same, torch

EXAMPLES = int(os.environ.get("EXAMPLES", "12"))


def _outcome(function, tensors):
    """Outputs and gradients, or how they are refused."""
    given = [tensor.detach().requires_grad_() for tensor in tensors]
    try:
        made = function(*given)
        made = made if isinstance(made, tuple) else (made,)
        found = torch.autograd.grad(sum(each.cos().sum() for each in made), given, allow_unused=True)
    except RuntimeError as refusal:
        return str(refusal)
    return [*made, *found]


@seed(1)
@settings(COMPILED, max_examples=EXAMPLES)
@given(axis_specs(2), st.data())
def test_what_is_not_empty_is_the_same_in_float64(text, data):
    lengths = {axis: data.draw(st.sampled_from((0, 2, 3))) for axis in "BSD"}
    assume(0 in lengths.values())
    text = f"{text}param r[S]\noutput u[S] = tanh(r)\n"  # which other axes do not concern
    operands = load_definition(Source("drawn.norm", text)).program.operands
    tensors = [torch.randn([lengths[axis] for axis in tensor.order]) for tensor in operands]
    function = nt.load(text)
    got, want = _outcome(function, tensors), _outcome(function, [tensor.double() for tensor in tensors])
    if isinstance(got, str):
        assert got == want or "no kernel computes" in got
    else:
        same([None if each is None else each.double() for each in got], want, 1e-4)


def test_queries_are_normalized_where_there_are_no_keys():
    norm, q = nt.load("qk_norm", head_dim=4), torch.randn(3, 8, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        given = q.to(dtype)
        made, full = norm(given, given[:, :0]), norm(given, given)
        same(made[0], full[0])
        same(*(torch.autograd.grad(each[0].sin().sum(), q) for each in (made, full)))
