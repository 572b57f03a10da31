"""Modules that PyTorch lacks, beside what they stand for in PyTorch's own functions."""

from __future__ import annotations

import copy
from functools import partial

import pytest

from tests.torch.norms import drawn, functional, nt, torch
from tests.torch.test_modules import copies

EXACT = torch.float64
_rms = functional.rms_norm


def _add(norm, x, residual):
    h = x + residual
    return h, _rms(h, norm.normalized_shape, norm.weight)


def _gated(norm, x, gate, first=True, size=6):
    inner = (x if first else x * functional.silu(gate)).reshape(4, -1, size)
    y = _rms(inner, (size,), None, 1e-3).reshape(x.shape) * norm.weight
    return (y * functional.silu(gate) if first else y,)


def _adaptive(norm, x, shift, scale):
    dims = norm.normalized_shape
    wide = [each.reshape(4, *[1] * (x.ndim - len(dims) - 1), *dims) for each in (shift, scale)]
    return (functional.layer_norm(x, dims, eps=1e-3) * (1 + wide[1]) + wide[0],)


def _heads(norm, q, k):
    pairs = (q, norm.q_weight), (k, norm.k_weight)
    heads = ((x.reshape(*x.shape[:-1], -1, 8), w, x.shape) for x, w in pairs)
    return tuple(_rms(x, (8,), w).reshape(shape) for x, w, shape in heads)


def _silu(norm, x):
    return (functional.silu(functional.group_norm(x, 2, norm.weight, norm.bias, 1e-3)),)


_add_norm, _gated_norm = nt.nn.AddRMSNorm, partial(nt.nn.GatedRMSNorm, eps=1e-3)
_ada_norm, _qk_norm = partial(nt.nn.AdaLayerNorm, eps=1e-3), partial(nt.nn.QKNorm, 8)
_silu_norm = partial(nt.nn.GroupNormSiLU, 2, 6, 1e-3)
# What makes a module, the shapes of its operands, what it is to give.
MODULES = [
    (partial(_add_norm, 6), [(4, 2, 6)] * 2, _add),
    (partial(_add_norm, (2, 3)), [(4, 2, 3)] * 2, _add),
    (partial(_add_norm, (2, 3), elementwise_affine=False), [(4, 2, 3)] * 2, _add),
    (partial(_gated_norm, 6), [(4, 6)] * 2, _gated),
    (partial(_gated_norm, 6, norm_before_gate=False), [(4, 6)] * 2, partial(_gated, first=False)),
    (partial(_gated_norm, (2, 3), group_size=3), [(4, 2, 3)] * 2, partial(_gated, size=3)),
    (
        partial(_gated_norm, 6, norm_before_gate=False, group_size=3),
        [(4, 6)] * 2,
        partial(_gated, first=False, size=3),
    ),
    (partial(_ada_norm, (6,)), [(4, 6)] * 3, _adaptive),
    (partial(_ada_norm, (2, 3)), [(4, 5, 2, 2, 3), (4, 2, 3), (4, 2, 3)], _adaptive),
    (_qk_norm, [(2, 5, 32), (2, 5, 8)], _heads),
    (_qk_norm, [(2, 5, 4, 8), (2, 5, 2, 8)], _heads),
    (_qk_norm, [(2, 4, 5, 8), (2, 4, 5, 8)], _heads),
    (_qk_norm, [(5, 8), (5, 8)], _heads),
    (_silu_norm, [(4, 6, 5)], _silu),
    (partial(_silu_norm, bias=False), [(4, 6, 5)], _silu),
    (partial(_silu_norm, affine=False), [(4, 6, 5)], _silu),
]
FIELDS = {_add: ("h", "y"), _heads: ("qn", "kn")}


@pytest.mark.parametrize(("make", "shapes", "theirs"), MODULES)
def test_modules_compute_what_they_stand_for(make, shapes, theirs):
    module, given = make().double(), [drawn(*shape, dtype=EXACT) for shape in shapes]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(0.5, 1.5)
    got, want = module(*given), theirs(module, *given)
    assert getattr(got, "_fields", None) == FIELDS.get(theirs)
    outcomes = []
    for made in (got if isinstance(got, tuple) else (got,), want):
        leaves = [*given, *module.parameters()]
        outcomes.append((*made, *torch.autograd.grad(sum(each.sin().sum() for each in made), leaves)))
    torch.testing.assert_close(*outcomes, atol=1e-12, rtol=1e-12)
    kernels = copy.deepcopy(module).float()(*(each.float() for each in given))
    torch.testing.assert_close(kernels, got, atol=4e-6, rtol=4e-6, check_dtype=False)
    for each in copies(module):
        torch.testing.assert_close(each(*given), got, atol=0, rtol=0)
    if list(module.parameters()):
        meta, fresh = make(device="meta", dtype=EXACT), make(dtype=EXACT)
        assert {parameter.device.type for parameter in meta.parameters()} == {"meta"}
        meta.to_empty(device="cpu").reset_parameters()
        torch.testing.assert_close(meta(*given), fresh(*given), atol=0, rtol=0)


def test_group_norm_silu_has_the_parameters_of_a_group_norm_and_is_none():
    norm, plain = nt.nn.GroupNormSiLU(2, 6, bias=False), torch.nn.GroupNorm(2, 6, bias=False)
    plain.load_state_dict(norm.state_dict())
    assert norm.extra_repr() == plain.extra_repr() and not isinstance(norm, torch.nn.GroupNorm)


ONES = torch.ones


@pytest.mark.parametrize(
    ("call", "fault", "message"),
    [
        (lambda: nt.nn.AddRMSNorm(6)(ONES(2, 6), ONES(2, 5)), RuntimeError, "normalized_shape"),
        (
            lambda: nt.nn.GatedRMSNorm(6, group_size=4),
            ValueError,
            "group_size must divide the row length 6 but is 4",
        ),
        (lambda: nt.nn.GroupNormSiLU(4, 6), ValueError, "must be divisible by num_groups"),
        (lambda: nt.nn.GroupNormSiLU(2, 6)(ONES(4, 5, 3)), RuntimeError, "expected 6 channels"),
        (lambda: nt.nn.QKNorm(8)(ONES(2, 12), ONES(2, 8)), RuntimeError, "head_dim=8 must divide"),
        (lambda: nt.nn.AdaLayerNorm(6)(ONES(2, 6), ONES(6), ONES(2, 6)), RuntimeError, r"shift .* \[2, 6\]"),
    ],
)
def test_mistakes_are_named(call, fault, message):
    with pytest.raises(fault, match=message) as found:
        call()
    assert "\n" not in str(found.value)
