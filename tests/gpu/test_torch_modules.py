"""Drop-ins on a GPU beside the modules of PyTorch in float64 on the CPU: results, gradients and buffers.

NORMGEN_TORCH_DEVICE=cpu runs the same on the host executor.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nt = pytest.importorskip("normgen.torch")

DEVICE = os.environ.get("NORMGEN_TORCH_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("PyTorch sees no CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu

CASES = [
    ("RMSNorm", (4096,), (64, 4096)),
    ("LayerNorm", (1023,), (64, 1023)),
    ("GroupNorm", (8, 64), (4, 64, 14, 14)),
    ("BatchNorm1d", (64,), (32, 64)),
    ("BatchNorm3d", (16,), (4, 16, 6, 7, 8)),
    ("InstanceNorm2d", (64, 1e-5, 0.1, True, True), (4, 64, 14, 14)),
    ("LocalResponseNorm", (5,), (4, 64, 14, 14)),
    ("Softmax", (0,), (64, 1000)),
    ("Softmax2d", (), (4, 64, 14, 14)),
]
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x,
    "strided": lambda x: torch.stack((x, x), -1)[..., 0],
}
ROUNDINGS = 16  # of the larger values that are added up


def _outcome(module, x, cotangent, training):
    x = x.detach().requires_grad_()
    y = module.train(training)(x)
    gradients = torch.autograd.grad(y, [x, *module.parameters()], cotangent.to(y))
    return [each.double().cpu() for each in (y, *gradients, *module.buffers())]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize(("name", "arguments", "shape"), CASES, ids=str)
def test_drop_ins_agree_with_float64(name, arguments, shape, dtype, layout):
    torch.manual_seed(0)
    x, cotangent = (torch.randn(shape).to(dtype) for _ in range(2))
    mine = getattr(nt.nn, name)(*arguments).to(DEVICE)
    theirs = getattr(torch.nn, name)(*arguments).double()
    for training in (True, False):
        want = _outcome(theirs, x.double(), cotangent, training)
        got = _outcome(mine, LAYOUTS[layout](x.to(DEVICE)), cotangent.to(DEVICE), training)
        for found, wanted in zip(got, want, strict=True):
            error = ROUNDINGS * torch.finfo(dtype).eps
            torch.testing.assert_close(found, wanted, atol=error * wanted.abs().max().item(), rtol=error)
