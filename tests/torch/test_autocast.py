"""Functions under autocast: element types are those of PyTorch's own functions."""

from __future__ import annotations

import pytest

from tests.torch.norms import every_case, functional, nt, same, torch

fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture
def on_gpu():
    """Autocast on a GPU, which need not be there, on tensors without values. (A backward needs the GPU.)"""
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with fake_tensor.FakeTensorMode():
        yield torch.device("cuda")
    torch.set_autocast_enabled("cuda", enabled)
    torch.set_autocast_dtype("cuda", dtype)


def _types(function, tensors):
    """The element types of the output and of the gradients."""
    y = function(*tensors)
    return [each.dtype for each in (y, *torch.autograd.grad(y.float().sum(), tensors))]


@pytest.mark.parametrize("params", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
@every_case
def test_on_a_gpu_norms_are_widened_that_pytorch_widens(case, dtype, params, on_gpu):
    x, *others = (torch.empty(shape, device=on_gpu) for shape in case.shapes)
    tensors = [x.to(dtype), *(each.to(params) for each in others)]
    assert case.mine(*tensors).dtype is case.theirs(*tensors).dtype is torch.float32


@pytest.mark.parametrize("name", ("softmax", "log_softmax"))
def test_on_a_gpu_softmax_is_widened(name, on_gpu):
    x = torch.empty(3, 8, device=on_gpu, dtype=torch.bfloat16)
    mine, theirs = nt.load(name), getattr(functional, name)
    assert mine(x).dtype is theirs(x, -1).dtype is torch.float32
    assert mine.with_saved(x)[0].dtype is torch.float32


def test_on_a_gpu_batch_norm_stays_as_it_is(on_gpu):
    x = torch.empty(3, 8, 5, device=on_gpu, dtype=torch.bfloat16)
    theirs = functional.batch_norm(x, None, None, training=True)
    assert nt.load("batchnorm")(x).dtype is theirs.dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("compiled", (False, True), ids=("eager", "compiled"))
@pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
@every_case
def test_on_the_cpu_nothing_is_cast(case, dtype, compiled):
    tensors = [tensor.detach() for tensor in case.draw()]
    tensors = [tensors[0].to(dtype).requires_grad_(), *(each.requires_grad_() for each in tensors[1:])]
    torch.compiler.reset()
    mine = torch.compile(case.mine, fullgraph=True, backend="eager") if compiled else case.mine
    with torch.autocast("cpu", torch.bfloat16):
        assert _types(mine, tensors) == _types(case.theirs, tensors)
        same(mine(*tensors), case.theirs(*tensors), 0.05 if dtype in HALVES else 1e-5)
