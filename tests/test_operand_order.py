"""Operands go by position in the order in which a spec declares them, wherever a call is made."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

import normgen
from examples.autograd import Tensor, apply
from normgen import bundled
from normgen.diagnostics import Source
from tests.cli.commands import run
from tests.generated import generated
from tests.verify.subjects import bundled_source, case_of, prove, subject_of

SWAP = """norm swap
input  x[..., D]
param  w[D] = 1
input  b[D]
output y[..., D] = x * w + b
"""

# A state before the first input, a save between operands, outputs above and below each other's operands.
MIXED = """norm mixed
state  level[D] = 0
param  w[D] = 1
input  x[..., D]
save   rstd[...] = rsqrt(mean[D](x^2) + 1)
input  r[..., D]
output y[..., D] = x * rstd * w + r * x
param  b[D] = 0
output z[..., D] = y * b
update level = level + mean[...](x)
"""

ROLE = re.compile(r"(input|param|state)\b")
rng = np.random.default_rng(5)
X, W, B = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), 8, 8))


def same(got: Any, want: Any) -> None:
    assert got._fields == want._fields
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.kernels
@pytest.mark.parametrize("made", ["norm", "module", "reference", "autograd"])
def test_positions_are_those_of_the_spec(made: str) -> None:
    norm = normgen.load(SWAP)
    forward = {
        "norm": norm.forward,
        "module": generated(SWAP).forward,
        "reference": norm.reference.forward,
        "autograd": lambda *operands, **named: apply(norm, *operands, **named),
    }[made]
    for operands, w in (((X, W, B), W), ((X, None, B), np.ones(8, np.float32))):
        y = forward(*operands).y
        np.testing.assert_allclose(y.data if isinstance(y, Tensor) else y, X * w + B, rtol=1e-6)
    left_out, named = forward(X, b=B).y, forward(x=X, w=None, b=B).y
    np.testing.assert_array_equal(*(y.data if isinstance(y, Tensor) else y for y in (left_out, named)))
    with pytest.raises(TypeError, match="needs b"):
        forward(X, W)


@pytest.mark.kernels
def test_the_backward_goes_by_position_too() -> None:
    norm, module = normgen.load(MIXED), generated(MIXED)
    r, level = rng.standard_normal((4, 8)).astype(np.float32), np.zeros(8, np.float32)
    made = norm.forward(level, W, X, r, B)
    same(module.forward(level.copy(), W, X, r, B), made)
    np.testing.assert_allclose(level, X.mean(0), rtol=1e-5)
    given = (X, r, W, X, made.rstd, r, B)
    truth = norm.reference.backward(**dict(zip(norm.backward_args, given, strict=True)))
    assert truth._fields == ("dw", "dx", "dr", "db")
    for backward in (norm.backward, module.backward, norm.reference.backward):
        same(backward(*given), truth)


def test_names_and_signatures_are_in_the_order_of_the_spec() -> None:
    """A signature has a default from the first operand on that may be left out."""
    swap, mixed = normgen.load(SWAP), normgen.load(MIXED)
    assert (swap.forward_args, swap.backward_args) == (("x", "w", "b"), ("dy", "x", "w"))
    assert mixed.forward_args == ("level", "w", "x", "r", "b")
    assert mixed.backward_args == ("dy", "dz", "w", "x", "rstd", "r", "b")
    assert repr(swap).startswith("<swap: x[..., D], w[D]=1, b[D] ->")
    assert "forward(x, w, b) -> y" in run("explain", "-", stdin=SWAP).stdout
    module, empty = generated(SWAP), inspect.Parameter.empty
    parameters = inspect.signature(module.forward).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(named.items()) == [("x", empty), ("w", None), ("b", None)]
    assert "w: param [D]; 1 if omitted" in module.forward.__doc__
    needed = "b: input [D]; needed: it has a default only because an earlier argument has one"
    assert needed in module.forward.__doc__
    assert "needed" not in generated(SWAP.replace(" = 1", "")).forward.__doc__


def reversed_operands(text: str) -> str:
    """The spec with its inputs, params and states in the reverse order."""
    lines = text.splitlines()
    places = [place for place, line in enumerate(lines) if ROLE.match(line)]
    for place, line in zip(places, [lines[place] for place in reversed(places)], strict=True):
        lines[place] = line
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["add_layernorm", "batchnorm", "qk_norm"])
def test_any_order_has_kernels_of_its_own(name: str) -> None:
    attrs: dict[str, object] = {"head_dim": 4} if name == "qk_norm" else {}
    text = bundled_source(name).text
    subject, usual = (subject_of(Source(name, each), attrs) for each in (reversed_operands(text), text))
    assert subject.norm.forward_args == usual.norm.forward_args[::-1]
    assert subject.backward is not None and usual.backward is not None
    gradients = [r.tensor.name for r in subject.backward.results]
    assert gradients == [r.tensor.name for r in usual.backward.results][::-1]
    prove(subject, case_of(subject, 3, 8))


def test_bundled_specs_declare_inputs_then_params_then_states() -> None:
    """Which is the order that calls by position of them have always had."""
    for name in bundled.names():
        roles = [found[1] for line in bundled_source(name).text.splitlines() if (found := ROLE.match(line))]
        assert roles == sorted(roles, key=("input", "param", "state").index), name
