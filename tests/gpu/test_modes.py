"""`torch.compile` in every mode and layout, in training: functions of norms, and patched modules."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nt = pytest.importorskip("normgen.torch")
chains = pytest.importorskip("tests.gpu.chains")

from tests.gpu.calls import Call, differentiate, forward, place  # noqa: E402
from tests.gpu.judge import check  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
STEPS = 4  # warm-up, capture, replays
TRAINING = (("training", True),)
IMAGES = (("B", 4), ("C", 16), ("...", 196))
FUNCTIONS = (
    Call("batchnorm", TRAINING, sizes=IMAGES, dtypes=chains.F32),
    Call("batchnorm", TRAINING, sizes=IMAGES, dtypes=chains.MIXED, absent=("running_mean", "running_var")),
    Call("groupnorm", (("groups", 4),), sizes=(("B", 4), ("C", 8), ("...", 196)), dtypes=chains.BF16),
    Call("layernorm", (), 64, 768, chains.MIXED),
    Call("rmsnorm", (), 64, 4096, chains.BF16),
    Call("add_rmsnorm", (), 64, 768, chains.F32),
    Call("softmax2d", (), sizes=(("B", 4), ("C", 16), ("...", 196)), dtypes=chains.F32),
)
# How x and the cotangent lie.
LAYOUTS = {"rows": ("dense", "dense"), "last": ("channels last",) * 2, "mixed": ("channels last", "dense")}
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _laid(call, layout):
    x, dy = LAYOUTS[layout]
    return replace(call, layouts=(("dy", dy), ("x", x)))


def _compiled(call, mode):
    norm = call.norm.function
    return torch.compile(lambda *operands, **named: norm(*operands, **named), fullgraph=True, mode=mode)


@every_mode
@pytest.mark.parametrize(
    ("call", "layout"),
    [(c, layout) for c in FUNCTIONS for layout in (LAYOUTS if c.sizes else ["rows"])],
    ids=str,
)
def test_a_compiled_norm_agrees_with_float64(call, layout, mode):
    compiled = _compiled(call, mode)
    for seed in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        check(differentiate(forward(place(replace(_laid(call, layout), seed=seed), "cuda"), compiled)))


@every_mode
def test_other_sizes_and_modes_of_gradients_in_turn(mode):
    call = Call("rmsnorm", (), 64, 768, chains.BF16)
    compiled = _compiled(call, mode)
    changes = ({}, {"rows": 65}, {"wrt": ("x",)}, {"mode": "no_grad"}, {"rows": 7}, {"mode": "inference"})
    for seed, change in enumerate(changes * 2):
        torch.compiler.cudagraph_mark_step_begin()
        made = forward(place(replace(call, seed=seed, **change), "cuda"), compiled)
        check(differentiate(made) if made.wrt else made)


MODULES = {
    "BatchNorm2d": lambda: torch.nn.BatchNorm2d(16),
    "BatchNorm2d, momentum None": lambda: torch.nn.BatchNorm2d(16, momentum=None),
    "GroupNorm": lambda: torch.nn.GroupNorm(4, 16),
    "InstanceNorm2d": lambda: torch.nn.InstanceNorm2d(16, affine=True, track_running_stats=True),
    "Softmax2d": lambda: torch.nn.Softmax2d(),
}
ROUNDINGS = 16  # of the larger values that are added up


@every_mode
@pytest.mark.parametrize("channels_last", (False, True), ids=("NCHW", "channels_last"))
@pytest.mark.parametrize("name", MODULES)
def test_a_patched_model_trains_as_it_does_in_float64(name, channels_last, mode):
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(MODULES[name](), torch.nn.Tanh(), MODULES[name]()).double()
    mine = torch.nn.Sequential(MODULES[name](), torch.nn.Tanh(), MODULES[name]()).cuda()
    nt.patch(mine)
    # A momentum of None depends on a count, which PyTorch reads between two graphs.
    compiled = torch.compile(mine, fullgraph="None" not in name, mode=mode)
    format = torch.channels_last if channels_last else torch.contiguous_format
    for _ in range(STEPS):
        x, dy = (torch.randn(4, 16, 14, 14).to(memory_format=format) for _ in range(2))
        torch.compiler.cudagraph_mark_step_begin()
        got = _step(compiled, mine, x.cuda(), dy.cuda())
        for found, wanted in zip(got, _step(theirs, theirs, x.double(), dy.double()), strict=True):
            error = ROUNDINGS * torch.finfo(torch.float32).eps
            torch.testing.assert_close(
                found.double().cpu(), wanted.double(), atol=error * wanted.abs().max().item(), rtol=error
            )


def _step(call, module, x, dy):
    x = x.detach().requires_grad_()
    for parameter in module.parameters():
        parameter.grad = None
    y = call(x)
    y.backward(dy)
    made = [y, x.grad, *(p.grad for p in module.parameters()), *module.buffers()]
    return [each.detach().clone() for each in made]
