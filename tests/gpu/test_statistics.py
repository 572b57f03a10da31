"""Batch norm in training, step by step: running statistics, momentum, autocast with params of float32."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nt = pytest.importorskip("normgen.torch")

from normgen.verify.cases import DTYPE_SETS, same_dtype  # noqa: E402
from tests.gpu.calls import Call, adopt, differentiate, forward  # noqa: E402
from tests.gpu.judge import check  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SETS = {torch.float32: same_dtype("f32"), torch.bfloat16: DTYPE_SETS[2], torch.float16: DTYPE_SETS[5]}
SHAPES = ((4, 8, 14, 14), (200, 4, 333), (64, 16), (2, 3, 4, 5, 6))
HOMES = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}
STEPS = 4


def _step(module, x, dy, scalars, mode="gradients"):
    """A step of training, held to the bounds of the spec beside what the buffers were before it."""
    sizes = (("B", x.shape[0]), ("C", x.shape[1]), ("...", x[0, 0].numel()))
    call = Call(
        "batchnorm", (("training", True),), sizes=sizes, dtypes=SETS[x.dtype], scalars=scalars, mode=mode
    )
    operands = {
        "x": x.requires_grad_(),
        "w": module.weight,
        "b": module.bias,
        "running_mean": module.running_mean,
        "running_var": module.running_var,
    }
    check(differentiate(forward(adopt(call, operands, {"dy": dy}), lambda x, *_, **__: module(x))))


@pytest.mark.parametrize("momentum", (0.1, None, 1.0, 0.0))
@pytest.mark.parametrize("dtype", SETS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_running_statistics_of_every_step(shape, dtype, momentum):
    torch.manual_seed(0)
    module = getattr(nt.nn, HOMES[len(shape)])(shape[1], momentum=momentum, device="cuda")
    for step in range(1, STEPS + 1):
        x = (3 * torch.randn(shape, device="cuda") + 5).to(dtype)
        share = 1 / step if momentum is None else momentum
        _step(module, x, torch.randn_like(x), (("momentum", share),))
        assert module.num_batches_tracked == step


@pytest.mark.parametrize("scale", (1.0, 1e-4, 1e3))
def test_a_first_batch_of_momentum_none_is_taken_whole(scale):
    """Beside the default of 1, which leaves nothing behind."""
    module = nt.nn.BatchNorm1d(4, momentum=None, device="cuda")
    x = scale * torch.randn(64, 4, device="cuda")
    _step(module, x, torch.randn_like(x), (("momentum", 1.0),))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_gradients_of_params_of_float32_are_not_rounded_to_halves(dtype):
    """A sum over many places, which a half cannot hold."""
    module = nt.nn.BatchNorm1d(4, device="cuda")
    x = torch.randn(200, 4, 333, device="cuda").to(dtype)
    _step(module, x, torch.full_like(x, 2), (("momentum", 0.1),))
    module.weight.grad = module.bias.grad = None
    with torch.autocast("cuda", dtype):
        y = module(x)
    y.backward(torch.full_like(y, 2))
    assert module.bias.grad.dtype == torch.float32
    assert module.bias.grad.tolist() == [2.0 * 200 * 333] * 4


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_steps_under_autocast(dtype):
    torch.manual_seed(0)
    module = nt.nn.BatchNorm2d(8, device="cuda")
    for _ in range(STEPS):
        x = torch.randn(4, 8, 14, 14, device="cuda").to(dtype)
        name = "autocast f16" if dtype is torch.float16 else "autocast bf16"
        _step(module, x, torch.randn_like(x), (("momentum", 0.1),), name)


def test_evaluation_reads_the_statistics_of_training_and_leaves_them():
    module, theirs = (home.BatchNorm2d(8, device="cuda") for home in (nt.nn, torch.nn))
    x = torch.randn(4, 8, 14, 14, device="cuda")
    _step(module, x, torch.randn_like(x), (("momentum", 0.1),))
    theirs.load_state_dict(module.state_dict())
    before = {name: each.clone() for name, each in module.state_dict().items()}
    got, want = module.eval()(x), theirs.double().eval()(x.double())
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=1e-6)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
