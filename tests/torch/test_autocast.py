"""Functions under autocast: element types are those of PyTorch's own functions."""

from __future__ import annotations

import pytest

from tests.torch.norms import batch, every_case, functional, nt, same, torch

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("params", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
@every_case
def test_on_a_gpu_norms_are_widened_that_pytorch_widens(case, dtype, params, on_gpu):
    x, *others = (torch.empty(shape, device=on_gpu) for shape in case.shapes)
    tensors = [x.to(dtype), *(each.to(params) for each in others)]
    assert case.mine(*tensors).dtype is case.theirs(*tensors).dtype is torch.float32


def test_on_a_gpu_softmax_is_widened_and_batch_norm_stays_as_it_is(on_gpu):
    x = torch.empty(3, 8, device=on_gpu, dtype=torch.bfloat16)
    for name in ("softmax", "log_softmax"):
        mine, theirs = nt.load(name), getattr(functional, name)
        assert mine(x).dtype is theirs(x, -1).dtype is torch.float32
        assert mine.with_saved(x)[0].dtype is torch.float32
    assert nt.load("batchnorm")(x).dtype is batch(x).dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("compiled", (False, True), ids=("eager", "compiled"))
@pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
@every_case
def test_on_the_cpu_nothing_is_cast(case, dtype, compiled):
    x, *params = case.draw()
    tensors = [x.detach().to(dtype).requires_grad_(), *params]
    torch.compiler.reset()
    mine = torch.compile(case.mine, fullgraph=True, backend="eager") if compiled else case.mine
    types = []
    with torch.autocast("cpu", torch.bfloat16):
        for each in (mine, case.theirs):
            y = each(*tensors)
            types.append([of.dtype for of in (y, *torch.autograd.grad(y.float().sum(), tensors))])
        same(mine(*tensors), case.theirs(*tensors), 0.05 if dtype in HALVES else 1e-5)
    assert types[0] == types[1]
