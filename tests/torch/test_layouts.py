"""Norms of images whose channels lie innermost: as in PyTorch's own results lie so too, with no copy."""

from __future__ import annotations

import pytest

from normgen.runtime.calls.prepared import Step
from tests.torch.norms import batch, drawn, functional, group, layer, nt, same, torch

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
SHAPES = {4: (2, 6, 3, 4), 5: (2, 6, 3, 2, 2)}
NORMS = {"batchnorm": (nt.load("batchnorm"), batch), "groupnorm": (nt.load("groupnorm", groups=2), group)}
every_norm = pytest.mark.parametrize("name", NORMS)


def _operands(rank, dtype=torch.float32):
    x = torch.randn(SHAPES[rank], dtype=dtype).to(memory_format=FORMATS[rank])
    return [x.requires_grad_(), drawn(6, dtype=dtype), drawn(6, dtype=dtype)]


def _lies_last(tensor):
    return tensor.is_contiguous(memory_format=FORMATS[tensor.dim()]) and not tensor.is_contiguous()


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


@pytest.mark.parametrize("rank", FORMATS)
@every_norm
def test_results_lie_as_their_operands_and_only_what_lies_otherwise_is_copied(name, rank, entries):
    mine, theirs = NORMS[name]
    operands = _operands(rank)
    cotangents = torch.randn(SHAPES[rank]), torch.randn(SHAPES[rank]).to(memory_format=FORMATS[rank])
    for cotangent, copies in zip(cotangents, (1, 0), strict=True):
        entries.clear()
        got, want = mine(*operands), theirs(*operands)
        found = [torch.autograd.grad(each, operands, cotangent) for each in (got, want)]
        same(got, want)
        same(*found)
        assert all(_lies_last(each) for each in (got, want, *(gradients[0] for gradients in found)))
        assert entries.count("normgen_copy") == copies
        assert all("channels_last" in entry for entry in entries if entry != "normgen_copy")


@every_norm
def test_every_way_to_a_result_lays_it_alike(name):
    norm, _ = NORMS[name]
    for dtype in (torch.float32, torch.float64):
        operands = [each.detach() for each in _operands(4, dtype)]
        y = norm(*operands)
        on_meta = norm(*[each.to("meta") for each in operands])
        compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")(*operands)
        assert y.stride() == on_meta.stride() == compiled.stride() == operands[0].stride()


@every_norm
def test_operators_of_such_images_are_checked(name):
    norm, _ = NORMS[name]
    numbers = [attr.default for attr in norm.norm.package.attrs]
    states = [None] * (len(norm.norm.forward_args) - 3)
    torch.library.opcheck(norm.ops.forward, (*_operands(4), *states, *numbers, [True, True, True]))


def test_states_are_updated_and_results_may_be_changed_in_place():
    mine, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    norm, operands = nt.load("batchnorm"), _operands(4)
    got, want = norm(*operands, *mine).relu_(), batch(*operands, *theirs).relu_()
    same(got, want)
    same(mine, theirs)
    same(*(torch.autograd.grad(each.sum(), operands) for each in (got, want)))


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
    (x, w, b), found = _operands(4), []
    for function in NORMS["batchnorm"]:
        (dx,) = torch.autograd.grad(function(x, w, b).sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), (x, w)))
    same(*found, tolerance=1e-4)
    assert _lies_last(found[0][0])


def test_rows_that_lie_apart_are_read_where_they_are(entries):
    norm, rows = nt.load("layernorm"), torch.randn(6, 3, 16)
    for x in (rows[..., :8], rows[:, 1], rows[::2, 0]):
        got = norm(x)
        same(got, layer(x))
        assert got.is_contiguous()
    assert entries and "normgen_copy" not in entries
    norm(rows.transpose(0, 2))  # whose rows are not together
    assert entries.count("normgen_copy") == 1
