"""Norms and what follows them in one call: the same results, and where that cannot be, two calls."""

from __future__ import annotations

import copy

import pytest

from tests.torch.apart_blocks import APART, Changed
from tests.torch.joined_blocks import JOINED, Basic, Block, Nested, Summed
from tests.torch.joining import agree, fused, images, outcome
from tests.torch.norms import functional, nt, torch
from tests.torch.test_fusing import HOOKS
from tests.torch.test_modules import copies

nn = torch.nn
activations = pytest.importorskip("normgen.torch.patching.activations")
joined = pytest.importorskip("normgen.torch.patching.joined")


@pytest.mark.parametrize(("make", "shown", "count"), JOINED.values(), ids=JOINED)
def test_norms_are_joined_with_what_follows(make, shown, count, calls):
    theirs, ours, report = fused(make().double())
    assert [(each.name, each.type, each.spec) for each in report.fused] == [
        ("", type(theirs).__name__, shown)
    ]
    agree(ours, theirs, images())
    assert len(calls) == 3 * count  # twice in training, once in evaluation
    assert list(ours.state_dict()) == list(theirs.state_dict()) and repr(ours) == repr(theirs)


@pytest.mark.parametrize("make", APART, ids=lambda make: make.__name__)
def test_norms_whose_result_goes_elsewhere_stay_apart(make, calls):
    theirs, ours, report = fused(make().double())
    assert report.replaced and not report.fused
    agree(ours, theirs, images())
    assert not calls


def test_what_changes_before_the_activation_is_read_before(calls):
    theirs, ours, report = fused(Changed().double().eval())
    assert not report.fused
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("make", (Basic, Summed))
def test_kernels_agree(make):
    theirs, ours, _ = fused(make())
    agree(ours, theirs, images(torch.float32), 2e-5)


ENDS = (-200.0, -40.0, -6.0, -3.0, -1.5, -1e-3, -0.0, 0.0, 1e-3, 2.0, 3.0, 5.0, 6.0, 7.0, 40.0, 200.0)
FUNCTIONS = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh"),
    "mish": functional.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
}


@pytest.mark.parametrize("name", activations.ACTIVATIONS)
def test_activations_and_their_slopes_are_those_of_pytorch_at_kinks_and_far_out(name):
    v = torch.tensor(ENDS, dtype=torch.float64)[None, :, None]
    x, added, other = (each.clone().requires_grad_() for each in (torch.zeros_like(v), v, v))
    states = torch.zeros(len(ENDS)), torch.ones(len(ENDS))
    norm = nt.load(joined.joined_spec(joined.BATCH, name, True, True), training=False)
    got, want = norm(x, added, None, None, *states), FUNCTIONS[name](other)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        *torch.autograd.grad(got.sum(), added), *torch.autograd.grad(want.sum(), other)
    )


@pytest.mark.parametrize("kind", (joined.BATCH, joined.GROUP))
@pytest.mark.parametrize("make", activations.MODULES, ids=lambda make: make.__name__)
def test_each_activation_follows_each_norm(make, kind, calls):
    norm = nn.BatchNorm2d(4) if kind is joined.BATCH else nn.GroupNorm(2, 4)
    theirs, ours, _ = fused(nn.Sequential(norm, make()).double())
    # PyTorch has 1/6 in float32 for one of them.
    agree(ours, theirs, images(), 1e-7 if make is nn.Hardsigmoid else 1e-9)
    assert len(calls) == 3


ACTIVATIONS = (
    nn.GELU(approximate="tanh"),
    nn.LeakyReLU(0.3),
    functional.silu,
    torch.tanh,
)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_activations_may_be_modules_with_settings_and_functions(activation, calls):
    theirs, ours, _ = fused(Nested(activation).double())
    agree(ours, theirs, images())
    assert len(calls) == 6


NORMS = {
    "average of all batches": lambda: nn.BatchNorm2d(4, momentum=None),
    "no parameters": lambda: nn.BatchNorm2d(4, affine=False),
    "no statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "groups alone": lambda: nn.GroupNorm(4, 4, affine=False),
    "with eps": lambda: nn.GroupNorm(2, 4, eps=0.5),
}


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_norms_keep_their_settings(make, calls):
    block = Basic()
    block.norm, block.norm2 = make(), make()
    theirs, ours, _ = fused(block.double())
    agree(ours, theirs, images())
    assert len(calls) == 6


def test_batches_of_rows_and_volumes_are_joined_too(calls):
    for norm, shape in ((nn.BatchNorm1d(4), (5, 4)), (nn.BatchNorm3d(4), (2, 4, 2, 3, 2))):
        theirs, ours, _ = fused(nn.Sequential(norm, nn.SiLU()).double())
        agree(ours, theirs, torch.randn(shape, dtype=torch.float64))
    assert len(calls) == 6


