"""Modules that PyTorch lacks, beside what they stand for in PyTorch's own functions."""

from __future__ import annotations

import copy

import pytest

from tests.torch.norms import drawn, functional, nt, torch
from tests.torch.test_modules import copies

EXACT = torch.float64


def _drawn(module):
    """The module with parameters that are not 1 and 0."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(0.5, 1.5)
    return module


def _same(got, want, given, tolerance=1e-12):
    """Results agree, and the gradients of what was given."""
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
    sums = [each.sin().sum() for each in (got, want)]
    gradients = [torch.autograd.grad(each, given, retain_graph=True) for each in sums]
    torch.testing.assert_close(*gradients, atol=tolerance, rtol=tolerance)


def _draw(*shape):
    return drawn(*shape, dtype=EXACT)


@pytest.mark.parametrize(("shape", "affine"), ((6, True), ((2, 3), True), ((2, 3), False)), ids=str)
def test_add_rms_norm(shape, affine):
    norm = _drawn(nt.nn.AddRMSNorm(shape, elementwise_affine=affine, dtype=EXACT))
    dims = norm.normalized_shape
    x, residual = _draw(4, 2, *dims), _draw(4, 2, *dims)
    made = norm(x, residual)
    assert made._fields == ("h", "y")
    h = x + residual
    y = functional.rms_norm(h, dims, norm.weight)
    _same(torch.cat(made), torch.cat((h, y)), [x, residual, *norm.parameters()])


@pytest.mark.parametrize("group_size", (None, 3))
@pytest.mark.parametrize(("shape", "first"), ((6, True), (6, False), ((2, 3), True)), ids=str)
def test_gated_rms_norm(shape, first, group_size):
    norm = nt.nn.GatedRMSNorm(shape, 1e-3, norm_before_gate=first, group_size=group_size, dtype=EXACT)
    dims = _drawn(norm).normalized_shape
    x, gate = _draw(4, *dims), _draw(4, *dims)
    size = group_size or 6
    inner = (x if first else x * functional.silu(gate)).reshape(4, -1, size)
    want = functional.rms_norm(inner, (size,), None, 1e-3).reshape(x.shape) * norm.weight
    _same(norm(x, gate), want * functional.silu(gate) if first else want, [x, gate, norm.weight])


@pytest.mark.parametrize(("dims", "between"), (((6,), ()), ((6,), (5,)), ((2, 3), (5, 2))), ids=str)
def test_ada_layer_norm(dims, between):
    norm = nt.nn.AdaLayerNorm(dims, eps=1e-3)
    x, shift, scale = _draw(4, *between, *dims), _draw(4, *dims), _draw(4, *dims)
    wide = [each.reshape(4, *[1] * len(between), *dims) for each in (shift, scale)]
    want = functional.layer_norm(x, dims, eps=1e-3) * (1 + wide[1]) + wide[0]
    _same(norm(x, shift, scale), want, [x, shift, scale])


@pytest.mark.parametrize(
    ("queries", "keys"),
    [((2, 5, 32), (2, 5, 8)), ((2, 5, 4, 8), (2, 5, 2, 8)), ((2, 4, 5, 8), (2, 4, 5, 8)), ((5, 8), (5, 8))],
    ids=str,
)
def test_qk_norm(queries, keys):
    norm = _drawn(nt.nn.QKNorm(8, dtype=EXACT))
    q, k = _draw(*queries), _draw(*keys)
    made = norm(q, k)
    assert made._fields == ("qn", "kn")
    for got, given, weight in ((made.qn, q, norm.q_weight), (made.kn, k, norm.k_weight)):
        heads = given.reshape(*given.shape[:-1], -1, 8)
        _same(got, functional.rms_norm(heads, (8,), weight).reshape(given.shape), [given, weight])


@pytest.mark.parametrize(("affine", "bias"), ((True, True), (True, False), (False, True)))
def test_group_norm_silu(affine, bias):
    norm = _drawn(nt.nn.GroupNormSiLU(2, 6, 1e-3, affine, dtype=EXACT, bias=bias))
    plain = torch.nn.GroupNorm(2, 6, 1e-3, affine, dtype=EXACT, bias=bias)
    plain.load_state_dict(norm.state_dict())
    x = _draw(4, 6, 5)
    want = functional.silu(functional.group_norm(x, 2, norm.weight, norm.bias, 1e-3))
    _same(norm(x), want, [x, *norm.parameters()])
    assert norm.extra_repr() == plain.extra_repr()
    assert not isinstance(norm, torch.nn.GroupNorm)


MODULES = [
    (nt.nn.AddRMSNorm, (8,), [(4, 8), (4, 8)]),
    (nt.nn.GatedRMSNorm, (8,), [(4, 8), (4, 8)]),
    (nt.nn.AdaLayerNorm, (8,), [(4, 3, 8), (4, 8), (4, 8)]),
    (nt.nn.QKNorm, (8,), [(4, 16), (4, 8)]),
    (nt.nn.GroupNormSiLU, (2, 8), [(4, 8, 3)]),
]


@pytest.mark.parametrize(("kind", "arguments", "shapes"), MODULES)
def test_kernels_agree_with_float64_and_modules_are_copied_and_made_without_memory(kind, arguments, shapes):
    module, given = kind(*arguments), [_draw(*shape) for shape in shapes]
    want = copy.deepcopy(module).double()(*given)
    made = module(*(each.float() for each in given))
    torch.testing.assert_close(made, want, atol=2e-6, rtol=2e-6, check_dtype=False)
    for each in copies(module.double()):
        torch.testing.assert_close(each(*given), want, atol=0, rtol=0)
    if kind is nt.nn.AdaLayerNorm:
        return
    meta = kind(*arguments, device="meta", dtype=EXACT)
    assert {parameter.device.type for parameter in meta.parameters()} == {"meta"}
    meta.to_empty(device="cpu").reset_parameters()
    torch.testing.assert_close(meta(*given), want, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("call", "fault", "message"),
    [
        (lambda: nt.nn.AddRMSNorm(6)(torch.ones(2, 6), torch.ones(2, 5)), RuntimeError, "normalized_shape"),
        (lambda: nt.nn.GatedRMSNorm(6, group_size=4), ValueError, "group_size must divide 6"),
        (lambda: nt.nn.GroupNormSiLU(4, 6), ValueError, "must be divisible by num_groups"),
        (lambda: nt.nn.GroupNormSiLU(2, 6)(torch.ones(4, 5, 3)), RuntimeError, "expected 6 channels"),
        (lambda: nt.nn.QKNorm(8)(torch.ones(2, 12), torch.ones(2, 8)), RuntimeError, "head_dim is 8"),
        (
            lambda: nt.nn.AdaLayerNorm(6)(torch.ones(2, 3, 6), torch.ones(6), torch.ones(2, 6)),
            RuntimeError,
            r"shift must have the shape \[2, 6\]",
        ),
    ],
)
def test_mistakes_are_named(call, fault, message):
    with pytest.raises(fault, match=message) as found:
        call()
    assert "\n" not in str(found.value)
