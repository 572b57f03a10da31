"""Norms of images whose channels lie innermost: as in PyTorch's own results lie so too, with no copy."""

from __future__ import annotations

import pytest

from normgen.runtime.calls.prepared import Step
from tests.torch.norms import functional, nt, same, torch

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _batch(x, w, b):
    return functional.batch_norm(x, None, None, w, b, training=True)


def _group(x, w, b):
    return functional.group_norm(x, 2, w, b)


NORMS = {
    "batchnorm": (nt.load("batchnorm"), _batch),
    "groupnorm": (nt.load("groupnorm", groups=2), _group),
}
SHAPES = {4: (2, 6, 3, 4), 5: (2, 6, 3, 2, 2)}


def _operands(rank, dtype=torch.float32):
    x = torch.randn(SHAPES[rank], dtype=dtype).to(memory_format=FORMATS[rank])
    params = (torch.randn(6, dtype=dtype) for _ in range(2))
    return [each.requires_grad_() for each in (x, *params)]


def _lies_last(tensor):
    return tensor.is_contiguous(memory_format=FORMATS[tensor.dim()]) and not tensor.is_contiguous()


@pytest.mark.parametrize("rank", FORMATS)
@pytest.mark.parametrize("name", NORMS)
def test_results_lie_as_their_operands(name, rank):
    mine, theirs = NORMS[name]
    operands = _operands(rank)
    cotangents = torch.randn(SHAPES[rank]), torch.randn(SHAPES[rank]).to(memory_format=FORMATS[rank])
    for cotangent in cotangents:
        got, want = mine(*operands), theirs(*operands)
        found = [torch.autograd.grad(each, operands, cotangent) for each in (got, want)]
        same(got, want)
        same(*found)
        assert all(_lies_last(each) for each in (got, want, *(gradients[0] for gradients in found)))


@pytest.fixture
def entries(monkeypatch):
    """The kernels that are launched."""
    names = []
    launched = Step.memory

    def noted(self, pool):
        names.append(self.launch.entry)
        return launched(self, pool)

    monkeypatch.setattr(Step, "memory", noted)
    return names


@pytest.mark.parametrize("name", NORMS)
def test_only_what_lies_otherwise_is_copied(name, entries):
    norm, operands = NORMS[name][0], _operands(4)
    y = norm(*operands)
    torch.autograd.grad(y, operands, torch.randn_like(y), retain_graph=True)
    assert entries and all("channels_last" in entry for entry in entries)
    torch.autograd.grad(y, operands, torch.randn(SHAPES[4]))
    assert entries.count("normgen_copy") == 1


@pytest.mark.parametrize("name", NORMS)
def test_every_way_to_a_result_lays_it_alike(name):
    norm, _ = NORMS[name]
    for dtype in (torch.float32, torch.float64):
        operands = [each.detach() for each in _operands(4, dtype)]
        y = norm(*operands)
        on_meta = norm(*[each.to("meta") for each in operands])
        compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")(*operands)
        assert y.stride() == on_meta.stride() == compiled.stride() == operands[0].stride()


@pytest.mark.parametrize("name", NORMS)
def test_operators_of_such_images_are_checked(name):
    norm, _ = NORMS[name]
    operands = _operands(4)
    numbers = [attr.default for attr in norm.norm.package.attrs]
    states = [None] * (len(norm.norm.forward_args) - 3)
    torch.library.opcheck(norm.ops.forward, (*operands, *states, *numbers, [True, True, True]))


def test_states_are_updated_by_images_whose_channels_lie_innermost():
    norm, x = nt.load("batchnorm"), _operands(4)[0].detach()
    mine, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    same(norm(x, None, None, *mine), functional.batch_norm(x, *theirs, training=True))
    same(mine, theirs)


def test_results_may_be_changed_in_place():
    norm, (x, w, b) = nt.load("batchnorm"), _operands(4)
    got, want = norm(x, w, b).relu_(), _batch(x, w, b).relu_()
    same(torch.autograd.grad(got.sum(), (x, w)), torch.autograd.grad(want.sum(), (x, w)))


def test_where_no_kernel_has_that_order_results_are_laid_so(monkeypatch):
    norm = nt.load("softmax2d")
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    for step in (norm._step, norm._step.derive().step):
        monkeypatch.setattr(step, "_channels_last", lambda: None)
    y = norm(x)
    same(y, functional.softmax(x, 1))
    (dx,) = torch.autograd.grad(y.sin().sum(), x)
    assert _lies_last(y) and _lies_last(dx)


def test_derivatives_of_second_order_lie_so_too():
    norm, (x, w, b) = nt.load("batchnorm"), _operands(4)
    found = []
    for function in (norm, _batch):
        (dx,) = torch.autograd.grad(function(x, w, b).sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), (x, w)))
    same(*found, tolerance=1e-4)
    assert _lies_last(found[0][0])


def test_rows_that_lie_apart_are_read_where_they_are(entries):
    norm, rows = nt.load("layernorm"), torch.randn(6, 3, 16)
    for x in (rows[..., :8], rows[:, 1], rows[::2, 0]):
        got = norm(x)
        same(got, functional.layer_norm(x, x.shape[-1:]))
        assert got.is_contiguous()
    assert entries and "normgen_copy" not in entries
    norm(rows.transpose(0, 2))  # whose rows are not together
    assert entries.count("normgen_copy") == 1