@pytest.mark.parametrize("make", (Basic, Nested))
def test_in_bfloat16_each_step_is_rounded_as_before_or_once(make):
    theirs, ours, _ = fused(make(nn.SiLU()).bfloat16())
    apart, x = copy.deepcopy(theirs), images(torch.bfloat16, 16)
    nt.patch(apart)
    want = apart(x)
    assert (ours(x) != want).float().mean() < 0.01
    _, once, report = fused(theirs, dtype="once")
    assert "rounds less often for bf16, f16" in str(report)
    got = once(x)
    assert (got != want).any() and (got - want).abs().max() < 0.1


def test_images_with_channels_innermost_stay_so(calls):
    module = Basic().to(memory_format=torch.channels_last)
    theirs, ours, _ = fused(module)
    x = images(torch.float32).to(memory_format=torch.channels_last)
    agree(ours, theirs, x, 2e-5)
    assert ours(x).is_contiguous(memory_format=torch.channels_last) and calls


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("make", (nn.BatchNorm2d, lambda channels: nn.GroupNorm(2, channels)))
def test_autocast_on_a_gpu_gives_the_types_of_pytorch(make, dtype, on_gpu, calls):
    with torch.device(on_gpu):
        theirs, ours = (nn.Sequential(make(4), nn.SiLU()) for _ in range(2))
    nt.patch(ours, fuse=True)
    x = torch.empty(3, 4, 5, 5, device=on_gpu, dtype=dtype)
    assert ours(x).dtype is theirs(x).dtype and calls


def test_autocast_on_the_cpu():
    theirs, ours, _ = fused(Basic())
    x = images(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = ours(x), theirs(x)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("of", ("norm", "act"))
@pytest.mark.parametrize("register", HOOKS)
def test_hooks_see_the_call_that_they_wait_for(register, of, calls):
    theirs, ours, _ = fused(Nested(nn.ReLU()).double())
    seen = []
    for each in (theirs, ours):
        getattr(getattr(each, of), register)(lambda *given: seen.append(len(given)))
        outcome(each, images())
    half = len(seen) // 2
    assert seen and seen[:half] == seen[half:]
    assert calls == ["silu"] * 3


def _no_change(block):
    pass


def _put_back(block):
    nt.unpatch(block.norm)


def _other_activation(block):
    block.act = nn.Softplus()


def _own_forward(block):
    block.norm.forward = lambda x: x + 1


def _other_source(block):
    block.downsample = nn.Conv2d(4, 4, 1)
    block.conv2 = nn.Identity()


def _broadcast(block):
    block.downsample = lambda x: x.mean((2, 3), keepdim=True)


def _widened(block):
    block.downsample = lambda x: x.float()


def _other_number(block):
    block.downsample = lambda x: 0.5


CHANGES = {
    "none": (_no_change, 2),
    "put back": (_put_back, 1),
    "other activation": (_other_activation, 0),
    "forward of its own": (_own_forward, 1),
    "other source": (_other_source, 1),
    "broadcast residual": (_broadcast, 1),
    "residual of another type": (_widened, 1),
    "a number for a residual": (_other_number, 1),
}


@pytest.mark.parametrize(("change", "count"), CHANGES.values(), ids=CHANGES)
def test_what_changes_later_is_seen_at_the_call(change, count, calls):
    """Where a norm cannot be joined with what follows, each is called by itself."""
    torch.manual_seed(0)
    theirs, ours, _ = fused(Basic().double())
    for each in (theirs, ours):
        torch.manual_seed(1)
        change(each)
        each.double()
    x = images()
    got, want = ours(x), theirs(x)
    assert got.dtype is want.dtype and len(calls) == count
    torch.testing.assert_close(got, want)


def test_two_norms_that_are_added():
    class Two(Block):
        def forward(self, x):
            return self.act(self.norm(self.conv(x)) + self.norm2(self.conv2(x)))

    theirs, ours, report = fused(Two().double())
    assert len(report.fused) == 1
    agree(ours, theirs, images())


@pytest.mark.parametrize("make", (Basic, Nested))
def test_patching_in_steps_copies_and_what_unpatch_puts_back(make):
    block = make().double()
    kinds = [type(each) for each in block.modules()]
    assert not nt.patch(block).fused
    report = nt.patch(block, fuse=True)
    assert len(report.fused) == 1 and not nt.patch(block, fuse=True).fused
    x = images()
    for made in copies(block.eval()):
        assert type(made) is type(block)
        torch.testing.assert_close(made(x), block(x))
    assert nt.unpatch(block) == ("", "norm", "norm2")
    assert [type(each) for each in block.modules()] == kinds


def test_only_chooses_norms(calls):
    block = Basic().double()
    assert nt.patch(block, fuse=True, only="norm2").fused[0].spec == "groupnorm and relu (norm2)"
    block(images())
    assert calls == ["relu"]
