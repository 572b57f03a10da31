"""Real models, from configurations and with random weights: training with normgen's norms and without."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest

from tests.torch.norms import functional, nt, torch

STEPS = 10


@dataclass(frozen=True)
class Trained:
    losses: torch.Tensor
    first: dict[str, torch.Tensor]  # gradients of the first step
    report: object = None


def _train(model, loss, patched: bool, rate: float, **options) -> Trained:
    """Ten steps of a copy of a model. Plain gradient descent: it does not make much of little gradients."""
    model = copy.deepcopy(model).train()
    report = nt.patch(model, **options) if patched else None
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses, first = [], {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        losses.append(value.detach().double())
        if not first:
            first = {name: p.grad.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
    return Trained(torch.stack(losses), first, report)


def _compare(ours: Trained, theirs: Trained, losses: float, gradients: float) -> None:
    """Losses agree by a share of the first. Gradients agree by a share of the largest of their parameter, or
    of a thousandth of the model's largest: some are sums that cancel to nothing."""
    assert theirs.losses[-1] < theirs.losses[0]
    apart = (ours.losses - theirs.losses).abs().max() / theirs.losses[0]
    assert apart <= losses, f"losses differ by {float(apart)}"
    largest = {name: float(want.abs().max()) for name, want in theirs.first.items()}
    least = max(largest.values()) / 1000
    for name, want in theirs.first.items():
        apart = float((ours.first[name].double() - want.double()).abs().max()) / max(largest[name], least)
        assert apart <= gradients, f"gradients of {name} differ by {apart}"


# Bounds by element type: a handful of roundings, of which float32's are summed in another order.
FLOAT64, FLOAT32, BFLOAT16 = 1e-10, 2e-4, 0.06


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


def _llama_loss(model):
    tokens = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(1))
    return model(tokens, labels=tokens).loss


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, FLOAT32), (torch.bfloat16, BFLOAT16)])
def test_llama(llama, dtype, bound, fuse):
    model = copy.deepcopy(llama).to(dtype)
    theirs = _train(model, _llama_loss, False, 0.1)
    ours = _train(model, _llama_loss, True, 0.1, fuse=fuse)
    assert len(ours.report.replaced) == 5 and not ours.report.left
    assert len(ours.report.fused) == (2 if fuse else 0)
    _compare(ours, theirs, bound / 10, bound)


def test_llama_in_float64_is_computed_in_float32_where_it_was(llama):
    """Its norms compute in float32 whatever they are given, and keep doing so."""
    model = copy.deepcopy(llama).double()
    theirs = _train(model, _llama_loss, False, 0.1)
    ours = _train(model, _llama_loss, True, 0.1, fuse=True)
    assert torch.equal(ours.losses, theirs.losses)
    once = _train(model, _llama_loss, True, 0.1, fuse=True, dtype="once")
    _compare(once, theirs, 1e-6, 1e-5)


@pytest.fixture(scope="module")
def resnet():
    """A ResNet-50 with one block per stage and a fraction of its channels."""
    resnet = pytest.importorskip("torchvision.models.resnet")
    torch.manual_seed(0)

    class Narrow(resnet.ResNet):
        def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
            self.inplanes //= 4 if planes == 64 else 1
            return super()._make_layer(block, planes // 16, blocks, stride, dilate)

    model = Narrow(resnet.Bottleneck, [1, 1, 1, 1], num_classes=10)
    model.conv1 = torch.nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
    model.bn1 = torch.nn.BatchNorm2d(16)
    model.fc = torch.nn.Linear(128, 10)
    return model.to(memory_format=torch.channels_last)


def _resnet_loss(model):
    draw = torch.Generator().manual_seed(1)
    dtype = model.fc.weight.dtype
    x = torch.randn(8, 3, 32, 32, generator=draw).to(dtype=dtype, memory_format=torch.channels_last)
    return functional.cross_entropy(model(x), torch.randint(0, 10, (8,), generator=draw))


@pytest.fixture(scope="module")
def unet():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
    )


def _unet_loss(model):
    draw = torch.Generator().manual_seed(1)
    x, noise = torch.randn(2, 2, 3, 8, 8, generator=draw).to(model.dtype)
    return functional.mse_loss(model(x, torch.tensor([3, 70])).sample, noise)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, FLOAT32), (torch.float64, FLOAT64)])
@pytest.mark.parametrize(
    ("name", "loss", "rate", "spec", "norm", "blocks"),
    [
        ("resnet", _resnet_loss, 0.003, "batchnorm", torch.nn.BatchNorm2d, 5),
        ("unet", _unet_loss, 0.05, "groupnorm", torch.nn.GroupNorm, 9),
    ],
)
def test_models_of_images(name, loss, rate, spec, norm, blocks, dtype, bound, fuse, request):
    model = copy.deepcopy(request.getfixturevalue(name)).to(dtype)
    theirs = _train(model, loss, False, rate)
    ours = _train(model, loss, True, rate, fuse=fuse)
    assert len(ours.report.fused) == (blocks if fuse else 0)
    assert {each.spec for each in ours.report.replaced} == {spec} and not ours.report.left
    assert len(ours.report.replaced) == sum(isinstance(each, norm) for each in model.modules())
    _compare(ours, theirs, bound / (10 if name == "unet" else 1), bound)
