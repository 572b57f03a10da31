"""The models of `torch_models.py`: from their libraries where these are installed, else the same blocks in
plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch_standins import Llama, LlamaSize, ResNet, UNet

STAND_IN = "stand-in"


@dataclass(frozen=True)
class Subject:
    """A model with its data. `loss`: of the model, for one step; `source`: what it was built from."""

    model: nn.Module
    loss: Callable[[nn.Module], torch.Tensor]
    source: str
    dtype: str
    shape: str
    optimizer: str  # "AdamW" or "SGD"


def llama(device: str, small: bool) -> Subject:
    """A few layers of Llama 3.2 1B with a smaller vocabulary, all in bfloat16."""
    size = LlamaSize(2, 16, 64, 32, 64, 2, 2, 1) if small else LlamaSize()
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, size.vocabulary, (size.batch, size.tokens), generator=draw).to(device)
    torch.manual_seed(0)
    try:
        import transformers
    except ImportError:
        source, model = STAND_IN, Llama(size)
    else:
        source = f"transformers {transformers.__version__}"
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=size.vocabulary,
                hidden_size=size.hidden,
                intermediate_size=size.inner,
                num_hidden_layers=size.layers,
                num_attention_heads=size.heads,
                num_key_value_heads=size.groups,
                max_position_embeddings=size.tokens,
                tie_word_embeddings=True,
                use_cache=False,
            )
        )

    def loss(model: nn.Module) -> torch.Tensor:
        made = model(tokens)
        logits = made if isinstance(made, torch.Tensor) else made.logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    shape = f"{size.layers} layers of {size.hidden}, {size.batch}x{size.tokens} tokens"
    return Subject(model.to(device, torch.bfloat16), loss, source, "bf16", shape, "AdamW")


def resnet(device: str, small: bool) -> Subject:
    """A ResNet-50, channels last, with float32 weights under autocast to bfloat16."""
    batch, side = (2, 32) if small else (64, 224)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 3, side, side, generator=draw).to(device, memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), generator=draw).to(device)
    torch.manual_seed(0)
    try:
        import torchvision
    except ImportError:
        source, model = STAND_IN, ResNet((1, 1, 1, 1) if small else (3, 4, 6, 3))
    else:
        source = f"torchvision {torchvision.__version__}"
        blocks = [1, 1, 1, 1] if small else [3, 4, 6, 3]
        model = torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, blocks)

    def loss(model: nn.Module) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return functional.cross_entropy(model(x), labels)

    model = model.to(device, memory_format=torch.channels_last)
    return Subject(model, loss, source, "bf16 AMP", f"{batch}x3x{side}x{side} channels last", "SGD")


def unet(device: str, small: bool) -> Subject:
    """A U-net as in latent diffusion: two levels, attention on the lower, all in bfloat16."""
    batch, side, channels, groups = (2, 8, 16, 4) if small else (4, 64, 320, 32)
    draw = torch.Generator().manual_seed(1)
    x, noise = torch.randn(2, batch, 4, side, side, generator=draw).to(device, torch.bfloat16)
    times = torch.randint(0, 1000, (batch,), generator=draw).to(device)
    torch.manual_seed(0)
    try:
        import diffusers
    except ImportError:
        source, model = STAND_IN, UNet(channels, groups)
    else:
        source = f"diffusers {diffusers.__version__}"
        model = diffusers.UNet2DModel(
            sample_size=side,
            in_channels=4,
            out_channels=4,
            layers_per_block=1 if small else 2,
            block_out_channels=(channels, 2 * channels),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=groups,
            attention_head_dim=16 if small else 64,
        )

    def loss(model: nn.Module) -> torch.Tensor:
        made = model(x, times)
        made = made if isinstance(made, torch.Tensor) else made.sample
        return functional.mse_loss(made.float(), noise.float())

    shape = f"{batch}x{channels}x{side}x{side}"
    return Subject(model.to(device, torch.bfloat16), loss, source, "bf16", shape, "AdamW")


SUBJECTS: dict[str, Callable[[str, bool], Any]] = {"llama": llama, "resnet": resnet, "unet": unet}
